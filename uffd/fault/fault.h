/*
 * The fault loop: the thread that reads the userfaultfd and brings every fault to its end (law 1).
 * Room: uffd/fault. The thread runs with all signals blocked, on memory that was allocated and
 * locked before it started. It never allocates or logs, and touches far memory only through
 * userfaultfd (law 4).
 */
#ifndef FP_FAULT_H
#define FP_FAULT_H

#include <stdint.h>

#include "far.h"

struct fp_affinity;
struct fp_layout;
struct fp_fault_loop;

struct fp_fault_options {
	struct fp_far *far;
	char *stage; /* FP_STAGE_PAGES pages of the far range that the program does not use */
	const struct fp_layout *layout; /* limits read-ahead; read without its lock */
	/* another page that the program does not use: a touch of it wakes and ends the thread */
	char *stop_page;
	unsigned readahead_pages;
	struct fp_affinity *affinity; /* is told of every fault; outlives the loop */
};

/* Starts the thread. Returns 0 or a negative errno. */
int fp_fault_loop_start(const struct fp_fault_options *options, struct fp_fault_loop **ret_loop);

/* Ends the thread. Later faults wait for ever, so no thread may touch far memory any more. NULL is
 * fine. */
void fp_fault_loop_stop(struct fp_fault_loop *loop);

/* In the child of a fork, where the thread does not run: frees the loop. NULL is fine. */
void fp_fault_loop_abandon(struct fp_fault_loop *loop);

#endif
