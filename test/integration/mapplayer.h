/*
 * One of the two processes of mapdice: makes the calls and records their answers. Room:
 * test/integration.
 */
#ifndef MAPPLAYER_H
#define MAPPLAYER_H

#include <stdint.h>

#define MAP_BATCH 32u /* the most records that are written at once */

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

/* The result of one step. */
struct record {
	uint32_t op, start, n, arg;
	int64_t ret;
	int32_t error;
	uint32_t unused;
	uint64_t hash;
};

/*
 * mapdice --play SEED BATCH BY_FILE: makes the steps that follow from SEED, and writes a record of
 * each to stdout, BATCH at a time. It goes on until it is killed or nobody reads. If BY_FILE is 1,
 * it reads and writes pages through a file. If BY_FILE is 0, it uses process_vm_readv and
 * process_vm_writev. Returns the exit status.
 */
int map_play(char **argv);

#endif
