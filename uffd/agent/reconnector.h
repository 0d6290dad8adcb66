/*
 * The reconnector: the threads that tend the store, so that a node whose link broke is resumed
 * while faults and write-backs wait. One thread a node, so that no node waits for another that does
 * not answer. Room: uffd, inside. They block on their nodes, allocate and log: no fault depends on
 * them but within its deadline, and no fork waits for them while it holds the allocator's locks.
 */
#ifndef FP_RECONNECTOR_H
#define FP_RECONNECTOR_H

#include <stdint.h>

#include "store.h"

struct fp_reconnector;

struct fp_reconnector_options {
	struct fp_store *store;    /* outlives the reconnector */
	void (*enter_local)(void); /* brackets the threads' allocations; may be NULL */
	void (*leave_local)(void);
};

/* Starts the threads. 0 or a negative errno. */
int fp_reconnector_start(const struct fp_reconnector_options *options,
                         struct fp_reconnector **ret_reconnector);

/* Ends the threads; waits for attempts that are under way. Lanes are closed, or nobody uses them
 * any more. NULL is fine, here and below. */
void fp_reconnector_stop(struct fp_reconnector *reconnector);

/* Keeps the threads from the store until fp_reconnector_resume; waits for attempts that are under
 * way. Before the allocator's locks are taken; the same thread resumes. */
void fp_reconnector_pause(struct fp_reconnector *reconnector);
void fp_reconnector_resume(struct fp_reconnector *reconnector);

/* In the child of a fork that paused it: frees it, whose threads stayed with the parent. */
void fp_reconnector_abandon(struct fp_reconnector *reconnector);

#endif
