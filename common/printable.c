/*
 * Printable text. Room: common; see printable.h.
 */
#include "printable.h"

#include <stdint.h>
#include <string.h>

#include "cleanup.h"

/*
 * Unicode 15, general categories Cc, Cf, Zl and Zp, without signs that are seen (of numbers in
 * Arabic, and of hieroglyphs).
 */
static const struct {
	uint32_t first, last;
} bad[] = {
    {0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x61c, 0x61c},   {0x180e, 0x180e},
    {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0xfeff, 0xfeff}, {0xfff9, 0xfffb},
    {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe007f},
};

/* Decodes one character. Returns its bytes, or 0 if they are no UTF-8. */
static size_t decode(const unsigned char *at, size_t len, uint32_t *ret_char)
{
	size_t n = *at < 0x80 ? 1 : *at < 0xc2 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : *at < 0xf5 ? 4 : 0;
	uint32_t c = n == 1 ? *at : *at & (0x7fu >> n);

	if (!n || n > len)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (at[i] & 0x3f);
	}
	*ret_char = c;
	return n;
}

size_t fp_printable_char(const char *at, size_t len, bool *ret_bad)
{
	uint32_t c = *(const unsigned char *)at;
	size_t n = decode((const unsigned char *)at, len, &c);

	/* a terminal that does not decode UTF-8 takes such a byte for the control character */
	*ret_bad = !n && c >= 0x80 && c <= 0x9f;
	for (size_t i = 0; n && i < FP_ARRAY_LEN(bad); i++)
		if (c >= bad[i].first && c <= bad[i].last)
			*ret_bad = true;
	return FP_MAX(n, (size_t)1);
}

void fp_printable_blank(char *text, size_t len, char with, int lines)
{
	bool is_bad;

	for (size_t i = 0, n; i < len; i += n) {
		n = fp_printable_char(text + i, len - i, &is_bad);
		if (is_bad && !(lines && text[i] == '\n'))
			memset(text + i, with, n);
	}
}
