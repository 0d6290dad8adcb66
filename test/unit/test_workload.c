/*
 * The workloads of the benches: size and seed alone decide a checksum, whatever memory they get.
 * The line with a result is read as it was written.
 */
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "rng.h"
#include "testrng.h"
#include "workload.h"

#define SIZE (1u << 20)

static uint64_t checksum_of(const struct fp_workload *workload, uint64_t size, uint64_t seed)
{
	struct fp_workload_result result;

	assert_int_equal(fp_workload_measure(workload, size, seed, &result), 0);
	assert_true(result.seconds >= 0 && result.setup_seconds >= 0);
	return result.checksum;
}

/* Where malloc_perturb works, fresh memory is full of other bytes at each run. */
static void memory_does_not_matter(void **state)
{
	uint64_t seed = test_seed("unit-workload");

	for (unsigned i = 0; fp_workload_names[i]; i++) {
		const struct fp_workload *workload = fp_workload_get(i);
		uint64_t first, again;

		assert_string_equal(workload->name, fp_workload_names[i]);
		mallopt(M_PERTURB, 0x55);
		first = checksum_of(workload, SIZE, seed);
		mallopt(M_PERTURB, 0xaa);
		again = checksum_of(workload, SIZE, seed);
		mallopt(M_PERTURB, 0);
		if (first != again)
			fail_msg("%s: two runs differ", workload->name);
		if (first == checksum_of(workload, SIZE, seed + 1))
			fail_msg("%s: the seed does not matter", workload->name);
		if (first == checksum_of(workload, 2 * SIZE, seed))
			fail_msg("%s: the size does not matter", workload->name);
	}
}

static int by_value(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The same numbers, sorted by the C library. */
static void quicksort_sorts(void **state)
{
	uint64_t seed = test_seed("unit-workload"), rng = seed, sum = 0;
	size_t n = SIZE / sizeof(int64_t);
	fp_autofree int64_t *values = malloc(SIZE);

	assert_non_null(values);
	for (size_t i = 0; i < n; i++)
		values[i] = (int64_t)fp_rng_next(&rng);
	qsort(values, n, sizeof(*values), by_value);
	for (size_t i = 0; i < n; i++)
		sum = sum * FP_RNG_STEP + (uint64_t)values[i];
	assert_int_equal(checksum_of(&fp_workload_quicksort, SIZE, seed), sum);
}

static void a_line_reads_back(void **state)
{
	const struct fp_workload_result result = {1.5, 0.25, 0xfedcba9876543210u};
	struct fp_workload_result back = {0, 0, 0};
	char line[256] = "";
	FILE *out = fmemopen(line, sizeof(line), "w");

	assert_non_null(out);
	fp_workload_print(&result, out);
	fclose(out);
	assert_int_equal(fp_workload_parse(line, &back), 0);
	assert_true(back.seconds == 1.5 && back.setup_seconds == 0.25);
	assert_true(back.checksum == result.checksum);
}

static void other_lines_are_refused(void **state)
{
	static const char *const wrong[] = {
	    "",
	    "\n",
	    "seconds 1 setup_seconds 1 checksum\n",
	    "seconds 1 setup_seconds 1 checksum 12",
	    "seconds 1 setup_seconds 1 checksum 12 and more\n",
	    "seconds 1 checksum 12\n",
	    "seconds -1 setup_seconds 1 checksum 12\n",
	    "seconds nan setup_seconds 1 checksum 12\n",
	    "seconds one setup_seconds 1 checksum 12\n",
	};
	struct fp_workload_result result = {7, 7, 7};

	for (size_t i = 0; i < FP_ARRAY_LEN(wrong); i++)
		if (fp_workload_parse(wrong[i], &result) != -EINVAL)
			fail_msg("accepted: %s", wrong[i]);
	assert_true(result.seconds == 7 && result.setup_seconds == 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(memory_does_not_matter),
	    cmocka_unit_test(quicksort_sorts),
	    cmocka_unit_test(a_line_reads_back),
	    cmocka_unit_test(other_lines_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
