/*
 * The numbers of our descriptors. Room: common. The list is an array of atomics with an entry for
 * each number, because every close by the program reads it. A number that was closed but not
 * forgotten costs only its entry. The entry is used again when the kernel hands out the number
 * again.
 */
#include "fdutil.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "cleanup.h"
#include "end.h"

#define HIGH_FD  512
#define LIST_END 65536 /* our descriptors from this number on are not hidden from the program */

#define N_MARKS 128u /* how many different marks the guards can have */

enum { NOT_OURS, OURS, WATCHED, VITAL /* and up: + the guard's mark */ };

static _Atomic uint8_t list[LIST_END];
static _Atomic int list_used; /* entries from this index on were never used */

static unsigned entry(int fd)
{
	return fd >= 0 && fd < LIST_END ? atomic_load(&list[fd]) : NOT_OURS;
}

void fp_fd_watch(int fd)
{
	if (fp_fd_is_ours(fd))
		atomic_store(&list[fd], WATCHED);
}

void fp_fd_make_vital(int fd, uint8_t mark)
{
	if (fp_fd_is_ours(fd))
		atomic_store(&list[fd], (uint8_t)(VITAL + mark % N_MARKS));
}

void fp_fd_lost(void)
{
	fp_end_refused("fds",
	               "this program closed or replaced a descriptor of its far memory by a bare "
	               "system call, past the C library, or forked from a thread that has descriptors of "
	               "its own (unshare): it ends here rather than read wrong bytes. Close descriptors "
	               "by the C library, leave numbers from 512 on alone, fork from a thread that shares "
	               "them, or run it without farpage");
}

void fp_fd_keep(int fd)
{
	int used = atomic_load(&list_used);

	if (entry(fd) >= WATCHED)
		fp_fd_lost();
	if (fd < 0 || fd >= LIST_END || entry(fd) != NOT_OURS)
		return;
	while (used <= fd && !atomic_compare_exchange_weak(&list_used, &used, fd + 1))
		;
	atomic_store(&list[fd], OURS);
}

static int next_of(int from, unsigned least, unsigned most)
{
	int fd = FP_MAX(from, 0), end = atomic_load(&list_used);

	while (fd < end && (entry(fd) < least || entry(fd) > most))
		fd++;
	return fd < end ? fd : -1;
}

int fp_fd_next(int from)
{
	return next_of(from, OURS, VITAL + N_MARKS);
}

int fp_fd_next_vital(int from, uint8_t mark)
{
	return next_of(from, VITAL + mark % N_MARKS, VITAL + mark % N_MARKS);
}

bool fp_fd_is_ours(int fd)
{
	return entry(fd) != NOT_OURS;
}

void fp_fd_forget(int fd)
{
	if (fp_fd_is_ours(fd))
		atomic_store(&list[fd], NOT_OURS);
}

int fp_fd_move_high(int fd)
{
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);

	if (high < 0 && fd >= 0 && fd <= STDERR_FILENO) /* the program's, although it is closed */
		high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (high >= 0)
		close(fd);
	else
		high = fd;
	fp_fd_keep(high);
	return high;
}

ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len)
{
	bool locked = fp_fd_lock_exclusive();
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret_bytes, len);

	if (n < 0)
		n = -errno;
	if (fd >= 0)
		close(fd);
	fp_fd_unlock(locked);
	return n;
}

void fp_fd_close(int fd)
{
	int saved = errno;
	bool locked;

	if (fd < 0)
		return;
	locked = fp_fd_lock_exclusive();
	fp_fd_forget(fd);
	close(fd);
	fp_fd_unlock(locked);
	errno = saved;
}
