/*
 * The cost of a pair of mmap and munmap. A tracer counts the system calls of a child that makes
 * some pairs. During each mmap and each munmap the agent blocks and restores signals only once.
 * Room: test/integration.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "barecall.h"
#include "underpreload.h"

#define LEN   (64u << 10)
#define PAIRS 16u
#define TIMED 20000u
#define MOST  10u /* the most system calls of a pair; each of its two calls has two rt_sigprocmask */

static void pairs(unsigned n, bool touches)
{
	for (unsigned i = 0; i < n; i++) {
		char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			_exit(2);
		if (touches)
			p[0] = p[LEN / 2] = 1;
		if (munmap(p, LEN) < 0)
			_exit(3);
	}
}

/* Bare calls of getppid mark the beginning and the end. */
static void traced(void)
{
	pairs(PAIRS, false);
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	kill(getpid(), SIGSTOP);
	bare(SYS_getppid, NULL, 0, 0, 0, 0, 0);
	pairs(PAIRS, false);
	bare(SYS_getppid, NULL, 0, 0, 0, 0, 0);
	_exit(0);
}

/*
 * Runs the child to its next stop at a system call. Returns the call's number, or -1 if the child
 * has ended.
 */
static long next_call(pid_t pid)
{
	struct __ptrace_syscall_info info = {0};
	int status;

	do {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) < 0 || waitpid(pid, &status, 0) != pid ||
		    !WIFSTOPPED(status))
			return -1;
		if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) <= 0)
			return -1;
	} while (info.op != PTRACE_SYSCALL_INFO_ENTRY);
	return (long)info.entry.nr;
}

static void few_system_calls(void **state)
{
	unsigned marks = 0, calls = 0, masks = 0;
	int status;
	long number;
	pid_t pid = fork();

	if (pid == 0)
		traced();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
	while ((number = next_call(pid)) >= 0) {
		if (number == SYS_getppid)
			marks++;
		else if (marks == 1)
			calls++;
		masks += marks == 1 && number == SYS_rt_sigprocmask;
	}
	assert_int_equal(marks, 2);
	print_message("%u pairs: %u system calls, %u of them for the signal mask\n", PAIRS, calls, masks);
	assert_in_range(calls, 1, PAIRS * MOST);
	assert_true(masks <= 4 * PAIRS);
}

static double ns_a_pair(bool touches)
{
	struct timespec from, to;

	pairs(TIMED / 10, touches);
	clock_gettime(CLOCK_MONOTONIC, &from);
	pairs(TIMED, touches);
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / TIMED;
}

/* The time is only printed, because it depends on the machine. */
static void time_a_pair(void **state)
{
	print_message("a pair takes %.0f ns; with two pages touched %.0f ns\n", ns_a_pair(false),
	              ns_a_pair(true));
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(few_system_calls),
	    cmocka_unit_test(time_a_pair),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
