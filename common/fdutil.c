/*
 * Where descriptors lie, and which are ours. Room: common. The list is a fixed table of atomics, as
 * it is read whenever the program closes anything. A number that is not forgotten when it is closed
 * costs nothing but its entry, which serves again when the kernel hands the number out again.
 */
#include "fdutil.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "end.h"

#define HIGH_FD 512
#define FDS_MAX 512u

/* fd + 1, so that zeroed memory is an empty table */
static _Atomic int ours[FDS_MAX];
static _Atomic bool watched[FDS_MAX]; /* of the entry with the same index */
static _Atomic pid_t table_tid;
static _Atomic unsigned ours_end; /* entries from here on were never used */

/* The entry of fd; FDS_MAX: there is none. */
static unsigned entry_of(int fd)
{
	unsigned i = 0, end = FP_MIN(atomic_load(&ours_end), FDS_MAX);

	while (i < end && atomic_load(&ours[i]) != fd + 1)
		i++;
	return i < end ? i : FDS_MAX;
}

static bool is_watched(int fd)
{
	unsigned i = entry_of(fd);

	return i < FDS_MAX && atomic_load(&watched[i]);
}

void fp_fd_watch(int fd)
{
	unsigned i = fd < 0 ? FDS_MAX : entry_of(fd);

	if (i < FDS_MAX)
		atomic_store(&watched[i], true);
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

void fp_fd_watch_table(pid_t tid)
{
	atomic_store(&table_tid, tid);
}

static bool has_watched_table(void)
{
	pid_t tid = atomic_load(&table_tid);

	return tid == 0 || syscall(SYS_kcmp, (pid_t)syscall(SYS_gettid), tid, KCMP_FILES, 0, 0) == 0;
}

static void add(int fd)
{
	unsigned i = 0, end = atomic_load(&ours_end);
	int none = 0;

	if (is_watched(fd) && has_watched_table())
		fp_fd_lost();
	if (fp_fd_is_ours(fd))
		return;
	while (i < FDS_MAX && !atomic_compare_exchange_strong(&ours[i], &none, fd + 1)) {
		none = 0;
		i++;
	}
	while (end < i + 1 && !atomic_compare_exchange_weak(&ours_end, &end, i + 1))
		;
}

void fp_fd_keep(int fd)
{
	add(fd);
}

int fp_fd_next(int from)
{
	unsigned end = FP_MIN(atomic_load(&ours_end), FDS_MAX);
	int lowest = -1;

	for (unsigned i = 0; i < end; i++) {
		int fd = atomic_load(&ours[i]) - 1;

		if (fd >= from && fd >= 0 && (lowest < 0 || fd < lowest))
			lowest = fd;
	}
	return lowest;
}

bool fp_fd_is_ours(int fd)
{
	return fd >= 0 && fp_fd_next(fd) == fd;
}

void fp_fd_forget(int fd)
{
	for (unsigned i = 0; i < FDS_MAX; i++) {
		int entry = fd + 1;

		if (atomic_load(&ours[i]) != entry)
			continue;
		atomic_store(&watched[i], false);
		if (atomic_compare_exchange_strong(&ours[i], &entry, 0))
			return;
	}
}

int fp_fd_move_high(int fd)
{
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);

	if (high >= 0)
		close(fd);
	else
		high = fd;
	if (high >= 0)
		add(high);
	return high;
}

ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len, bool patient)
{
	bool locked = patient ? fp_fd_lock_exclusive() : fp_fd_trylock_exclusive();
	ssize_t n = -EBUSY;

	if (locked || patient) {
		fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);

		n = fd < 0 ? -1 : read(fd, ret_bytes, len);
		if (n < 0)
			n = -errno;
	}
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
