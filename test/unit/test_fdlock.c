/*
 * The lock between the agent's openings and the program's calls: which side waits, and for how
 * long. Signal handlers interrupt calls, jump out of them, or fork in them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "clock.h"
#include "fdlock.h"

#define ROUNDS 3u
/* Steps only to every 17th instruction, because each step costs the time that an opening waits. */
#define STRIDE 17u
/* The most instructions of a call that does not wait. A call that waits may loop for long. */
#define INSTRUCTIONS 300u

/* Sanitizers add too many instructions to step through, and delay signals. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define CAN_STEP 1
#else
#define CAN_STEP 0
#endif

static long waits(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

/*
 * True if an opening does not have to wait. An opening that waited in vain forgets the calls for
 * which it waited.
 */
static bool is_free(void)
{
	long before = waits();
	bool locked = fp_fd_lock_exclusive();

	fp_fd_unlock(locked);
	return locked && waits() == before;
}

/* From here on an opening waits for its full time again. */
static void be_patient(void)
{
	fp_fd_unlock(fp_fd_lock_exclusive());
}

static pthread_barrier_t in_call, over_there;

static void *stay_in_a_call(void *hold)
{
	fp_fd_lock_shared(hold);
	pthread_barrier_wait(&in_call);
	pthread_barrier_wait(&over_there);
	return NULL;
}

/*
 * In a forked child, calls of the parent's other threads no longer count. If a handler forks inside
 * a call, that call goes on in the child. Its end must not disturb later calls.
 */
static void test_a_child_waits_for_nobody(void **state)
{
	struct fp_fd_hold theirs, own = {.is_mine = true};
	pthread_t thread;

	pthread_barrier_init(&in_call, NULL, 2);
	pthread_barrier_init(&over_there, NULL, 2);
	assert_int_equal(pthread_create(&thread, NULL, stay_in_a_call, &theirs), 0);
	pthread_barrier_wait(&in_call);
	fp_fd_forked();
	assert_true(is_free());
	fp_fd_unlock_shared(&own);
	assert_true(is_free());
	pthread_barrier_wait(&over_there);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/*
 * If a call in the same thread does not end, an opening gives up waiting for it. A call gives up
 * waiting for an opening in the same way.
 */
static void test_nobody_waits_for_ever(void **state)
{
	struct fp_fd_hold hold, within;

	fp_fd_lock_shared(&hold);
	assert_true(fp_fd_lock_exclusive());
	fp_fd_lock_shared(&within);
	assert_false(fp_fd_lock_exclusive());
	fp_fd_unlock_shared(&within);
	fp_fd_unlock_shared(&hold);
	fp_fd_unlock(true);
	be_patient();
	assert_true(is_free());
}

static struct fp_fd_hold childs;

/* Acts as a child of vfork: it has its parent's memory, but another process number. */
static __attribute__((noinline)) void lock_and_die(bool opens)
{
	if (opens)
		(void)fp_fd_lock_exclusive();
	else
		fp_fd_lock_shared(&childs);
	kill(getpid(), SIGKILL);
}

static void test_a_child_of_vfork_is_killed(void **state)
{
	for (unsigned opens = 0; opens < 2; opens++) {
		struct fp_fd_hold own;
		pid_t pid = vfork();

		if (pid == 0)
			lock_and_die(opens);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		fp_fd_lock_shared(&own); /* waits once if the child was opening */
		fp_fd_unlock_shared(&own);
		be_patient(); /* waits once if the child was calling */
		assert_true(is_free());
	}
}

static uint64_t opening_ns(void)
{
	uint64_t start = fp_clock_ns();
	bool locked = fp_fd_lock_exclusive();

	fp_fd_unlock(locked);
	assert_true(locked);
	return fp_clock_ns() - start;
}

/*
 * Calls that do not end delay the first opening that meets them, and the one after it. They delay
 * no further opening.
 */
static void test_calls_that_last_are_waited_for_once(void **state)
{
	struct fp_fd_hold hold;
	uint64_t first, next = 0;

	for (unsigned round = 0; round < 2; round++) {
		fp_fd_lock_shared(&hold);
		first = opening_ns();
		assert_true(first > 50 * FP_NSEC_PER_MSEC);
		next = 0;
		for (unsigned i = 0; i < 16; i++) {
			struct fp_fd_hold another;

			fp_fd_lock_shared(&another);
			next += opening_ns();
		}
		assert_true(next < 8 * first);
		fp_fd_unlock_shared(&hold);
		be_patient();
		assert_true(is_free());
	}
}

/*
 * An opening has forgotten a call. When that call ends later, it must not release calls that began
 * after it.
 */
static void test_a_forgotten_call_ends(void **state)
{
	struct fp_fd_hold forgotten, later;

	fp_fd_lock_shared(&forgotten);
	be_patient();
	fp_fd_lock_shared(&later);
	fp_fd_unlock_shared(&forgotten);
	assert_false(is_free());
	fp_fd_unlock_shared(&later);
	be_patient();
	assert_true(is_free());
}

static sigjmp_buf out;

/* Makes a call, inside which the function `within` runs. NULL: no function runs. */
__attribute__((noinline, no_sanitize("address"))) static void call(void within(void))
{
	struct fp_fd_hold hold;

	fp_fd_lock_shared(&hold);
	if (within)
		within();
	fp_fd_unlock_shared(&hold);
}

static void call_once(void)
{
	call(NULL);
}

static void jump_out(void)
{
	siglongjmp(out, 1);
}

/* A call inside a call, as in a signal handler. */
static void test_a_call_within_a_call(void **state)
{
	call(call_once);
	assert_true(is_free());
}

static void test_a_call_that_is_jumped_out_of(void **state)
{
	if (!sigsetjmp(out, 0))
		call(jump_out);
	assert_false(is_free());
	be_patient();
	assert_true(is_free());
}

#if CAN_STEP

#define TRAP      0x100ll
#define TRAP_FLAG "0x100"

static atomic_bool over;
static unsigned instructions, interrupted;

static void close_something(void)
{
	struct fp_fd_hold hold;

	fp_fd_lock_shared(&hold);
	fp_fd_unlock_shared(&hold);
}

/*
 * Runs after each instruction, and calls close at the chosen one. The instructions of the handler
 * itself are not stepped through.
 */
static void close_in_handler(int number, siginfo_t *info, void *context)
{
	if (++instructions < interrupted)
		return;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP;
	close_something();
}

/* Ends the thread in the middle, like a cancellation, but without its clean-up handlers. */
static void end_in_handler(int number, siginfo_t *info, void *context)
{
	if (++instructions >= interrupted)
		syscall(SYS_exit, 0);
}

static void close_by_steps(void)
{
	instructions = 0;
	__asm__ volatile("pushfq; orq $" TRAP_FLAG ", (%%rsp); popfq" ::: "memory", "cc");
	close_something();
	__asm__ volatile("pushfq; andq $~" TRAP_FLAG ", (%%rsp); popfq" ::: "memory", "cc");
}

static void *open_on_and_on(void *arg)
{
	while (!atomic_load(&over))
		fp_fd_unlock(fp_fd_lock_exclusive());
	return NULL;
}

/*
 * Handlers may call close(). Nobody hangs, whichever instruction of the lock the handler
 * interrupts, and whether an opening waits or not.
 */
static void test_a_handler_that_closes(void **state)
{
	const struct sigaction action = {.sa_sigaction = close_in_handler, .sa_flags = SA_SIGINFO};
	struct sigaction before;
	pthread_t opens;

	sigaction(SIGTRAP, &action, &before);
	assert_int_equal(pthread_create(&opens, NULL, open_on_and_on, NULL), 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		interrupted = 0;
		do {
			interrupted++;
			close_by_steps();
		} while (instructions >= interrupted && interrupted < INSTRUCTIONS);
	}
	atomic_store(&over, true);
	assert_int_equal(pthread_join(opens, NULL), 0);
	sigaction(SIGTRAP, &before, NULL);
	assert_true(interrupted > 20);
	assert_true(is_free());
}

static void *close_by_steps_thread(void *arg)
{
	close_by_steps();
	return NULL;
}

/* At whichever instruction a thread ends, at most one opening waits for it. */
static void test_a_thread_that_ends(void **state)
{
	const struct sigaction action = {.sa_sigaction = end_in_handler, .sa_flags = SA_SIGINFO};
	struct sigaction before;

	sigaction(SIGTRAP, &action, &before);
	interrupted = 1;
	do {
		pthread_t thread;

		interrupted += STRIDE;
		assert_int_equal(pthread_create(&thread, NULL, close_by_steps_thread, NULL), 0);
		assert_int_equal(pthread_join(thread, NULL), 0);
		be_patient();
		assert_true(is_free());
	} while (instructions >= interrupted && interrupted < INSTRUCTIONS);
	sigaction(SIGTRAP, &before, NULL);
	assert_true(interrupted > 20);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_child_waits_for_nobody),
		cmocka_unit_test(test_nobody_waits_for_ever),
		cmocka_unit_test(test_a_child_of_vfork_is_killed),
		cmocka_unit_test(test_calls_that_last_are_waited_for_once),
		cmocka_unit_test(test_a_forgotten_call_ends),
		cmocka_unit_test(test_a_call_within_a_call),
		cmocka_unit_test(test_a_call_that_is_jumped_out_of),
#if CAN_STEP
		cmocka_unit_test(test_a_handler_that_closes),
		cmocka_unit_test(test_a_thread_that_ends),
#endif
	};

	return cmocka_run_group_tests_name("fdlock", tests, NULL, NULL);
}
