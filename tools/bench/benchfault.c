/*
 * farpage bench fault: what one fault costs, beside the bare floor and in the same run. Room:
 * tools.
 *
 * One thread, pinned to a CPU, reads one word of each of many pages that are not local, in random
 * order, and times each touch. The contenders take turns, round by round, so that a machine that
 * grows slower does so for all of them.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "benchopt.h"
#include "cleanup.h"
#include "clock.h"
#include "farbed.h"
#include "farpage/farpage.h"
#include "floor.h"
#include "hist.h"
#include "log.h"
#include "pattern.h"
#include "spread.h"
#include "tool.h"

#define NO_READAHEAD 1

enum fault_metric { P50, P90, P99, P999, RATE, RATIO, METRICS };

static const struct {
	const char *name; /* in JSON */
	double quantile;
} metrics[METRICS] = {{"p50_us", 0.5},    {"p90_us", 0.9},          {"p99_us", 0.99},
                      {"p999_us", 0.999}, {"faults_per_second", 0}, {"ratio_to_floor", 0}};

struct fault_contender {
	const char *name;
	bool is_inline;
	const struct fault_contender *floor_of; /* what it is compared with; NULL: the floors take no part */
	struct fp_floor *floor;                 /* exactly one of these two is there */
	struct fp_farbed *bed;
	double values[METRICS][FP_BENCH_MAX_ROUNDS];
	struct fp_spread spread[METRICS];
};

struct bench_fault {
	struct fp_benchopt options;
	struct fault_contender contender[2 * FP_BENCH_MAX_WAYS];
	unsigned n;
	size_t n_pages;
	uint32_t *order;
};

static void *memory_of(const struct fault_contender *c)
{
	return c->floor ? fp_floor_memory(c->floor) : fp_farbed_memory(c->bed);
}

static const char *mode_name(const struct fault_contender *c)
{
	return c->is_inline ? "inline" : "thread";
}

/* The bed of the other fault mode over the same way, if it is there. */
static const struct fp_farbed *find_twin(const struct bench_fault *bench, const char *way)
{
	for (unsigned i = 0; i < bench->n; i++)
		if (bench->contender[i].bed && strcmp(bench->contender[i].name, way) == 0)
			return bench->contender[i].bed;
	return NULL;
}

static int open_contender(struct bench_fault *bench, const char *way, bool is_inline)
{
	const struct fp_benchopt *options = &bench->options;
	const struct fp_farbed *twin = find_twin(bench, way);
	struct fault_contender *c = &bench->contender[bench->n++];
	size_t bytes = bench->n_pages * FP_PATTERN_PAGE_BYTES;
	struct fp_farbed_options bed = {
	    .way = way,
	    .beside = twin,
	    .dir = options->dir,
	    .secret = options->secret,
	    .map_bytes = bytes,
	    .local_bytes = options->local_bytes ? options->local_bytes : 2 * bytes,
	    .readahead_pages = NO_READAHEAD,
	    .fault_mode = is_inline ? FAR_FAULT_INLINE : FAR_FAULT_THREAD,
	};
	char error[768];
	int r;

	c->name = way;
	c->is_inline = is_inline;
	if (strcmp(way, "floor") == 0) {
		r = fp_floor_open(bytes, options->cpu, is_inline, &c->floor);
		snprintf(
		    error, sizeof(error), "%s%s",
		    r == -EPERM
		        ? "userfaultfd is not permitted to this user: it takes access to /dev/userfaultfd, "
		          "`sysctl vm.unprivileged_userfaultfd=1` or CAP_SYS_PTRACE"
		        : "userfaultfd is not to be had: ",
		    r == -EPERM ? "" : strerror(-r));
	} else {
		r = fp_farbed_open(&bed, error, sizeof(error), &c->bed);
	}
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench fault", "%s: %s", way, error);
		return r;
	}
	fp_pattern_fill(c->floor ? fp_floor_source(c->floor) : fp_farbed_memory(c->bed), bench->n_pages,
	                options->seed);
	return 0;
}

static int send_away(struct fault_contender *c)
{
	int r = c->floor ? fp_floor_reset(c->floor) : fp_farbed_push_out(c->bed);

	if (r < 0)
		fp_log(FP_LOG_ERROR, "bench fault",
		       "%s: pages stay in local memory, so touches of them are no faults", c->name);
	return r;
}

/* Touches every page once. Returns how many gave a wrong word. */
static size_t touch_all(const struct bench_fault *bench, const struct fault_contender *c,
                        struct fp_hist *ret_hist)
{
	const char *base = memory_of(c);
	size_t wrong = 0;

	for (size_t i = 0; i < bench->n_pages; i++) {
		size_t page = bench->order[i];
		const volatile uint64_t *word = (const void *)(base + page * FP_PATTERN_PAGE_BYTES);
		uint64_t start_ns = fp_clock_ns(), value = *word;

		fp_hist_record(ret_hist, fp_clock_ns() - start_ns);
		wrong += value != fp_pattern_word(bench->options.seed, page, 0, 0);
	}
	return wrong;
}

/* What was timed must have been real fetches, every one, and must have brought the right bytes. */
static int check_round(const struct bench_fault *bench, const struct fault_contender *c,
                       uint64_t fetched_before, size_t wrong)
{
	uint64_t bytes = bench->n_pages * FP_PATTERN_PAGE_BYTES;
	uint64_t fetched =
	    c->bed ? fp_farbed_fetched(c->bed, fetched_before + bytes) - fetched_before : bytes;
	size_t bad;

	if (fetched != bytes) {
		fp_log(FP_LOG_ERROR, "bench fault",
		       "%s: %zu touches fetched %" PRIu64 " bytes: this is not what was to be measured",
		       c->name, bench->n_pages, fetched);
		return -EBADMSG;
	}
	if (wrong || !fp_pattern_verify(memory_of(c), bench->n_pages, bench->options.seed, 0, &bad)) {
		fp_log(FP_LOG_ERROR, "bench fault", "%s: WRONG BYTES (seed %" PRIu64 ")", c->name,
		       bench->options.seed);
		return -EBADMSG;
	}
	return 0;
}

static void note_round(struct fault_contender *c, unsigned round, const struct fp_hist *h)
{
	const struct fault_contender *floor = c->floor_of;

	for (enum fault_metric m = P50; m <= P999; m++)
		c->values[m][round] = (double)fp_hist_quantile(h, metrics[m].quantile) / FP_NSEC_PER_USEC;
	c->values[RATE][round] = (double)FP_NSEC_PER_SEC / fp_hist_mean(h);
	c->values[RATIO][round] = floor ? c->values[P50][round] / floor->values[P50][round] : 0;
}

static int run_round(struct bench_fault *bench, unsigned round, struct fault_contender *c)
{
	fp_autofree struct fp_hist *h = calloc(1, sizeof(*h));
	uint64_t fetched_before;
	size_t wrong;
	int r = h ? send_away(c) : -ENOMEM;

	if (r < 0)
		return r;
	fetched_before = c->bed ? fp_farbed_fetched(c->bed, 0) : 0;
	if (c->floor && (r = fp_floor_enter(c->floor)) < 0)
		return r;
	wrong = touch_all(bench, c, h);
	if (c->floor)
		fp_floor_leave(c->floor);
	note_round(c, round, h);
	return check_round(bench, c, fetched_before, wrong);
}

static int run_rounds(struct bench_fault *bench)
{
	int r = 0;

	for (unsigned round = 0; r == 0 && round < bench->options.rounds; round++) {
		fp_pattern_shuffle(bench->options.seed + round, bench->n_pages, bench->order);
		for (unsigned i = 0; r == 0 && i < bench->n; i++)
			r = run_round(bench, round, &bench->contender[i]);
	}
	for (unsigned i = 0; r == 0 && i < bench->n; i++)
		for (enum fault_metric m = 0; m < METRICS; m++)
			bench->contender[i].spread[m] =
			    fp_spread_of(bench->contender[i].values[m], bench->options.rounds);
	return r;
}

static void print_text(const struct bench_fault *bench)
{
	const struct fp_benchopt *options = &bench->options;

	printf("bench fault: %zu pages in random order, %u rounds in turn, CPU %d, seed %" PRIu64
	       "; µs: median [least greatest]\n",
	       bench->n_pages, options->rounds, options->cpu, options->seed);
	printf("%-24s %-7s %6s %-15s %6s %-15s %6s %-15s %6s %-15s %9s %6s\n", "over", "mode", "p50", "",
	       "p90", "", "p99", "", "p99.9", "", "faults/s", "ratio");
	for (unsigned i = 0; i < bench->n; i++) {
		const struct fault_contender *c = &bench->contender[i];

		printf("%-24s %-7s", c->name, mode_name(c));
		for (enum fault_metric m = P50; m <= P999; m++)
			fp_spread_print(c->spread[m], 7, m < P99 ? 2 : 1, stdout);
		printf("%10.0f", c->spread[RATE].median);
		if (c->floor_of)
			fp_spread_print(c->spread[RATIO], 7, 2, stdout);
		putchar('\n');
	}
}

static void print_json(const struct bench_fault *bench)
{
	fp_benchopt_json(&bench->options);
	fputs("\"contenders\": [", stdout);
	for (unsigned i = 0; i < bench->n; i++) {
		const struct fault_contender *c = &bench->contender[i];

		fputs(i ? ",\n {\"over\": " : "\n {\"over\": ", stdout);
		fp_tool_json_string(stdout, c->name);
		printf(", \"fault_mode\": \"%s\"", mode_name(c));
		for (enum fault_metric m = 0; m < (c->floor_of ? METRICS : RATIO); m++) {
			fputs(", ", stdout);
			fp_spread_json(metrics[m].name, c->spread[m], stdout);
		}
		putchar('}');
	}
	puts("]}");
}

/* A mode's floor, if floors take part, goes first in each round, since the others are compared with
 * it. */
static int open_mode(struct bench_fault *bench, bool is_inline)
{
	const struct fp_benchopt *options = &bench->options;
	struct fault_contender *first = &bench->contender[bench->n];
	int r = 0;

	for (unsigned i = 0; r == 0 && i < options->n_ways; i++)
		r = open_contender(bench, options->ways[i], is_inline);
	for (struct fault_contender *c = first; c < &bench->contender[bench->n]; c++)
		c->floor_of = first->floor ? first : NULL;
	return r;
}

static int open_all(struct bench_fault *bench)
{
	const struct fp_benchopt *options = &bench->options;
	int r = 0;

	bench->n_pages = options->map_bytes / FP_PATTERN_PAGE_BYTES;
	bench->order = calloc(bench->n_pages, sizeof(*bench->order));
	if (!bench->order)
		return -ENOMEM;
	if (options->modes & FP_BENCH_THREAD)
		r = open_mode(bench, false);
	if (r == 0 && (options->modes & FP_BENCH_INLINE))
		r = open_mode(bench, true);
	return r;
}

static void close_all(struct bench_fault *bench)
{
	while (bench->n > 0) { /* the last first: its node may be another's */
		struct fault_contender *c = &bench->contender[--bench->n];

		fp_floor_close(c->floor);
		fp_farbed_close(c->bed);
	}
	free(bench->order);
	fp_benchopt_done(&bench->options);
}

static int fault_main(int argc, char **argv)
{
	fp_autofree struct bench_fault *bench = calloc(1, sizeof(*bench));
	int status, r;

	if (!bench)
		return 1;
	bench->options = (struct fp_benchopt){
	    .modes = FP_BENCH_THREAD | FP_BENCH_INLINE, .rounds = 5, .map_bytes = 64u << 20};
	if (!fp_benchopt_parse(&fp_tool_bench_fault, argc, argv, "floor,shm,tcp", &bench->options, &status))
		return status;
	r = open_all(bench);
	if (r == 0) /* after the agents' threads are there, which must not inherit it */
		r = fp_benchopt_pin(&bench->options);
	if (r == 0)
		r = run_rounds(bench);
	if (r == 0)
		(bench->options.json ? print_json : print_text)(bench);
	close_all(bench);
	return r < 0 ? 1 : fp_tool_flush(&fp_tool_bench_fault);
}

const struct fp_tool fp_tool_bench_fault = {
    .name = "fault",
    .label = "bench fault",
    .summary = "what one fault costs, beside the bare floor, over each transport",
    .help =
        "usage: farpage bench fault [--json] [--transport LIST] [--node URL]... [OPTION...]\n"
        "\n"
        "Times the touches of pages that are not local, one thread, in random order: of the bare floor (a\n"
        "minimal userfaultfd handler on the same CPU, inline of SIGBUS, that only copies a page) and of\n"
        "Farpage, each fault mode beside its own floor. Every touch "
        "is\n"
        "checked to be a fetch, and every byte that it brings.\n"
        "\n" FP_BENCHOPT_HELP("64M", "enough for all of it, so that eviction takes no part", "5",
                              "floor,shm,tcp", "thread, inline or both (default)"),
    .main = fault_main,
};
