/*
 * The memory nodes of a bench: private ones, started when they are first needed, or those that the
 * user named. Room: tools/bench.
 */
#ifndef FP_BENCHNODE_H
#define FP_BENCHNODE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "privnode.h"

#define FP_BENCHNODE_MAX          8
#define FP_BENCHNODE_WAY_LEN      16
#define FP_BENCHNODE_MAX_DELAY_US 10000u

/* The caller sets label and pool_bytes, and zeroes the rest. */
struct fp_benchnode {
	const char *label;       /* name of the bench, for messages */
	uint64_t pool_bytes;     /* pool size of each private node */
	char dir[PATH_MAX - 16]; /* for sockets */
	int dir_lock_fd;
	bool has_dir;
	struct fp_benchnode_own {
		char way[FP_BENCHNODE_WAY_LEN];
		struct fp_privnode *node;
	} own[FP_BENCHNODE_MAX];
	unsigned n_own; /* started */
};

/*
 * Returns the URL of a private node if `way` is "shm", "tcp" or "tcp+Nus". The latter spins N µs
 * before it answers a READ. Otherwise `way` must be a URL, and is returned. Returns NULL after it
 * has printed why. The URL is valid until fp_benchnode_close. *ret_is_own: the node is private.
 */
const char *fp_benchnode_url(struct fp_benchnode *nodes, const char *way, bool *ret_is_own);

/* Stops the private nodes and removes their folder. */
void fp_benchnode_close(struct fp_benchnode *nodes);

#endif
