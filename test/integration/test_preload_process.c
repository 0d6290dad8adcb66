/*
 * Processes and descriptors of a program with far memory: every way to make a child, and a program
 * that closes descriptors that it does not know. Room: test/integration.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define BIG (8 * TEST_LOCAL_BYTES)

static char *filled;

/*
 * The C library puts this block on the stacks of all threads, also of the agent's, here and in the
 * children. If it found no room there, nothing in this file would start.
 */
static __thread char block[TEST_LOCAL_BYTES];

static int fill(void **state)
{
	filled = malloc(BIG);
	test_fill(filled, BIG, 1);
	test_fill(block, sizeof(block), 2);
	return filled ? 0 : -1;
}

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs in the child: it has the parent's bytes, and the parent does not see its writes. */
static _Noreturn void be_child(unsigned seed)
{
	char *more = malloc(BIG);

	if (!test_is_filled(filled, BIG, 1) || !test_is_filled(block, sizeof(block), 2))
		_exit(1);
	test_fill(filled, BIG, seed);
	test_fill(more, BIG, seed + 1);
	if (!test_is_filled(filled, BIG, seed) || !test_is_filled(more, BIG, seed + 1) || !test_is_far(more))
		_exit(2);
	_exit(0);
}

static void fork_twice(void **state)
{
	pid_t pid[2];

	for (unsigned i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			be_child(10 + i);
	}
	assert_int_equal(status_of(pid[0]), 0);
	assert_int_equal(status_of(pid[1]), 0);
	assert_true(test_is_filled(filled, BIG, 1));
}

static void fork_in_child(void **state)
{
	pid_t pid = fork();

	if (pid == 0) {
		pid = fork();
		if (pid == 0)
			be_child(20);
		_exit(status_of(pid));
	}
	assert_int_equal(status_of(pid), 0);
}

/*
 * Threads that allocate, and so hold the locks of the allocator and of the space, while another
 * thread forks.
 */
static atomic_bool stop;

static void *allocate_and_free(void *unused)
{
	size_t size = 1;

	while (!atomic_load(&stop)) {
		char *p = malloc(size),
		     *q = mmap(NULL, 1 << 17, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		p[0] = q[0] = 1;
		free(p);
		munmap(q, 1 << 17);
		size = (size * 5 + 3) & ((8u << 20) - 1);
	}
	return NULL;
}

static void fork_among_threads(void **state)
{
	pthread_t thread[2];

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, allocate_and_free, NULL), 0);
	for (unsigned i = 0; i < 10; i++) {
		pid_t pid = fork();

		if (pid == 0)
			be_child(30 + i);
		assert_int_equal(status_of(pid), 0);
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

/*
 * Several threads call fork at the same time. A fork takes the allocator's locks, so the threads
 * fork one after another. The agent thread of each child allocates, and must find the locks free.
 */
static void *fork_some(void *ret_failures)
{
	for (unsigned i = 0; i < 3; i++) {
		pid_t pid = fork();
		int status = 1;

		if (pid == 0)
			_exit(test_is_filled(filled, BIG, 1) ? 0 : 1);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			atomic_fetch_add((_Atomic unsigned *)ret_failures, 1);
	}
	return NULL;
}

static void fork_at_once(void **state)
{
	_Atomic unsigned failures = 0;
	pthread_t thread[3];

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, fork_some, &failures), 0);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(failures, 0);
}

#define PART (TEST_LOCAL_BYTES / 8 * 5) /* two parts together exceed the budget */

static char *map_part(void)
{
	return mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/*
 * The child maps at addresses that the parent unmapped while their pages were local. In the child,
 * too, such pages must be able to leave.
 */
static void fork_after_munmap(void **state)
{
	char *gone[2] = {map_part(), map_part()};
	pid_t pid;

	for (unsigned i = 0; i < 2; i++) { /* the first makes all other pages leave */
		assert_true(test_is_far(gone[i]));
		test_fill(gone[i], PART, 3);
		munmap(gone[i], PART);
	}
	pid = fork();
	if (pid == 0) {
		alarm(20);
		for (unsigned i = 0; i < 2; i++) {
			if (map_part() != gone[i])
				_exit(4);
			test_fill(gone[i], PART, 4);
		}
		be_child(50);
	}
	assert_int_equal(status_of(pid), 0);
}

static void *fork_while_cancelled(void *unused)
{
	pid_t pid;

	pthread_cancel(pthread_self());
	pid = fork();
	if (pid == 0)
		_exit(test_is_filled(filled, BIG, 1) ? 0 : 1);
	return (void *)(intptr_t)pid;
}

/* fork is no cancellation point. A thread cancelled inside fork would leave every lock taken. */
static void fork_is_not_cancelled(void **state)
{
	pthread_t thread;
	void *pid;

	assert_int_equal(pthread_create(&thread, NULL, fork_while_cancelled, NULL), 0);
	assert_int_equal(pthread_join(thread, &pid), 0);
	assert_ptr_not_equal(pid, PTHREAD_CANCELED);
	assert_int_equal(status_of((pid_t)(intptr_t)pid), 0);
}

/*
 * Fork handlers of the program touch far memory. The handler prepare runs while the parent's agent
 * serves faults. The handler child runs when the child's agent serves them.
 */
static char *handled;

static void *outlive_the_main_thread(void *unused)
{
	test_fill(filled, BIG, 7);
	return NULL;
}

static void at_the_end(void)
{
	_exit(test_is_filled(filled, BIG, 7) ? 42 : 1);
}

/*
 * The C library counts the agent's threads too, so it can't see that the program's last thread
 * ends. What it does at that moment, such as calling atexit functions, must still be done.
 */
static void ends_with_its_last_thread(void **state)
{
	pthread_t thread;
	pid_t pid = fork();

	if (pid == 0) {
		atexit(at_the_end);
		if (pthread_create(&thread, NULL, outlive_the_main_thread, NULL) != 0)
			_exit(2);
		pthread_exit(NULL);
	}
	assert_int_equal(status_of(pid), 42);
}

static void before(void)
{
	if (!test_is_filled(handled, BIG, 2))
		abort();
}

static void in_child(void)
{
	if (!test_is_filled(handled, BIG, 2))
		_exit(3);
}

static void handlers_of_the_program(void **state)
{
	pid_t pid;

	handled = malloc(BIG);
	test_fill(handled, BIG, 2);
	assert_int_equal(pthread_atfork(before, before, in_child), 0);
	pid = fork();
	if (pid == 0)
		be_child(40);
	assert_int_equal(status_of(pid), 0);
}

static void nothing(void)
{
}

/* Registers so many fork handlers that the C library has to move its list of them. */
static void many_handlers(void **state)
{
	pid_t pid;

	for (unsigned i = 0; i < 200; i++)
		assert_int_equal(pthread_atfork(nothing, nothing, nothing), 0);
	assert_true(test_is_filled(filled, BIG, 1));
	pid = fork();
	if (pid == 0)
		be_child(80);
	assert_int_equal(status_of(pid), 0);
}

static void spawned(void **state)
{
	char *const argv[] = {(char *)"sh", (char *)"-c", (char *)"exit 7", NULL};
	pid_t pid;

	assert_int_equal(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ), 0);
	assert_int_equal(status_of(pid), 7);
	assert_int_equal(WEXITSTATUS(system("exit 8")), 8);
	pid = vfork();
	if (pid == 0) {
		execv("/bin/sh", argv);
		_exit(127);
	}
	assert_int_equal(status_of(pid), 7);
	pid = fork();
	if (pid == 0) {
		execv("/bin/sh", argv);
		_exit(127);
	}
	assert_int_equal(status_of(pid), 7);
}

/* A thread forbids itself the time stamp counter. The agent must do without it on that thread. */
static void *work_without_counter(void *by_number)
{
	bool right;
	int r = by_number ? (int)syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)
	                  : prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
	char *more = malloc(BIG);

	test_fill(more, BIG, 8);
	right = r == 0 && test_is_filled(more, BIG, 8) && test_is_filled(filled, BIG, 1);
	free(more);
	prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0);
	return (void *)(uintptr_t)right;
}

static void without_the_time_stamp_counter(void **state)
{
#if defined(__x86_64__)
	for (uintptr_t by_number = 0; by_number < 2; by_number++) {
		pthread_t thread;
		void *right;

		assert_int_equal(pthread_create(&thread, NULL, work_without_counter, (void *)by_number), 0);
		assert_int_equal(pthread_join(thread, &right), 0);
		assert_ptr_equal(right, (void *)1);
	}
#else
	skip();
#endif
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(fork_twice),
	    cmocka_unit_test(fork_in_child),
	    cmocka_unit_test(fork_among_threads),
	    cmocka_unit_test(fork_at_once),
	    cmocka_unit_test(fork_after_munmap),
	    cmocka_unit_test(fork_is_not_cancelled),
	    cmocka_unit_test(ends_with_its_last_thread),
	    cmocka_unit_test(handlers_of_the_program),
	    cmocka_unit_test(many_handlers),
	    cmocka_unit_test(spawned),
	    cmocka_unit_test(without_the_time_stamp_counter),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
