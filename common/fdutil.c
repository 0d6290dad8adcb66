/*
 * Where descriptors lie, and which are ours. Room: common. The list is a fixed table of atomics, as it is
 * read whenever the program closes anything. A number that is not forgotten when it is closed costs nothing
 * but its entry, which serves again when the kernel hands the number out again.
 */
#include "fdutil.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

#define HIGH_FD 512
#define FDS_MAX 512u

#define PATIENCE_NS         (500 * FP_NSEC_PER_MSEC) /* of calls with openings, which are short */
#define OPENING_PATIENCE_NS (100 * FP_NSEC_PER_MSEC) /* of openings with calls, which may last for ever */
#define IMPATIENCE_NS       (2 * FP_NSEC_PER_MSEC)

/* fd + 1, so that zeroed memory is an empty table */
static _Atomic int ours[FDS_MAX];
static _Atomic unsigned ours_end; /* entries from here on were never used */

/* Who opens has it alone. */
static pthread_rwlock_t numbers = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
/* This thread's call that has it shared. Initial-exec: it is looked at in signal handlers. */
static __thread struct fp_fd_hold *own_hold __attribute__((tls_model("initial-exec")));

static void add(int fd)
{
	unsigned i = 0, end = atomic_load(&ours_end);
	int none = 0;

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

/* An instant from now. */
static struct timespec after(uint64_t ns)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	ns += (uint64_t)t.tv_nsec;
	t.tv_sec += (time_t)(ns / FP_NSEC_PER_SEC);
	t.tv_nsec = (long)(ns % FP_NSEC_PER_SEC);
	return t;
}

bool fp_fd_lock_exclusive(void)
{
	static atomic_bool in_vain; /* a call that lasts does not delay each of many openings */
	struct timespec until = after(atomic_load(&in_vain) ? IMPATIENCE_NS : OPENING_PATIENCE_NS);
	int error = pthread_rwlock_clockwrlock(&numbers, CLOCK_MONOTONIC, &until);

	atomic_store(&in_vain, error == ETIMEDOUT);
	return error == 0;
}

static bool lock_shared(void)
{
	struct timespec until;

	if (pthread_rwlock_tryrdlock(&numbers) == 0)
		return true;
	until = after(PATIENCE_NS);
	return pthread_rwlock_clockrdlock(&numbers, CLOCK_MONOTONIC, &until) == 0;
}

/*
 * A call may be left by a jump out of a signal handler. Its hold then lies below the next one's, which takes
 * it over. So does one in a handler on a stack of its own, which is as good: who has lost its hold leaves the
 * unlocking to who took it.
 */
void fp_fd_lock_shared(struct fp_fd_hold *hold)
{
	hold->is_mine = own_hold ? (uintptr_t)hold >= (uintptr_t)own_hold : lock_shared();
	if (hold->is_mine)
		own_hold = hold;
}

void fp_fd_unlock_shared(struct fp_fd_hold *hold)
{
	if (!hold->is_mine || own_hold != hold)
		return;
	own_hold = NULL;
	pthread_rwlock_unlock(&numbers);
}

void fp_fd_unlock(bool locked)
{
	if (locked)
		pthread_rwlock_unlock(&numbers);
}

ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len, bool patient)
{
	bool locked = patient ? fp_fd_lock_exclusive() : pthread_rwlock_trywrlock(&numbers) == 0;
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

/* A call of this thread that a handler has interrupted to fork goes on without it. */
void fp_fd_forked(void)
{
	own_hold = NULL;
	numbers = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

void fp_fd_close(int fd)
{
	bool locked = fp_fd_lock_exclusive();

	fp_fd_forget(fd);
	close(fd);
	fp_fd_unlock(locked);
}
