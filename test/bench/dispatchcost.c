/*
 * What syscall user dispatch (PR_SET_SYSCALL_USER_DISPATCH, Linux 5.11) costs: each call of the C
 * library with and without it, by turns, and a bare call that is answered in the signal handler.
 * Then which bare calls it sees, and what it does to a program. doc/kernel.md tells why the shim
 * does not use it. Room: test/bench. For x86-64.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include "clock.h"

#if defined(__x86_64__)

#include "barecall.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

#define ROUNDS 2001u
#define CALLS  400u

enum way { WAY_OFF, WAY_RANGE, WAY_SELECTOR, N_WAYS };

static unsigned long text_start, text_end;
static volatile char selector; /* 0: let all calls pass */
static volatile unsigned n_dispatched;

/* Finds the C library's instructions. */
static bool find_text(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512], rights[5];
	unsigned long start, end;

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3 && rights[2] == 'x' &&
		    strstr(line, "libc.so")) {
			text_start = start;
			text_end = end;
		}
	if (maps)
		fclose(maps);
	return text_start;
}

static int dispatch_set(enum way way)
{
	if (way == WAY_OFF)
		return prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0);
	if (way == WAY_RANGE)
		return prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, text_start, text_end - text_start, 0);
	return prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector);
}

/* Answers a bare call: makes it again by an instruction of the C library. */
static void answer(int sig, siginfo_t *info, void *context)
{
	greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
	int saved = errno;
	long ret = syscall(r[REG_RAX], r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);

	r[REG_RAX] = ret < 0 ? -errno : ret;
	n_dispatched++;
	errno = saved;
}

/* ---- costs ---- */

static int zero;

static void call_getpid(void)
{
	syscall(SYS_getpid);
}

static void call_read(void)
{
	char byte;

	if (read(zero, &byte, 1) != 1)
		abort();
}

static void call_futex(void)
{
	static uint32_t word;

	syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void call_bare(void)
{
	(void)bare(SYS_getpid, NULL, 0, 0, 0, 0, 0);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void print_cost(const char *name, void (*call)(void), enum way last)
{
	static double ns[N_WAYS][ROUNDS];

	for (unsigned round = 0; round < ROUNDS; round++)
		for (enum way way = WAY_OFF; way <= last; way++) {
			uint64_t start;

			dispatch_set(way);
			start = fp_clock_ns();
			for (unsigned i = 0; i < CALLS; i++)
				call();
			ns[way][round] = (double)(fp_clock_ns() - start) / CALLS;
			dispatch_set(WAY_OFF);
		}
	printf("%-22s", name);
	for (enum way way = WAY_OFF; way <= last; way++) {
		qsort(ns[way], ROUNDS, sizeof(double), compare);
		printf("  %7.1f %7.1f %8.1f", ns[way][0], ns[way][ROUNDS / 2], ns[way][ROUNDS - 1]);
	}
	printf("\n");
}

/* ---- what is seen ---- */

static void *see_thread(void *unused)
{
	n_dispatched = 0;
	call_bare();
	printf("a new thread: %u of 1 bare calls seen\n", n_dispatched);
	return unused;
}

static void see_library(void)
{
	n_dispatched = 0;
	dlopen("libresolv.so.2", RTLD_NOW);
	printf("dlopen of one library: %u calls of the loader seen\n", n_dispatched);
}

static void see_clock(void)
{
	struct timespec now;

	n_dispatched = 0;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	printf("clock_gettime of a CPU clock: %u calls of the vdso seen\n", n_dispatched);
}

static void see_blocked(void)
{
	sigset_t all;

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	call_bare();
}

/* Runs act in a child, with dispatch on unless act is see_fork, and prints how the child ends. */
static void in_child(const char *name, void (*act)(void), enum way way)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		dispatch_set(way);
		n_dispatched = 0;
		act();
		fflush(stdout);
		_exit((int)n_dispatched);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return;
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", name, WTERMSIG(status));
	else
		printf("%s: %d seen\n", name, WEXITSTATUS(status));
}

static void print_seen(void)
{
	pthread_t thread;

	dispatch_set(WAY_RANGE);
	if (pthread_create(&thread, NULL, see_thread, NULL) == 0)
		pthread_join(thread, NULL);
	dispatch_set(WAY_OFF);
	in_child("a bare call", call_bare, WAY_RANGE);
	in_child("the loader", see_library, WAY_RANGE);
	in_child("the vdso", see_clock, WAY_RANGE);
	in_child("a bare call with SIGSYS blocked", see_blocked, WAY_RANGE);
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};

	zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	if (!find_text() || dispatch_set(WAY_RANGE) < 0) {
		printf("no syscall user dispatch here: %s\n", strerror(errno));
		return 77;
	}
	dispatch_set(WAY_OFF);
	sigaction(SIGSYS, &action, NULL);
	printf("ns a call: minimum, median, maximum of %u rounds\n%-22s  %-24s  %-24s  selector byte\n",
	       ROUNDS, "", "without", "range: the C library");
	print_cost("getpid", call_getpid, WAY_SELECTOR);
	print_cost("read of 1 byte", call_read, WAY_SELECTOR);
	print_cost("futex wake of nobody", call_futex, WAY_SELECTOR);
	print_cost("bare getpid, answered", call_bare, WAY_RANGE);
	print_seen();
	return 0;
}

#else

int main(void)
{
	printf("only on x86-64\n");
	return 77;
}

#endif
