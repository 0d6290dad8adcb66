/*
 * A SIGBUS that somebody sends to a program in fault mode inline. Like SIGKILL it can't be blocked:
 * it is left out of every mask and delivered at once. (In fault mode thread it is a signal like
 * others.) Room: test/integration.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#include "farsignals.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* programs still use them */

#define KERNELS 8u /* size of the kernel's mask in bytes */

static volatile int buses;

static uint64_t bit(int sig)
{
	return 1ull << (sig - 1);
}

static int begin(void **state)
{
	const uint64_t none = 0;

	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, KERNELS);
	signal(SIGBUS, SIG_DFL);
	buses = 0;
	return 0;
}

static void count(int sig, siginfo_t *info, void *context)
{
	test_evict();
	buses++;
}

/*
 * This handler must end before the next SIGBUS arrives. SIGBUS can't be blocked, so handlers would
 * nest.
 */
static void count_fast(int sig, siginfo_t *info, void *context)
{
	buses++;
}

/* The mask that the kernel has, read by a bare call. */
static uint64_t kernels_mask(void)
{
	const char label[] = "SigBlk:";
	unsigned long long mask = 0;
	char text[4096] = "";
	int fd = open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
	const char *line;

	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	line = strstr(text, label);
	assert_non_null(line);
	assert_int_equal(sscanf(line + strlen(label), "%llx", &mask), 1);
	return mask;
}

/* ---- ways to block it ---- */

static void by_sigprocmask(const sigset_t *all)
{
	assert_int_equal(sigprocmask(SIG_BLOCK, all, NULL), 0);
}

static void by_pthread_sigmask(const sigset_t *all)
{
	assert_int_equal(pthread_sigmask(SIG_SETMASK, all, NULL), 0);
}

static void by_number(const sigset_t *all)
{
	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, all, NULL, KERNELS), 0);
}

/* The address for the old mask is bad: the call fails, but the new mask is in force. */
static void by_number_and_in_vain(const sigset_t *all)
{
	char *closed = test_far_memory(TEST_STACK);

	assert_int_equal(mprotect(closed, TEST_STACK, PROT_NONE), 0);
	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, all, closed, KERNELS), -1);
	assert_int_equal(errno, EFAULT);
	munmap(closed, TEST_STACK);
}

static void by_sighold(const sigset_t *all)
{
	assert_int_equal(sighold(SIGBUS), 0);
	assert_int_equal(sighold(SIGUSR1), 0);
}

static void by_sigset(const sigset_t *all)
{
	assert_true(sigset(SIGBUS, SIG_HOLD) != SIG_ERR);
	assert_true(sigset(SIGUSR1, SIG_HOLD) != SIG_ERR);
}

static void by_sigsetmask(const sigset_t *all)
{
	sigsetmask(-1);
}

static void by_sigblock(const sigset_t *all)
{
	sigblock(-1);
}

static void by_setcontext(const sigset_t *all)
{
	static volatile bool is_back;
	ucontext_t here;

	is_back = false;
	assert_int_equal(getcontext(&here), 0);
	if (is_back)
		return;
	is_back = true;
	here.uc_sigmask = *all;
	setcontext(&here);
	fail();
}

static ucontext_t other, way_back;

static void block_and_swap(void)
{
	sigfillset(&way_back.uc_sigmask);
	swapcontext(&other, &way_back);
}

static void by_swapcontext(const sigset_t *all)
{
	static char stack[65536];

	assert_int_equal(getcontext(&other), 0);
	other.uc_stack = (stack_t){.ss_sp = stack, .ss_size = sizeof(stack)};
	makecontext(&other, block_and_swap, 0);
	assert_int_equal(swapcontext(&way_back, &other), 0);
}

static void block_in_context(int sig, siginfo_t *info, void *context)
{
	sigfillset(&((ucontext_t *)context)->uc_sigmask);
}

static void by_a_handlers_context(const sigset_t *all)
{
	test_handle(SIGUSR2, block_in_context, 0);
	raise(SIGUSR2);
}

static sigjmp_buf out;

static void leave(int sig, siginfo_t *info, void *context)
{
	siglongjmp(out, 1);
}

static void by_a_handler_that_is_left(const sigset_t *all)
{
	struct sigaction action = {.sa_sigaction = leave, .sa_flags = SA_SIGINFO, .sa_mask = *all};

	assert_int_equal(sigaction(SIGUSR2, &action, NULL), 0);
	if (sigsetjmp(out, 0) == 0)
		raise(SIGUSR2);
}

static void it_is_left_out_of_every_mask(void **state)
{
	void (*const ways[])(const sigset_t *) = {
	    by_sigprocmask,
	    by_pthread_sigmask,
	    by_number,
	    by_number_and_in_vain,
	    by_sighold,
	    by_sigset,
	    by_sigsetmask,
	    by_sigblock,
	    by_setcontext,
	    by_swapcontext,
	    by_a_handlers_context,
	    by_a_handler_that_is_left,
	};
	sigset_t all, told;

	sigfillset(&all);
	for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		begin(NULL);
		test_handle(SIGBUS, count, 0);
		ways[i](&all);
		test_evict();
		assert_true(kernels_mask() & bit(SIGUSR1));
		assert_false(kernels_mask() & bit(SIGBUS));
		assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &told), 0);
		assert_int_equal(*(uint64_t *)&told, kernels_mask());
		raise(SIGBUS);
		assert_int_equal(buses, 1);
		assert_int_equal(sigpending(&told), 0);
		assert_false(sigismember(&told, SIGBUS));
	}
}

static void *tell_mask(void *ret_mask)
{
	*(uint64_t *)ret_mask = kernels_mask();
	raise(SIGBUS);
	return NULL;
}

static void a_threads_first_mask(void **state)
{
	uint64_t mask[2] = {0};
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;

	sigfillset(&all);
	test_handle(SIGBUS, count, 0);
	pthread_attr_init(&attr);
#if __GLIBC_PREREQ(2, 32)
	assert_int_equal(pthread_attr_setsigmask_np(&attr, &all), 0);
#endif
	assert_int_equal(pthread_create(&thread, &attr, tell_mask, &mask[0]), 0);
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
	sigprocmask(SIG_BLOCK, &all, NULL);
	assert_int_equal(pthread_create(&thread, NULL, tell_mask, &mask[1]), 0);
	pthread_join(thread, NULL);
	assert_true(mask[1] & bit(SIGUSR1));
	assert_false((mask[0] | mask[1]) & bit(SIGBUS));
	assert_int_equal(buses, 2);
}

/* ---- what a sent SIGBUS does ---- */

static void send_it(int sig, siginfo_t *info, void *context)
{
	raise(SIGBUS);
	buses *= 10;
}

/* Sends SIGBUS in handlers whose masks would block it, and in the handler of SIGBUS itself. */
static void it_interrupts_handlers(void **state)
{
	struct sigaction action = {.sa_sigaction = send_it, .sa_flags = SA_SIGINFO};

	sigfillset(&action.sa_mask);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	test_handle(SIGBUS, count, 0);
	raise(SIGUSR1);
	assert_int_equal(buses, 10);
}

/* How a child ends that blocks all signals and then gets a SIGBUS. */
static int end_of_child(sighandler_t disposition)
{
	pid_t pid = fork();
	sigset_t all;

	if (pid > 0)
		return test_status_of(pid);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	signal(SIGBUS, disposition);
	kill(getpid(), SIGBUS);
	test_evict();
	_exit(7);
}

static void its_default_action(void **state)
{
	assert_int_equal(end_of_child(SIG_DFL), 128 + SIGBUS);
	assert_int_equal(end_of_child(SIG_IGN), 7);
}

/* ---- waits ---- */

static sigset_t full;
static siginfo_t told;

static long by_sigsuspend(void)
{
	return sigsuspend(&full);
}

static long by_ppoll(void)
{
	return ppoll(NULL, 0, NULL, &full);
}

static long by_pselect(void)
{
	return pselect(0, NULL, NULL, NULL, NULL, &full);
}

static long by_number_pselect(void)
{
	const struct {
		const void *mask;
		size_t size;
	} pair = {&full, KERNELS};

	return syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, &pair);
}

/* Starts a child that sends SIGBUS to the caller again and again. */
static pid_t send_for_ever(void)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	pid_t parent = getpid(), pid = fork();

	if (pid)
		return pid;
	while (kill(parent, SIGBUS) == 0)
		nanosleep(&pause, NULL);
	_exit(0);
}

static void stop(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(test_status_of(pid), 128 + SIGKILL);
}

/* A sent SIGBUS ends a wait although the mask of the wait blocks it. */
static void it_ends_waits(void **state)
{
	long (*const waits[])(void) = {by_sigsuspend, by_ppoll, by_pselect, by_number_pselect};
	pid_t pid;

	sigfillset(&full);
	test_handle(SIGBUS, count_fast, 0);
	pid = send_for_ever();
	for (unsigned i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
		assert_int_equal(waits[i](), -1);
		assert_int_equal(errno, EINTR);
	}
	stop(pid);
	assert_true(buses >= 4);
}

static int by_sigwait(void)
{
	int sig = 0;

	assert_int_equal(sigwait(&full, &sig), 0);
	return sig;
}

static int by_sigwaitinfo(void)
{
	return sigwaitinfo(&full, &told);
}

static int by_number_sigtimedwait(void)
{
	return (int)syscall(SYS_rt_sigtimedwait, &full, &told, NULL, KERNELS);
}

/* A thread that waits for SIGBUS (sigwait) gets it. If no thread waits, its handler runs. */
static void it_is_waited_for(void **state)
{
	int (*const waits[])(void) = {by_sigwait, by_sigwaitinfo, by_number_sigtimedwait};
	const struct timespec short_time = {.tv_nsec = 1};
	pid_t pid;

	sigfillset(&full);
	sigprocmask(SIG_BLOCK, &full, NULL);
	test_handle(SIGBUS, count_fast, 0);
	raise(SIGBUS);
	assert_int_equal(buses, 1);
	assert_int_equal(sigtimedwait(&full, NULL, &short_time), -1);
	assert_int_equal(errno, EAGAIN);
	pid = send_for_ever();
	for (unsigned i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
		int sig = 0;

		while ((sig = waits[i]()) < 0)
			assert_int_equal(errno, EINTR);
		assert_int_equal(sig, SIGBUS);
	}
	stop(pid);
}

/* ---- other programs ---- */

/* True if SIGBUS is in the set with this label in the child's /proc/PID/status. */
static bool is_told(const char *label, const posix_spawnattr_t *attr)
{
	char name[] = "grep", pattern[16], file[] = "/proc/self/status", text[128] = "";
	char *const argv[] = {name, pattern, file, NULL}, *const env[] = {NULL};
	posix_spawn_file_actions_t actions;
	unsigned long long set = 0;
	int ends[2];
	pid_t pid;

	snprintf(pattern, sizeof(pattern), "%s", label);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	test_evict();
	assert_int_equal(posix_spawn(&pid, "/bin/grep", &actions, attr, argv, env), 0);
	close(ends[1]);
	assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
	close(ends[0]);
	assert_int_equal(test_status_of(pid), 0);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(sscanf(text + strlen(label), "%llx", &set), 1);
	return set & bit(SIGBUS);
}

/*
 * Executed programs start with SIGBUS at its default action and unblocked, unless the attributes of
 * the spawn say otherwise.
 */
static void other_programs(void **state)
{
	posix_spawnattr_t attr;
	sigset_t bus;

	sigemptyset(&bus);
	sigaddset(&bus, SIGBUS);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attr, &bus);
	sigprocmask(SIG_BLOCK, &bus, NULL);
	assert_false(is_told("SigBlk:", NULL));
	assert_true(is_told("SigBlk:", &attr));
	signal(SIGBUS, SIG_IGN);
	assert_false(is_told("SigIgn:", NULL));
	raise(SIGBUS);
	posix_spawnattr_destroy(&attr);
	test_evict();
}

/*
 * A vfork child does not change its parent's action for SIGBUS. Whatever action it sets, it may
 * touch far memory.
 */
static void vfork_children(void **state)
{
	struct sigaction old;
	pid_t pid;

	test_handle(SIGBUS, count, 0);
	pid = vfork();
	if (pid == 0) {
		sigset_t all;

		sigfillset(&all);
		sigprocmask(SIG_BLOCK, &all, NULL);
		signal(SIGBUS, SIG_IGN);
		test_evict();
		signal(SIGBUS, SIG_DFL);
		test_evict();
		_exit(sigaction(SIGBUS, NULL, &old) == 0 && old.sa_sigaction == count ? 0 : 9);
	}
	assert_int_equal(test_status_of(pid), 0);
	assert_int_equal(kernels_mask(), 0);
	raise(SIGBUS);
	assert_int_equal(buses, 1);
}

/* ---- under load ---- */

static atomic_bool go_on;

/* Keeps the agent busy: faults, mappings, and calls that pin far memory. */
static void *work(void *unused)
{
	volatile bool right = true;

	while (go_on && right) {
		char *mine =
		    mmap(NULL, TEST_LOCAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);

		test_fill(mine, TEST_LOCAL_BYTES, 3);
		right = test_is_filled(mine, TEST_LOCAL_BYTES, 3);
		right = right && read(zero, mine, TEST_LOCAL_BYTES / 4) > 0;
		close(zero);
		munmap(mine, TEST_LOCAL_BYTES);
	}
	return (void *)(uintptr_t)right;
}

static atomic_int handled;

static void touch(int sig, siginfo_t *info, void *context)
{
	((volatile char *)test_pressure)[(unsigned)handled++ * TEST_PAGE % TEST_PRESSURE]++;
}

static void a_shower_on_the_agent(void **state)
{
	pthread_t threads[2];
	const struct timespec pause = {.tv_nsec = 100000};
	unsigned sent = 0;
	void *right;

	test_handle(SIGBUS, touch, SA_RESTART);
	handled = 0;
	go_on = true;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, work, NULL), 0);
	for (; sent < 50000 && handled < 500; nanosleep(&pause, NULL))
		assert_int_equal(pthread_kill(threads[sent++ % 2], SIGBUS), 0);
	go_on = false;
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(threads[i], &right);
		assert_true(right);
	}
	assert_int_equal(handled >= 500, 1);
}

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test_setup(it_is_left_out_of_every_mask, begin),
	    cmocka_unit_test_setup(a_threads_first_mask, begin),
	    cmocka_unit_test_setup(it_interrupts_handlers, begin),
	    cmocka_unit_test_setup(its_default_action, begin),
	    cmocka_unit_test_setup(it_ends_waits, begin),
	    cmocka_unit_test_setup(it_is_waited_for, begin),
	    cmocka_unit_test_setup(other_programs, begin),
	    cmocka_unit_test_setup(vfork_children, begin),
	    cmocka_unit_test_setup(a_shower_on_the_agent, begin),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
