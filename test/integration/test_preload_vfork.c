/*
 * Tasks that share the memory of a program with far memory and are none of its threads: children of vfork.
 * One may be killed at any instant, and its parent goes on as if nothing had been.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "farsignals.h"

#define BIG      (4 * TEST_LOCAL_BYTES)
#define KILLS    100
#define PATIENCE 10.0 /* seconds, for what takes one or two on a busy machine; a stall took 20 */

static char *filled;
static atomic_int child, null_fd;
static unsigned seed;

static unsigned draw(unsigned n)
{
	seed = seed * 1103515245u + 12345u;
	return (seed >> 8) % n;
}

static int fill(void **state)
{
	const char *given = getenv("FP_TEST_SEED");

	seed = given ? (unsigned)strtoul(given, NULL, 0) : (unsigned)time(NULL);
	printf("FP_TEST_SEED=%u\n", seed);
	filled = aligned_alloc(TEST_PAGE, BIG);
	test_fill(filled, BIG, 1);
	null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	return test_is_far(filled) && null_fd >= 0 ? 0 : -1;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Kills the child that says its number, somewhere in its first turns. */
static void *kill_it(void *delay)
{
	while (!child)
		sched_yield();
	for (volatile unsigned i = (unsigned)(uintptr_t)delay; i > 0; i--)
		;
	kill(child, SIGKILL);
	return NULL;
}

static void touch_all(void)
{
	for (size_t i = 0; i < BIG; i += TEST_PAGE)
		(void)((volatile char *)filled)[i];
}

static void write_all(void)
{
	for (size_t i = 0; i < BIG; i += 4 * TEST_PAGE)
		(void)!write(null_fd, filled + i, 4 * TEST_PAGE);
}

/* As children do before they execute something: what the agent has open is gone in them, too. */
static void close_and_touch(void)
{
	syscall(SYS_close_range, 3, ~0u, 0);
	touch_all();
}

static void run_until_killed(void (*act)(void))
{
	pthread_t killer;
	int status;
	pid_t pid;

	child = 0;
	assert_int_equal(pthread_create(&killer, NULL, kill_it, (void *)(uintptr_t)draw(2000000)), 0);
	pid = vfork();
	if (pid == 0) {
		child = getpid();
		for (;;)
			act();
	}
	assert_true(pid > 0);
	assert_int_equal(pthread_join(killer, NULL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void killed_again_and_again(void (*act)(void))
{
	for (int i = 0; i < KILLS; i++) {
		double begun;

		run_until_killed(act);
		begun = now();
		assert_true(test_is_filled(filled, BIG, 1));
		assert_true(now() - begun < PATIENCE);
	}
}

static void killed_in_a_fault(void **state)
{
	killed_again_and_again(touch_all);
}

static void killed_in_a_call(void **state)
{
	killed_again_and_again(write_all);
}

static void killed_without_descriptors(void **state)
{
	killed_again_and_again(close_and_touch);
}

static atomic_int n_caught;

static void count(int sig, siginfo_t *info, void *context)
{
	n_caught++;
}

/* What a dead child left open in its parent's thread would make all memory local, and keep signals back. */
static void the_thread_is_as_it_was(void **state)
{
	char *more = malloc(BIG);

	test_fill(more, BIG, 2);
	assert_true(test_is_far(more));
	free(more);
	test_handle(SIGBUS, count, 0);
	raise(SIGBUS);
	assert_int_equal(n_caught, 1);
	signal(SIGBUS, SIG_DFL);
}

static int is_right(void *unused)
{
	return test_is_filled(filled, BIG, 1) ? 0 : 1;
}

/* Without CLONE_VFORK the kernel takes the child's signal stack away: right, or refused. */
static void clone_beside_its_parent(void **state)
{
	static char stack[1u << 16] __attribute__((aligned(16)));
	pid_t pid = clone(is_right, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL);

	if (test_is_inline()) {
		assert_int_equal(pid, -1);
		assert_int_equal(errno, ENOSYS);
		assert_int_equal(syscall(SYS_clone, CLONE_VM | SIGCHLD, stack + sizeof(stack), 0, 0, 0), -1);
		assert_int_equal(errno, ENOSYS);
		return;
	}
	assert_int_equal(test_status_of(pid), 0);
}

/* The two together are another vfork, by a function. */
static void clone_as_vfork(void **state)
{
	static char stack[1u << 16] __attribute__((aligned(16)));

	assert_int_equal(
	    test_status_of(clone(is_right, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)),
	    0);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(killed_in_a_fault),          cmocka_unit_test(killed_in_a_call),
	    cmocka_unit_test(killed_without_descriptors), cmocka_unit_test(the_thread_is_as_it_was),
	    cmocka_unit_test(clone_beside_its_parent),    cmocka_unit_test(clone_as_vfork),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
