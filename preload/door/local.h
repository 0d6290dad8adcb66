/*
 * Decides which memory a thread gets: far when it works for the program, local when it works for
 * the agent (law 4). Room: preload/door.
 *
 * The state is one thread-local struct of the initial-exec model, so that no access to it
 * allocates. malloc's fast path checks only fast_below: for smaller sizes it needs no other check.
 */
#ifndef FP_LOCAL_H
#define FP_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fp_local {
	size_t fast_below;             /* smaller sizes take malloc's fast path; 0: none does */
	size_t restore;                /* the value of fast_below outside of brackets */
	unsigned depth;                /* how many brackets are open */
	int cancel_state, cancel_type; /* as the program set them, outside of brackets */
	bool blocks_cancel;            /* the program blocks the cancellation signal */
	bool owes_type;                /* the cancellation type must become asynchronous again */
};

extern __thread struct fp_local fp_local __attribute__((tls_model("initial-exec")));

/*
 * Between these two calls (a bracket) the thread works for the agent. Its allocations and mappings
 * are local, and its calls on far ranges are the agent's own. It can't be cancelled, as it may hold
 * locks. Brackets nest. Exported, for an agent in libfarpage.so that shares the process.
 */
__attribute__((visibility("default"))) void fp_shim_enter_local(void);
__attribute__((visibility("default"))) void fp_shim_leave_local(void);

/*
 * Like fp_shim_enter_local, but for calls on mappings: it also blocks signals. Otherwise a handler
 * of the program could run in the bracket, and we would take the handler's calls for the agent's
 * own. The far space blocks signals as well, but that alone is not enough: when it unblocks them,
 * the bracket is still open. Returns the mask for fp_local_leave_masked.
 */
uint64_t fp_local_enter_masked(void);
void fp_local_leave_masked(uint64_t mask);

/*
 * Called after a child of vfork, which may have been killed inside brackets. Leaves brackets until
 * as many are open as depth says.
 */
void fp_local_vforked(unsigned depth);

/* True in a bracket, and on the agent's threads. */
bool fp_local_is_agent(void);

/*
 * True if the thread's cancellation type must become asynchronous again. If a bracket ends while we
 * block signals, the type stays deferred, because a cancelled thread would otherwise end at once.
 * The code that unblocks the signals later calls fp_local_settle. That function does not return if
 * the thread has been cancelled.
 */
bool fp_local_owes(void);
/*
 * From now on we handle all signals of the program. The code that runs its handlers calls
 * fp_local_settle.
 */
void fp_local_route_signals(void);
void fp_local_settle(void);

#endif
