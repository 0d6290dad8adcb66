/*
 * The reconnector: threads that resume nodes whose link broke, while faults and write-backs wait.
 * Room: uffd/agent. There is one thread for each node, so that a node that does not answer delays
 * no other.
 *
 * The threads block on their nodes, allocate and log. A fault waits for them no longer than its
 * deadline. A fork does not wait for them while it holds the allocator's locks.
 */
#ifndef FP_RECONNECTOR_H
#define FP_RECONNECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "store.h"

struct fp_reconnector;

struct fp_reconnector_options {
	struct fp_store *store;    /* outlives the reconnector */
	void (*enter_local)(void); /* brackets the threads' allocations; may be NULL */
	void (*leave_local)(void);
	bool keeps_names; /* never looks a name up again: the C library would need memory that is far */
};

/* Starts the threads. Returns 0 or a negative errno. */
int fp_reconnector_start(const struct fp_reconnector_options *options,
                         struct fp_reconnector **ret_reconnector);

/*
 * Ends the threads; waits for attempts that are under way. No thread may use the lanes any more.
 * NULL is fine, here and below.
 */
void fp_reconnector_stop(struct fp_reconnector *reconnector);

/*
 * Stops the threads' work until fp_reconnector_resume; waits for attempts that are under way.
 * Called before the allocator's locks are taken; the same thread resumes.
 */
void fp_reconnector_pause(struct fp_reconnector *reconnector);
void fp_reconnector_resume(struct fp_reconnector *reconnector);

/*
 * Frees the reconnector, in the child of a fork that had paused it. Its threads exist only in the
 * parent.
 */
void fp_reconnector_abandon(struct fp_reconnector *reconnector);

#endif
