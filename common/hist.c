/*
 * The latency histogram. Room: common. Recording takes only a few relaxed atomics, so fault threads
 * may do it. All other functions are for readers. They use the values that they find, even if
 * threads record meanwhile.
 */
#include "hist.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "cleanup.h"
#include "units.h"

#define SUB_BUCKETS (1u << FP_HIST_SUB_BITS)
#define MANY_ROWS   24 /* a bar chart with more rows than this is too long for a person */

static_assert(FP_HIST_MAX_NS >= 100000000000ull, "the histogram must reach 100 s");

/*
 * The bucket of a value. shift is 0 below 128, and grows by one with every power of two: value >>
 * shift keeps the 7 leading bits.
 */
static unsigned bucket_index(uint64_t value)
{
	uint64_t v = FP_MIN(value, FP_HIST_MAX_NS);
	unsigned shift = 63 - FP_HIST_SUB_BITS - (unsigned)__builtin_clzll(v | SUB_BUCKETS);

	return (shift << FP_HIST_SUB_BITS) + (unsigned)(v >> shift);
}

/* The least value of a bucket; index FP_HIST_BUCKETS gives the end of the last one. */
static uint64_t bucket_low(unsigned index)
{
	unsigned shift = index < SUB_BUCKETS ? 0 : (index >> FP_HIST_SUB_BITS) - 1;

	return (uint64_t)(index - (shift << FP_HIST_SUB_BITS)) << shift;
}

static uint64_t bucket_high(unsigned index)
{
	return bucket_low(index + 1) - 1;
}

static uint64_t bucket_mid(unsigned index)
{
	return bucket_low(index) + (bucket_high(index) - bucket_low(index)) / 2;
}

static uint64_t load(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static void add(_Atomic uint64_t *word, uint64_t n)
{
	atomic_fetch_add_explicit(word, n, memory_order_relaxed);
}

static void raise_to(_Atomic uint64_t *word, uint64_t value)
{
	uint64_t seen = load(word);

	while (seen < value && !atomic_compare_exchange_weak_explicit(
	                           word, &seen, value, memory_order_relaxed, memory_order_relaxed))
		;
}

void fp_hist_record(struct fp_hist *h, uint64_t value_ns)
{
	raise_to(&h->min_ns, ~value_ns);
	raise_to(&h->max_ns, value_ns);
	add(&h->sum_ns, value_ns);
	add(&h->count, 1);
	add(&h->bucket[bucket_index(value_ns)], 1);
}

/*
 * Computes the count from the buckets that it adds. So count and buckets of *h agree, even if other
 * threads record into *from meanwhile.
 */
void fp_hist_merge(struct fp_hist *h, const struct fp_hist *from)
{
	uint64_t total = 0;

	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		uint64_t n = load(&from->bucket[i]);

		if (n == 0)
			continue;
		add(&h->bucket[i], n);
		total += n;
	}
	add(&h->count, total);
	add(&h->sum_ns, load(&from->sum_ns));
	raise_to(&h->min_ns, load(&from->min_ns));
	raise_to(&h->max_ns, load(&from->max_ns));
}

/*
 * Returns the least rank whose share of total is at least q. First makes q smaller by the size of a
 * rounding error, so that 0.999 of 1000 is 999.
 */
static uint64_t rank_of(double q, uint64_t total)
{
	uint64_t rank = (uint64_t)ceil(q * (1 - DBL_EPSILON) * (double)total);

	return rank < 1 ? 1 : FP_MIN(rank, total);
}

/*
 * Returns the value at the fraction q of h, which is not empty. *ret_up_to: how many values are in
 * that value's bucket and in all lower buckets.
 */
static uint64_t find_quantile(const struct fp_hist *h, double q, uint64_t *ret_up_to)
{
	uint64_t total = 0, up_to = 0, rank;
	unsigned i;

	for (i = 0; i < FP_HIST_BUCKETS; i++)
		total += load(&h->bucket[i]);
	rank = rank_of(q, total);
	for (i = 0; i < FP_HIST_BUCKETS - 1; i++) {
		up_to += load(&h->bucket[i]);
		if (up_to >= rank)
			break;
	}
	*ret_up_to = up_to;
	if (rank == total)
		return fp_hist_max(h);
	return FP_MIN(FP_MAX(bucket_mid(i), fp_hist_min(h)), fp_hist_max(h));
}

uint64_t fp_hist_quantile(const struct fp_hist *h, double q)
{
	uint64_t up_to;

	return fp_hist_count(h) ? find_quantile(h, q, &up_to) : 0;
}

uint64_t fp_hist_count(const struct fp_hist *h)
{
	return load(&h->count);
}

uint64_t fp_hist_min(const struct fp_hist *h)
{
	return fp_hist_count(h) ? ~load(&h->min_ns) : 0;
}

uint64_t fp_hist_max(const struct fp_hist *h)
{
	return load(&h->max_ns);
}

double fp_hist_mean(const struct fp_hist *h)
{
	uint64_t count = fp_hist_count(h);

	return count ? (double)load(&h->sum_ns) / (double)count : 0;
}

/* Computed from bucket midpoints, as HdrHistogram does. */
static double std_deviation(const struct fp_hist *h)
{
	double mean = fp_hist_mean(h), squares = 0;

	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		double off = (double)bucket_mid(i) - mean;

		squares += off * off * (double)load(&h->bucket[i]);
	}
	return sqrt(squares / (double)FP_MAX(fp_hist_count(h), 1u));
}

/*
 * Prints a time, right-aligned in width columns. printf would count "µ" as two columns, as it has
 * two bytes.
 */
static void print_time(uint64_t ns, int width, FILE *out)
{
	char buf[24];

	fp_time_format(ns, buf, sizeof(buf));
	fprintf(out, "%*s", width + (strstr(buf, "µ") != NULL), buf);
}

static uint64_t row_count(const struct fp_hist *h, unsigned row, unsigned row_bits)
{
	uint64_t n = 0;

	for (unsigned i = row << row_bits; i < (row + 1) << row_bits; i++)
		n += load(&h->bucket[i]);
	return n;
}

static unsigned rows_used(const struct fp_hist *h, unsigned row_bits)
{
	unsigned used = 0;

	for (unsigned row = 0; row < FP_HIST_BUCKETS >> row_bits; row++)
		used += row_count(h, row, row_bits) > 0;
	return used;
}

static uint64_t row_most(const struct fp_hist *h, unsigned row_bits)
{
	uint64_t most = 0;

	for (unsigned row = 0; row < FP_HIST_BUCKETS >> row_bits; row++)
		most = FP_MAX(most, row_count(h, row, row_bits));
	return most;
}

/*
 * Prints bars, one for each row of buckets that has values. A row has 1 << row_bits buckets. At
 * first these are a quarter of a power of two. If that gives too many rows, each row gets more
 * buckets, up to a whole power of two.
 */
static void print_bars(const struct fp_hist *h, FILE *out)
{
	static const char bar[] = "########################################";
	unsigned row_bits = FP_HIST_SUB_BITS - 2, previous = UINT_MAX;
	uint64_t most, up_to = 0;

	while (row_bits < FP_HIST_SUB_BITS && rows_used(h, row_bits) > MANY_ROWS)
		row_bits++;
	most = row_most(h, row_bits);
	for (unsigned row = 0; row < FP_HIST_BUCKETS >> row_bits; row++) {
		uint64_t n = row_count(h, row, row_bits);
		int length = (int)ceil((double)n * (sizeof(bar) - 1) / (double)most);

		if (n == 0)
			continue;
		if (previous != UINT_MAX && row != previous + 1)
			fputs("        ...\n", out);
		previous = row;
		up_to += n;
		print_time(bucket_low(row << row_bits), 9, out);
		fputs(" -", out);
		print_time(bucket_low((row + 1) << row_bits), 9, out);
		fprintf(out, "  %-40.*s %10" PRIu64 " %8.3f%%\n", length, bar, n,
		        100 * (double)up_to / (double)fp_hist_count(h));
	}
}

static void print_text(const struct fp_hist *h, const char *title, FILE *out)
{
	static const struct {
		const char *name;
		double q;
	} points[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}};

	if (fp_hist_count(h) == 0) {
		fprintf(out, "%s: nothing counted\n", title);
		return;
	}
	fprintf(out, "%s: %" PRIu64 " counted, mean ", title, fp_hist_count(h));
	print_time((uint64_t)fp_hist_mean(h), 0, out);
	for (unsigned i = 0; i < FP_ARRAY_LEN(points); i++) {
		fprintf(out, ", %s ", points[i].name);
		print_time(fp_hist_quantile(h, points[i].q), 0, out);
	}
	fputc('\n', out);
	print_bars(h, out);
}

static void print_json(const struct fp_hist *h, FILE *out)
{
	const char *separator = "";

	fprintf(out,
	        "{\"count\": %" PRIu64 ", \"min\": %" PRIu64 ", \"mean\": %.1f, \"p50\": %" PRIu64
	        ", \"p90\": %" PRIu64 ", \"p99\": %" PRIu64 ", \"p999\": %" PRIu64 ", \"max\": %" PRIu64
	        ", \"buckets\": [",
	        fp_hist_count(h), fp_hist_min(h), fp_hist_mean(h), fp_hist_quantile(h, 0.5),
	        fp_hist_quantile(h, 0.9), fp_hist_quantile(h, 0.99), fp_hist_quantile(h, 0.999),
	        fp_hist_max(h));
	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		uint64_t n = load(&h->bucket[i]);

		if (n == 0)
			continue;
		fprintf(out, "%s[%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", separator, bucket_low(i),
		        bucket_high(i), n);
		separator = ", ";
	}
	fputs("]}\n", out);
}

static void print_csv(const struct fp_hist *h, FILE *out)
{
	fputs("low_ns,high_ns,count\n", out);
	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		uint64_t n = load(&h->bucket[i]);

		if (n)
			fprintf(out, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", bucket_low(i), bucket_high(i),
			        n);
	}
}

/* Prints five lines for every halving of the distance to 100 %, like HdrHistogram's own writer. */
static void print_hgrm(const struct fp_hist *h, FILE *out)
{
	uint64_t count = fp_hist_count(h), up_to = 0;

	fprintf(out, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
	for (unsigned tick = 0; up_to < count; tick++) {
		double rest = ldexp(1, -(int)(tick / 5)) * (1 - (tick % 5) / 10.0);
		uint64_t value = find_quantile(h, 1 - rest, &up_to);

		fprintf(out, "%12.3f %2.12f %10" PRIu64 " %14.2f\n", (double)value / 1000, 1 - rest, up_to,
		        1 / rest);
	}
	if (count)
		fprintf(out, "%12.3f %2.12f %10" PRIu64 "\n", (double)fp_hist_max(h) / 1000, 1.0, count);
	fprintf(out, "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n", fp_hist_mean(h) / 1000,
	        std_deviation(h) / 1000);
	fprintf(out, "#[Max     = %12.3f, Total count    = %12" PRIu64 "]\n", (double)fp_hist_max(h) / 1000,
	        count);
	fprintf(out, "#[Buckets = %12u, SubBuckets     = %12u]\n", FP_HIST_BUCKETS / SUB_BUCKETS,
	        SUB_BUCKETS);
}

int fp_hist_print(const struct fp_hist *h, enum fp_hist_format format, const char *title, FILE *out)
{
	/* files must not depend on the decimal point of the program's locale */
	locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(plain);
	struct fp_hist still = {0}; /* a copy: threads may record into h while we print */

	fp_hist_merge(&still, h);
	switch (format) {
	case FP_HIST_TEXT:
		print_text(&still, title, out);
		break;
	case FP_HIST_JSON:
		print_json(&still, out);
		break;
	case FP_HIST_CSV:
		print_csv(&still, out);
		break;
	case FP_HIST_HGRM:
		print_hgrm(&still, out);
		break;
	}
	uselocale(before);
	freelocale(plain);
	if (fflush(out) != 0)
		return -errno;
	return ferror(out) ? -EIO : 0;
}
