/*
 * Storms of signals whose handlers close descriptors. They hit threads that open, close, fault and
 * are cancelled. FP_TEST_SECONDS is the length of each storm. FP_TEST_PATIENCE is the time in
 * seconds after which a thread that has not ended is a failure. Room: test/integration.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "farsignals.h"

#define THREADS  4
#define SECONDS  3
#define ENOUGH_S 60

static atomic_bool go_on;
static atomic_ulong handled, cleaned;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double from_environment(const char *name, double otherwise)
{
	const char *given = getenv(name);

	return given ? strtod(given, NULL) : otherwise;
}

/* Handlers may make these calls: each is async-signal safe. */
static void close_some(int sig, siginfo_t *info, void *context)
{
	int saved = errno, fd = open("/dev/null", O_RDONLY | O_CLOEXEC), other = dup(fd);

	((volatile char *)test_pressure)[handled * 37 * TEST_PAGE % TEST_PRESSURE]++;
	close(fd);
	close(other);
	handled++;
	errno = saved;
}

static void mask_both(int how)
{
	sigset_t both;

	sigemptyset(&both);
	sigaddset(&both, SIGUSR1);
	sigaddset(&both, SIGUSR2);
	pthread_sigmask(how, &both, NULL);
}

static void count(void *arg)
{
	cleaned++;
}

/*
 * The thread starts with both signals blocked. So neither signal ends it before its clean-up
 * handler is set.
 */
static void *open_and_close(void *arg)
{
	pthread_cleanup_push(count, NULL);
	mask_both(SIG_UNBLOCK);
	for (unsigned i = 0;; i++) {
		int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);

		((volatile char *)test_pressure)[i * 41 * TEST_PAGE % TEST_PRESSURE]++;
		(void)!read(fd, test_pressure + i * 43 * TEST_PAGE % TEST_PRESSURE, 64);
		close(fd);
		if (!arg && !go_on)
			break;
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void join_in_time(pthread_t thread)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)from_environment("FP_TEST_PATIENCE", ENOUGH_S);
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

static void start(pthread_t *threads, void *cancelled)
{
	go_on = true;
	mask_both(SIG_BLOCK);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, cancelled), 0);
	mask_both(SIG_UNBLOCK);
}

static void send(const pthread_t *threads, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(pthread_kill(threads[i % THREADS], i % 3 ? SIGUSR1 : SIGUSR2), 0);
	sched_yield();
}

static void handle_both(void)
{
	test_handle(SIGUSR1, close_some, SA_RESTART);
	test_handle(SIGUSR2, close_some, 0);
}

static void a_storm(void **state)
{
	double until = now() + from_environment("FP_TEST_SECONDS", SECONDS);
	pthread_t threads[THREADS];

	handle_both();
	start(threads, NULL);
	while (now() < until)
		send(threads, 3 * THREADS);
	go_on = false;
	for (int i = 0; i < THREADS; i++)
		join_in_time(threads[i]);
}

static void a_storm_of_cancelled_threads(void **state)
{
	double until = now() + from_environment("FP_TEST_SECONDS", SECONDS);
	pthread_t threads[THREADS];
	unsigned long turns = 0;

	handle_both();
	cleaned = 0;
	for (; now() < until; turns++) {
		start(threads, (void *)1);
		for (unsigned i = 0; i < turns % 5; i++)
			send(threads, 2 * THREADS);
		for (int i = 0; i < THREADS; i++) {
			send(threads + i, 1);
			assert_int_equal(pthread_cancel(threads[i]), 0);
		}
		for (int i = 0; i < THREADS; i++)
			join_in_time(threads[i]);
		closefrom(3); /* closes descriptors that cancelled threads left open */
	}
	printf("%lu turns, %lu signals\n", turns, handled);
	assert_int_equal(cleaned, turns * THREADS);
}

/* ---- after each instruction ---- */

#if defined(__x86_64__)

#define MOST_STEPS 20000u

static __thread unsigned long steps_left;

/* Ends the thread in a handler, like a cancellation. */
static void end_here(int sig, siginfo_t *info, void *context)
{
	if (--steps_left == 0)
		pthread_exit(NULL);
}

/*
 * Switches single steps on or off. The flags are pushed below the red zone of the stack, which must
 * stay intact.
 */
static void step(bool on)
{
	if (on)
		__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\t"
		                 "lea 128(%%rsp), %%rsp"
		                 :
		                 :
		                 : "memory", "cc");
	else
		__asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\t"
		                 "lea 128(%%rsp), %%rsp"
		                 :
		                 :
		                 : "memory", "cc");
}

/* Ends the thread after n instructions. Returns n if open and close took fewer instructions. */
static void *open_until(void *n)
{
	int fd;

	pthread_cleanup_push(count, NULL);
	steps_left = (uintptr_t)n;
	step(true);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	close(fd);
	step(false);
	pthread_cleanup_pop(0);
	return n;
}

/*
 * A thread may end in a handler, whatever the handler interrupted. The unwinder must find its way
 * through the interrupted frame.
 */
static void ends_after_each_instruction(void **state)
{
	unsigned long n = 0;
	void *result = NULL;

	test_handle(SIGTRAP, end_here, 0);
	close(open("/dev/null", O_RDONLY | O_CLOEXEC)); /* resolves both symbols before the steps */
	for (cleaned = 0; !result && n < MOST_STEPS; cleaned--) {
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, open_until, (void *)(uintptr_t)++n), 0);
		assert_int_equal(pthread_join(thread, &result), 0);
		assert_int_equal(cleaned, result ? 0 : 1);
		cleaned += result != NULL;
		if (n % 128 == 0)
			closefrom(3);
	}
	printf("%lu instructions\n", n);
	assert_non_null(result);
	signal(SIGTRAP, SIG_DFL);
	closefrom(3);
}

#else

static void ends_after_each_instruction(void **state)
{
	skip();
}

#endif

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(ends_after_each_instruction),
	    cmocka_unit_test(a_storm),
	    cmocka_unit_test(a_storm_of_cancelled_threads),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
