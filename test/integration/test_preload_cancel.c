/*
 * Threads that are cancelled in a program with far memory, in the middle of faults and on far
 * stacks. Their clean-up handlers find the right signal mask. Also tests setuid, for which the C
 * library sends an internal signal to all threads. Room: test/integration.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "farsignals.h"

#define INTERNAL (3ull << 31) /* signals that the C library keeps for itself and hides */
#define ENOUGH_S 120          /* seconds; only a hanging test takes longer */

static atomic_ulong turns;
static atomic_int cleaned;
static volatile uint64_t mask_then;

/* Touches far memory. Any signals may be blocked meanwhile. */
static void clean_up(void *arg)
{
	sigset_t set;

	test_evict();
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	mask_then = *(uint64_t *)&set & ~INTERNAL;
	cleaned++;
}

static void join_cancelled(pthread_t thread)
{
	struct timespec until;
	void *result;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ENOUGH_S;
	assert_int_equal(pthread_timedjoin_np(thread, &result, &until), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
}

/* ---- asynchronous cancellation ---- */

static void *touch_for_ever(void *arg)
{
	int old;

	pthread_cleanup_push(clean_up, NULL);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
	for (;;) {
		turns++;
		test_evict();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void in_the_midst_of_faults(void **state)
{
	for (int i = 1; i <= 30; i++) {
		pthread_t thread;

		turns = 0;
		cleaned = 0;
		assert_int_equal(pthread_create(&thread, NULL, touch_for_ever, NULL), 0);
		while (turns < 2)
			sched_yield();
		for (int j = 0; j < i * 7; j++) /* cancels each round at another place */
			sched_yield();
		assert_int_equal(pthread_cancel(thread), 0);
		join_cancelled(thread);
		assert_int_equal(cleaned, 1);
		assert_int_equal(mask_then, 0);
	}
}

static void *ask_itself(void *arg)
{
	int type;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	for (int i = 0; i < 20; i++) {
		test_evict();
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
		if (type != PTHREAD_CANCEL_ASYNCHRONOUS)
			return (void *)1;
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &type);
		test_evict();
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &type);
		if (type != PTHREAD_CANCEL_DISABLE)
			return (void *)2;
	}
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	test_evict();
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	return type == PTHREAD_CANCEL_DEFERRED ? NULL : (void *)3;
}

/* The cancel type and state stay as the program set them. */
static void types_and_states(void **state)
{
	pthread_t thread;
	void *result;

	assert_int_equal(pthread_create(&thread, NULL, ask_itself, NULL), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_null(result);
}

/* A handler that touches far memory while its thread is in a call that is a cancellation point. */
static void touch_in_handler(int sig, siginfo_t *info, void *context)
{
	turns++;
	test_evict();
	turns++;
}

static int ends[2];

static void *read_for_ever(void *far)
{
	pthread_cleanup_push(clean_up, NULL);
	turns++;
	for (;;)
		(void)!read(ends[0], far, 1);
	pthread_cleanup_pop(0);
	return NULL;
}

static void in_a_handler_in_a_call(void **state)
{
	char *far = test_far_memory(TEST_STACK);

	test_handle(SIGUSR1, touch_in_handler, SA_RESTART);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	for (int i = 0; i < 20; i++) {
		pthread_t thread;

		turns = 0;
		cleaned = 0;
		assert_int_equal(pthread_create(&thread, NULL, read_for_ever, far), 0);
		while (turns < 1)
			sched_yield();
		pthread_kill(thread, SIGUSR1);
		while (turns < 2)
			sched_yield();
		for (int j = 0; j < i; j++)
			sched_yield();
		pthread_cancel(thread);
		join_cancelled(thread);
		assert_int_equal(cleaned, 1);
	}
	close(ends[0]);
	close(ends[1]);
	munmap(far, TEST_STACK);
	signal(SIGUSR1, SIG_DFL);
}

/* ---- on a far stack ---- */

static char *far_stack;
static ucontext_t outside, inside;
static void (*body)(void);

/* Goes so deep that the signal's frame lies in a part of the stack that was not used lately. */
__attribute__((noinline)) static unsigned deep(unsigned n)
{
	volatile char room[1024];

	memset((char *)room, (int)n, sizeof(room));
	return n == 0 ? (unsigned)room[5] : deep(n - 1) + (unsigned)room[7];
}

static void wait_there(void)
{
	pthread_cleanup_push(clean_up, NULL);
	deep(40);
	test_evict();
	turns++;
	for (;;)
		pause();
	pthread_cleanup_pop(0);
}

static atomic_bool go_on;

static void work_there(void)
{
	deep(40);
	test_evict();
	turns++;
	while (go_on)
		;
}

static void *on_far_stack(void *arg)
{
	getcontext(&inside);
	inside.uc_stack = (stack_t){.ss_sp = far_stack, .ss_size = TEST_STACK};
	inside.uc_link = &outside;
	makecontext(&inside, body, 0);
	swapcontext(&outside, &inside);
	return NULL;
}

static pthread_t start_there(void (*what)(void))
{
	pthread_t thread;

	body = what;
	turns = 0;
	cleaned = 0;
	assert_int_equal(pthread_create(&thread, NULL, on_far_stack, NULL), 0);
	while (turns < 1)
		sched_yield();
	return thread;
}

static void on_a_far_stack(void **state)
{
	far_stack = test_far_memory(TEST_STACK);
	for (int i = 0; i < 10; i++) {
		pthread_t thread = start_there(wait_there);

		test_evict();
		assert_int_equal(pthread_cancel(thread), 0);
		join_cancelled(thread);
		assert_int_equal(cleaned, 1);
		assert_int_equal(mask_then, 0);
	}
	munmap(far_stack, TEST_STACK);
}

static void *set_user(void *arg)
{
	return (void *)(uintptr_t)(setresuid((uid_t)-1, (uid_t)-1, (uid_t)-1) == 0);
}

/* setuid waits for all threads. */
static void setuid_with_a_far_stack(void **state)
{
	far_stack = test_far_memory(TEST_STACK);
	for (int i = 0; i < 5; i++) {
		pthread_t thread, other;
		struct timespec until;
		void *result;

		go_on = true;
		thread = start_there(work_there);
		test_evict();
		assert_int_equal(pthread_create(&other, NULL, set_user, NULL), 0);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += ENOUGH_S;
		assert_int_equal(pthread_timedjoin_np(other, &result, &until), 0);
		assert_ptr_equal(result, (void *)1);
		go_on = false;
		assert_int_equal(pthread_join(thread, NULL), 0);
	}
	munmap(far_stack, TEST_STACK);
}

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(types_and_states),        cmocka_unit_test(in_the_midst_of_faults),
	    cmocka_unit_test(in_a_handler_in_a_call),  cmocka_unit_test(on_a_far_stack),
	    cmocka_unit_test(setuid_with_a_far_stack),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
