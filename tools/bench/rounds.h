/*
 * The common part of the benches of faults: their options, contenders that take turns round by
 * round, and the medians of the results. Room: tools/bench.
 */
#ifndef FP_ROUNDS_H
#define FP_ROUNDS_H

#include "bed.h"
#include "benchnode.h"
#include "tool.h"

#define FP_ROUNDS_MAX     100
#define FP_ROUNDS_WAYS    8
#define FP_ROUNDS_BEDS    (1 + 2 * (FP_ROUNDS_WAYS + 1))
#define FP_ROUNDS_METRICS 7

struct fp_contender {
	enum fp_bed_kind kind;
	const char *name; /* "floor", "bare-tcp", or a way to a node */
	bool is_inline;
	struct fp_bed *bed;
	size_t n_pages;
	double values[FP_ROUNDS_METRICS][FP_ROUNDS_MAX]; /* NAN: not measured for this contender */
	struct fp_hist latency; /* of touches of pages that were not local, in random order, in all rounds */
};

struct fp_rounds {
	bool json, lists;     /* lists: --transport was given */
	bool floor, bare_tcp; /* these take part */
	unsigned modes;       /* thread, inline, both */
	uint64_t cpu, seed, rounds, map_bytes, local_bytes;
	FILE *svg;    /* the file for a picture; NULL: none is wanted */
	char *secret; /* secret of the nodes that the user named; NULL: none */
	const char *ways[FP_ROUNDS_WAYS];
	char delayed[FP_ROUNDS_WAYS][FP_BENCHNODE_WAY_LEN]; /* the names of those with a longer wire */
	unsigned n_ways, n;
	struct fp_contender contender[FP_ROUNDS_BEDS];
	uint32_t *order; /* order of the touches; each bench sets it */
	struct fp_benchnode nodes;
};

/* One bench of this kind. */
struct fp_rounds_bench {
	const struct fp_tool *tool;
	const char *metrics[FP_ROUNDS_METRICS + 1]; /* names in JSON; NULL ends them */
	unsigned modes;                             /* defaults */
	unsigned rounds;
	uint64_t map_bytes;
	unsigned local_percent; /* how much of map_bytes is local */
	uint32_t readahead_pages;
	/* Measures one contender in one round: fills in its values. 0, or a negative errno after a
	 * message. */
	int (*measure)(struct fp_rounds *rounds, struct fp_contender *contender, unsigned round);
	/* Adds further results to the JSON document; NULL: there are none. */
	void (*add)(const struct fp_rounds *rounds, json_t *document);
};

/* The options that all these benches have. */
extern const struct fp_option fp_rounds_options[];

/* Runs a whole bench. Returns the exit status. */
int fp_rounds_main(const struct fp_rounds_bench *bench, int argc, char **argv);

/*
 * Returns the floor with which contender is compared. It was measured earlier in the same round.
 * NULL: no floor takes part.
 */
const struct fp_contender *fp_rounds_floor(const struct fp_rounds *rounds,
                                           const struct fp_contender *contender);

/* Returns the bare request and answer over tcp, also measured earlier in the round, or NULL. */
const struct fp_contender *fp_rounds_bare_tcp(const struct fp_rounds *rounds);

/* NULL: bare tcp has no faults. */
const char *fp_rounds_mode(const struct fp_contender *contender);

#endif
