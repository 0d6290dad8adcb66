/*
 * What a program did between two looks: rates, the latency of the interval alone, and when nothing
 * is known.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "clock.h"
#include "interval.h"

static struct fp_statsview before, now;

static int make_looks(void **state)
{
	memset(&before, 0, sizeof(before));
	before.page.pid = 7;
	before.page.start_ticks = 100;
	for (unsigned i = 0; i < 1000; i++)
		fp_hist_record(&before.page.fault_latency, 10);
	before.page.faults[FP_FAULT_ZERO] = 1000;
	before.page.written_bytes = 4096;
	now = before;
	for (unsigned i = 0; i < 50; i++)
		fp_hist_record(&now.page.fault_latency, i < 49 ? 2000000 : 90000000);
	now.page.faults[FP_FAULT_READ] = 50;
	now.page.fetched_bytes = 50 * 4096;
	return 0;
}

static void figures_are_those_of_the_interval(void **state)
{
	struct fp_interval interval;

	fp_interval_of(&before, &now, FP_NSEC_PER_SEC / 2, &interval);
	assert_true(interval.known);
	assert_int_equal(interval.timed, 50);
	assert_int_equal(interval.faults_per_s, 100);
	assert_int_equal(interval.fetched_bytes_per_s, 100 * 4096);
	assert_int_equal(interval.written_bytes_per_s, 0);
	assert_in_range(interval.p50_ns, 1980000, 2020000);
	assert_in_range(interval.p99_ns, 89000000, 91000000);
}

static void nothing_happened(void **state)
{
	struct fp_interval interval;

	fp_interval_of(&now, &now, 0, &interval);
	assert_true(interval.known);
	assert_int_equal(interval.faults_per_s, 0);
	assert_int_equal(interval.p99_ns, 0);
}

/* Faults whose page was present already have no latency. */
static void faults_without_latency(void **state)
{
	struct fp_statsview later = now;
	struct fp_interval interval;

	later.page.faults[FP_FAULT_PRESENT] += 5;
	fp_interval_of(&now, &later, FP_NSEC_PER_SEC, &interval);
	assert_int_equal(interval.faults_per_s, 5);
	assert_int_equal(interval.timed, 0);
}

static void a_file_that_counts_backwards(void **state)
{
	struct fp_interval interval;

	fp_interval_of(&now, &before, FP_NSEC_PER_SEC, &interval);
	assert_int_equal(interval.timed, 0);
	assert_int_equal(interval.faults_per_s, 0);
	assert_int_equal(interval.fetched_bytes_per_s, 0);
}

static void assert_unknown(const struct fp_statsview *earlier)
{
	struct fp_interval interval;

	fp_interval_of(earlier, &now, FP_NSEC_PER_SEC, &interval);
	assert_false(interval.known);
	assert_int_equal(interval.faults_per_s, 0);
}

static void a_rate_that_no_number_holds(void **state)
{
	struct fp_statsview later = now;
	struct fp_interval interval;

	later.page.fetched_bytes = UINT64_MAX;
	fp_interval_of(&now, &later, 1, &interval);
	assert_int_equal(interval.fetched_bytes_per_s, INT64_MAX);
}

static void another_program_is_not_compared(void **state)
{
	assert_unknown(NULL);
	before.page.start_ticks++; /* another process got the same number */
	assert_unknown(&before);
	before.page.start_ticks--;
	before.page.start_realtime_ns++; /* the process has called exec, or has several far memories */
	assert_unknown(&before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(figures_are_those_of_the_interval, make_looks),
	    cmocka_unit_test_setup(nothing_happened, make_looks),
	    cmocka_unit_test_setup(faults_without_latency, make_looks),
	    cmocka_unit_test_setup(a_file_that_counts_backwards, make_looks),
	    cmocka_unit_test_setup(a_rate_that_no_number_holds, make_looks),
	    cmocka_unit_test_setup(another_program_is_not_compared, make_looks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
