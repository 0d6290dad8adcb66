/*
 * Closing: the program can't close the agent's descriptors. Room: preload/process. Daemons close
 * all numbers, and programs may dup a descriptor onto one of ours. Neither may cut the agent off.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fdutil.h"
#include "local.h"
#include "rawcall.h"
#include "shim.h"

typedef int close_fn(int fd);

/* The C library's: a cancellation point. */
static close_fn *real_close(void)
{
	return FP_NEXT(close);
}

/* A signal handler may not look functions up, so that is done before. */
__attribute__((constructor)) static void look_up(void)
{
	(void)real_close();
}

/*
 * True if fd is ours and the caller is the program. Then errno is EBADF, as if the number were not
 * open.
 */
static bool is_hidden(int fd)
{
	if (!fp_fd_is_ours(fd) || fp_local_is_agent())
		return false;
	errno = EBADF;
	return true;
}

/* Closes a descriptor for the agent. If this thread is in an opening, it has the lock already. */
static int close_ours(int fd)
{
	bool locked = fp_fd_is_ours(fd) && fp_fd_lock_exclusive();
	int r;

	fp_fd_forget(fd);
	r = fp_shim_return((int)FP_RAW(SYS_close, fd, 0, 0, 0, 0, 0));
	fp_fd_unlock(locked);
	return r;
}

static void unlock(void *hold)
{
	fp_fd_unlock_shared(hold);
}

/* A cancellation point: a cancelled thread must give up the lock by a cleanup handler. */
FP_INTERPOSE int close(int fd)
{
	struct fp_fd_hold hold = {false};
	int r;

	if (fp_local_is_agent())
		return close_ours(fd);
	fp_fd_lock_shared(&hold);
	pthread_cleanup_push(unlock, &hold);
	r = is_hidden(fd) ? -1 : real_close()(fd);
	pthread_cleanup_pop(1);
	return r;
}

FP_ALSO_AS(close) __typeof__(close) __close;

FP_INTERPOSE int dup3(int old_fd, int new_fd, int flags)
{
	struct fp_fd_hold hold = {false};
	int r;

	fp_fd_lock_shared(&hold);
	r = is_hidden(new_fd) ? -1 : (int)syscall(SYS_dup3, old_fd, new_fd, flags);
	unlock(&hold);
	return r;
}

FP_INTERPOSE int dup2(int old_fd, int new_fd)
{
	if (old_fd == new_fd)
		return fcntl(old_fd, F_GETFD) < 0 ? -1 : new_fd;
	return dup3(old_fd, new_fd, 0);
}

FP_ALSO_AS(dup2) __typeof__(dup2) __dup2;

/*
 * Closes the ranges between our descriptors. CLOSE_RANGE_CLOEXEC then does not mark our
 * descriptors. That does no harm, because they are close-on-exec already.
 */
static int close_between(unsigned first, unsigned last, int flags)
{
	int ours;

	if (first > last || first > INT_MAX)
		return (int)syscall(SYS_close_range, first, last, flags);
	while ((ours = fp_fd_next((int)first)) >= 0 && (unsigned)ours <= last) {
		if ((unsigned)ours > first && syscall(SYS_close_range, first, (unsigned)ours - 1, flags) < 0)
			return -1;
		first = (unsigned)ours + 1;
	}
	return first > last ? 0 : (int)syscall(SYS_close_range, first, last, flags);
}

FP_INTERPOSE int close_range(unsigned first, unsigned last, int flags)
{
	struct fp_fd_hold hold = {false};
	int r;

	fp_fd_lock_shared(&hold);
	r = close_between(first, last, flags);
	unlock(&hold);
	return r;
}

FP_INTERPOSE void closefrom(int first)
{
	close_range(first < 0 ? 0 : (unsigned)first, UINT_MAX, 0);
}
