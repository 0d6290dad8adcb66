/*
 * Two words: whether somebody opens, and how many calls are under way. Room: common.
 *
 * A lock of the C library's will not do: close() is allowed in signal handlers, and one that interrupts a
 * pthread_rwlock_unlock in the wrong place, and asks for the same lock, waits for ever for what it has
 * interrupted, whatever its deadline. Here each step is one atomic instruction, all waits end by the clock,
 * and what a handler finds is at worst an opening that goes on without it.
 */
#include "fdlock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

#define PATIENCE_NS         (500 * FP_NSEC_PER_MSEC) /* of calls with openings, which are short */
#define OPENING_PATIENCE_NS (100 * FP_NSEC_PER_MSEC) /* of openings with calls, which may last for ever */
#define IMPATIENCE_NS       (2 * FP_NSEC_PER_MSEC)

enum { NOBODY, OPENS, OPENS_WITH_WAITERS };

static _Atomic uint32_t opener;
static _Atomic uint32_t calls;
static atomic_bool in_vain; /* the last opening met a call that lasts: it does not delay each of many */

/* This thread's call that has it, and whether it opens. Initial-exec: they are looked at in signal handlers.
 */
static __thread struct fp_fd_hold *own_hold __attribute__((tls_model("initial-exec")));
static __thread bool is_opener __attribute__((tls_model("initial-exec")));

/* An instant from now. */
static struct timespec after(uint64_t ns)
{
	ns += fp_clock_kernel_ns();
	return (struct timespec){.tv_sec = (time_t)(ns / FP_NSEC_PER_SEC),
	                         .tv_nsec = (long)(ns % FP_NSEC_PER_SEC)};
}

/* False: it is too late. True: look again. */
static bool wait_while(_Atomic uint32_t *word, uint32_t value, const struct timespec *until)
{
	int saved = errno;
	bool late = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, until, NULL,
	                    FUTEX_BITSET_MATCH_ANY) < 0 &&
	            errno == ETIMEDOUT;

	errno = saved;
	return !late;
}

static void wake_all(_Atomic uint32_t *word)
{
	int saved = errno;

	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	errno = saved;
}

static bool wait_for_opener(const struct timespec *until)
{
	uint32_t opens = OPENS;

	if (!atomic_compare_exchange_strong(&opener, &opens, OPENS_WITH_WAITERS) && opens == NOBODY)
		return true;
	return wait_while(&opener, OPENS_WITH_WAITERS, until);
}

static void end_opening(void)
{
	is_opener = false;
	if (atomic_exchange(&opener, NOBODY) == OPENS_WITH_WAITERS)
		wake_all(&opener);
}

/* Without until: only if it need not wait. */
static bool begin_opening(const struct timespec *until)
{
	uint32_t nobody = NOBODY, n;

	while (!atomic_compare_exchange_strong(&opener, &nobody, OPENS)) {
		if (!until || !wait_for_opener(until))
			return false;
		nobody = NOBODY;
	}
	/* no call begins from now on, but a handler's in this thread, which ends before we open anything */
	is_opener = true;
	while ((n = atomic_load(&calls))) {
		if (!until || !wait_while(&calls, n, until)) {
			end_opening();
			return false;
		}
	}
	return true;
}

bool fp_fd_lock_exclusive(void)
{
	struct timespec until;
	bool locked;

	if (is_opener)
		return false;
	until = after(atomic_load(&in_vain) ? IMPATIENCE_NS : OPENING_PATIENCE_NS);
	locked = begin_opening(&until);
	atomic_store(&in_vain, !locked);
	return locked;
}

bool fp_fd_trylock_exclusive(void)
{
	return !is_opener && begin_opening(NULL);
}

void fp_fd_unlock(bool locked)
{
	if (locked)
		end_opening();
}

/* Never below zero: a handler may have interrupted begin_call to fork. */
static void end_call(void)
{
	uint32_t n = atomic_load(&calls);

	while (n && !atomic_compare_exchange_weak(&calls, &n, n - 1))
		;
	if (n == 1 && atomic_load(&opener) != NOBODY)
		wake_all(&calls);
}

static bool begin_call(void)
{
	struct timespec until;
	bool waited = false;

	for (;;) {
		atomic_fetch_add(&calls, 1);
		if (atomic_load(&opener) == NOBODY)
			return true;
		end_call();
		if (!waited)
			until = after(PATIENCE_NS);
		waited = true;
		if (!wait_for_opener(&until))
			return false;
	}
}

/*
 * A call may be left by a jump out of a signal handler. Its hold then lies below the next one's, which takes
 * it over. So does one in a handler on a stack of its own, which is as good: who has lost its hold leaves the
 * unlocking to who took it.
 */
void fp_fd_lock_shared(struct fp_fd_hold *hold)
{
	if (own_hold)
		hold->is_mine = (uintptr_t)hold >= (uintptr_t)own_hold;
	else
		hold->is_mine = !is_opener && begin_call();
	if (hold->is_mine)
		own_hold = hold;
}

void fp_fd_unlock_shared(struct fp_fd_hold *hold)
{
	if (!hold->is_mine || own_hold != hold)
		return;
	own_hold = NULL;
	end_call();
}

void fp_fd_forked(void)
{
	own_hold = NULL;
	is_opener = false;
	atomic_store(&calls, 0);
	atomic_store(&opener, NOBODY);
}
