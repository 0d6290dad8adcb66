/* The program's threads: their start and their end. Room: preload/process. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>

#include "local.h"
#include "local_stack.h"
#include "agent_sigmask.h"
#include "far_pieces.h"
#include "shim.h"
#include "sigmask.h"
#include "signals.h"
#include "sigstack.h"

typedef int create_fn(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

/*
 * The arguments of a new thread, in local memory; the thread frees them. The member stack is its
 * signal stack, or NULL if it needs none. mask is the thread's own signal mask. The thread can't
 * inherit it, as its creator may have signals blocked for a call on a local stack.
 */
struct start {
	void *(*run)(void *);
	void *arg;
	struct fp_sigstack *stack;
	sigset_t mask;
};

static struct start *start_new(const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	uint64_t mask = fp_local_enter_masked();
	struct start *s = malloc(sizeof(*s));

	fp_local_leave_masked(mask);
	if (!s)
		return NULL;
	*s = (struct start){.run = run, .arg = arg};
	/* a mask in the attributes replaces the creator's */
	if (!attr || pthread_attr_getsigmask_np(attr, &s->mask) != 0)
		pthread_sigmask(SIG_BLOCK, NULL, &s->mask);
	if (!fp_sigstack_is_open() || (s->stack = fp_sigstack_new()))
		return s;
	free(s);
	return NULL;
}

static void *begin(void *p)
{
	struct start s = *(struct start *)p;

	if (s.stack)
		fp_sigstack_adopt(s.stack);
	fp_sigmask_thread_begins();
	free(p);
	pthread_sigmask(SIG_SETMASK, &s.mask, NULL);
	return s.run(s.arg);
}

/*
 * Creates the thread. Pins *thread and *attr meanwhile, because the C library uses them with all
 * signals blocked.
 */
static int create(create_fn *real, pthread_t *thread, const pthread_attr_t *attr, struct start *s)
{
	const struct fp_pin_range ranges[] = {{thread, sizeof(*thread), true},
	                                      {attr, attr ? sizeof(*attr) : 0, false}};
	struct fp_pin hold;
	int r;

	if (fp_agent_pin(fp_shim_agent(), ranges, 2, &hold) < 0)
		return EAGAIN;
	r = real(thread, attr, begin, s);
	fp_agent_unpin(fp_shim_agent(), &hold);
	return r;
}

FP_INTERPOSE int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                                void *arg)
{
	create_fn *real = FP_NEXT(pthread_create);
	struct start *s;
	int r;

	if (fp_shim_agent())
		fp_agent_affinity_release(fp_shim_agent(), false);
	if (!fp_shim_agent() || fp_local_is_agent())
		return real(thread, attr, run, arg);
	s = start_new(attr, run, arg);
	if (!s)
		return EAGAIN;
	r = (int)FP_ON_LOCAL_STACK(create, real, thread, attr, s, 0, 0);
	if (r) {
		fp_sigstack_free(s->stack);
		free(s);
	}
	return r;
}

/* ---- cancellation, and C's threads ---- */

static void *wait_to_be_cancelled(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/*
 * Makes the action for the cancellation signal ours. The C library sets its action at the first
 * pthread_cancel, so we first cancel a thread of our own.
 */
static void take_cancel(void)
{
	pthread_t thread;
	uint64_t mask;

	fp_shim_enter_local();
	mask = fp_agent_sigmask_block(
	    false, fp_sigmask_is_open()); /* that thread must not run the program's handlers */
	if (pthread_create(&thread, NULL, wait_to_be_cancelled, NULL) == 0) {
		FP_NEXT(pthread_cancel)(thread);
		pthread_join(thread, NULL);
		FP_ON_LOCAL_STACK(fp_signals_take_internal, FP_SIGCANCEL, 0, 0, 0, 0, 0);
	}
	fp_agent_sigmask_restore(mask);
	fp_shim_leave_local();
}

FP_INTERPOSE int pthread_cancel(pthread_t thread)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (fp_sigstack_is_open() && !fp_local_is_agent())
		pthread_once(&once, take_cancel);
	return FP_NEXT(pthread_cancel)(thread);
}

/* Interposed because the C library's thrd_create bypasses pthread_create. */
FP_INTERPOSE int thrd_create(thrd_t *thread, thrd_start_t run, void *arg)
{
	int r = pthread_create(thread, NULL, (void *(*)(void *))(void (*)(void))run, arg);

	return r == 0 ? thrd_success : r == ENOMEM || r == EAGAIN ? thrd_nomem : thrd_error;
}
