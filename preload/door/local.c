/* See local.h. */
#include "local.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "agent.h"
#include "agent_sigmask.h"
#include "far_pieces.h"
#include "sigmask.h"

__thread struct fp_local fp_local __attribute__((tls_model("initial-exec")));

static atomic_bool routes_signals;

static const uint64_t cancel_bit = 1ull << (FP_SIGCANCEL - 1);

/* The stack of the caller may be far, so the kernel writes to thread-local memory of ours. */
static bool blocks_cancel(void)
{
	static __thread uint64_t now __attribute__((tls_model("initial-exec")));

	FP_RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &now, sizeof(now), 0, 0);
	return now & cancel_bit;
}

static void change_cancel(int how)
{
	FP_RAW(SYS_rt_sigprocmask, how, &cancel_bit, NULL, sizeof(cancel_bit), 0, 0);
}

/*
 * To cancel a thread whose cancellation type is asynchronous, the C library only sends it a signal.
 * On that thread, functions of the C library wait for the signal before they return. So we unblock
 * the signal, even if the program has blocked it. Inside the bracket the signal only marks the
 * thread as cancelled. Returns whether the signal was blocked.
 */
static bool let_cancel_in(void)
{
	bool was = blocks_cancel();

	if (was)
		change_cancel(SIG_UNBLOCK);
	return was;
}

/* Forbids cancellation first: the depth may grow only when nobody can end the thread. */
void fp_shim_enter_local(void)
{
	int state, type;

	if (fp_local.depth > 0) {
		fp_local.depth++;
		return;
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	fp_local.depth++;
	fp_local.cancel_state = state;
	fp_local.cancel_type = type;
	fp_local.fast_below = 0;
	fp_local.blocks_cancel = type != PTHREAD_CANCEL_DEFERRED && let_cancel_in();
}

/*
 * True if this was the outermost bracket, and the program has set the thread's cancellation type to
 * asynchronous.
 */
static bool end_bracket(void)
{
	int state = fp_local.cancel_state, type = fp_local.cancel_type;

	if (--fp_local.depth > 0)
		return false;
	if (fp_local.blocks_cancel)
		change_cancel(SIG_BLOCK);
	fp_local.fast_below = fp_local.restore;
	pthread_setcancelstate(state, NULL); /* does not end the thread: the type is still deferred */
	if (type == PTHREAD_CANCEL_DEFERRED && !fp_local.owes_type)
		return false;
	fp_local.owes_type = true;
	return true;
}

void fp_local_route_signals(void)
{
	atomic_store(&routes_signals, true);
}

static void settle_if_unblocked(void)
{
	if (!atomic_load_explicit(&routes_signals, memory_order_relaxed) || !blocks_cancel())
		fp_local_settle();
}

void fp_shim_leave_local(void)
{
	if (end_bracket())
		settle_if_unblocked();
}

uint64_t fp_local_enter_masked(void)
{
	uint64_t mask = fp_agent_sigmask_block(false, fp_sigmask_is_open());

	fp_shim_enter_local();
	return mask;
}

void fp_local_leave_masked(uint64_t mask)
{
	bool is_async = end_bracket();

	fp_agent_sigmask_restore(mask);
	if (is_async)
		settle_if_unblocked();
}

void fp_local_vforked(unsigned depth)
{
	while (fp_local.depth > depth)
		fp_shim_leave_local();
}

bool fp_local_owes(void)
{
	return fp_local.owes_type;
}

void fp_local_settle(void)
{
	if (!fp_local.owes_type || fp_local.depth > 0)
		return;
	fp_local.owes_type = false;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
}

bool fp_local_is_agent(void)
{
	return fp_local.depth > 0 || fp_agent_is_own_thread();
}
