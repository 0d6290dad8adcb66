/* The clock of fp_clock_ns, which stops while no thread of the process runs. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "clock.h"

#define STOP_NS (350 * FP_NSEC_PER_MSEC)
#define LATE_NS (252 * FP_NSEC_PER_MSEC) /* a wake-up that comes so late counts as a stop */

static uint64_t kernel_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* Acts like SIGSTOP: the time at which the sleeper should wake passes. */
static void be_stopped(void)
{
	const struct timespec stop = {.tv_nsec = (long)STOP_NS};

	nanosleep(&stop, NULL);
}

static void test_goes_on_while_somebody_is_awake(void **state)
{
	uint64_t begun = fp_clock_ns();

	be_stopped();
	assert_true(fp_clock_ns() - begun >= STOP_NS);
}

static void test_stands_still_while_nobody_wakes(void **state)
{
	uint64_t kernel = kernel_ns(), begun = fp_clock_ns(), ns;

	fp_clock_sleep(begun);
	be_stopped();
	ns = fp_clock_ns() - begun;
	assert_true(kernel_ns() - kernel >= ns + STOP_NS - LATE_NS);
	fp_clock_wake();
	assert_true(fp_clock_ns() - begun >= ns);
}

/* libc waits for a deadline of our clock, and must not return before it. */
static void test_monotonic_time_of_a_deadline(void **state)
{
	uint64_t now = kernel_ns();
	struct timespec ts = fp_clock_monotonic(fp_clock_ns());

	assert_true((uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec >= now);
}

static atomic_bool done;

/* The clock never goes back. */
static void *read_on(void *arg)
{
	uint64_t last = 0;

	while (!atomic_load(&done)) {
		uint64_t now = fp_clock_ns();

		if (now < last)
			return &done;
		last = now;
	}
	return NULL;
}

static void test_never_goes_back(void **state)
{
	pthread_t threads[3];
	void *went_back = NULL;

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_on, NULL), 0);
	fp_clock_sleep(fp_clock_ns());
	be_stopped();
	fp_clock_wake();
	atomic_store(&done, true);
	for (unsigned i = 0; i < 3; i++) {
		pthread_join(threads[i], &went_back);
		assert_null(went_back);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_goes_on_while_somebody_is_awake),
	    cmocka_unit_test(test_stands_still_while_nobody_wakes),
	    cmocka_unit_test(test_monotonic_time_of_a_deadline),
	    cmocka_unit_test(test_never_goes_back),
	};

	return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
