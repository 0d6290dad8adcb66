/* See thread.h. */
#include "thread.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockedmem.h"

#define STACK_BYTES   (256u << 10)
#define PRESENT_BYTES (64u << 10) /* far more than faults need; other pages become present on touch */

static _Atomic unsigned n_running;

static __thread bool own __attribute__((tls_model("initial-exec")));

static void *begin(void *p)
{
	struct fp_thread *thread = p;

	own = true;
	atomic_store(&thread->tid, (pid_t)syscall(SYS_gettid));
	/* the thread names itself: another thread would have to go through /proc, which is slow */
	pthread_setname_np(pthread_self(), thread->name);
	return thread->run(thread->arg);
}

static int create(struct fp_thread *thread)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int r = pthread_attr_init(&attr);

	if (r)
		return -r;
	pthread_attr_setstack(&attr, thread->stack, STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread->id, &attr, begin, thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

/*
 * The stack is local memory. Only a few of its pages are present, because each child of a fork must
 * copy and free those.
 */
static void *stack_new(void)
{
	char *stack = fp_lockedmem_lazy(STACK_BYTES);

	if (stack)
		(void)madvise(stack + STACK_BYTES - PRESENT_BYTES, PRESENT_BYTES, MADV_POPULATE_WRITE);
	return stack;
}

int fp_thread_start(struct fp_thread *thread, const char *name, void *(*run)(void *), void *arg)
{
	int r;

	atomic_store(&thread->tid, 0);
	thread->run = run;
	thread->arg = arg;
	thread->name = name;
	thread->stack = stack_new();
	if (!thread->stack)
		return -ENOMEM;
	r = create(thread);
	if (r < 0) {
		fp_lockedmem_free(thread->stack, STACK_BYTES);
		thread->stack = NULL;
		return r;
	}
	thread->running = true;
	atomic_fetch_add(&n_running, 1);
	return 0;
}

void fp_thread_join(struct fp_thread *thread)
{
	if (!thread->running)
		return;
	pthread_join(thread->id, NULL);
	fp_thread_abandon(thread);
}

void fp_thread_abandon(struct fp_thread *thread)
{
	if (!thread->running)
		return;
	fp_lockedmem_free(thread->stack, STACK_BYTES);
	thread->running = false;
	atomic_fetch_sub(&n_running, 1);
}

pid_t fp_thread_tid(const struct fp_thread *thread)
{
	return atomic_load(&thread->tid);
}

unsigned fp_thread_count(void)
{
	return atomic_load(&n_running);
}

bool fp_thread_is_own(void)
{
	return own;
}
