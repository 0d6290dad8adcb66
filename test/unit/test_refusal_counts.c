/* Counts of refusals: which refusal is logged, and how many were not. */
#include "refusal_counts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "clock.h"

#define S FP_NSEC_PER_SEC

static void refuse(struct fp_refusal_counts *counts, enum fp_refusal_cause cause, unsigned n)
{
	while (n--)
		fp_refusal_counts_add(counts, cause, "client", S);
}

static void test_one_line_in_ten_seconds(void **state)
{
	struct fp_refusal_counts counts = {0};
	uint64_t untold = 0;

	refuse(&counts, FP_REFUSAL_QUOTA, 1);
	assert_true(fp_refusal_counts_due(&counts, FP_REFUSAL_QUOTA, S, &untold));
	assert_int_equal(untold, 0);
	refuse(&counts, FP_REFUSAL_QUOTA, 1);
	assert_false(fp_refusal_counts_due(&counts, FP_REFUSAL_QUOTA, 11 * S - 1, &untold));
	refuse(&counts, FP_REFUSAL_LEASES, 1); /* another cause has a line of its own */
	assert_true(fp_refusal_counts_due(&counts, FP_REFUSAL_LEASES, 2 * S, &untold));
	assert_int_equal(untold, 0);
	refuse(&counts, FP_REFUSAL_QUOTA, 3);
	assert_true(fp_refusal_counts_due(&counts, FP_REFUSAL_QUOTA, 11 * S, &untold));
	assert_int_equal(untold, 3);
	refuse(&counts, FP_REFUSAL_QUOTA, 1);
	assert_true(fp_refusal_counts_due(&counts, FP_REFUSAL_QUOTA, 30 * S, &untold));
	assert_int_equal(untold, 0);
	assert_int_equal(counts.causes[FP_REFUSAL_QUOTA].n, 6);
}

/* A refusal that is only counted does not delay the cause's next line, which tells of it. */
static void test_counting_is_no_line(void **state)
{
	struct fp_refusal_counts counts = {0};
	uint64_t untold = 0;

	refuse(&counts, FP_REFUSAL_SESSION, 2);
	assert_true(fp_refusal_counts_due(&counts, FP_REFUSAL_SESSION, S, &untold));
	assert_int_equal(untold, 1);
}

/*
 * Each of two threads counts a refusal, and takes its time before it asks. The thread with the
 * later time asks first.
 */
static void test_times_of_two_threads(void **state)
{
	struct fp_refusal_counts counts = {0};
	uint64_t untold = 0;

	refuse(&counts, FP_REFUSAL_QUOTA, 2);
	assert_true(fp_refusal_counts_due(&counts, FP_REFUSAL_QUOTA, S + 1, &untold));
	assert_int_equal(untold, 1);
	assert_false(fp_refusal_counts_due(&counts, FP_REFUSAL_QUOTA, S, &untold));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_one_line_in_ten_seconds),
	    cmocka_unit_test(test_counting_is_no_line),
	    cmocka_unit_test(test_times_of_two_threads),
	};

	return cmocka_run_group_tests_name("refusal_counts", tests, NULL, NULL);
}
