/*
 * A program with far memory makes children without the C library's fork. Such a child is right, or
 * is stopped with a message, but never reads zeros. The agent recognises these children by a
 * SIGSEGV. The program still gets its own SIGSEGV as usual. Room: test/integration.
 */
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "rawcall.h"
#include "underpreload.h"

#define BIG     (8 * TEST_LOCAL_BYTES)
#define REFUSED 125

static char *filled;

static int fill(void **state)
{
	filled = aligned_alloc(4096, BIG);
	test_fill(filled, BIG, 1);
	return filled ? 0 : -1;
}

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- by syscall(2) and clone: the same as fork ---- */

static _Noreturn void be_child(unsigned seed)
{
	if (!test_is_filled(filled, BIG, 1))
		_exit(1);
	test_fill(filled, BIG, seed);
	_exit(test_is_filled(filled, BIG, seed) ? 0 : 2);
}

static void system_calls_fork(void **state)
{
	struct clone_args args = {.exit_signal = SIGCHLD};
	pid_t pid;

	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		be_child(2);
	assert_int_equal(status_of(pid), 0);
	pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		be_child(3);
	assert_int_equal(status_of(pid), 0);
#ifdef SYS_fork
	pid = (pid_t)syscall(SYS_fork);
	if (pid == 0)
		be_child(5);
	assert_int_equal(status_of(pid), 0);
	pid = (pid_t)syscall(SYS_vfork);
	if (pid == 0)
		be_child(6);
	assert_int_equal(status_of(pid), 0);
#endif
	assert_true(test_is_filled(filled, BIG, 1));
}

static int look(void *seed)
{
	be_child(*(unsigned *)seed);
}

static int never(void *unused)
{
	return 9;
}

static void clone_forks(void **state)
{
	static char stack[65536] __attribute__((aligned(16)));
	unsigned seed = 7;

	assert_int_equal(status_of(clone(look, stack + sizeof(stack), SIGCHLD, &seed)), 0);
	assert_int_equal(status_of(clone(never, stack + sizeof(stack), SIGCHLD, NULL)), 9);
	assert_int_equal(
	    status_of(clone(never, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)), 9);
}

static void *wait_for(void *gate)
{
	while (sem_wait(gate) < 0)
		;
	return NULL;
}

/*
 * A thread that a signal has stopped inside malloc holds a lock of the allocator, for which fork
 * waits. So beside another thread such a call is refused at once, and fork itself is not.
 */
static void not_beside_other_threads(void **state)
{
	static char stack[65536] __attribute__((aligned(16)));
	struct clone_args args = {.exit_signal = SIGCHLD};
	pthread_t thread;
	unsigned seed = 8;
	sem_t gate;

	sem_init(&gate, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, wait_for, &gate), 0);
	assert_int_equal(clone(never, stack + sizeof(stack), SIGCHLD, NULL), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(syscall(SYS_clone3, &args, sizeof(args)), -1);
	assert_int_equal(errno, EAGAIN);
#ifdef SYS_fork
	assert_int_equal(syscall(SYS_fork), -1);
	assert_int_equal(errno, EAGAIN);
#endif
	sem_post(&gate);
	pthread_join(thread, NULL);
	assert_int_equal(status_of(clone(look, stack + sizeof(stack), SIGCHLD, &seed)), 0);
}

static void what_fork_cannot_make_is_refused(void **state)
{
	static char stack[65536] __attribute__((aligned(16)));
	struct clone_args args = {.exit_signal = SIGCHLD, .flags = CLONE_NEWUTS};
	pid_t told = 0;

	assert_int_equal(_Fork(), -1);
	assert_int_equal(errno, ENOSYS);
	assert_int_equal(clone(never, stack + sizeof(stack), CLONE_NEWUTS | SIGCHLD, NULL), -1);
	assert_int_equal(errno, ENOSYS);
	assert_int_equal(syscall(SYS_clone, CLONE_NEWUTS | SIGCHLD, NULL, NULL, NULL, NULL), -1);
	assert_int_equal(errno, ENOSYS);
	assert_int_equal(syscall(SYS_clone3, &args, sizeof(args)), -1);
	assert_int_equal(errno, ENOSYS);
	assert_int_equal(syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, NULL, &told, NULL, NULL), -1);
	assert_int_equal(errno, ENOSYS);
	assert_int_equal(syscall(SYS_clone, SIGCHLD, stack + sizeof(stack), NULL, NULL, NULL), -1);
	assert_int_equal(errno, ENOSYS);
}

static int is_right(void *unused)
{
	return test_is_filled(filled, BIG, 1) ? 0 : 1;
}

/*
 * A call is refused if the kernel would have to clear a word in far memory when the thread ends.
 * The kernel could not do that. A thread that waits for the cleared word would wait for ever.
 */
static void no_word_is_cleared_in_far_memory(void **state)
{
	static char stack[1u << 16] __attribute__((aligned(16)));
	struct clone_args args = {.flags = CLONE_VM | CLONE_VFORK | CLONE_CHILD_CLEARTID,
	                          .exit_signal = SIGCHLD,
	                          .stack = (uintptr_t)stack,
	                          .stack_size = sizeof(stack),
	                          .child_tid = (uintptr_t)filled};
	static pid_t local;
	pid_t pid = fork();

	if (pid == 0)
		_exit(syscall(SYS_set_tid_address, filled) == -1 && errno == EINVAL &&
		              syscall(SYS_set_tid_address, &local) == getpid()
		          ? 0
		          : 1);
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(syscall(SYS_clone3, &args, sizeof(args)), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(clone(is_right, stack + sizeof(stack),
	                       CLONE_VM | CLONE_VFORK | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL, NULL,
	                       filled),
	                 -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(status_of(clone(is_right, stack + sizeof(stack),
	                                 CLONE_VM | CLONE_VFORK | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL,
	                                 NULL, &local)),
	                 0);
}

static void other_system_calls_pass(void **state)
{
	char *p;

	assert_int_equal(syscall(SYS_getpid), getpid());
	assert_int_equal(syscall(SYS_close, -1), -1);
	assert_int_equal(errno, EBADF);
	p = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p, MAP_FAILED); /* mmap: a call with six arguments */
	p[0] = 1;
	assert_int_equal(syscall(SYS_munmap, p, 4096), 0);
}

/* ---- CPUs: the agent holds a thread that faults much on one of them ---- */

#define PASSES 20u

static int cpus_now(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	FP_RAW(SYS_sched_getaffinity, 0, sizeof(set), &set, 0, 0, 0);
	return CPU_COUNT(&set);
}

/*
 * Faults until the agent holds this thread. It never does so in fault mode inline, and perhaps not
 * on a busy machine: then the thread has all CPUs anyway.
 */
static void be_held(void)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");
	unsigned n_pages = BIG / 4096, passes = mode ? 1 : PASSES;

	for (unsigned pass = 0; pass < passes && cpus_now() > 1; pass++)
		for (unsigned i = 0; i < n_pages; i++) /* an odd stride: all pages, without read-ahead */
			(void)((volatile char *)filled)[(size_t)(i * 677u % n_pages) * 4096];
}

static void what_is_started_has_all_cpus(void **state)
{
	char script[64], sh[] = "sh",
	                 c[] = "-c", *const words[] = {sh, c, script, NULL}, *const none[] = {NULL};
	cpu_set_t set;
	pid_t pid;
	int all;

	assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
	all = CPU_COUNT(&set);
	snprintf(script, sizeof(script), "test $(/usr/bin/nproc) = %d", all);
	if (all == 1)
		return;
	be_held();
	pid = vfork();
	if (pid == 0)
		_exit(cpus_now());
	assert_int_equal(status_of(pid), all);
	be_held();
	assert_true(syscall(SYS_sched_getaffinity, 0, sizeof(set), &set) > 0);
	assert_int_equal(CPU_COUNT(&set), all);
	pid = fork();
	if (pid == 0) {
		be_held();
		syscall(SYS_execve, "/bin/sh", words, none);
		_exit(98);
	}
	assert_int_equal(status_of(pid), 0);
}

/* ---- by a bare call: stopped ---- */

#ifdef __x86_64__

static pid_t bare_fork(void)
{
	long r = SYS_fork;

	__asm__ volatile("syscall" : "+a"(r) : : "rcx", "r11", "memory");
	return (pid_t)r;
}

static volatile char local_byte;

static void touch(void)
{
	local_byte = filled[0];
}

static void touch_all(void)
{
	_exit(test_is_filled(filled, BIG, 1) ? 0 : 1);
}

static void map_more(void)
{
	char *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	_exit(p == MAP_FAILED ? 3 : 4);
}

static void allocate_more(void)
{
	volatile char *p = malloc(2 * BIG);

	if (p)
		p[BIG] = 1;
	_exit(p ? 4 : 3);
}

static void fork_again(void)
{
	_exit(fork() < 0 ? 3 : 4);
}

static void unmap(void)
{
	munmap(filled, 4096);
	_exit(4);
}

static void use_local(void)
{
	_exit(10 + local_byte - local_byte);
}

static void leave_by_exit(void)
{
	execl("/bin/true", "true", NULL);
}

/*
 * Runs act in a child made by a bare call, and returns its status. *ret_told: whether the child
 * said why it ended.
 */
static int bare_child(void (*act)(void), bool *ret_told)
{
	char text[1024] = "";
	int err[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(err), 0);
	pid = bare_fork();
	if (pid == 0) {
		dup2(err[1], STDERR_FILENO);
		act();
		_exit(0);
	}
	close(err[1]);
	status = status_of(pid);
	n = read(err[0], text, sizeof(text) - 1);
	close(err[0]);
	*ret_told = n > 0 && strstr(text, "bare system call") && strstr(text, "Use fork or posix_spawn");
	return status;
}

static void assert_stopped(void (*act)(void))
{
	bool told;

	assert_int_equal(bare_child(act, &told), REFUSED);
	assert_true(told);
}

static void bare_children_are_stopped(void **state)
{
	void (*const acts[])(void) = {touch, touch_all, map_more, allocate_more, fork_again, unmap};
	bool told;

	for (unsigned i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
		assert_stopped(acts[i]);
	assert_int_equal(bare_child(use_local, &told), 10);
	assert_false(told);
	assert_int_equal(bare_child(leave_by_exit, &told), 0);
	assert_false(told);
	assert_true(test_is_filled(filled, BIG, 1));
}

static void wrong_handler(int sig)
{
	_exit(5);
}

/* The child is stopped although the program has a handler, set before the fork or in the child. */
static void touch_with_handler(void)
{
	signal(SIGSEGV, wrong_handler);
	touch();
}

static void handlers_do_not_hide_it(void **state)
{
	sighandler_t old = signal(SIGSEGV, wrong_handler);

	assert_stopped(touch);
	signal(SIGSEGV, old);
	assert_stopped(touch_with_handler);
}

/* A child of fork makes a child by a bare call. This grandchild is stopped, too. */
static void of_children(void **state)
{
	pid_t pid = fork();
	bool told;

	if (pid == 0)
		_exit(bare_child(touch, &told) == REFUSED && told && test_is_filled(filled, BIG, 1) ? 0 : 1);
	assert_int_equal(status_of(pid), 0);
}

#endif

/* ---- the program's view of SIGSEGV ---- */

static char *forbidden;
static sigjmp_buf back;
static volatile int caught, on_stack, masked;
static void *volatile caught_at;
static char *alternate;

static void on_segv(int sig, siginfo_t *info, void *context)
{
	char here;
	sigset_t now;

	caught = sig;
	caught_at = info->si_addr;
	on_stack = &here >= alternate && &here < alternate + 65536;
	sigprocmask(SIG_BLOCK, NULL, &now);
	masked = sigismember(&now, SIGUSR1) + 2 * sigismember(&now, SIGSEGV);
	siglongjmp(back, 1);
}

static void fault(void)
{
	caught = 0;
	if (sigsetjmp(back, 1) == 0)
		forbidden[8] = 1;
}

static int map_forbidden(void **state)
{
	const stack_t stack = {.ss_sp = alternate = malloc(65536), .ss_size = 65536};

	forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return sigaltstack(&stack, NULL);
}

static void handlers_get_their_faults(void **state)
{
	struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO}, old;

	signal(SIGSEGV, SIG_DFL); /* replaces the test framework's own handler */
	sigaddset(&action.sa_mask, SIGUSR1);
	assert_int_equal(sigaction(SIGSEGV, &action, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
	fault();
	assert_int_equal(caught, SIGSEGV);
	assert_ptr_equal(caught_at, forbidden + 8);
	assert_int_equal(masked, 3);
	assert_false(on_stack);
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
	assert_int_equal(sigaction(SIGSEGV, &action, &old), 0);
	assert_ptr_equal(old.sa_sigaction, on_segv);
	assert_int_equal(old.sa_flags & ~0x04000000, SA_SIGINFO);
	assert_int_equal(sigismember(&old.sa_mask, SIGUSR1), 1);
	fault();
	assert_int_equal(masked, 1);
	assert_true(on_stack);
	action.sa_flags = SA_SIGINFO | SA_RESETHAND;
	assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0);
	fault();
	assert_int_equal(caught, SIGSEGV);
	assert_int_equal(sigaction(SIGSEGV, NULL, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
}

/* A fault in far memory that the program may not read goes to the program's handler. */
static void far_faults_too(void **state)
{
	struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
	char *far = mmap(NULL, BIG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *before = forbidden;

	assert_true(test_is_far(far));
	sigaction(SIGSEGV, &action, NULL);
	forbidden = far;
	fault();
	assert_int_equal(caught, SIGSEGV);
	assert_ptr_equal(caught_at, far + 8);
	forbidden = before;
	munmap(far, BIG);
	signal(SIGSEGV, SIG_DFL);
}

static void other_ways_to_set_it(void **state)
{
	signal(SIGSEGV, SIG_DFL);
	assert_ptr_equal(signal(SIGSEGV, wrong_handler), SIG_DFL);
	assert_ptr_equal(signal(SIGSEGV, SIG_IGN), wrong_handler);
	raise(SIGSEGV);
	assert_ptr_equal(ssignal(SIGSEGV, wrong_handler), SIG_IGN);
	assert_ptr_equal(sysv_signal(SIGSEGV, SIG_DFL), wrong_handler);
	assert_ptr_equal(signal(SIGUSR1, wrong_handler), SIG_DFL);
	assert_ptr_equal(signal(SIGUSR1, SIG_DFL), wrong_handler);
}

static int end_by(int how)
{
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		if (how == 0)
			forbidden[0] = 1;
		else if (how == 1)
			raise(SIGSEGV);
		else {
			signal(SIGSEGV, SIG_IGN);
			forbidden[0] = 1;
		}
		_exit(0);
	}
	return status_of(pid);
}

static void without_a_handler_it_ends(void **state)
{
	for (int how = 0; how < 3; how++)
		assert_int_equal(end_by(how), 128 + SIGSEGV);
}

/* A vfork child shares the memory, but its signal actions are its own. */
static void vfork_keeps_the_parents(void **state)
{
	struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
	pid_t pid;

	sigaction(SIGSEGV, &action, NULL);
	pid = vfork();
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		_exit(0);
	}
	assert_int_equal(status_of(pid), 0);
	fault();
	assert_int_equal(caught, SIGSEGV);
	signal(SIGSEGV, SIG_DFL);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(system_calls_fork),
	    cmocka_unit_test(clone_forks),
	    cmocka_unit_test(not_beside_other_threads),
	    cmocka_unit_test(what_fork_cannot_make_is_refused),
	    cmocka_unit_test(no_word_is_cleared_in_far_memory),
	    cmocka_unit_test(other_system_calls_pass),
	    cmocka_unit_test(what_is_started_has_all_cpus),
#ifdef __x86_64__
	    cmocka_unit_test(bare_children_are_stopped),
	    cmocka_unit_test(handlers_do_not_hide_it),
	    cmocka_unit_test(of_children),
#endif
	    cmocka_unit_test_setup(handlers_get_their_faults, map_forbidden),
	    cmocka_unit_test(far_faults_too),
	    cmocka_unit_test(other_ways_to_set_it),
	    cmocka_unit_test(without_a_handler_it_ends),
	    cmocka_unit_test(vfork_keeps_the_parents),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
