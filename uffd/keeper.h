/*
 * The keeper: the threads that tend the store, so that a node whose link broke is resumed while faults and
 * write-backs wait. One thread a node, so that no node waits for another that does not answer. Room: uffd,
 * inside. They block on their nodes, allocate and log: no fault depends on them but within its deadline, and
 * no fork waits for them while it holds the allocator's locks.
 */
#ifndef FP_KEEPER_H
#define FP_KEEPER_H

#include <stdint.h>

#include "store.h"

struct fp_keeper;

struct fp_keeper_options {
	struct fp_store *store;    /* outlives the keeper */
	void (*enter_local)(void); /* brackets the threads' allocations; may be NULL */
	void (*leave_local)(void);
};

/* Starts the threads. 0 or a negative errno. */
int fp_keeper_start(const struct fp_keeper_options *options, struct fp_keeper **ret_keeper);

/* Ends the threads; waits for attempts that are under way. Lanes are closed, or nobody uses them any more.
 * NULL is fine, here and below. */
void fp_keeper_stop(struct fp_keeper *keeper);

/* Keeps the threads from the store until fp_keeper_resume; waits for attempts that are under way. Before the
 * allocator's locks are taken; the same thread resumes. */
void fp_keeper_pause(struct fp_keeper *keeper);
void fp_keeper_resume(struct fp_keeper *keeper);

/* In the child of a fork that paused it: frees it, whose threads stayed with the parent. */
void fp_keeper_abandon(struct fp_keeper *keeper);

/* What wakes them to end; -1: keeper is NULL. */
int fp_keeper_fd(const struct fp_keeper *keeper);

#endif
