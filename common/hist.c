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
#define MOST_COUNT  (1ull << 48) /* more than any program can count */
#define IN_FLIGHT   64u          /* values that threads may be recording at one instant */

/* A bar chart in a file. */
#define TEXT_LINES   22
#define TEXT_COLUMNS 79u
#define ROW_COLUMNS  43 /* of a row without its bar */
#define LINE_BYTES   256
#define FOUR(text)   text text text text

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

/* The greatest value that a bucket can hold. */
static uint64_t bucket_top(unsigned index)
{
	return index < FP_HIST_BUCKETS - 1 ? bucket_high(index) : UINT64_MAX;
}

static uint64_t clamp(uint64_t value, unsigned __int128 least, unsigned __int128 most)
{
	if (value < least)
		return least > UINT64_MAX ? UINT64_MAX : (uint64_t)least;
	return value > most ? (uint64_t)most : value;
}

/*
 * Computes the count from the buckets that it adds, and keeps the sum and both ends within the
 * bounds of these buckets. So the fields of *h agree, even if other threads record into *from
 * meanwhile, or if *from is a copy that was made in the middle of a record.
 */
void fp_hist_merge(struct fp_hist *h, const struct fp_hist *from)
{
	unsigned __int128 least = 0, most = 0;
	unsigned first = 0, last = 0;
	uint64_t total = 0, max;

	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		uint64_t n = load(&from->bucket[i]);

		if (n == 0)
			continue;
		add(&h->bucket[i], n);
		first = total ? first : i;
		last = i;
		total += n;
		least += (unsigned __int128)n * bucket_low(i);
		most += (unsigned __int128)n * bucket_top(i);
	}
	if (total == 0)
		return;
	add(&h->count, total);
	add(&h->sum_ns, clamp(load(&from->sum_ns), least, most));
	max = clamp(load(&from->max_ns), bucket_low(last), bucket_top(last));
	raise_to(&h->min_ns, ~clamp(~load(&from->min_ns), bucket_low(first), FP_MIN(bucket_top(first), max)));
	raise_to(&h->max_ns, max);
}

void fp_hist_subtract(struct fp_hist *h, const struct fp_hist *before)
{
	unsigned first = FP_HIST_BUCKETS, last = 0;
	uint64_t count = 0;

	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		uint64_t n = load(&h->bucket[i]);

		n -= FP_MIN(load(&before->bucket[i]), n);
		h->bucket[i] = n;
		count += n;
		if (n) {
			first = FP_MIN(first, i);
			last = i;
		}
	}
	h->count = count;
	h->sum_ns -= FP_MIN(load(&before->sum_ns), load(&h->sum_ns));
	if (!count)
		h->min_ns = h->max_ns = h->sum_ns = 0;
	else if (h->max_ns <= before->max_ns)
		h->max_ns = FP_MIN(load(&h->max_ns), bucket_top(last));
	if (count && h->min_ns <= before->min_ns)
		h->min_ns = ~FP_MAX(~load(&h->min_ns), bucket_low(first));
}

bool fp_hist_covers(const struct fp_hist *h, const struct fp_hist *before)
{
	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++)
		if (load(&h->bucket[i]) < load(&before->bucket[i]))
			return false;
	return true;
}

/* What the buckets of a histogram say. */
struct content {
	uint64_t total;
	unsigned first, last;          /* the first and the last bucket that is not empty */
	unsigned __int128 least, most; /* limits of the sum */
};

/*
 * Returns false if the buckets hold more values than any program can count. If it returns true, no
 * sum wraps, and ranks are exact.
 */
static bool scan(const struct fp_hist *h, struct content *ret_content)
{
	struct content c = {0};

	for (unsigned i = 0; i < FP_HIST_BUCKETS; i++) {
		uint64_t n = load(&h->bucket[i]);

		if (n > MOST_COUNT || c.total + n > MOST_COUNT)
			return false;
		if (n && c.total == 0)
			c.first = i;
		if (n)
			c.last = i;
		c.total += n;
		c.least += (unsigned __int128)n * bucket_low(i);
		c.most += (unsigned __int128)n * bucket_top(i);
	}
	*ret_content = c;
	return true;
}

int fp_hist_check(const struct fp_hist *h)
{
	uint64_t count = load(&h->count), min = ~load(&h->min_ns), max = load(&h->max_ns);
	unsigned __int128 sum = load(&h->sum_ns), in_flight = (unsigned __int128)max * IN_FLIGHT;
	struct content c;

	if (!scan(h, &c) || count > MOST_COUNT)
		return -EBADMSG;
	if (c.total > count + IN_FLIGHT || count > c.total + IN_FLIGHT)
		return -EBADMSG;
	if (c.total == 0)
		return sum || ~min || max ? -EBADMSG : 0;
	if (min > max || bucket_index(min) != c.first || bucket_index(max) != c.last)
		return -EBADMSG;
	/* fp_hist_merge cuts a sum that is too large down to UINT64_MAX */
	if (sum + in_flight < c.least && sum < UINT64_MAX)
		return -EBADMSG;
	return sum > c.most + in_flight ? -EBADMSG : 0;
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
	uint64_t total = 0, up_to, rank;
	unsigned i;

	for (i = 0; i < FP_HIST_BUCKETS; i++)
		total += load(&h->bucket[i]);
	rank = rank_of(q, total);
	/* a value that is being recorded may be missing in the buckets */
	for (i = 0, up_to = load(&h->bucket[0]); up_to < rank && i < FP_HIST_BUCKETS - 1;)
		up_to += load(&h->bucket[++i]);
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
 * A time, right-aligned in width columns, in buf of 24 bytes. printf would count "µ" as two
 * columns, as it has two bytes.
 */
static const char *align_time(uint64_t ns, int width, char *buf)
{
	char time[16];

	fp_time_format(ns, time, sizeof(time));
	snprintf(buf, 24, "%*s", width + (strstr(time, "µ") != NULL), time);
	return buf;
}

/*
 * The rows of a bar chart. Each row is 1 << bits buckets. A gap is a row without a value, between
 * rows with values.
 */
struct rows {
	const struct fp_hist *h;
	unsigned bits;
	unsigned used, gaps; /* used: rows with a value */
	uint64_t most;       /* values in the longest row */
};

static uint64_t row_count(const struct rows *rows, unsigned row)
{
	uint64_t n = 0;

	for (unsigned i = row << rows->bits; i < (row + 1) << rows->bits; i++)
		n += load(&rows->h->bucket[i]);
	return n;
}

static struct rows measure_rows(const struct fp_hist *h, unsigned bits)
{
	struct rows rows = {.h = h, .bits = bits};
	unsigned previous = UINT_MAX;

	for (unsigned row = 0; row < FP_HIST_BUCKETS >> bits; row++) {
		uint64_t n = row_count(&rows, row);

		if (n == 0)
			continue;
		rows.gaps += previous != UINT_MAX && row != previous + 1;
		previous = row;
		rows.used++;
		rows.most = FP_MAX(rows.most, n);
	}
	return rows;
}

/*
 * At first a row is a quarter of a power of two. If that gives more than max_lines, each row gets
 * more buckets.
 */
static struct rows fit_rows(const struct fp_hist *h, unsigned max_lines)
{
	struct rows rows = measure_rows(h, FP_HIST_SUB_BITS - 2);

	while (rows.used > 1 && rows.used + rows.gaps > max_lines)
		rows = measure_rows(h, rows.bits + 1);
	return rows;
}

static void format_row(const struct rows *rows, unsigned row, uint64_t up_to, unsigned width, char *line)
{
	static const char hashes[] = FOUR(FOUR("##########"));
	uint64_t n = row_count(rows, row);
	int room = (int)FP_MIN(FP_MAX(width, ROW_COLUMNS + 1u) - ROW_COLUMNS, sizeof(hashes) - 1);
	char low[24], high[24];

	snprintf(line, LINE_BYTES, "%s -%s  %-*.*s %10" PRIu64 " %8.3f%%",
	         align_time(bucket_low(row << rows->bits), 9, low),
	         align_time(bucket_low((row + 1) << rows->bits), 9, high), room,
	         (int)ceil((double)n * room / (double)rows->most), hashes, n,
	         100 * (double)up_to / (double)fp_hist_count(rows->h));
}

void fp_hist_bars(const struct fp_hist *h, unsigned max_lines, unsigned width,
                  void (*line)(void *user, const char *text), void *user)
{
	struct rows rows = fit_rows(h, max_lines);
	unsigned previous = UINT_MAX;
	uint64_t up_to = 0;
	char text[LINE_BYTES];

	for (unsigned row = 0; row < FP_HIST_BUCKETS >> rows.bits; row++) {
		uint64_t n = row_count(&rows, row);

		if (n == 0)
			continue;
		if (previous != UINT_MAX && row != previous + 1)
			line(user, "        ...");
		previous = row;
		up_to += n;
		format_row(&rows, row, up_to, width, text);
		line(user, text);
	}
}

static void print_line(void *user, const char *text)
{
	fprintf(user, "%s\n", text);
}

/* A line of figures, which goes on below if it reaches width. */
struct figures {
	FILE *out;
	unsigned width, column;
};

static void print_figure(struct figures *line, const char *name, uint64_t ns)
{
	char time[16], text[32];
	unsigned columns;

	fp_time_format(ns, time, sizeof(time));
	snprintf(text, sizeof(text), "%s %s", name, time);
	columns = (unsigned)strlen(text) - (strstr(text, "µ") != NULL);
	if (line->column + strlen(", ,") + columns > line->width) {
		fputs(",\n  ", line->out);
		line->column = 2;
	} else {
		fputs(", ", line->out);
		line->column += 2;
	}
	fputs(text, line->out);
	line->column += columns;
}

static void print_text(const struct fp_hist *h, const char *title, unsigned width, FILE *out)
{
	static const struct {
		const char *name;
		double q;
	} points[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}};
	struct figures line = {.out = out, .width = width ? width : UINT_MAX};

	if (fp_hist_count(h) == 0) {
		fprintf(out, "%s: nothing counted\n", title);
		return;
	}
	line.column = (unsigned)fprintf(out, "%s: %" PRIu64 " counted", title, fp_hist_count(h));
	print_figure(&line, "mean", (uint64_t)fp_hist_mean(h));
	for (unsigned i = 0; i < FP_ARRAY_LEN(points); i++)
		print_figure(&line, points[i].name, fp_hist_quantile(h, points[i].q));
	fputc('\n', out);
	fp_hist_bars(h, TEXT_LINES, FP_MIN(line.width, TEXT_COLUMNS), print_line, out);
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

int fp_hist_print(const struct fp_hist *h, enum fp_hist_format format, const char *title, unsigned width,
                  FILE *out)
{
	/* files must not depend on the decimal point of the program's locale */
	locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(plain);
	struct fp_hist still = {0}; /* a copy: threads may record into h while we print */

	fp_hist_merge(&still, h);
	switch (format) {
	case FP_HIST_TEXT:
		print_text(&still, title, width, out);
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
