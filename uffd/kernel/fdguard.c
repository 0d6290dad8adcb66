/* See fdguard.h. */
#include "fdguard.h"

#include <errno.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fdutil.h"

#define TICK_NS (250 * FP_NSEC_PER_MSEC)
#define NUMBERS_MAX                                                                                          \
	(1u                                                                                                  \
	 << 16) /* closed one by one, on kernels before 5.9 and where a filter forbids more               \
	            */

/* ---- the guard's table ---- */

static int close_numbers(unsigned first, unsigned last, unsigned flags)
{
	struct rlimit limit = {.rlim_cur = NUMBERS_MAX};

	if (syscall(SYS_close_range, first, last, flags) == 0)
		return 0;
	if ((errno != ENOSYS && errno != EPERM) || flags)
		return -errno;
	getrlimit(RLIMIT_NOFILE, &limit);
	last = (unsigned)FP_MIN(FP_MIN(limit.rlim_cur, (rlim_t)NUMBERS_MAX), (rlim_t)last);
	for (unsigned fd = first; fd <= last; fd++)
		syscall(SYS_close, fd);
	return 0;
}

/* A filter may allow one of the two ways alone: the kernel copies nothing above the highest by the
 * first. */
static int unshare_table(unsigned above)
{
	if (close_numbers(above, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0)
		return 0;
	return unshare(CLONE_FILES) < 0 ? -errno : close_numbers(above, UINT_MAX, 0);
}

/* No system call by a name of the C library's: the shim would answer for it. */
static int keep_vital_only(const struct fp_fdguard *guard)
{
	unsigned next = 0;
	int r = guard->n_fds ? unshare_table((unsigned)guard->fds[guard->n_fds - 1] + 1) : 0;

	for (unsigned i = 0; r == 0 && i < guard->n_fds; i++) {
		unsigned fd = (unsigned)guard->fds[i];

		if (fd > next)
			r = close_numbers(next, fd - 1, 0);
		next = fd + 1;
	}
	return r;
}

/* ---- the thread ---- */

/* The message needs the program's standard error, which this table has not. */
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

	fp_fd_watch_table(peer);
	for (unsigned i = 0; i < guard->n_fds; i++) {
		long r = syscall(SYS_kcmp, peer, own, KCMP_FILE, guard->fds[i], guard->fds[i]);

		if (r > 0 || (r < 0 && errno == EBADF))
			report();
	}
}

/* True: the guard shall end. A wait by a bare call, as the shim takes part in the C library's. */
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

void fp_fdguard_add(struct fp_fdguard *guard, const int *fds, unsigned n)
{
	for (unsigned i = 0; i < n && guard->n_fds < FP_FDGUARD_MAX; i++) {
		unsigned at = guard->n_fds;

		if (fds[i] < 0)
			continue;
		for (; at > 0 && guard->fds[at - 1] > fds[i]; at--)
			guard->fds[at] = guard->fds[at - 1];
		guard->fds[at] = fds[i];
		guard->n_fds++;
	}
}

int fp_fdguard_start(struct fp_fdguard *guard, const struct fp_thread *peer)
{
	sem_init(&guard->ready, 0, 0);
	atomic_store(&guard->stopping, 0);
	guard->peer = peer;
	for (unsigned i = 0; i < guard->n_fds; i++)
		fp_fd_watch(guard->fds[i]);
	return fp_thread_start(&guard->thread, "farpage-guard", run, guard);
}

int fp_fdguard_wait(struct fp_fdguard *guard)
{
	while (sem_wait(&guard->ready) < 0)
		;
	fp_fd_watch_table(fp_thread_tid(guard->peer));
	return guard->result;
}

void fp_fdguard_stop(struct fp_fdguard *guard)
{
	if (!guard->thread.running)
		return;
	fp_fd_watch_table(0);
	atomic_store(&guard->stopping, 1);
	syscall(SYS_futex, &guard->stopping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	fp_thread_join(&guard->thread);
}

void fp_fdguard_abandon(struct fp_fdguard *guard)
{
	fp_thread_abandon(&guard->thread);
	fp_fd_watch_table(0);
	guard->n_fds = 0;
}
