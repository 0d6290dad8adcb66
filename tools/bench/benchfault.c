/*
 * farpage bench fault: the cost of one fault, compared with the bare floor in the same run. Room:
 * tools/bench.
 *
 * One thread, pinned to a CPU, reads one word of each of many pages that are not local, in random
 * order, and times each touch. The contenders take turns, round by round. So a machine that becomes
 * slower affects all of them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "pattern.h"
#include "rounds.h"

enum fault_metric { P50, P90, P99, P999, RATE, RATIO, BOUND };

#define BARE_SHARE 1.2 /* of the bare request and answer, in the bound of a fault over tcp */

static const double quantiles[] = {0.5, 0.9, 0.99, 0.999};

/* A node elsewhere has another wire than bare tcp. */
static bool is_over_loopback(const struct fp_contender *c)
{
	return strcmp(c->name, "tcp") == 0 || strncmp(c->name, "tcp+", 4) == 0;
}

static void note_round(const struct fp_rounds *rounds, struct fp_contender *c, unsigned round,
                       const struct fp_hist *h)
{
	const struct fp_contender *floor = fp_rounds_floor(rounds, c), *bare = fp_rounds_bare_tcp(rounds);

	for (enum fault_metric m = P50; m <= P999; m++)
		c->values[m][round] = (double)fp_hist_quantile(h, quantiles[m]) / FP_NSEC_PER_USEC;
	c->values[RATE][round] = (double)FP_NSEC_PER_SEC / fp_hist_mean(h);
	fp_hist_merge(&c->latency, h);
	if (floor && c != bare)
		c->values[RATIO][round] = c->values[P50][round] / floor->values[P50][round];
	if (floor && bare && is_over_loopback(c))
		c->values[BOUND][round] = c->values[P50][round] /
		                          (floor->values[P50][round] + BARE_SHARE * bare->values[P50][round]);
}

/* Checks that every timed touch was a real fetch and brought the right bytes. */
static int check_round(const struct fp_rounds *rounds, const struct fp_contender *c, uint64_t fetched_before,
                       size_t wrong)
{
	uint64_t bytes = c->n_pages * FP_PATTERN_PAGE_BYTES;
	uint64_t fetched = fp_bed_stats(c->bed, fetched_before + bytes).fetched_bytes - fetched_before;
	size_t bad;

	if (c->kind == FP_BED_FAR && fetched != bytes) {
		fp_log(FP_LOG_ERROR, "bench fault",
		       "%s: %zu touches fetched %" PRIu64 " bytes: this is not what was to be measured",
		       c->name, c->n_pages, fetched);
		return -EBADMSG;
	}
	if (wrong || !fp_bed_verify(c->bed, 0, &bad)) {
		fp_log(FP_LOG_ERROR, "bench fault", "%s: WRONG BYTES (seed %" PRIu64 ")", c->name,
		       rounds->seed);
		return -EBADMSG;
	}
	return 0;
}

static int measure(struct fp_rounds *rounds, struct fp_contender *c, unsigned round)
{
	fp_autofree struct fp_hist *h = calloc(1, sizeof(*h));
	uint64_t fetched_before;
	size_t wrong;
	int r = h ? fp_bed_send_away(c->bed) : -ENOMEM;

	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench fault",
		       "%s: pages stay in local memory, so touches of them are no faults", c->name);
		return r;
	}
	fp_pattern_shuffle(rounds->seed + round, c->n_pages, rounds->order);
	fetched_before = fp_bed_stats(c->bed, 0).fetched_bytes;
	wrong = fp_bed_read(c->bed, rounds->order, 0, 0, h);
	note_round(rounds, c, round, h);
	return check_round(rounds, c, fetched_before, wrong);
}

static const struct fp_rounds_bench fault = {
    .tool = &fp_tool_bench_fault,
    .metrics = {"p50_us", "p90_us", "p99_us", "p999_us", "faults_per_second", "ratio_to_floor",
                "ratio_to_bound", NULL},
    .modes = 2,
    .rounds = 5,
    .map_bytes = 64u << 20,
    .local_percent = 200,
    .readahead_pages = 1, /* none */
    .measure = measure,
};

static int fault_main(int argc, char **argv)
{
	return fp_rounds_main(&fault, argc, argv);
}

static const char *const first_columns[] = {"over", "fault_mode", "p50_us", "p99_us", NULL};

const struct fp_tool fp_tool_bench_fault = {
    .name = "fault",
    .label = "bench fault",
    .summary = "what one fault costs, beside the bare floor, over each transport",
    .help = "usage: farpage bench fault [--json] [--transport LIST] [--node URL]... [OPTION...]\n\n"
            "Times the touches of pages that are not local, one thread, in random order: of the bare "
            "floor (a minimal userfaultfd handler on the same CPU, inline of SIGBUS, that only copies a "
            "page) and of Farpage, each fault mode beside its own floor. Every touch is checked to be a "
            "fetch, and every byte that it brings. bare-tcp has no faults: another process answers each "
            "request with 4 KiB over loopback. The bound of a fault over tcp is the floor + 1.2 x "
            "bare-tcp. µs: median [least greatest] of the rounds.\n\n",
    .options = fp_rounds_options,
    .first_columns = first_columns,
    .main = fault_main,
};
