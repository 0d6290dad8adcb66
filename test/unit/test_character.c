/*
 * Characters of UTF-8: those that are, those that are not, and how wide a terminal shows them.
 */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "character.h"

static void assert_characters(const char *text, const wchar_t *wanted)
{
	for (; *wanted; wanted++) {
		assert_true(*text);
		assert_int_equal(fp_character_next(&text), *wanted);
	}
	assert_string_equal(text, "");
}

static void characters_are_taken_one_by_one(void **state)
{
	assert_characters("aé€😀z", L"aé€😀z");
}

/* Each of these bytes is no character. The character that follows it is found all the same. */
static void what_is_no_character_is_told(void **state)
{
	static const wchar_t wrong[] = {FP_CHARACTER_WRONG, 'z', 0};

	assert_characters("\x80z", wrong);
	assert_characters("\xff"
	                  "z",
	                  wrong);
	assert_characters("\xe2\x82z", wrong);
	assert_characters("\xf0z", wrong);
	assert_characters("\xe0\x81\x81z", wrong); /* "A", longer than it must be */
	assert_characters("\xf0\x80\x81\x81z", wrong);
}

static void widths_are_those_of_a_terminal(void **state)
{
	if (!setlocale(LC_CTYPE, "C.UTF-8"))
		skip();
	assert_int_equal(fp_character_columns('a'), 1);
	assert_int_equal(fp_character_columns(L'µ'), 1);
	assert_int_equal(fp_character_columns(L'日'), 2);
	assert_int_equal(fp_character_columns('\n'), 1);
	assert_int_equal(fp_character_columns(0x300), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(characters_are_taken_one_by_one),
	    cmocka_unit_test(what_is_no_character_is_told),
	    cmocka_unit_test(widths_are_those_of_a_terminal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
