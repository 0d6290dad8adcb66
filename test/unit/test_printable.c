/*
 * Which characters are no text, wherever they stand, and what they become.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "printable.h"

static void assert_blanked(const char *text, const char *wanted, int lines)
{
	char copy[64];

	strcpy(copy, text);
	fp_printable_blank(copy, strlen(copy), '?', lines);
	assert_string_equal(copy, wanted);
}

static void text_stays(void **state)
{
	static const char *const texts[] = {
	    "",         "plain ~",          "\xc2\xb5s", "caf\xc3\xa9", "\xe2\x94\x9b", "\xe2\x80\xa6",
	    "\xd7\x90", "\xf0\x9f\x98\x80", "\xff\xfe",  "caf\xe9",     "\xc2"};

	for (unsigned i = 0; i < FP_ARRAY_LEN(texts); i++)
		assert_blanked(texts[i], texts[i], 0);
}

static void control_characters(void **state)
{
	bool is_bad;

	assert_blanked("a\033[31mb\x7f\r\n", "a?[31mb???", 0);
	assert_blanked("a\nb\t", "a\nb?", 1);
	assert_blanked("a\xc2\x9b"
	               "31m",
	               "a??31m", 0);
	assert_int_equal(fp_printable_char("\0", 1, &is_bad), 1);
	assert_true(is_bad);
	/* bytes that are no UTF-8: C1 controls of an 8-bit terminal */
	assert_blanked("a\x9b"
	               "31m\x80\x9f\xa0",
	               "a?31m??\xa0", 0);
	assert_blanked("\xe2\x80", "\xe2?", 0);
}

/* Marks that turn the direction of text, or hide in it. */
static void format_characters(void **state)
{
	assert_blanked("\xe2\x80\xae"
	               "x",
	               "???x", 0); /* U+202E */
	assert_blanked("x\xe2\x81\xa6"
	               "y",
	               "x???y", 0);                              /* U+2066 */
	assert_blanked("\xd8\x9c", "??", 0);                     /* U+061C */
	assert_blanked("\xe2\x80\x8b\xef\xbb\xbf", "??????", 0); /* U+200B, U+FEFF */
	assert_blanked("\xe2\x80\xa8", "???", 0);                /* U+2028 */
	assert_blanked("\xf3\xa0\x81\x81", "????", 0);           /* U+E0041 */
	assert_blanked("\xf0\x9b\xb2\xa0", "????", 0);           /* U+1BCA0 */
	assert_blanked("\xc2\xad", "??", 0);                     /* U+00AD */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(text_stays),
	    cmocka_unit_test(control_characters),
	    cmocka_unit_test(format_characters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
