/*
 * The benches' contents: every word is checked, every wrong word is found, and an order visits each
 * page once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pattern.h"
#include "testrng.h"

#define N_PAGES 16u

static uint64_t pages[N_PAGES][FP_PATTERN_PAGE_WORDS];

static void a_fill_is_verified(void **state)
{
	size_t bad = 99;

	fp_pattern_fill(pages, N_PAGES, 7);
	assert_true(fp_pattern_verify(pages, N_PAGES, 7, 0, &bad));
	assert_false(fp_pattern_verify(pages, N_PAGES, 8, 0, &bad));
	assert_int_equal(bad, 0);
}

static void one_wrong_bit_is_found(void **state)
{
	uint64_t random = test_seed("unit-pattern");

	fp_pattern_fill(pages, N_PAGES, 7);
	for (unsigned round = 0; round < 1000; round++) {
		size_t page = test_random(&random) % N_PAGES, bad = 99;
		size_t word = test_random(&random) % FP_PATTERN_PAGE_WORDS;
		uint64_t bit = UINT64_C(1) << test_random(&random) % 64;

		pages[page][word] ^= bit;
		assert_false(fp_pattern_verify(pages, N_PAGES, 7, 0, &bad));
		assert_int_equal(bad, page);
		pages[page][word] ^= bit;
	}
}

static void pages_of_two_generations_differ(void **state)
{
	size_t bad = 99;

	fp_pattern_fill(pages, N_PAGES, 7);
	for (size_t i = 0; i < N_PAGES; i++)
		pages[i][0] = fp_pattern_word(7, i, 0, 3);
	assert_true(fp_pattern_verify(pages, N_PAGES, 7, 3, &bad));
	pages[5][0] = fp_pattern_word(7, 5, 0, 2);
	assert_false(fp_pattern_verify(pages, N_PAGES, 7, 3, &bad));
	assert_int_equal(bad, 5);
}

static void an_order_has_each_page_once(void **state)
{
	static uint32_t order[1000], again[1000];

	for (size_t n = 1; n <= 1000; n += 37) {
		bool seen[1000] = {false};

		fp_pattern_shuffle(n, n, order);
		fp_pattern_shuffle(n, n, again);
		assert_memory_equal(order, again, n * sizeof(*order));
		for (size_t i = 0; i < n; i++) {
			assert_true(order[i] < n && !seen[order[i]]);
			seen[order[i]] = true;
		}
	}
	fp_pattern_shuffle(1, 1000, order);
	fp_pattern_shuffle(2, 1000, again);
	assert_memory_not_equal(order, again, sizeof(order));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_fill_is_verified),
	    cmocka_unit_test(one_wrong_bit_is_found),
	    cmocka_unit_test(pages_of_two_generations_differ),
	    cmocka_unit_test(an_order_has_each_page_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
