/*
 * Which memory a thread gets: far, as the program's, or local, as the agent's (law 4). Room:
 * preload.
 *
 * The state is one thread-local struct of the initial-exec model, so that reaching it never
 * allocates. fast_below is the whole of malloc's fast path: sizes below it need no thought.
 */
#ifndef FP_LOCAL_H
#define FP_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fp_local {
	size_t fast_below;             /* 0: look closer */
	size_t restore;                /* what fast_below is outside of brackets */
	unsigned depth;                /* brackets that are open */
	int cancel_state, cancel_type; /* the program's, outside of brackets */
	bool blocks_cancel;            /* the signal of cancellation is let in for the bracket alone */
	bool owes_type;                /* asynchronous cancellation is still to be permitted again */
};

extern __thread struct fp_local fp_local __attribute__((tls_model("initial-exec")));

/*
 * Between these, this thread is the agent's: what it allocates and maps is local, and calls on far
 * ranges are the agent's own; and it can't be cancelled, as it may hold locks. They nest. Exported,
 * for an agent in libfarpage.so that shares the process.
 */
__attribute__((visibility("default"))) void fp_shim_enter_local(void);
__attribute__((visibility("default"))) void fp_shim_leave_local(void);

/*
 * The same with signals blocked, for calls on mappings: a handler of the program's in the bracket
 * would be taken for the agent, and most signals that come meanwhile would be delivered there, as
 * the far space blocks them too. Returns what leaving takes.
 */
uint64_t fp_local_enter_masked(void);
void fp_local_leave_masked(uint64_t mask);

/* After a child of vfork, which may have been killed in brackets: leaves all but so many. */
void fp_local_vforked(unsigned depth);

/* True in a bracket, and on the agent's threads. */
bool fp_local_is_agent(void);

/*
 * A thread whose cancellation type is asynchronous may end the moment it can be cancelled again. So
 * where a bracket ends with signals blocked, for us, its type stays deferred: true if so. Whoever
 * has let the signals through settles it; does not return if the thread has been cancelled.
 */
bool fp_local_owes(void);
/* From now on all signals of the program's come by us, and whoever runs its handlers settles. */
void fp_local_route_signals(void);
void fp_local_settle(void);

#endif
