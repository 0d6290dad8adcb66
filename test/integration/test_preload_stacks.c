/*
 * Threads to which the program gives a stack in far memory. They run on a stack of the C library
 * instead. The reason: when a thread ends, the kernel touches the thread's record on its stack. At
 * that time no fault of the thread is served any more. Room: test/integration.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define BIG         (8 * TEST_LOCAL_BYTES)
#define PAGE        4096u
#define STACK_BYTES (64u << 10)
#define ENOUGH_S    30 /* seconds; only a hanging test takes longer */

static char *filled;

static int fill(void **state)
{
	filled = malloc(BIG);
	if (filled)
		test_fill(filled, BIG, 1);
	return filled ? 0 : -1;
}

static int join(pthread_t thread, void **ret_result)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ENOUGH_S;
	return pthread_timedjoin_np(thread, ret_result, &until);
}

/* ---- which stack they run on ---- */

enum way { RETURNS, EXITS, IS_CANCELLED, N_WAYS };

static void *end_in_one_way(void *arg)
{
	enum way way = (enum way)(intptr_t)arg;

	if (test_is_far(&way) || test_is_far((const void *)pthread_self()))
		return NULL;
	if (way == EXITS)
		pthread_exit((void *)1);
	while (way == IS_CANCELLED)
		pause();
	return (void *)1;
}

static void no_thread_is_far(void **state)
{
	char *stack = aligned_alloc(PAGE, STACK_BYTES);

	assert_true(test_is_far(stack));
	test_fill(stack, STACK_BYTES, 7);
	for (intptr_t way = RETURNS; way < N_WAYS; way++) {
		pthread_attr_t attr;
		pthread_t thread;
		void *result;
		size_t size;

		pthread_attr_init(&attr);
		assert_int_equal(pthread_attr_setstack(&attr, stack, STACK_BYTES), 0);
		assert_int_equal(pthread_attr_getstacksize(&attr, &size), 0);
		assert_int_equal(size, STACK_BYTES);
		assert_int_equal(pthread_create(&thread, &attr, end_in_one_way, (void *)way), 0);
		pthread_attr_destroy(&attr);
		if (way == IS_CANCELLED)
			pthread_cancel(thread);
		assert_int_equal(join(thread, &result), 0);
		assert_ptr_equal(result, way == IS_CANCELLED ? PTHREAD_CANCELED : (void *)1);
	}
	assert_true(test_is_filled(stack, STACK_BYTES, 7)); /* nobody else wrote to the program's stack */
	free(stack);
}

/* ---- many, under pressure ---- */

#define MANY     32u
#define ROUNDS   40u
#define PRESSERS 2u

static atomic_bool all_ended;

static void *press(void *number)
{
	unsigned random = (unsigned)(intptr_t)number;

	while (!atomic_load(&all_ended)) {
		volatile char *byte = filled + (size_t)rand_r(&random) % BIG;

		*byte = *byte; /* a write, so each page must be written back later */
	}
	return NULL;
}

static void *end_soon(void *number)
{
	const struct timespec pause = {.tv_nsec = (long)(intptr_t)number % 8 * 100000};

	nanosleep(&pause, NULL);
	return number;
}

static void end_many(char *const stack[MANY])
{
	pthread_t thread[MANY];
	pthread_attr_t attr;
	void *result;

	for (intptr_t i = 0; i < (intptr_t)MANY; i++) {
		pthread_attr_init(&attr);
		pthread_attr_setstack(&attr, stack[i], STACK_BYTES);
		assert_int_equal(pthread_create(&thread[i], &attr, end_soon, (void *)i), 0);
		pthread_attr_destroy(&attr);
	}
	for (intptr_t i = 0; i < (intptr_t)MANY; i++) {
		assert_int_equal(join(thread[i], &result), 0);
		assert_int_equal((intptr_t)result, i);
	}
}

static void many_end_under_pressure(void **state)
{
	pthread_t presser[PRESSERS];
	char *stack[MANY];

	for (unsigned i = 0; i < MANY; i++)
		stack[i] = aligned_alloc(PAGE, STACK_BYTES);
	for (intptr_t i = 0; i < (intptr_t)PRESSERS; i++)
		assert_int_equal(pthread_create(&presser[i], NULL, press, (void *)(i + 1)), 0);
	for (unsigned round = 0; round < ROUNDS; round++)
		end_many(stack);
	atomic_store(&all_ended, true);
	for (unsigned i = 0; i < PRESSERS; i++)
		pthread_join(presser[i], NULL);
	for (unsigned i = 0; i < MANY; i++)
		free(stack[i]);
	assert_true(test_is_filled(filled, BIG, 1));
}

/* ---- local stacks between the addresses of far memory ---- */

static void end_on(void *stack)
{
	pthread_attr_t attr;
	pthread_t thread;
	void *result;

	assert_true(stack != MAP_FAILED);
	pthread_attr_init(&attr);
	assert_int_equal(pthread_attr_setstack(&attr, stack, STACK_BYTES), 0);
	assert_int_equal(pthread_create(&thread, &attr, end_soon, stack), 0);
	pthread_attr_destroy(&attr);
	assert_int_equal(join(thread, &result), 0);
	assert_ptr_equal(result, stack);
}

static void ends_where_another_mapping_is(void **state)
{
	const int prot = PROT_READ | PROT_WRITE;
	char *stack = mmap(NULL, 2 * STACK_BYTES, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(stack != MAP_FAILED);
	assert_true(test_is_far(stack));
	end_on(mmap(stack, STACK_BYTES, prot, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	assert_int_equal(munmap(stack, 2 * STACK_BYTES), 0);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(no_thread_is_far),
	    cmocka_unit_test(many_end_under_pressure),
	    cmocka_unit_test(ends_where_another_mapping_is),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
