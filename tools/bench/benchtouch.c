/*
 * farpage bench touch: what passes over far memory cost when little of it is local. Room: tools.
 *
 * Three timed passes a round touch the first word of every page: one load each in order, one load
 * each in random order, one store each in random order (each page that leaves is then dirty). A
 * timed pass checks the word that it loads; after the loads and after the stores a pass that is not
 * timed checks every word of every page. The library's counters tell what the pages of a timed pass
 * met.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "benchopt.h"
#include "cleanup.h"
#include "clock.h"
#include "farbed.h"
#include "floor.h"
#include "hist.h"
#include "log.h"
#include "pattern.h"
#include "spread.h"
#include "units.h"

/* A touch that took less found its page local: no fault through userfaultfd is that short. */
#define LOCAL_TOUCH_NS 1000
#define FLOOR_PAGES    4096u

enum touch_metric { SEQUENTIAL, RANDOM_READ, RANDOM_WRITE, READ_P50, READ_P99, METRICS };

static const char *const metric_names[METRICS] = {
    "sequential_read_us_per_page", "random_read_us_per_page",  "random_write_us_per_page",
    "random_read_fault_p50_us",    "random_read_fault_p99_us",
};

enum pass { PASS_SEQUENTIAL, PASS_RANDOM_READ, PASS_RANDOM_WRITE, PASSES };

static const char *const pass_names[PASSES] = {"sequential read", "random read", "random write"};
static const char *const pass_keys[PASSES] = {"sequential_read", "random_read", "random_write"};

/* What becomes of a page that is touched, or of one that is not yet. */
static const struct counter {
	const char *name;
	size_t at; /* in struct far_stats */
} counters[] = {
    {"zero", offsetof(struct far_stats, zero_faults)},
    {"read", offsetof(struct far_stats, read_faults)},
    {"write", offsetof(struct far_stats, write_faults)},
    {"protect", offsetof(struct far_stats, protect_faults)},
    {"rescued", offsetof(struct far_stats, rescued_faults)},
    {"present", offsetof(struct far_stats, present_faults)},
    {"prefetched", offsetof(struct far_stats, prefetched_pages)},
};

#define COUNTERS FP_ARRAY_LEN(counters)

struct touch_contender {
	const char *name;
	struct fp_farbed *bed;
	uint64_t counts[PASSES][COUNTERS]; /* of all rounds */
	double values[METRICS][FP_BENCH_MAX_ROUNDS];
	struct fp_spread spread[METRICS];
};

struct bench_touch {
	struct fp_benchopt options;
	struct touch_contender contender[FP_BENCH_MAX_WAYS];
	unsigned n;
	double floor_us[FP_BENCH_MAX_ROUNDS];
	struct fp_spread floor;
	size_t n_pages;
	uint32_t *order;
};

static volatile uint64_t *first_word(const struct touch_contender *c, size_t page)
{
	return (void *)((char *)fp_farbed_memory(c->bed) + page * FP_PATTERN_PAGE_BYTES);
}

static double us_per_page(uint64_t start_ns, size_t n_pages)
{
	return (double)(fp_clock_ns() - start_ns) / (double)n_pages / FP_NSEC_PER_USEC;
}

/* Returns the number of wrong words. */
static size_t read_in_order(const struct bench_touch *bench, struct touch_contender *c, unsigned round)
{
	uint64_t start_ns = fp_clock_ns();
	size_t wrong = 0;

	for (size_t page = 0; page < bench->n_pages; page++)
		wrong += *first_word(c, page) != fp_pattern_word(bench->options.seed, page, 0, round);
	c->values[SEQUENTIAL][round] = us_per_page(start_ns, bench->n_pages);
	return wrong;
}

static size_t read_at_random(const struct bench_touch *bench, struct touch_contender *c, unsigned round,
                             struct fp_hist *h)
{
	uint64_t start_ns = fp_clock_ns(), before_ns = start_ns;
	size_t wrong = 0;

	for (size_t i = 0; i < bench->n_pages; i++) {
		size_t page = bench->order[i];
		uint64_t value = *first_word(c, page), after_ns = fp_clock_ns();

		if (after_ns - before_ns >= LOCAL_TOUCH_NS)
			fp_hist_record(h, after_ns - before_ns);
		wrong += value != fp_pattern_word(bench->options.seed, page, 0, round);
		before_ns = fp_clock_ns();
	}
	c->values[RANDOM_READ][round] = us_per_page(start_ns, bench->n_pages);
	c->values[READ_P50][round] = (double)fp_hist_quantile(h, 0.5) / FP_NSEC_PER_USEC;
	c->values[READ_P99][round] = (double)fp_hist_quantile(h, 0.99) / FP_NSEC_PER_USEC;
	return wrong;
}

static void write_at_random(const struct bench_touch *bench, struct touch_contender *c, unsigned round)
{
	uint64_t start_ns = fp_clock_ns();

	for (size_t i = 0; i < bench->n_pages; i++) {
		size_t page = bench->order[i];

		*first_word(c, page) = fp_pattern_word(bench->options.seed, page, 0, round + 1);
	}
	c->values[RANDOM_WRITE][round] = us_per_page(start_ns, bench->n_pages);
}

static int verify(const struct bench_touch *bench, const struct touch_contender *c, unsigned generation,
                  size_t wrong)
{
	size_t bad = 0;

	if (!wrong && fp_pattern_verify(fp_farbed_memory(c->bed), bench->n_pages, bench->options.seed,
	                                generation, &bad))
		return 0;
	fp_log(FP_LOG_ERROR, "bench touch", "%s: WRONG BYTES (seed %" PRIu64 ", write pass %u, page %zu)",
	       c->name, bench->options.seed, generation, bad);
	return -EBADMSG;
}

static uint64_t counted(const struct far_stats *stats, size_t counter)
{
	return *(const uint64_t *)((const char *)stats + counters[counter].at);
}

/* What has been counted since *stats, which is brought up to date. */
static void count_pass(struct touch_contender *c, enum pass pass, struct far_stats *stats)
{
	struct far_stats now = fp_farbed_stats(c->bed);

	for (size_t i = 0; i < COUNTERS; i++)
		c->counts[pass][i] += counted(&now, i) - counted(stats, i);
	*stats = now;
}

static int run_contender(struct bench_touch *bench, struct touch_contender *c, unsigned round)
{
	fp_autofree struct fp_hist *h = calloc(1, sizeof(*h));
	struct far_stats stats;
	size_t wrong;
	int r;

	if (!h)
		return -ENOMEM;
	stats = fp_farbed_stats(c->bed);
	wrong = read_in_order(bench, c, round);
	count_pass(c, PASS_SEQUENTIAL, &stats);
	fp_pattern_shuffle(bench->options.seed + 2 * round, bench->n_pages, bench->order);
	wrong += read_at_random(bench, c, round, h);
	count_pass(c, PASS_RANDOM_READ, &stats);
	r = verify(bench, c, round, wrong);
	if (r < 0)
		return r;
	fp_pattern_shuffle(bench->options.seed + 2 * round + 1, bench->n_pages, bench->order);
	stats = fp_farbed_stats(c->bed);
	write_at_random(bench, c, round);
	count_pass(c, PASS_RANDOM_WRITE, &stats);
	return verify(bench, c, round + 1, 0);
}

/* The median touch of the bare floor. */
static bool is_inline(const struct bench_touch *bench)
{
	return bench->options.modes == FP_BENCH_INLINE;
}

static int measure_floor(struct bench_touch *bench, unsigned round)
{
	fp_autofree struct fp_hist *h = calloc(1, sizeof(*h));
	struct fp_floor *floor;
	const volatile char *memory;
	int r = h ? fp_floor_open(FLOOR_PAGES * FP_PATTERN_PAGE_BYTES, bench->options.cpu, is_inline(bench),
	                          &floor)
	          : -ENOMEM;

	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench touch", "floor: %s", strerror(-r));
		return r;
	}
	memory = fp_floor_memory(floor);
	fp_pattern_fill(fp_floor_source(floor), FLOOR_PAGES, bench->options.seed);
	fp_pattern_shuffle(bench->options.seed, FLOOR_PAGES, bench->order);
	r = fp_floor_enter(floor);
	for (size_t i = 0; r == 0 && i < FLOOR_PAGES; i++) {
		uint64_t start_ns = fp_clock_ns();

		(void)memory[bench->order[i] * FP_PATTERN_PAGE_BYTES];
		fp_hist_record(h, fp_clock_ns() - start_ns);
	}
	fp_floor_leave(floor);
	fp_floor_close(floor);
	bench->floor_us[round] = (double)fp_hist_quantile(h, 0.5) / FP_NSEC_PER_USEC;
	return r;
}

static int open_contender(struct bench_touch *bench, const char *way)
{
	const struct fp_benchopt *options = &bench->options;
	struct touch_contender *c = &bench->contender[bench->n++];
	const struct fp_farbed_options bed = {
	    .way = way,
	    .dir = options->dir,
	    .secret = options->secret,
	    .map_bytes = options->map_bytes,
	    .local_bytes = options->local_bytes,
	    .fault_mode = is_inline(bench) ? FAR_FAULT_INLINE : FAR_FAULT_THREAD,
	};
	char error[768];
	int r = fp_farbed_open(&bed, error, sizeof(error), &c->bed);

	c->name = way;
	if (r < 0)
		fp_log(FP_LOG_ERROR, "bench touch", "%s: %s", way, error);
	else
		fp_pattern_fill(fp_farbed_memory(c->bed), bench->n_pages, options->seed);
	return r;
}

static int open_all(struct bench_touch *bench)
{
	const struct fp_benchopt *options = &bench->options;
	int r = 0;

	bench->n_pages = options->map_bytes / FP_PATTERN_PAGE_BYTES;
	bench->order = calloc(FP_MAX(bench->n_pages, FLOOR_PAGES), sizeof(*bench->order));
	if (!bench->order)
		return -ENOMEM;
	for (unsigned i = 0; r == 0 && i < options->n_ways; i++)
		if (strcmp(options->ways[i], "floor") != 0) /* takes part anyway */
			r = open_contender(bench, options->ways[i]);
	return r;
}

static int run_rounds(struct bench_touch *bench)
{
	unsigned rounds = bench->options.rounds;
	int r = 0;

	for (unsigned round = 0; r == 0 && round < rounds; round++) {
		r = measure_floor(bench, round);
		for (unsigned i = 0; r == 0 && i < bench->n; i++)
			r = run_contender(bench, &bench->contender[i], round);
	}
	if (r < 0)
		return r;
	bench->floor = fp_spread_of(bench->floor_us, rounds);
	for (unsigned i = 0; i < bench->n; i++)
		for (enum touch_metric m = 0; m < METRICS; m++)
			bench->contender[i].spread[m] = fp_spread_of(bench->contender[i].values[m], rounds);
	return 0;
}

/* In percent of the pages, so that sizes and rounds can be compared. */
static void print_counts(const struct bench_touch *bench)
{
	double pages = (double)bench->n_pages * bench->options.rounds;

	printf("\nfaults in %% of the pages touched; the rest was local, or prefetched in time\n%-24s %-16s",
	       "over", "pass");
	for (size_t i = 0; i < COUNTERS; i++)
		printf(" %10s", counters[i].name);
	for (unsigned i = 0; i < bench->n; i++)
		for (enum pass pass = 0; pass < PASSES; pass++) {
			printf("\n%-24s %-16s", bench->contender[i].name, pass_names[pass]);
			for (size_t k = 0; k < COUNTERS; k++)
				printf(" %10.1f", 100 * (double)bench->contender[i].counts[pass][k] / pages);
		}
	putchar('\n');
}

/* Of all rounds. */
static void print_counts_json(const struct touch_contender *c)
{
	fputs(", \"faults\": {", stdout);
	for (enum pass pass = 0; pass < PASSES; pass++) {
		printf("%s\"%s\": {", pass ? ", " : "", pass_keys[pass]);
		for (size_t i = 0; i < COUNTERS; i++)
			printf("%s\"%s\": %" PRIu64, i ? ", " : "", counters[i].name, c->counts[pass][i]);
		putchar('}');
	}
	putchar('}');
}

static void print_text(const struct bench_touch *bench)
{
	const struct fp_benchopt *options = &bench->options;
	char size[16], local[16];

	printf("bench touch: fault mode %s, %s mapped, %s local, %u rounds in turn, CPU %d, seed %" PRIu64
	       "\none operation, on each page once: a read is one load, a write one store, of its first 8 "
	       "bytes\nevery word verified; µs: median [least greatest]; ",
	       is_inline(bench) ? "inline" : "thread", fp_size_format(options->map_bytes, size, sizeof(size)),
	       fp_size_format(options->local_bytes, local, sizeof(local)), options->rounds, options->cpu,
	       options->seed);
	fputs("a fault of the bare floor:", stdout);
	fp_spread_print(bench->floor, 5, 2, stdout);
	printf("\n%-24s %-22s %-22s %-22s %-22s %s\n", "over", "sequential read/page", "random read/page",
	       "random write/page", "random fault p50", "p99");
	for (unsigned i = 0; i < bench->n; i++) {
		printf("%-24s", bench->contender[i].name);
		for (enum touch_metric m = 0; m < METRICS; m++)
			fp_spread_print(bench->contender[i].spread[m], 6, 2, stdout);
		putchar('\n');
	}
	print_counts(bench);
}

static void print_json(const struct bench_touch *bench)
{
	fp_benchopt_json(&bench->options);
	printf("\"fault_mode\": \"%s\", ", is_inline(bench) ? "inline" : "thread");
	fp_spread_json("floor_fault_p50_us", bench->floor, stdout);
	fputs(",\n \"contenders\": [", stdout);
	for (unsigned i = 0; i < bench->n; i++) {
		fputs(i ? ",\n {\"over\": " : "\n {\"over\": ", stdout);
		fp_tool_json_string(stdout, bench->contender[i].name);
		for (enum touch_metric m = 0; m < METRICS; m++) {
			fputs(", ", stdout);
			fp_spread_json(metric_names[m], bench->contender[i].spread[m], stdout);
		}
		print_counts_json(&bench->contender[i]);
		putchar('}');
	}
	puts("]}");
}

static int touch_main(int argc, char **argv)
{
	fp_autofree struct bench_touch *bench = calloc(1, sizeof(*bench));
	int status, r;

	if (!bench)
		return 1;
	bench->options = (struct fp_benchopt){.modes = FP_BENCH_THREAD, .rounds = 3, .map_bytes = 256u << 20};
	if (!fp_benchopt_parse(&fp_tool_bench_touch, argc, argv, "shm,tcp", &bench->options, &status))
		return status;
	if (bench->options.modes == (FP_BENCH_THREAD | FP_BENCH_INLINE)) {
		fp_benchopt_done(&bench->options);
		return fp_tool_usage(&fp_tool_bench_touch, "--fault-mode both: one at a time");
	}
	if (!bench->options.local_bytes)
		bench->options.local_bytes = FP_MAX(bench->options.map_bytes / 4, 64u << 10);
	r = open_all(bench);
	if (r == 0) /* after the agents' threads are there, which must not inherit it */
		r = fp_benchopt_pin(&bench->options);
	if (r == 0)
		r = run_rounds(bench);
	if (r == 0)
		(bench->options.json ? print_json : print_text)(bench);
	for (unsigned i = 0; i < bench->n; i++)
		fp_farbed_close(bench->contender[i].bed);
	free(bench->order);
	fp_benchopt_done(&bench->options);
	return r < 0 ? 1 : fp_tool_flush(&fp_tool_bench_touch);
}

const struct fp_tool fp_tool_bench_touch = {
    .name = "touch",
    .label = "bench touch",
    .summary = "passes over far memory with little of it local",
    .help =
        "usage: farpage bench touch [--json] [--transport LIST] [--node URL]... [OPTION...]\n"
        "\n"
        "Fills memory with incompressible data and touches the first word of each page: one load in order, "
        "one load\n"
        "in random order, one store in random order, each in µs a page; with the median and the 99th "
        "percentile of\n"
        "the random loads that faulted, and the bare floor's fault beside them. Counts by kind the faults "
        "that each\n"
        "pass took, and the pages that were prefetched. All words are verified.\n"
        "\n" FP_BENCHOPT_HELP("256M", "a quarter of the size", "3", "shm,tcp", "thread (default) or inline"),
    .main = touch_main,
};
