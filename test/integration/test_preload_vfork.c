/*
 * Guests of a program with far memory: children of vfork. They share its memory, but are not its
 * threads. A guest may be killed at any instant, and its parent goes on undisturbed. Room:
 * test/integration.
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
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "farsignals.h"

#define BIG   (4 * TEST_LOCAL_BYTES)
#define KILLS 100
#define LEFT  20
/* Seconds. The test takes one or two on a busy machine; a stall once took 20. */
#define PATIENCE 10.0

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

/* Waits until the child has told its number. Kills the child in one of its first rounds. */
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

/*
 * Acts as children do before exec: closes all descriptors, also the agent's, and touches far
 * memory.
 */
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

/* A killed child must not leave a pin or a blocked signal in its parent's thread. */
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

static long mapped_pages(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long n = 0;

	assert_int_equal(fscanf(f, "%ld", &n), 1);
	fclose(f);
	return n;
}

static void run(char **words)
{
	pid_t pid = vfork();
	int status;

	if (pid == 0) {
		execve("/bin/true", words, environ);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/*
 * A child of vfork makes copies of the arguments of execve. When the child has ended, these copies
 * belong to its parent, which must free them.
 */
static void executed(void **state)
{
	char **words = calloc(1, BIG);
	long before = 0;

	assert_true(test_is_far(words));
	words[0] = strcpy((char *)words + TEST_PAGE, "true");
	words[1] = NULL;
	for (int i = 0; i <= 100; i++) {
		run(words);
		if (i == 0)
			before = mapped_pages();
	}
	assert_true(mapped_pages() - before < 800);
	free(words);
}

/*
 * Without CLONE_VFORK the kernel removes the child's signal stack. Such a child is right, or is
 * refused.
 */
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

/* clone() with CLONE_VM and CLONE_VFORK is a vfork that runs a function. */
static void clone_as_vfork(void **state)
{
	static char stack[1u << 16] __attribute__((aligned(16)));

	assert_int_equal(
	    test_status_of(clone(is_right, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)),
	    0);
}

/* ---- guests whose parent has ended ---- */

static _Atomic(char *) touched;

/* Always waits for some page: touches pages in an order without read-ahead, most of them remote. */
static void *touch_for_ever(void *unused)
{
	for (size_t i = 0;; i += 37 * TEST_PAGE) {
		touched = filled + i % BIG;
		(void)*(volatile char *)touched;
	}
	return NULL;
}

/* Begins with the page for which its parent's thread was waiting. */
static void write_touched(void)
{
	(void)!write(null_fd, touched, TEST_PAGE);
	write_all();
}

/* Writes its number, and goes on after its parent has ended. */
static void outlive(int says, void (*act)(void))
{
	pid_t parent = getppid(), own = getpid();

	(void)!write(says, &own, sizeof(own));
	while (getppid() == parent)
		usleep(1000);
	act();
	_exit(0);
}

static void be_left(int says, void (*act)(void))
{
	pthread_t toucher;
	pid_t pid;

	if (act == write_touched && pthread_create(&toucher, NULL, touch_for_ever, NULL))
		_exit(1);
	pid = vfork();
	if (pid == 0)
		outlive(says, act);
	_exit(1);
}

/* Waits for a process whose parent has ended. The process is our child then. */
static void await_orphan(pid_t pid, int *ret_status)
{
	double begun = now();

	while (waitpid(pid, ret_status, WNOHANG) <= 0) {
		if (now() - begun > PATIENCE)
			kill(pid, SIGKILL);
		usleep(1000);
	}
}

/* Returns the guest's status, and what it and its parent said on stderr. */
static int leave_guest(void (*act)(void), char *ret_text, size_t size)
{
	int fds[2], status;
	pid_t pid, orphan;
	ssize_t n;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		be_left(fds[1], act);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &orphan, sizeof(orphan)), sizeof(orphan));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	await_orphan(orphan, &status);
	n = read(fds[0], ret_text, size - 1);
	ret_text[n < 0 ? 0 : n] = '\0';
	close(fds[0]);
	return status;
}

static void left_again_and_again(void (*act)(void))
{
	char text[512];

	if (!test_is_inline())
		skip();
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
	for (unsigned i = 0; i < LEFT; i++) {
		int status = leave_guest(act, text, sizeof(text));

		if (WIFSIGNALED(status))
			fail_msg("round %u: ended by signal %d; it said: %s", i, WTERMSIG(status), text);
		if (WEXITSTATUS(status) != 125 || !strstr(text, "has ended"))
			fail_msg("round %u: ended with status %d; it said: %s", i, WEXITSTATUS(status), text);
	}
	prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

/* After its parent's end no agent serves a guest. It ends, and says why. */
static void left_by_its_process(void **state)
{
	left_again_and_again(touch_all);
}

/* The same while a page that the guest writes was on its way to a thread of its parent. */
static void left_amid_a_fetch(void **state)
{
	left_again_and_again(write_touched);
}

/* ---- in its own PID namespace ---- */

static int close_all_and_check(void *unused)
{
	syscall(SYS_close_range, 3, ~0u, 0);
	return is_right(NULL);
}

/* The guest has number 1 in its namespace, and its parent has number 1 in another one. */
static void be_first(void)
{
	static char stack[1u << 16] __attribute__((aligned(16)));
	int flags = CLONE_VM | CLONE_VFORK | CLONE_NEWPID | SIGCHLD;
	pid_t pid = fork();

	if (pid > 0)
		_exit(test_status_of(pid));
	if (pid < 0 || getpid() != 1)
		_exit(2);
	_exit(test_status_of(clone(close_all_and_check, stack + sizeof(stack), flags, NULL)));
}

static void numbered_as_its_parent(void **state)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		if (unshare(CLONE_NEWPID) < 0)
			_exit(TEST_SKIPPED);
		be_first();
	}
	status = test_status_of(pid);
	if (status == TEST_SKIPPED)
		skip();
	assert_int_equal(status, 0);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(killed_in_a_fault),          cmocka_unit_test(killed_in_a_call),
	    cmocka_unit_test(killed_without_descriptors), cmocka_unit_test(the_thread_is_as_it_was),
	    cmocka_unit_test(clone_beside_its_parent),    cmocka_unit_test(clone_as_vfork),
	    cmocka_unit_test(left_by_its_process),        cmocka_unit_test(left_amid_a_fetch),
	    cmocka_unit_test(numbered_as_its_parent),     cmocka_unit_test(executed),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
