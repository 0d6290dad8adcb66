/*
 * Columns by width: which are chosen, who gets what is left over, and how a line is written.
 */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "columns.h"

enum { A, B, C, D, N };

static const struct fp_column columns[N] = {
    [A] = {"A", 4, 0, 0, false},
    [B] = {"B", 6, 10, 1, true},
    [C] = {"C", 8, 9, 3, false},
    [D] = {"D", 3, 0, 2, false},
};

static void assert_widths(unsigned width, unsigned a, unsigned b, unsigned c, unsigned d)
{
	unsigned widths[N];

	fp_columns_fit(columns, N, width, widths);
	assert_int_equal(widths[A], a);
	assert_int_equal(widths[B], b);
	assert_int_equal(widths[C], c);
	assert_int_equal(widths[D], d);
}

static void columns_are_chosen_by_rank(void **state)
{
	assert_widths(24, 4, 6, 8, 3); /* exactly */
	assert_widths(23, 4, 10, 0, 3);
	assert_widths(15, 4, 6, 0, 3);
	assert_widths(14, 4, 9, 0, 0);
	assert_widths(11, 4, 6, 0, 0);
	assert_widths(10, 4, 0, 0, 3); /* a later one that fits */
	assert_widths(1, 4, 0, 0, 0);
}

static void room_that_is_left_goes_by_rank(void **state)
{
	assert_widths(27, 4, 9, 8, 3);
	assert_widths(29, 4, 10, 9, 3);
	assert_widths(200, 4, 10, 9, 3);
}

static void a_column_without_width_is_not_shown(void **state)
{
	struct fp_column some[N];
	unsigned widths[N];

	memcpy(some, columns, sizeof(some));
	some[A].width = 0;
	fp_columns_fit(some, N, 200, widths);
	assert_int_equal(widths[A], 0);
	assert_int_equal(widths[B], 10);
}

/* The columns of the terminal count, not bytes. */
static void lines_fit_and_are_cut(void **state)
{
	static const char *const cells[N] = {"12345", "sixteen columns!", "4.2µs", "µµµµ"};
	char line[64];
	unsigned widths[N];

	fp_columns_fit(columns, N, 24, widths);
	assert_string_equal(fp_columns_line(columns, N, widths, cells, line, sizeof(line)),
	                    "1234 sixtee    4.2µs µµµ");
	assert_string_equal(fp_columns_line(columns, N, widths, NULL, line, sizeof(line)),
	                    "   A B             C   D");
	fp_columns_fit(columns, N, 15, widths);
	assert_string_equal(fp_columns_line(columns, N, widths, cells, line, sizeof(line)),
	                    "1234 sixtee µµµ");
	assert_string_equal(fp_columns_line(columns, N, widths, cells, line, 8), "1234 si");
}

/* Such a character is shown as a whole, or not at all. */
static void wide_characters_take_two_columns(void **state)
{
	static const char *const cells[N] = {"1", "日本語の", "2", "日本"};
	char line[64];
	unsigned widths[N];

	if (!setlocale(LC_CTYPE, "C.UTF-8"))
		skip();
	fp_columns_fit(columns, N, 24, widths);
	assert_string_equal(fp_columns_line(columns, N, widths, cells, line, sizeof(line)),
	                    "   1 日本語        2  日");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(columns_are_chosen_by_rank),
	    cmocka_unit_test(room_that_is_left_goes_by_rank),
	    cmocka_unit_test(a_column_without_width_is_not_shown),
	    cmocka_unit_test(lines_fit_and_are_cut),
	    cmocka_unit_test(wide_characters_take_two_columns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
