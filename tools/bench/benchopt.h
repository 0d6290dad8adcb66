/*
 * The options that the benches share. Room: tools.
 */
#ifndef FP_BENCHOPT_H
#define FP_BENCHOPT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "tool.h"

#define FP_BENCH_MAX_WAYS   8
#define FP_BENCH_MAX_ROUNDS 100

/* The options as --help tells them, with the defaults of a bench. */
#define FP_BENCHOPT_HELP(size, local, rounds, ways, modes)                                                   \
	"  --transport LIST     of floor, shm, tcp (the latter two over a node started for it); default\n"   \
	"                       " ways "\n"                                                                  \
	"  --fault-mode MODE    " modes "\n"                                                                 \
	"  --node URL           over this node; without --transport, beside the floor alone\n"               \
	"  --secret-file FILE   the shared secret of the nodes named\n"                                      \
	"  --size SIZE          how much is mapped and touched; default " size "\n"                          \
	"  --pages N            the same in pages of 4 KiB\n"                                                \
	"  --local SIZE         how much of it may be local; default " local "\n"                            \
	"  --rounds N           default " rounds "\n"                                                        \
	"  --cpu N              where the touching thread runs; default: where it starts\n"                  \
	"  --seed N             of contents and order; default: the clock\n"                                 \
	"  --json               one object, times in µs\n"

/* Fault modes to measure, a bit each. */
#define FP_BENCH_THREAD 1u
#define FP_BENCH_INLINE 2u

struct fp_benchopt {
	bool json;
	unsigned modes;
	int cpu; /* where the touching thread runs */
	uint64_t seed;
	unsigned rounds;
	uint64_t map_bytes;                  /* how much is touched */
	uint64_t local_bytes;                /* 0: enough for all of it */
	char *secret;                        /* of the nodes that were named; NULL: none */
	const char *ways[FP_BENCH_MAX_WAYS]; /* "floor", "shm", "tcp", or a node's URL */
	unsigned n_ways;
	char dir[PATH_MAX - 16]; /* of this command, for sockets */
	int dir_lock_fd;
};

/*
 * Parses what the command line says over the defaults in *options; default_ways: separated by
 * commas. *ret_status is the exit status where it says to go no further (false: --help, or an
 * error, reported). Otherwise makes dir; release with fp_benchopt_done.
 */
bool fp_benchopt_parse(const struct fp_tool *tool, int argc, char **argv, const char *default_ways,
                       struct fp_benchopt *options, int *ret_status);
void fp_benchopt_done(struct fp_benchopt *options);

/* Keeps the calling thread, and those it starts from now on, on options->cpu. 0 or a negative
 * errno. */
int fp_benchopt_pin(const struct fp_benchopt *options);

/* Writes what a reader must know of the run, as members of a JSON object that are followed by
 * others. */
void fp_benchopt_json(const struct fp_benchopt *options);

#endif
