/*
 * The characters of a text. Room: tools; see character.h.
 */
#include "character.h"

#include "cleanup.h"

wchar_t fp_character_next(const char **text)
{
	static const wchar_t least[] = {0, 0x80, 0x800, 0x10000}; /* a smaller character has a shorter form */
	const unsigned char *at = (const unsigned char *)*text;
	unsigned more = *at < 0xc2 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : *at < 0xf5 ? 3 : 0;
	wchar_t c = more ? *at & (0x3f >> more) : *at < 0x80 ? *at : FP_CHARACTER_WRONG;

	for (unsigned i = 1; i <= more; i++) {
		if ((at[i] & 0xc0) != 0x80) {
			*text += i;
			return FP_CHARACTER_WRONG;
		}
		c = c << 6 | (at[i] & 0x3f);
	}
	*text += more + 1;
	return c < least[more] ? FP_CHARACTER_WRONG : c;
}

unsigned fp_character_columns(wchar_t c)
{
	return (unsigned)FP_MAX(wcwidth(c), 1);
}
