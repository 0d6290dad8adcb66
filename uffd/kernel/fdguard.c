/* See fdguard.h. */
#include "fdguard.h"

#include <errno.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <linux/kcmp.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "fdutil.h"

#define TICK_NS (250 * FP_NSEC_PER_MSEC)

/*
 * Gives this thread a descriptor table of its own, and closes all but the vital descriptors in it.
 * The first close_range makes the table and closes nothing. Uses raw system calls: the shim would
 * take calls of the C library's functions for calls of the program.
 */
static int keep_vital_only(struct fp_fdguard *guard)
{
	unsigned from = 0;
	int vital;

	guard->n_fds = 0;
	if (syscall(SYS_close_range, UINT_MAX, UINT_MAX, CLOSE_RANGE_UNSHARE) < 0)
		return -errno;
	do {
		vital = guard->n_fds < FP_FDGUARD_MAX ? fp_fd_next_vital((int)from, guard->mark) : -1;
		if ((unsigned)vital != from &&
		    syscall(SYS_close_range, from, (unsigned)vital - (vital >= 0), 0) < 0)
			return -errno;
		if (vital >= 0) {
			guard->fds[guard->n_fds++] = vital;
			/* from now on no other guard keeps this descriptor */
			fp_fd_watch(vital);
		}
		from = (unsigned)vital + 1;
	} while (vital >= 0);
	return 0;
}

/* ---- the thread ---- */

/* Writes the message to the program's standard error, which the guard's own table does not have. */
static _Noreturn void report(void)
{
	int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int text = (int)syscall(SYS_pidfd_getfd, process, STDERR_FILENO, 0);

	if (text >= 0)
		(void)syscall(SYS_dup3, text, STDERR_FILENO, 0);
	fp_fd_lost();
}

static void compare(const struct fp_fdguard *guard)
{
	pid_t own = (pid_t)syscall(SYS_gettid), peer = fp_thread_tid(guard->peer);

	for (unsigned i = 0; i < guard->n_fds; i++) {
		long r = syscall(SYS_kcmp, peer, own, KCMP_FILE, guard->fds[i], guard->fds[i]);

		if (r > 0 || (r < 0 && errno == EBADF))
			report();
	}
}

/*
 * True if the guard must end. Waits by a raw system call: the shim would take a call of the C
 * library's function for a call of the program.
 */
static bool sleep_until_stop(struct fp_fdguard *guard)
{
	const struct timespec tick = {.tv_nsec = TICK_NS};

	syscall(SYS_futex, &guard->stopping, FUTEX_WAIT_PRIVATE, 0, &tick, NULL, 0);
	return atomic_load(&guard->stopping);
}

static void *run(void *arg)
{
	struct fp_fdguard *guard = arg;

	guard->result = keep_vital_only(guard);
	sem_post(&guard->ready);
	while (!sleep_until_stop(guard))
		if (guard->result == 0)
			compare(guard);
	return NULL;
}

/* ---- life ---- */

int fp_fdguard_start(struct fp_fdguard *guard, const struct fp_thread *peer)
{
	sem_init(&guard->ready, 0, 0);
	atomic_store(&guard->stopping, 0);
	guard->peer = peer;
	return fp_thread_start(&guard->thread, "farpage-guard", run, guard);
}

int fp_fdguard_wait(struct fp_fdguard *guard)
{
	while (sem_wait(&guard->ready) < 0)
		;
	return guard->result;
}

void fp_fdguard_stop(struct fp_fdguard *guard)
{
	if (!guard->thread.running)
		return;
	atomic_store(&guard->stopping, 1);
	syscall(SYS_futex, &guard->stopping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	fp_thread_join(&guard->thread);
}

void fp_fdguard_abandon(struct fp_fdguard *guard)
{
	fp_thread_abandon(&guard->thread);
}
