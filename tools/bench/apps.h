/*
 * One run of `farpage bench apps`: what was asked for, and the figures. Room: tools/bench.
 */
#ifndef FP_APPS_H
#define FP_APPS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "appload.h"
#include "benchnode.h"
#include "guardian.h"

#define FP_APPS_ROUNDS_MAX 100
#define FP_APPS_LOCALS_MAX 8
#define FP_APPS_NODES_MAX  8
#define FP_APPS_LOADS_MAX  16

/*
 * Memory that a control group has beyond the budget. With a limit that leaves a program nothing but
 * its budget, the kernel finds no page to take at some moment, and kills it. Then the program runs
 * again with twice as much, up to the most.
 */
#define FP_APPS_SLACK_BYTES      (8ull << 20)
#define FP_APPS_SLACK_MOST_BYTES (32ull << 20)

enum fp_apps_contender {
	FP_APPS_PLAIN, /* neither far memory nor a limit */
	FP_APPS_THREAD,
	FP_APPS_INLINE,
	FP_APPS_ZRAM,
	FP_APPS_LOOP,
	FP_APPS_CONTENDERS,
};

extern const char *const fp_apps_contenders[]; /* their names, ended by NULL */

/* One contender with one workload and one share of local memory. */
struct fp_apps_cell {
	double seconds[FP_APPS_ROUNDS_MAX], setup_seconds[FP_APPS_ROUNDS_MAX];
	unsigned n;           /* rounds that came to an end */
	unsigned killed;      /* rounds in which the kernel killed the program, also with the most slack */
	uint64_t slack_bytes; /* of a control group, in the last round; 0: there is none */
};

struct fp_apps {
	bool json;
	unsigned contenders, loads; /* bit sets */
	uint64_t rounds;
	uint64_t locals[FP_APPS_LOCALS_MAX]; /* hundredths of a percent of the peak */
	unsigned n_locals;
	unsigned transport; /* of the private node: shm, tcp */
	bool names_transport;
	const char *nodes[FP_APPS_NODES_MAX], *secret_file;
	unsigned n_nodes;
	FILE *svg;                     /* the file for a picture; NULL: none is wanted */
	const char *over;              /* the first named node, or the transport */
	unsigned run;                  /* a workload to run in this process; UINT_MAX: none */
	struct fp_appload_scene scene; /* has size and seed */
	struct fp_guardian guardian;
	struct fp_benchnode private_nodes;
	/* the figures: */
	uint64_t peak_bytes[FP_APPS_LOADS_MAX], checksum[FP_APPS_LOADS_MAX];
	struct fp_apps_cell plain[FP_APPS_LOADS_MAX];
	struct fp_apps_cell cell[FP_APPS_LOADS_MAX][FP_APPS_LOCALS_MAX]
	                        [FP_APPS_CONTENDERS]; /* without plain */
	json_t *skipped;                              /* a list */
};

/* How much may be local: whole pages, and at least the least budget. */
uint64_t fp_apps_local_bytes(const struct fp_apps *apps, unsigned load, unsigned local);

/* Adds to the list of what was left out. */
void fp_apps_skip(struct fp_apps *apps, const char *what, const char *reason);

/* The document with all figures. Sorts the figures of each cell. NULL: no memory. */
json_t *fp_apps_document(struct fp_apps *apps);

#endif
