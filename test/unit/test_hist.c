/*
 * The histogram: the error that it claims, over its whole range; merging; threads; and the files
 * that it writes.
 */
#include <errno.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "hist.h"
#include "testrng.h"

#define TOP_NS 100000000000ull /* 100 s; up to here the error is promised */

/* A random value. Each order of magnitude up to 100 s is equally likely. */
static uint64_t random_ns(uint64_t *rng)
{
	uint64_t bits = test_random(rng) % 37;

	return 1 + (test_random(rng) & ((2ull << bits) - 1)) % TOP_NS;
}

/* Prints h in the format; the caller frees the text. */
static char *print(const struct fp_hist *h, enum fp_hist_format format)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	assert_non_null(out);
	assert_int_equal(fp_hist_print(h, format, "unit", 0, out), 0);
	fclose(out);
	return text;
}

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void check_quantile(const struct fp_hist *h, const uint64_t *sorted, size_t n, double q)
{
	size_t rank = (size_t)ceil(q * (1 - DBL_EPSILON) * (double)n);
	uint64_t exact = sorted[rank > 0 ? rank - 1 : 0], got = fp_hist_quantile(h, q);

	if (fabs((double)got - (double)exact) > 0.01 * (double)exact)
		fail_msg("n %zu, q %f: %" PRIu64 ", exactly %" PRIu64, n, q, got, exact);
}

static void quantiles_are_within_a_percent(void **state)
{
	static const double points[] = {0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1};
	static uint64_t values[5000];
	uint64_t rng = test_seed(__func__);

	for (unsigned round = 0; round < 100; round++) {
		size_t n = 1 + test_random(&rng) % FP_ARRAY_LEN(values);
		struct fp_hist h = {0};

		for (size_t i = 0; i < n; i++) {
			values[i] = random_ns(&rng);
			fp_hist_record(&h, values[i]);
		}
		qsort(values, n, sizeof(*values), compare);
		for (unsigned i = 0; i < FP_ARRAY_LEN(points); i++)
			check_quantile(&h, values, n, points[i]);
		for (unsigned i = 0; i < 100; i++)
			check_quantile(&h, values, n, (double)(test_random(&rng) >> 11) * 0x1p-53);
		assert_int_equal(fp_hist_quantile(&h, 1), values[n - 1]);
		assert_true(fp_hist_quantile(&h, 0) >= values[0]);
		assert_int_equal(fp_hist_min(&h), values[0]);
		assert_int_equal(fp_hist_max(&h), values[n - 1]);
	}
}

/*
 * Records a lesser and a greater value too, so that minimum and maximum correct nothing. What is
 * left is the error of the bucket itself.
 */
static void a_bucket_is_within_a_percent(void **state)
{
	uint64_t rng = test_seed(__func__);
	double worst = 0;

	for (unsigned i = 0; i < 3000; i++) {
		uint64_t value = random_ns(&rng);
		struct fp_hist h = {0};
		double error;

		fp_hist_record(&h, 0);
		fp_hist_record(&h, value);
		fp_hist_record(&h, UINT64_MAX);
		error = fabs((double)fp_hist_quantile(&h, 0.5) / (double)value - 1);
		worst = fmax(worst, error);
		if (value < 128)
			assert_true(error == 0);
	}
	assert_true(worst <= 0.008);
	assert_true(worst > 0.004); /* a smaller error would need too much memory */
}

/*
 * Goes through the buckets by their printed bounds. There is no gap and no overlap, and no bucket
 * is wider than promised.
 */
static void buckets_tile_the_range(void **state)
{
	uint64_t next = 0;
	unsigned n;

	for (n = 0; next <= FP_HIST_MAX_NS; n++) {
		struct fp_hist h = {0};
		unsigned long long low, high, count;
		fp_autofree char *csv = NULL;

		fp_hist_record(&h, next);
		csv = print(&h, FP_HIST_CSV);
		assert_int_equal(sscanf(csv, "low_ns,high_ns,count\n%llu,%llu,%llu\n", &low, &high, &count),
		                 3);
		assert_int_equal(low, next);
		assert_true(high >= low && (high - low) * 64 <= low);
		fp_hist_record(&h, high);
		free(csv);
		csv = print(&h, FP_HIST_CSV);
		assert_int_equal(sscanf(csv, "low_ns,high_ns,count\n%*u,%*u,%llu\n", &count), 1);
		assert_int_equal(count, 2);
		next = high + 1;
	}
	assert_int_equal(n, FP_HIST_BUCKETS);
	assert_int_equal(next, FP_HIST_MAX_NS + 1);
}

static void small_values_are_exact(void **state)
{
	struct fp_hist h = {0};

	for (uint64_t v = 0; v < 128; v++)
		fp_hist_record(&h, v);
	for (uint64_t v = 0; v < 128; v++)
		assert_int_equal(fp_hist_quantile(&h, (double)(v + 1) / 128), v);
}

/* 0.07 of 100 is the 7th value, although 0.07 * 100 is more than 7 in binary. */
static void ranks_are_not_rounded_up(void **state)
{
	struct fp_hist h = {0};

	for (unsigned i = 1; i <= 100; i++)
		fp_hist_record(&h, i);
	for (unsigned i = 1; i <= 100; i++)
		assert_int_equal(fp_hist_quantile(&h, i / 100.0), i);
	assert_int_equal(fp_hist_quantile(&h, 0.0701), 8);
}

static void values_beyond_the_range_are_counted(void **state)
{
	struct fp_hist h = {0};

	fp_hist_record(&h, 1);
	fp_hist_record(&h, UINT64_MAX - 1);
	assert_int_equal(fp_hist_count(&h), 2);
	assert_int_equal(fp_hist_max(&h), UINT64_MAX - 1);
	assert_int_equal(h.bucket[FP_HIST_BUCKETS - 1], 1);
	assert_true(fp_hist_quantile(&h, 1) > TOP_NS);
}

static void zeroed_memory_is_empty(void **state)
{
	struct fp_hist h = {0};

	assert_int_equal(fp_hist_count(&h), 0);
	assert_int_equal(fp_hist_min(&h), 0);
	assert_int_equal(fp_hist_max(&h), 0);
	assert_int_equal(fp_hist_quantile(&h, 0.5), 0);
	assert_true(fp_hist_mean(&h) == 0);
}

static void merging_equals_recording_all(void **state)
{
	uint64_t rng = test_seed(__func__);
	struct fp_hist parts[3] = {0}, all = {0}, merged = {0};

	for (unsigned i = 0; i < 10000; i++) {
		uint64_t value = random_ns(&rng);

		fp_hist_record(&parts[i % 2], value); /* the third part stays empty */
		fp_hist_record(&all, value);
	}
	for (unsigned i = 0; i < FP_ARRAY_LEN(parts); i++)
		fp_hist_merge(&merged, &parts[i]);
	assert_memory_equal(&merged, &all, sizeof(all));
}

/*
 * What is left is what was counted since. A minimum or maximum that was not counted since becomes
 * the bound of its bucket.
 */
static void subtracting_leaves_what_came_since(void **state)
{
	struct fp_hist before = {0}, h = {0}, since;

	for (uint64_t us = 1; us <= 1000; us++)
		fp_hist_record(&before, us * 1000);
	fp_hist_merge(&h, &before);
	for (uint64_t us = 100; us < 200; us++)
		fp_hist_record(&h, us * 1000);
	since = h;
	fp_hist_subtract(&since, &before);
	assert_int_equal(fp_hist_count(&since), 100);
	assert_in_range(fp_hist_quantile(&since, 0.5), 148000, 151000);
	assert_in_range(fp_hist_quantile(&since, 1), 199000, 202000);
	assert_in_range(fp_hist_min(&since), 98000, 100000);
	assert_true(fabs(fp_hist_mean(&since) - 149500) < 1);
	fp_hist_record(&h, 5);
	fp_hist_record(&h, 7000000);
	fp_hist_subtract(&h, &before);
	assert_int_equal(fp_hist_min(&h), 5);
	assert_int_equal(fp_hist_max(&h), 7000000);
}

static void what_came_since_lies_within_the_whole(void **state)
{
	static const uint64_t greatest[] = {1000000, 5000001, UINT64_MAX - 7};

	for (unsigned i = 0; i < FP_ARRAY_LEN(greatest); i++) {
		struct fp_hist before = {0}, h = {0};

		fp_hist_record(&before, 1000000);
		fp_hist_record(&before, greatest[i]);
		fp_hist_merge(&h, &before);
		fp_hist_merge(&h, &before);
		fp_hist_subtract(&h, &before);
		assert_int_equal(fp_hist_count(&h), 2);
		assert_int_equal(fp_hist_min(&h), 1000000);
		assert_int_equal(fp_hist_max(&h), greatest[i]);
	}
}

static void nothing_is_left_of_equals(void **state)
{
	struct fp_hist h = {0}, before = {0}, empty = {0};

	for (uint64_t us = 1; us <= 1000; us++) {
		fp_hist_record(&h, us * 1000);
		fp_hist_record(&before, us * 1000);
	}
	fp_hist_subtract(&h, &before);
	assert_memory_equal(&h, &empty, sizeof(h));
	fp_hist_subtract(&h, &before); /* files can hold anything: no count falls below 0 */
	assert_memory_equal(&h, &empty, sizeof(h));
}

#define N_THREADS  4
#define PER_THREAD 50000u

struct recorder {
	pthread_t thread;
	struct fp_hist *hist;
	uint64_t rng, sum;
};

static void *record_many(void *arg)
{
	struct recorder *r = arg;

	for (unsigned i = 0; i < PER_THREAD; i++) {
		uint64_t value = random_ns(&r->rng);

		fp_hist_record(r->hist, value);
		r->sum += value;
	}
	return NULL;
}

/* At any time a reader sees counts that fit each other and never fall. */
static void read_meanwhile(const struct fp_hist *h)
{
	uint64_t before = 0;

	while (before < N_THREADS * PER_THREAD) {
		struct fp_hist still = {0};
		uint64_t in_buckets = 0;

		fp_hist_merge(&still, h);
		for (unsigned i = 0; i < FP_HIST_BUCKETS; i++)
			in_buckets += still.bucket[i];
		assert_int_equal(fp_hist_count(&still), in_buckets);
		assert_true(in_buckets >= before);
		before = in_buckets;
	}
}

static void threads_lose_nothing(void **state)
{
	static struct fp_hist shared;
	struct recorder recorders[N_THREADS];
	uint64_t seed = test_seed(__func__), sum = 0;

	for (unsigned i = 0; i < N_THREADS; i++) {
		recorders[i] = (struct recorder){.hist = &shared, .rng = seed + i};
		assert_int_equal(pthread_create(&recorders[i].thread, NULL, record_many, &recorders[i]), 0);
	}
	read_meanwhile(&shared);
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(recorders[i].thread, NULL);
		sum += recorders[i].sum;
	}
	assert_int_equal(fp_hist_count(&shared), N_THREADS * PER_THREAD);
	assert_int_equal(shared.sum_ns, sum);
}

static void fill(struct fp_hist *h, uint64_t seed)
{
	for (unsigned i = 0; i < 10000; i++)
		fp_hist_record(h, random_ns(&seed));
}

/* Accepts only the documented form, which every JSON reader understands. */
static void check_json(const struct fp_hist *h)
{
	fp_autofree char *json = print(h, FP_HIST_JSON);
	unsigned long long count, low, high, n, total = 0;
	char mean[32];
	int at = 0, step = 0;

	assert_int_equal(
	    sscanf(json,
	           "{\"count\": %llu, \"min\": %*u, \"mean\": %31[0-9.], \"p50\": %*u, \"p90\": %*u, "
	           "\"p99\": %*u, \"p999\": %*u, \"max\": %*u, \"buckets\": [%n",
	           &count, mean, &at),
	    2);
	assert_true(at > 0);
	assert_int_equal(count, fp_hist_count(h));
	assert_non_null(strchr(mean, '.'));
	while (sscanf(json + at, "[%llu, %llu, %llu]%n", &low, &high, &n, &step) == 3) {
		assert_true(low <= high && n > 0);
		total += n;
		at += step;
		if (json[at] != ',')
			break;
		assert_memory_equal(json + at, ", [", 3);
		at += 2;
	}
	assert_int_equal(total, count);
	assert_string_equal(json + at, "]}\n");
}

static void json_is_whole(void **state)
{
	struct fp_hist h = {0};

	check_json(&h);
	fill(&h, test_seed(__func__));
	check_json(&h);
	assert_ptr_equal(uselocale((locale_t)0), LC_GLOBAL_LOCALE);
}

static void files_ignore_the_locale(void **state)
{
	struct fp_hist h = {0};

	if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) {
		print_message("skipped: no locale with a decimal comma here\n");
		skip();
	}
	fp_hist_record(&h, 1234);
	check_json(&h);
	setlocale(LC_NUMERIC, "C");
}

static void csv_counts_everything(void **state)
{
	struct fp_hist h = {0};
	unsigned long long low, high, n, next = 0, total = 0;
	fp_autofree char *csv = NULL;

	fill(&h, test_seed(__func__));
	csv = print(&h, FP_HIST_CSV);
	strtok(csv, "\n");
	for (const char *line; (line = strtok(NULL, "\n"));) {
		assert_int_equal(sscanf(line, "%llu,%llu,%llu", &low, &high, &n), 3);
		assert_true(low >= next && high >= low && n > 0);
		next = high + 1;
		total += n;
	}
	assert_int_equal(total, fp_hist_count(&h));
}

/* Reads the file as the plotter does: lines of four numbers that never fall, then comments. */
static void check_hgrm(const struct fp_hist *h)
{
	double value, percentile, inverse, last_value = 0, last_percentile = -1, mean, deviation, max;
	unsigned long long up_to, last_up_to = 0, total;
	fp_autofree char *text = print(h, FP_HIST_HGRM);
	const char *line = strchr(text, '\n') + 2;

	assert_memory_equal(text, "       Value     Percentile TotalCount 1/(1-Percentile)\n\n", line - text);
	for (up_to = 0; up_to < fp_hist_count(h); line = strchr(line, '\n') + 1) {
		assert_int_equal(sscanf(line, "%lf %lf %llu %lf\n", &value, &percentile, &up_to, &inverse),
		                 4);
		assert_true(value >= last_value && percentile > last_percentile && up_to >= last_up_to);
		assert_true(fabs(inverse * (1 - percentile) - 1) < 0.01);
		assert_true((double)up_to >= percentile * (double)fp_hist_count(h) - 1e-6);
		last_value = value, last_percentile = percentile, last_up_to = up_to;
	}
	if (fp_hist_count(h)) {
		assert_int_equal(sscanf(line, "%lf %lf %llu\n", &value, &percentile, &up_to), 3);
		assert_true(percentile == 1 && up_to == fp_hist_count(h));
		assert_true(fabs(value * 1000 - (double)fp_hist_max(h)) < 1);
		line = strchr(line, '\n') + 1;
	}
	assert_int_equal(
	    sscanf(line,
	           "#[Mean    = %lf, StdDeviation   = %lf]\n#[Max     = %lf, Total count    = %llu]\n"
	           "#[Buckets = %*u, SubBuckets     = %*u]",
	           &mean, &deviation, &max, &total),
	    4);
	assert_int_equal(total, fp_hist_count(h));
	assert_true(fabs(mean * 1000 - fp_hist_mean(h)) < 1);
	assert_true(deviation >= 0);
}

static void hgrm_is_what_the_plotter_reads(void **state)
{
	struct fp_hist h = {0};

	check_hgrm(&h);
	fp_hist_record(&h, 5000);
	check_hgrm(&h);
	fill(&h, test_seed(__func__));
	check_hgrm(&h);
	memset(&h, 0, sizeof(h));
	fp_hist_record(&h, 3600000000000); /* longer than any bucket: it counts in the last one */
	check_hgrm(&h);
}

static void the_deviation_is_that_of_the_values(void **state)
{
	struct fp_hist h = {0};
	fp_autofree char *text = NULL;
	double deviation;

	for (unsigned i = 0; i < 100; i++)
		fp_hist_record(&h, i % 2 ? 10000 : 30000);
	text = print(&h, FP_HIST_HGRM);
	assert_int_equal(sscanf(strstr(text, "StdDeviation"), "StdDeviation   = %lf", &deviation), 1);
	assert_true(fabs(deviation - 10) < 0.1);
}

static void text_is_for_a_person(void **state)
{
	struct fp_hist h = {0};
	fp_autofree char *empty = print(&h, FP_HIST_TEXT), *text = NULL;

	assert_string_equal(empty, "unit: nothing counted\n");
	for (unsigned i = 0; i < 1000; i++)
		fp_hist_record(&h, i < 990 ? 100 : 120);
	fp_hist_record(&h, 2000000000);
	text = print(&h, FP_HIST_TEXT);
	assert_string_equal(
	    text,
	    "unit: 1001 counted, mean 2.00 ms, p50 100 ns, p90 100 ns, p99 120 ns, p99.9 120 ns, max 2.00 s\n"
	    "    96 ns -   112 ns  ####################################        990   98.901%\n"
	    "   112 ns -   128 ns  #                                            10   99.900%\n"
	    "        ...\n"
	    "   1.88 s -   2.15 s  #                                             1  100.000%\n");
}

static void text_has_few_rows(void **state)
{
	struct fp_hist h = {0};
	fp_autofree char *text = NULL;
	unsigned lines = 0;

	for (uint64_t v = 1; v < TOP_NS; v += v / 10 + 1)
		fp_hist_record(&h, v);
	text = print(&h, FP_HIST_TEXT);
	for (const char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++)
		assert_true(strlen(line) <= 110);
	assert_true(lines >= 12 && lines <= 23);
}

static unsigned columns_of(const char *text)
{
	unsigned columns = 0;

	for (; *text; text++)
		columns += (*text & 0xc0) != 0x80; /* µ has two bytes */
	return columns;
}

static void text_fits_a_terminal(void **state)
{
	static const unsigned widths[] = {60, 80, 200};
	struct fp_hist h = {0};

	for (uint64_t v = 1; v < TOP_NS; v += v / 10 + 1)
		fp_hist_record(&h, v);
	for (unsigned i = 0; i < FP_ARRAY_LEN(widths); i++) {
		fp_autofree char *text = NULL;
		size_t len;
		FILE *out = open_memstream(&text, &len);
		unsigned longest = 0;

		assert_int_equal(fp_hist_print(&h, FP_HIST_TEXT, "unit", widths[i], out), 0);
		fclose(out);
		assert_non_null(strstr(text, i < 2 ? ",\n  p99" : ", p99"));
		for (const char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
			longest = FP_MAX(longest, columns_of(line));
		assert_in_range(longest, FP_MIN(widths[i], 79u) - 8, FP_MIN(widths[i], 110u));
	}
}

struct canvas {
	unsigned lines, columns;
	unsigned long long counted;
};

static void measure_line(void *user, const char *text)
{
	struct canvas *canvas = user;
	const char *number = strrchr(text, '%');

	canvas->lines++;
	canvas->columns = FP_MAX(canvas->columns, columns_of(text));
	if (!number)
		return;
	for (number -= 9; number[-1] != ' '; number--)
		;
	canvas->counted += strtoull(number, NULL, 10);
}

/* Values in few or many orders of magnitude, with gaps or without: the bars fit, and count each. */
static void bars_fit_a_screen(void **state)
{
	static const struct {
		unsigned lines, columns;
	} sizes[] = {{1, 60}, {2, 60}, {9, 60}, {18, 80}, {44, 200}};
	uint64_t rng = test_seed(__func__);

	for (unsigned round = 0; round < 300; round++) {
		struct fp_hist h = {0};

		for (unsigned i = (unsigned)(test_random(&rng) % 50) + 1; i > 0; i--)
			fp_hist_record(&h, random_ns(&rng));
		for (unsigned i = 0; i < FP_ARRAY_LEN(sizes); i++) {
			struct canvas canvas = {0};

			fp_hist_bars(&h, sizes[i].lines, sizes[i].columns, measure_line, &canvas);
			assert_in_range(canvas.lines, 1, sizes[i].lines);
			assert_int_equal(canvas.columns, sizes[i].columns);
			assert_int_equal(canvas.counted, fp_hist_count(&h));
		}
	}
}

static void only_an_earlier_copy_is_covered(void **state)
{
	struct fp_hist h = {0}, before = {0};

	assert_true(fp_hist_covers(&h, &before));
	fp_hist_record(&before, 1000);
	assert_false(fp_hist_covers(&h, &before));
	fp_hist_record(&h, 2000);
	assert_false(fp_hist_covers(&h, &before));
	fp_hist_record(&h, 1000);
	assert_true(fp_hist_covers(&h, &before));
}

static void a_full_disk_is_reported(void **state)
{
	struct fp_hist h = {0};
	FILE *full = fopen("/dev/full", "w");

	assert_non_null(full);
	fp_hist_record(&h, 1);
	assert_int_equal(fp_hist_print(&h, FP_HIST_TEXT, "unit", 0, full), -ENOSPC);
	fclose(full);
	full = fopen("/dev/full", "w");
	setbuf(full, NULL); /* every write fails at once, so the last flush has nothing to write */
	assert_int_equal(fp_hist_print(&h, FP_HIST_TEXT, "unit", 0, full), -EIO);
	fclose(full);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(quantiles_are_within_a_percent),
	    cmocka_unit_test(a_bucket_is_within_a_percent),
	    cmocka_unit_test(buckets_tile_the_range),
	    cmocka_unit_test(small_values_are_exact),
	    cmocka_unit_test(ranks_are_not_rounded_up),
	    cmocka_unit_test(values_beyond_the_range_are_counted),
	    cmocka_unit_test(zeroed_memory_is_empty),
	    cmocka_unit_test(merging_equals_recording_all),
	    cmocka_unit_test(subtracting_leaves_what_came_since),
	    cmocka_unit_test(what_came_since_lies_within_the_whole),
	    cmocka_unit_test(nothing_is_left_of_equals),
	    cmocka_unit_test(threads_lose_nothing),
	    cmocka_unit_test(json_is_whole),
	    cmocka_unit_test(files_ignore_the_locale),
	    cmocka_unit_test(csv_counts_everything),
	    cmocka_unit_test(hgrm_is_what_the_plotter_reads),
	    cmocka_unit_test(the_deviation_is_that_of_the_values),
	    cmocka_unit_test(text_is_for_a_person),
	    cmocka_unit_test(text_has_few_rows),
	    cmocka_unit_test(text_fits_a_terminal),
	    cmocka_unit_test(bars_fit_a_screen),
	    cmocka_unit_test(only_an_earlier_copy_is_covered),
	    cmocka_unit_test(a_full_disk_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
