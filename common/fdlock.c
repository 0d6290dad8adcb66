/*
 * Two words. opener is the thread that is in an opening, or 0 if no thread is. calls is how many
 * calls of the program are under way. Room: common.
 *
 *   a call       adds 1 to calls, then reads opener. If opener is 0 or the calling thread, the call
 *                goes on. Otherwise it subtracts 1 from calls, waits and tries again
 *   an opening   writes its thread to opener once opener is 0, then waits until calls is 0
 *
 * A thread may end or jump away at any instruction here. So all waits end by the clock. A call that
 * has waited too long clears opener. An opening that has waited too long for opener goes on without
 * the lock. An opening that has waited too long for calls begins a new epoch: calls of the old
 * epoch no longer count, and their ends change nothing.
 *
 * A lock of the C library will not do, because close() is allowed in signal handlers. A handler may
 * interrupt pthread_rwlock_unlock halfway and ask for the same lock: it would wait for ever. Here
 * each step is one atomic instruction.
 */
#include "fdlock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define PATIENCE_NS         (500 * FP_NSEC_PER_MSEC) /* the longest time that a call waits for openings */
#define OPENING_PATIENCE_NS (100 * FP_NSEC_PER_MSEC) /* the longest time that an opening waits for calls */
#define IMPATIENCE_NS       (2 * FP_NSEC_PER_MSEC)
#define COUNT               UINT32_MAX /* mask of the count in the word calls; the epoch is above */

static _Atomic uint32_t opener;
static _Atomic uint64_t calls;
static atomic_bool in_vain; /* the last opener gave up waiting for a call: the next ones wait less */

static uint32_t this_thread(void)
{
	return (uint32_t)syscall(SYS_gettid);
}

/*
 * Sleeps for a moment. Returns false if end_ns has passed. The variable moment is static because
 * the kernel reads it, and the caller's stack may be far memory.
 */
static bool wait_until(uint64_t end_ns)
{
	static const struct timespec moment = {.tv_nsec = 20000};
	int saved = errno;

	if (fp_clock_kernel_ns() >= end_ns)
		return false;
	syscall(SYS_nanosleep, &moment, NULL);
	errno = saved;
	return true;
}

static void forget_calls(void)
{
	atomic_store(&calls, (atomic_load(&calls) | COUNT) + 1);
}

bool fp_fd_lock_exclusive(void)
{
	uint64_t patience = atomic_load(&in_vain) ? IMPATIENCE_NS : OPENING_PATIENCE_NS;
	uint64_t end_ns = fp_clock_kernel_ns() + patience;
	uint32_t self = this_thread(), other = 0;
	bool late = false;

	while (!atomic_compare_exchange_strong(&opener, &other, self)) {
		if (other == self || !wait_until(end_ns))
			return false;
		other = 0;
	}
	while ((atomic_load(&calls) & COUNT) && !late)
		late = !wait_until(end_ns);
	if (late)
		forget_calls();
	atomic_store(&in_vain, late);
	return true;
}

void fp_fd_unlock(bool locked)
{
	uint32_t self = locked ? this_thread() : 0;

	if (locked)
		atomic_compare_exchange_strong(&opener, &self, 0);
}

/* Returns false if another thread, *ret_opener, is in an opening. */
static bool begin_call(struct fp_fd_hold *hold, uint32_t *ret_opener)
{
	hold->epoch = (uint32_t)(atomic_fetch_add(&calls, 1) >> 32);
	hold->is_mine = true;
	*ret_opener = atomic_load(&opener);
	if (*ret_opener == 0 || *ret_opener == this_thread())
		return true;
	fp_fd_unlock_shared(hold);
	return false;
}

void fp_fd_lock_shared(struct fp_fd_hold *hold)
{
	uint64_t end_ns = 0;
	uint32_t other;

	while (!begin_call(hold, &other)) {
		if (end_ns == 0)
			end_ns = fp_clock_kernel_ns() + PATIENCE_NS;
		if (!wait_until(end_ns))
			atomic_compare_exchange_strong(&opener, &other, 0);
	}
}

void fp_fd_unlock_shared(struct fp_fd_hold *hold)
{
	uint64_t now = atomic_load(&calls);

	if (!hold->is_mine)
		return;
	hold->is_mine = false;
	while (now >> 32 == hold->epoch && (now & COUNT) &&
	       !atomic_compare_exchange_weak(&calls, &now, now - 1))
		;
}

void fp_fd_forked(void)
{
	forget_calls();
	atomic_store(&opener, 0);
}
