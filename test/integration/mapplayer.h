/*
 * One of the two processes of mapdice: it makes the calls and writes down what they answered. Room:
 * test/integration.
 */
#ifndef MAPPLAYER_H
#define MAPPLAYER_H

#include <stdint.h>

#define MAP_BATCH 32u /* records that are passed on at once, at most */

enum op {
	OP_WRITE,
	OP_MAP,
	OP_FOREIGN,
	OP_UNMAP,
	OP_PROTECT,
	OP_ADVISE,
	OP_LOCK,
	OP_REMAP,
	OP_MINCORE,
	OP_RESERVE,
};

/* The answers of one step. */
struct record {
	uint32_t op, start, n, arg;
	int64_t ret;
	int32_t error;
	uint32_t unused;
	uint64_t hash;
};

/*
 * mapdice --play SEED BATCH BY_FILE: makes the steps that the seed says, and writes a record of
 * each to stdout, BATCH at a time, until it is ended or nobody reads. BY_FILE: pages are looked at
 * by reads and writes of a file, not by process_vm_readv. The exit status.
 */
int map_play(char **argv);

#endif
