/*
 * A word that says whether somebody opens, and a table of the threads with a call under way. Room:
 * common.
 *
 *   call       own number into a slot, then a look at the opener ── none: go on, else out again and wait
 *   opening    the opener's word, then a look at each slot ── wait for those that are taken
 *
 * A thread may end in the middle of anything here. So its number in a slot is all that says that it
 * has a call: one instruction puts it there or takes it away, and an opening clears those of
 * threads that are gone.
 *
 * A lock of the C library's will not do: close() is allowed in signal handlers, and one that
 * interrupts a pthread_rwlock_unlock in the wrong place, and asks for the same lock, waits for ever
 * for what it has interrupted, whatever its deadline. Here each step is one atomic instruction, all
 * waits end by the clock, and what a handler finds is at worst an opening that goes on without it.
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
#define N_SLOTS             128u
#define N_TRIES             4u /* slots that a thread looks at: with none free it goes on without the lock */

enum { NOBODY, OPENS, OPENS_WITH_WAITERS };
enum { IN_OPENING = 1, IN_CALL = 2 }; /* a thread, when it calls vfork in a signal handler */

static _Atomic uint32_t opener;
static _Atomic uint32_t calls[N_SLOTS]; /* 0: free */
static atomic_bool in_vain; /* the last opening met a call that lasts: it does not delay each of many */

/* This thread's call that has it, and whether it opens. Initial-exec: they are looked at in signal
 * handlers.
 */
static __thread struct fp_fd_hold *own_hold __attribute__((tls_model("initial-exec")));
static __thread bool is_opener __attribute__((tls_model("initial-exec")));
static __thread uint32_t own_number __attribute__((tls_model("initial-exec"))); /* 0: not known yet */

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

/* Of whatever process: a child of vfork asks for its parent's threads. */
static bool is_gone(uint32_t thread)
{
	int saved = errno;
	bool gone = syscall(SYS_tkill, thread, 0) < 0 && errno == ESRCH;

	errno = saved;
	return gone;
}

/* Without until: only if it need not wait. */
static bool wait_for_call(_Atomic uint32_t *slot, const struct timespec *until)
{
	bool waits = until;
	uint32_t thread;

	while ((thread = atomic_load(slot))) {
		if (is_gone(thread))
			atomic_compare_exchange_strong(slot, &thread, 0);
		else if (!waits)
			return false;
		else
			waits = wait_while(slot, thread, until);
	}
	return true;
}

/* As above. */
static bool begin_opening(const struct timespec *until)
{
	uint32_t nobody = NOBODY;

	while (!atomic_compare_exchange_strong(&opener, &nobody, OPENS)) {
		if (!until || !wait_for_opener(until))
			return false;
		nobody = NOBODY;
	}
	/* no call begins from now on, but a handler's in this thread, which ends before we open
	 * anything */
	is_opener = true;
	for (unsigned i = 0; i < N_SLOTS; i++) {
		if (!wait_for_call(&calls[i], until)) {
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

static uint32_t number(void)
{
	if (!own_number)
		own_number = (uint32_t)syscall(SYS_gettid);
	return own_number;
}

/* The i-th slot that a thread looks at. */
static _Atomic uint32_t *slot_of(uint32_t thread, unsigned i)
{
	return &calls[(thread + i) % N_SLOTS];
}

/* Also one that a jump has left behind. */
static void end_call(void)
{
	uint32_t thread = number();

	for (unsigned i = 0; i < N_TRIES; i++) {
		if (atomic_load(slot_of(thread, i)) != thread)
			continue;
		atomic_store(slot_of(thread, i), 0);
		if (atomic_load(&opener) != NOBODY)
			wake_all(slot_of(thread, i));
	}
}

/* False: too many calls are under way. */
static bool take_slot(void)
{
	uint32_t thread = number();

	for (unsigned i = 0; i < N_TRIES; i++) {
		uint32_t taken = 0;

		if (atomic_compare_exchange_strong(slot_of(thread, i), &taken, thread) || taken == thread)
			return true;
	}
	return false;
}

static bool begin_call(void)
{
	struct timespec until;
	bool waited = false;

	while (take_slot()) {
		if (atomic_load(&opener) == NOBODY)
			return true;
		end_call();
		if (!waited)
			until = after(PATIENCE_NS);
		waited = true;
		if (!wait_for_opener(&until))
			return false;
	}
	return false;
}

/*
 * A call may be left by a jump out of a signal handler. Its hold then lies below the next one's,
 * which takes it over. So does one in a handler on a stack of its own, which is as good: who has
 * lost its hold leaves the unlocking to who took it.
 */
void fp_fd_lock_shared(struct fp_fd_hold *hold)
{
	hold->is_mine = !is_opener && (!own_hold || (uintptr_t)hold >= (uintptr_t)own_hold);
	if (!hold->is_mine)
		return;
	own_hold = hold; /* first: a handler from here on does without */
	hold->is_mine = begin_call();
	if (!hold->is_mine)
		own_hold = NULL;
}

void fp_fd_unlock_shared(struct fp_fd_hold *hold)
{
	if (!hold->is_mine || own_hold != hold)
		return;
	end_call();
	own_hold = NULL; /* last: a jump out of a handler up to here leaves a hold that the next takes over */
}

unsigned fp_fd_before_vfork(void)
{
	return (is_opener ? IN_OPENING : 0) | (own_hold ? IN_CALL : 0);
}

/* Whoever is killed in an opening leaves a word for which each call would wait half a second. */
void fp_fd_vforked(unsigned before)
{
	if (is_opener && !(before & IN_OPENING))
		end_opening();
	if (own_hold && !(before & IN_CALL)) {
		end_call(); /* by the number that the child took for its own */
		own_hold = NULL;
	}
	own_number = 0;
}

void fp_fd_forked(void)
{
	own_hold = NULL;
	own_number = 0;
	is_opener = false;
	for (unsigned i = 0; i < N_SLOTS; i++)
		atomic_store_explicit(&calls[i], 0, memory_order_relaxed);
	atomic_store(&opener, NOBODY);
}
