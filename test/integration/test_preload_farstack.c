/*
 * Calls from a stack that is itself far. A tracer stops the thread at each system call that hands a
 * part of that stack to the kernel, and lets the stack leave. The results and the signal mask are
 * as without Farpage. In fault mode inline the stack is pinned during such a call, so it stays.
 * Room: test/integration.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <pty.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "farsignals.h"

#define ROUNDS 6
#define LEN    (64u << 10)

static char *far_stack;
static ucontext_t outside, inside;
static _Atomic pid_t tid;
static atomic_bool go;
static volatile int wrong; /* the line of the first failed check; 0: none */
static int to_tracer[2], from_tracer[2], data[2];

/* ---- the thread's calls ---- */

#define CHECK(holds)                                                                                         \
	do {                                                                                                 \
		if (!(holds) && !wrong)                                                                      \
			wrong = __LINE__;                                                                    \
	} while (0)

static uint64_t now(void)
{
	sigset_t set;

	return sigprocmask(SIG_BLOCK, NULL, &set) == 0 ? *(uint64_t *)&set : ~0ull;
}

static bool mask_is(int blocked)
{
	return now() == 1ull << (blocked - 1);
}

static void set_mask(int blocked)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, blocked);
	CHECK(sigprocmask(SIG_SETMASK, &set, NULL) == 0);
	CHECK(mask_is(blocked));
}

static void map_and_unmap(void)
{
	char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	memset(p, 1, LEN);
	CHECK(mask_is(SIGUSR1));
	CHECK(madvise(p, LEN, MADV_PAGEOUT) == 0);
	CHECK(mask_is(SIGUSR1));
	CHECK(write(data[1], p, 100) == 100);
	CHECK(read(data[0], p + 5000, 100) == 100);
	CHECK(mask_is(SIGUSR1));
	CHECK(munmap(p, LEN) == 0);
	CHECK(mask_is(SIGUSR1));
}

static void *tell_mask(void *unused)
{
	return (void *)now(); // NOLINT(performance-no-int-to-ptr)
}

/* The new thread inherits the mask of the thread that made it. */
static void make_thread(void)
{
	pthread_t thread;
	void *mask;

	CHECK(pthread_create(&thread, NULL, tell_mask, NULL) == 0);
	CHECK(pthread_join(thread, &mask) == 0 && (uint64_t)mask == 1ull << (SIGUSR1 - 1));
}

static void fork_child(bool on_terminal)
{
	int status = -1, fd = -1;
	pid_t pid = on_terminal ? forkpty(&fd, NULL, NULL, NULL) : fork();

	if (pid == 0)
		_exit(mask_is(SIGUSR1) && daemon(1, 1) == 0 ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(mask_is(SIGUSR1));
	close(fd);
}

static void ignore(int sig)
{
}

static void take_actions(void)
{
	struct sigaction action = {.sa_handler = ignore}, old;

	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	CHECK(sigaction(SIGUSR2, NULL, &old) == 0 && old.sa_handler == ignore);
	CHECK(raise(SIGUSR2) == 0);
	CHECK(mask_is(SIGUSR1));
}

/* The child reads its arguments on its parent's stack, and can't fault there. */
static void run_programs(void)
{
	char *const arguments[] = {(char *)"true", NULL};
	char name[HOST_NAME_MAX + 1];
	int status = -1;
	pid_t pid;
	FILE *pipe;

	CHECK(posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(system("true") == 0);
	pipe = popen("true", "r");
	CHECK(pipe && pclose(pipe) == 0);
	CHECK(gethostname(name, sizeof(name)) == 0);
	CHECK(mask_is(SIGUSR1));
}

static void body(void)
{
	while (!go)
		;
	for (unsigned i = 0; i < ROUNDS; i++) {
		set_mask(SIGHUP);
		set_mask(SIGUSR1);
		map_and_unmap();
		take_actions();
		make_thread();
		fork_child(i == 0);
		run_programs();
	}
}

static void *on_far_stack(void *arg)
{
	getcontext(&inside);
	inside.uc_stack = (stack_t){.ss_sp = far_stack, .ss_size = TEST_STACK};
	inside.uc_link = &outside;
	makecontext(&inside, body, 0);
	tid = (pid_t)syscall(SYS_gettid);
	swapcontext(&outside, &inside);
	return arg;
}

/* ---- the tracer ---- */

static void say(int fd, char word)
{
	assert_int_equal(write(fd, &word, 1), 1);
}

static char hear(int fd)
{
	char word = 0;

	return read(fd, &word, 1) == 1 ? word : 0;
}

static bool is_there(uint64_t addr)
{
	return addr - (uintptr_t)far_stack < TEST_STACK;
}

/*
 * True at a call that gets a part of the far stack. Calls of sigprocmask and sigaction may come
 * before the stack is pinned. A clone3 or uname is one that a function of the C library makes.
 */
static bool hands_over(pid_t of)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, of, sizeof(info), &info) < 0 ||
	    info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return false;
	if (info.entry.nr == SYS_clone3 || info.entry.nr == SYS_uname)
		return is_there(info.entry.args[0]);
	return (info.entry.nr == SYS_rt_sigprocmask || info.entry.nr == SYS_rt_sigaction) &&
	       (is_there(info.entry.args[1]) || is_there(info.entry.args[2]));
}

/*
 * Lets the stack leave at every second such call. If the kernel refused a call, the call is made
 * again, and must then find the stack.
 */
static _Noreturn void trace(pid_t of)
{
	unsigned n = 0;
	int status;

	hear(to_tracer[0]); /* tracing is permitted now */
	if (ptrace(PTRACE_SEIZE, of, NULL, (long)PTRACE_O_TRACESYSGOOD) < 0) {
		say(from_tracer[1], 'p');
		_exit(0);
	}
	ptrace(PTRACE_INTERRUPT, of, NULL, NULL);
	say(from_tracer[1], 's');
	while (waitpid(of, &status, __WALL) == of && WIFSTOPPED(status)) {
		bool is_call = WSTOPSIG(status) == (SIGTRAP | 0x80), is_event = status >> 16;

		if (is_call && hands_over(of) && n++ % 2 == 0) {
			say(from_tracer[1], 'l');
			hear(to_tracer[0]);
		}
		ptrace(PTRACE_SYSCALL, of, NULL, is_call || is_event ? 0L : (long)WSTOPSIG(status));
	}
	say(from_tracer[1], 'x');
	_exit(0);
}

static pid_t start_tracer(void)
{
	pid_t pid;

	assert_int_equal(pipe2(to_tracer, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from_tracer, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0)
		trace(tid);
	prctl(PR_SET_PTRACER, pid, 0, 0, 0); /* some kernels (Yama) require this permission */
	say(to_tracer[1], 'g');
	if (hear(from_tracer[0]) == 'p') {
		print_message("no process here may trace another\n");
		_exit(TEST_SKIPPED);
	}
	return pid;
}

/* ---- */

static void it_leaves_before_it_is_held(void **state)
{
	unsigned n_left = 0;
	pthread_t thread;
	pid_t tracer;

	far_stack = test_far_memory(TEST_STACK);
	assert_int_equal(pipe2(data, O_CLOEXEC), 0);
	assert_int_equal(pthread_create(&thread, NULL, on_far_stack, NULL), 0);
	while (!tid)
		sched_yield();
	tracer = start_tracer();
	go = true;
	while (hear(from_tracer[0]) == 'l') {
		assert_int_equal(madvise(far_stack, TEST_STACK, MADV_PAGEOUT), 0);
		n_left++;
		say(to_tracer[1], 'd');
	}
	assert_int_equal(test_status_of(tracer), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	print_message("it left %u times\n", n_left);
	assert_int_equal(wrong, 0);
	assert_true(n_left >= ROUNDS); /* n_left counts tries: in mode inline a pinned stack stays */
	munmap(far_stack, TEST_STACK);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(it_leaves_before_it_is_held),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
