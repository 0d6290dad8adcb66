/*
 * farpage bench touch: the cost of passes over far memory when little of it is local. Room:
 * tools/bench.
 *
 * A round has four timed passes, each of which touches the first word of every page. They are loads
 * in order, loads backwards in steps of four pages, loads in random order, and stores in random
 * order. After the stores each page that leaves is dirty. A timed pass checks the words that it
 * loads. After the loads, and again after the stores, an untimed pass checks every word of every
 * page. The library's counters tell how the pages of a timed pass faulted.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

#include "bench.h"
#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "pattern.h"
#include "rounds.h"

/* A touch that took less time found its page local: no fault through userfaultfd is that short. */
#define LOCAL_TOUCH_NS 1000
#define STEP           4 /* pages, of the strided pass */

enum touch_metric { SEQUENTIAL, STRIDED, RANDOM_READ, RANDOM_WRITE, READ_P50, READ_P99, READ_P999 };

enum pass { PASS_SEQUENTIAL, PASS_STRIDED, PASS_RANDOM_READ, PASS_RANDOM_WRITE, PASSES };

static const char *const pass_names[PASSES] = {"sequential read", "strided read", "random read",
                                               "random write"};

/* The library's counters of touched pages, and of pages prefetched before a touch. */
static const struct counter {
	const char *name;
	size_t at; /* offset in struct far_stats */
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

static uint64_t counts[FP_ROUNDS_BEDS][PASSES][COUNTERS]; /* per contender, summed over all rounds */

static double us_per_page(uint64_t start_ns, const struct fp_contender *c)
{
	return (double)(fp_clock_ns() - start_ns) / (double)c->n_pages / FP_NSEC_PER_USEC;
}

/* Returns the number of wrong words. */
static size_t read_in_order(const struct fp_rounds *rounds, struct fp_contender *c, unsigned round)
{
	uint64_t start_ns = fp_clock_ns();
	size_t wrong = 0;

	for (size_t page = 0; page < c->n_pages; page++)
		wrong += *fp_bed_word(c->bed, page) != fp_pattern_word(rounds->seed, page, 0, round);
	c->values[SEQUENTIAL][round] = us_per_page(start_ns, c);
	return wrong;
}

/* Backwards in steps, until each page was read once. Returns the number of wrong words. */
static size_t read_in_steps(const struct fp_rounds *rounds, struct fp_contender *c, unsigned round)
{
	uint64_t start_ns = fp_clock_ns();
	size_t wrong = 0;

	for (size_t first = 0; first < STEP && first < c->n_pages; first++)
		for (size_t n = first; n < c->n_pages; n += STEP) {
			size_t page = c->n_pages - 1 - n;

			wrong += *fp_bed_word(c->bed, page) != fp_pattern_word(rounds->seed, page, 0, round);
		}
	c->values[STRIDED][round] = us_per_page(start_ns, c);
	return wrong;
}

static void write_at_random(const struct fp_rounds *rounds, struct fp_contender *c, unsigned round)
{
	uint64_t start_ns = fp_clock_ns();

	for (size_t i = 0; i < c->n_pages; i++)
		*fp_bed_word(c->bed, rounds->order[i]) =
		    fp_pattern_word(rounds->seed, rounds->order[i], 0, round + 1);
	c->values[RANDOM_WRITE][round] = us_per_page(start_ns, c);
}

static int verify(const struct fp_rounds *rounds, const struct fp_contender *c, unsigned generation,
                  size_t wrong)
{
	size_t bad = 0;

	if (!wrong && fp_bed_verify(c->bed, generation, &bad))
		return 0;
	fp_log(FP_LOG_ERROR, "bench touch", "%s: WRONG BYTES (seed %" PRIu64 ", write pass %u, page %zu)",
	       c->name, rounds->seed, generation, bad);
	return -EBADMSG;
}

static uint64_t counted(const struct far_stats *stats, size_t counter)
{
	return *(const uint64_t *)((const char *)stats + counters[counter].at);
}

/* Adds the counts since *stats to pass_counts, then updates *stats. */
static void count_pass(const struct fp_contender *c, uint64_t pass_counts[COUNTERS], struct far_stats *stats)
{
	struct far_stats now = fp_bed_stats(c->bed, 0);

	for (size_t i = 0; i < COUNTERS; i++)
		pass_counts[i] += counted(&now, i) - counted(stats, i);
	*stats = now;
}

static size_t read_at_random(struct fp_rounds *rounds, struct fp_contender *c, unsigned round,
                             unsigned generation, struct fp_hist *h)
{
	uint64_t start_ns;
	size_t wrong;

	fp_pattern_shuffle(rounds->seed + 2 * round, c->n_pages, rounds->order);
	start_ns = fp_clock_ns();
	wrong = fp_bed_read(c->bed, rounds->order, generation, LOCAL_TOUCH_NS, h);
	c->values[RANDOM_READ][round] = us_per_page(start_ns, c);
	c->values[READ_P50][round] = (double)fp_hist_quantile(h, 0.5) / FP_NSEC_PER_USEC;
	c->values[READ_P99][round] = (double)fp_hist_quantile(h, 0.99) / FP_NSEC_PER_USEC;
	c->values[READ_P999][round] = (double)fp_hist_quantile(h, 0.999) / FP_NSEC_PER_USEC;
	fp_hist_merge(&c->latency, h);
	return wrong;
}

static int measure(struct fp_rounds *rounds, struct fp_contender *c, unsigned round)
{
	fp_autofree struct fp_hist *h = calloc(1, sizeof(*h));
	uint64_t(*pass_counts)[COUNTERS] = counts[c - rounds->contender];
	struct far_stats stats;
	size_t wrong;
	int r;

	if (!h)
		return -ENOMEM;
	if (c->kind != FP_BED_FAR) /* each page of the floor faults once */
		return verify(rounds, c, 0, read_at_random(rounds, c, round, 0, h));
	stats = fp_bed_stats(c->bed, 0);
	wrong = read_in_order(rounds, c, round);
	count_pass(c, pass_counts[PASS_SEQUENTIAL], &stats);
	wrong += read_in_steps(rounds, c, round);
	count_pass(c, pass_counts[PASS_STRIDED], &stats);
	wrong += read_at_random(rounds, c, round, round, h);
	count_pass(c, pass_counts[PASS_RANDOM_READ], &stats);
	r = verify(rounds, c, round, wrong);
	if (r < 0)
		return r;
	fp_pattern_shuffle(rounds->seed + 2 * round + 1, c->n_pages, rounds->order);
	stats = fp_bed_stats(c->bed, 0);
	write_at_random(rounds, c, round);
	count_pass(c, pass_counts[PASS_RANDOM_WRITE], &stats);
	return verify(rounds, c, round + 1, 0);
}

/*
 * Adds the faults as percent of the pages touched, so that other sizes and rounds can be compared.
 */
static void add_passes(const struct fp_rounds *rounds, json_t *document)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < rounds->n; i++) {
		const struct fp_contender *c = &rounds->contender[i];
		double pages = (double)c->n_pages * (double)rounds->rounds;

		for (enum pass pass = 0; c->kind == FP_BED_FAR && pass < PASSES; pass++) {
			json_t *row = json_pack("{s:o, s:s, s:s}", "over", fp_tool_json_string(c->name),
			                        "fault_mode", fp_rounds_mode(c), "pass", pass_names[pass]);

			for (size_t k = 0; k < COUNTERS; k++)
				json_object_set_new(row, counters[k].name,
				                    json_real(100 * (double)counts[i][pass][k] / pages));
			json_array_append_new(list, row);
		}
	}
	json_object_set_new(document, "faults_in_percent_of_the_pages_touched", list);
}

static const struct fp_rounds_bench touch = {
    .tool = &fp_tool_bench_touch,
    .metrics = {"sequential_read_us_per_page", "strided_read_us_per_page", "random_read_us_per_page",
                "random_write_us_per_page", "read_fault_p50_us", "read_fault_p99_us", "read_fault_p999_us",
                NULL},
    .rounds = 5,
    .map_bytes = 256u << 20,
    .local_percent = 25,
    .measure = measure,
    .add = add_passes,
};

static int touch_main(int argc, char **argv)
{
	return fp_rounds_main(&touch, argc, argv);
}

static const char *const first_columns[] = {
    "over", "fault_mode", "random_read_us_per_page", "read_fault_p99_us", "pass", NULL};

const struct fp_tool fp_tool_bench_touch = {
    .name = "touch",
    .label = "bench touch",
    .summary = "passes over far memory with little of it local",
    .help = "usage: farpage bench touch [--json] [--transport LIST] [--node URL]... [OPTION...]\n\n"
            "Fills memory with incompressible data and touches the first word of each page: one load in "
            "order, one load backwards in steps of four pages, one load in random order, one store in random "
            "order, each in µs a page; with the median, the 99th and the 99.9th percentile of the random "
            "loads that "
            "faulted, and the bare floor's fault beside them. Counts by kind the faults that each pass took, "
            "and the pages that were "
            "prefetched. All words are verified.\n\n",
    .options = fp_rounds_options,
    .first_columns = first_columns,
    .main = touch_main,
};
