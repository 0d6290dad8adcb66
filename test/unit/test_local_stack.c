/* Calls on a local stack: see local_stack.h. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmocka.h>

#include "local_stack.h"

#define STACK_BYTES (64u << 10)
#define THREADS     24u /* more than the number of stacks that are kept */
#define ROUNDS      200u

static char *far_range;

static int set_up(void **state)
{
	far_range = mmap(NULL, (size_t)THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return far_range == MAP_FAILED ? -1
	                               : fp_local_stack_open(far_range, (size_t)THREADS * STACK_BYTES, false);
}

/* Runs body on a stack in the far range. */
static void run_far(void (*body)(void), unsigned at)
{
	ucontext_t outside, inside;

	getcontext(&inside);
	inside.uc_stack = (stack_t){.ss_sp = far_range + (size_t)at * STACK_BYTES, .ss_size = STACK_BYTES};
	inside.uc_link = &outside;
	makecontext(&inside, body, 0);
	swapcontext(&outside, &inside);
}

static bool blocks(int sig)
{
	sigset_t now;

	pthread_sigmask(SIG_BLOCK, NULL, &now);
	return sigismember(&now, sig);
}

static bool is_wrong;

#define CHECK(holds) (is_wrong |= !(holds))

static long sum(long a, long b, long c, long d, long e, long f)
{
	CHECK(!fp_local_stack_is_far());
	return a + 10 * b + 100 * c + 1000 * d + 10000 * e + 100000 * f;
}

static long look(uintptr_t outer, bool was_far)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	CHECK(!fp_local_stack_is_far());
	CHECK(blocks(SIGUSR1) == was_far);
	CHECK(was_far || outer - here < STACK_BYTES);
	CHECK(here % 16 == 0);
	return FP_ON_LOCAL_STACK(sum, 1, 2, 3, 4, 5, 6); /* on a local stack already: stays on it */
}

static void call(void)
{
	bool far = fp_local_stack_is_far();

	CHECK(FP_ON_LOCAL_STACK(sum, 9, 8, 7, 6, 5, 4) == 456789);
	CHECK(FP_ON_LOCAL_STACK(look, __builtin_frame_address(0), far, 0, 0, 0, 0) == 654321);
	CHECK(!blocks(SIGUSR1));
}

static void stays_on_a_local_stack(void **state)
{
	assert_false(fp_local_stack_is_far());
	call();
	assert_false(is_wrong);
}

static void call_from_far(void)
{
	CHECK(fp_local_stack_is_far());
	call();
}

static void switches_from_a_far_stack(void **state)
{
	run_far(call_from_far, 0);
	assert_false(is_wrong);
}

/* ---- many threads at once ---- */

static pthread_barrier_t all_inside;
static _Atomic unsigned n_wrong;

static long fill_and_wait(long number)
{
	volatile long words[1024];

	for (unsigned i = 0; i < 1024; i++)
		words[i] = number;
	pthread_barrier_wait(&all_inside);
	for (unsigned i = 0; i < 1024; i++)
		if (words[i] != number)
			atomic_fetch_add(&n_wrong, 1);
	return number;
}

static _Thread_local long own_number;

static void call_often(void)
{
	for (unsigned i = 0; i < ROUNDS; i++)
		if (FP_ON_LOCAL_STACK(fill_and_wait, own_number, 0, 0, 0, 0, 0) != own_number)
			atomic_fetch_add(&n_wrong, 1);
}

static void *on_far_stack(void *number)
{
	own_number = (long)(intptr_t)number;
	run_far(call_often, (unsigned)own_number);
	return NULL;
}

static void each_call_has_a_stack_of_its_own(void **state)
{
	pthread_t threads[THREADS];

	pthread_barrier_init(&all_inside, NULL, THREADS);
	for (intptr_t i = 0; i < (intptr_t)THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, on_far_stack, (void *)i), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(n_wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(stays_on_a_local_stack),
	    cmocka_unit_test(switches_from_a_far_stack),
	    cmocka_unit_test(each_call_has_a_stack_of_its_own),
	};

	return cmocka_run_group_tests_name("local_stack", tests, set_up, NULL);
}
