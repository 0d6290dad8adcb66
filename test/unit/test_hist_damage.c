/*
 * Histograms whose fields contradict each other: those of a damaged file, and those of a copy that
 * was made while threads recorded.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "hist.h"
#include "testrng.h"

static void fill(struct fp_hist *h, uint64_t seed)
{
	for (unsigned i = 0; i < 10000; i++)
		fp_hist_record(h, test_random(&seed) % (2ull << i % 36));
}

/* Each of these is one damaged word of a file. */
static void damage_is_found(void **state)
{
	uint64_t rng = test_seed(__func__);
	struct fp_hist good = {0}, h;
	uint64_t *words = (uint64_t *)&h;

	assert_int_equal(fp_hist_check(&good), 0);
	fill(&good, test_random(&rng));
	assert_int_equal(fp_hist_check(&good), 0);
	for (unsigned i = 0; i < sizeof(h) / sizeof(*words); i++) {
		memcpy(&h, &good, sizeof(h));
		words[i] = test_random(&rng) | 1ull << 63;
		if (fp_hist_check(&h) != -EBADMSG)
			fail_msg("word %u", i);
	}
	memcpy(&h, &good, sizeof(h));
	h.count += 65; /* more than threads can be recording */
	assert_int_equal(fp_hist_check(&h), -EBADMSG);
	memcpy(&h, &good, sizeof(h));
	h.sum_ns = 0;
	assert_int_equal(fp_hist_check(&h), -EBADMSG);
	memset(&h, 0xff, sizeof(h));
	assert_int_equal(fp_hist_check(&h), -EBADMSG);
}

/* The sum and the bounds of an empty histogram would be shown, so the check reads them, too. */
static void damage_of_an_empty_one_is_found(void **state)
{
	for (unsigned i = 1; i < 4; i++) { /* the sum, the minimum, the maximum */
		struct fp_hist h = {0};

		((uint64_t *)&h)[i] = 9000000000000000000;
		assert_int_equal(fp_hist_check(&h), -EBADMSG);
	}
}

/*
 * A process may be killed while a thread records. The value is then counted in part. That is no
 * damage, unless the value is the first, the least or the greatest.
 */
static void a_killed_recorder_does_no_damage(void **state)
{
	struct fp_hist h = {0};

	fp_hist_record(&h, 1000);
	h.sum_ns += 1000;
	assert_int_equal(fp_hist_check(&h), 0);
	h.count++;
	assert_int_equal(fp_hist_check(&h), 0);
}

/* Merges a copy whose buckets are of another moment than its other fields. */
static void check_torn(const struct fp_hist *fields, const struct fp_hist *buckets)
{
	struct fp_hist torn = *fields, sum = {0};

	memcpy(torn.bucket, buckets->bucket, sizeof(torn.bucket));
	fp_hist_merge(&sum, &torn);
	assert_int_equal(fp_hist_check(&sum), 0);
	assert_int_equal(fp_hist_count(&sum), fp_hist_count(buckets));
	assert_memory_equal(sum.bucket, buckets->bucket, sizeof(sum.bucket));
	if (fp_hist_count(buckets))
		assert_true(fp_hist_max(&sum) <= FP_MAX(fp_hist_max(buckets) * 65 / 64, 1007u));
}

/*
 * A copy may be made in the middle of a record: minimum, maximum and sum then know a value that the
 * buckets do not have, or the other way round.
 */
static void merging_mends_a_torn_copy(void **state)
{
	static const uint64_t values[] = {0, 10, 1005, 5000000, 200000000000};

	for (unsigned i = 0; i < FP_ARRAY_LEN(values); i++) {
		struct fp_hist before = {0}, first = {0}, one = {0}, two;

		fp_hist_record(&one, 1000);
		two = one;
		fp_hist_record(&two, values[i]);
		fp_hist_record(&first, values[i]);
		check_torn(&two, &one);
		check_torn(&one, &two);
		check_torn(&first, &before);
		check_torn(&before, &first);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(damage_is_found),
	    cmocka_unit_test(damage_of_an_empty_one_is_found),
	    cmocka_unit_test(a_killed_recorder_does_no_damage),
	    cmocka_unit_test(merging_mends_a_torn_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
