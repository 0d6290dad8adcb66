/* Zipf's distribution: every rank is in range, and frequent as its place demands. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "testrng.h"
#include "zipf.h"

#define THETA   0.99
#define N       1000u
#define DRAWS   1000000u
#define COMPARE 100u /* ranks whose frequency is compared */

static void ranks_are_as_frequent_as_their_place_demands(void **state)
{
	static unsigned count[N];
	uint64_t rng = test_seed("unit-zipf");
	double zeta = 0;
	struct fp_zipf zipf;

	memset(count, 0, sizeof(count));
	for (unsigned i = 1; i <= N; i++)
		zeta += 1 / pow(i, THETA);
	fp_zipf_init(&zipf, N, THETA);
	for (unsigned i = 0; i < DRAWS; i++) {
		uint64_t rank = fp_zipf_draw(&zipf, &rng);

		assert_true(rank < N);
		count[rank]++;
	}
	/* The method is exact for two ranks, and off by a third at most for the next ones. */
	for (unsigned rank = 0; rank < COMPARE; rank++) {
		double expected = DRAWS / pow(rank + 1, THETA) / zeta, off = count[rank] / expected;

		if (off < 0.6 || off > 1.5 || (rank < 2 && (off < 0.97 || off > 1.03)))
			fail_msg("rank %u: %u draws instead of %.0f", rank, count[rank], expected);
	}
	assert_true(count[N - 1] > 0);
}

static void the_state_alone_decides(void **state)
{
	uint64_t seed = test_seed("unit-zipf"), one = seed, two = seed;
	struct fp_zipf zipf;

	fp_zipf_init(&zipf, 2, THETA);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(fp_zipf_draw(&zipf, &one), fp_zipf_draw(&zipf, &two));
	assert_int_equal(one, two);
	assert_int_not_equal(one, seed);
}

static void few_numbers_stay_in_range(void **state)
{
	uint64_t rng = test_seed("unit-zipf");

	for (uint64_t n = 2; n < 20; n++) {
		struct fp_zipf zipf;

		fp_zipf_init(&zipf, n, THETA);
		for (unsigned i = 0; i < 10000; i++)
			assert_true(fp_zipf_draw(&zipf, &rng) < n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ranks_are_as_frequent_as_their_place_demands),
	    cmocka_unit_test(the_state_alone_decides),
	    cmocka_unit_test(few_numbers_stay_in_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
