/*
 * Signal masks of a program with far memory: those that waiting calls bring along, and where SIGBUS
 * is in them, by which faults are served in one mode; all as without Farpage. See
 * test_preload_signals.c for what else there is to signals.
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
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#include "farsignals.h"

#define KERNELS 8u /* bytes of the kernel's mask */

static uint64_t bit(int sig)
{
	return 1ull << (sig - 1);
}

/* ---- what a handler sees ---- */

static volatile int times;
static volatile uint64_t in_handler, to_return_to;

static uint64_t now(void)
{
	sigset_t set;

	sigprocmask(SIG_BLOCK, NULL, &set);
	return *(uint64_t *)&set;
}

static void set_mask(uint64_t mask)
{
	sigset_t set = {0};

	*(uint64_t *)&set = mask;
	sigprocmask(SIG_SETMASK, &set, NULL);
}

static void look(int sig, siginfo_t *info, void *context)
{
	test_evict();
	times++;
	in_handler = now();
	to_return_to = *(uint64_t *)&((ucontext_t *)context)->uc_sigmask;
}

/* ---- calls that wait under a mask of their own ---- */

static sigset_t during; /* the mask to wait under */
static const struct {
	const void *mask;
	size_t size;
} pair = {&during, KERNELS};
static struct timespec for_long = {.tv_sec = 300};
static struct epoll_event events[4];
static int epoll;

static long by_sigsuspend(void)
{
	return sigsuspend(&during);
}

static long by_ppoll(void)
{
	return ppoll(NULL, 0, &for_long, &during);
}

static long by_pselect(void)
{
	return pselect(0, NULL, NULL, NULL, &for_long, &during);
}

static long by_epoll_pwait(void)
{
	return epoll_pwait(epoll, events, 4, -1, &during);
}

static long by_epoll_pwait2(void)
{
	return epoll_pwait2(epoll, events, 4, &for_long, &during);
}

static long by_number_sigsuspend(void)
{
	return syscall(SYS_rt_sigsuspend, &during, KERNELS);
}

static long by_number_ppoll(void)
{
	return syscall(SYS_ppoll, NULL, 0, &for_long, &during, KERNELS);
}

static long by_number_pselect(void)
{
	return syscall(SYS_pselect6, 0, NULL, NULL, NULL, &for_long, &pair);
}

static long by_number_epoll_pwait(void)
{
	return syscall(SYS_epoll_pwait, epoll, events, 4, -1, &during, KERNELS);
}

static long (*const waits[])(void) = {
    by_sigsuspend,        by_ppoll,        by_pselect,        by_epoll_pwait,        by_epoll_pwait2,
    by_number_sigsuspend, by_number_ppoll, by_number_pselect, by_number_epoll_pwait,
};

#define N_WAITS (sizeof(waits) / sizeof(*waits))

/* A signal that is pending ends the wait at once, in which it is not blocked. */
static void wait_once(long (*wait)(void), uint64_t mask)
{
	memset(&during, 0, sizeof(during));
	*(uint64_t *)&during = mask;
	for_long = (struct timespec){.tv_sec = 300};
	times = 0;
	raise(SIGUSR1);
	assert_int_equal(times, 0);
	assert_int_equal(wait(), -1);
	assert_int_equal(errno, EINTR);
	assert_int_equal(times, 1);
}

static void the_mask_of_a_wait(void **state)
{
	const uint64_t outside = bit(SIGUSR1) | bit(SIGUSR2);

	epoll = epoll_create1(EPOLL_CLOEXEC);
	test_handle(SIGUSR1, look, 0);
	test_handle(SIGHUP, look, 0);
	set_mask(outside);
	for (unsigned i = 0; i < 5 * N_WAITS; i++) {
		uint64_t mask = bit(SIGHUP) | (i % 2 ? bit(SIGBUS) : 0);

		test_evict();
		wait_once(waits[i % N_WAITS], mask);
		assert_int_equal(in_handler, mask | bit(SIGUSR1));
		assert_int_equal(to_return_to, outside);
		assert_int_equal(now(), outside);
		raise(SIGHUP); /* in no wait */
		assert_int_equal(in_handler, outside | bit(SIGHUP));
	}
	set_mask(0);
	close(epoll);
}

static long (*inner)(void);

/* Waits in a handler that came in a wait. */
static void wait_again(int sig, siginfo_t *info, void *context)
{
	sigset_t outer = during;

	*(uint64_t *)&during = bit(SIGALRM);
	set_mask(bit(SIGHUP));
	raise(SIGHUP);
	inner();
	during = outer;
}

static void a_wait_in_a_wait(void **state)
{
	epoll = epoll_create1(EPOLL_CLOEXEC);
	test_handle(SIGUSR1, wait_again, 0);
	test_handle(SIGHUP, look, 0);
	set_mask(bit(SIGUSR1));
	for (unsigned i = 0; i < N_WAITS; i++) {
		*(uint64_t *)&during = bit(SIGUSR2);
		inner = waits[(i + 1) % N_WAITS];
		raise(SIGUSR1);
		assert_int_equal(waits[i](), -1);
		assert_int_equal(in_handler, bit(SIGALRM) | bit(SIGHUP));
		assert_int_equal(to_return_to, bit(SIGHUP));
		assert_int_equal(now(), bit(SIGUSR1));
	}
	set_mask(0);
	close(epoll);
}

static sigjmp_buf out;

static void jump(int sig, siginfo_t *info, void *context)
{
	times++;
	siglongjmp(out, 1);
}

/* Out of a wait, and what is interrupted later is no wait. */
static void a_wait_that_is_left(void **state)
{
	char byte;
	int ends[2];

	epoll = epoll_create1(EPOLL_CLOEXEC);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	set_mask(bit(SIGUSR1));
	for (volatile unsigned i = 0; i < N_WAITS; i++) {
		test_handle(SIGUSR1, jump, 0);
		times = 0;
		raise(SIGUSR1);
		*(uint64_t *)&during = bit(SIGUSR2);
		if (sigsetjmp(out, 1) == 0)
			waits[i]();
		assert_int_equal(times, 1);
		assert_int_equal(now(), bit(SIGUSR1));
		test_handle(SIGUSR1, look, 0);
		raise(SIGUSR1);
		set_mask(0);
		assert_int_equal(in_handler, bit(SIGUSR1));
		set_mask(bit(SIGUSR1));
		assert_int_equal(write(ends[1], "x", 1), 1);
		assert_int_equal(read(ends[0], &byte, 1), 1);
	}
	set_mask(0);
	close(epoll);
	close(ends[0]);
	close(ends[1]);
}

/* ---- SIGBUS in the masks of handlers ---- */

static volatile int buses;

static void on_bus(int sig, siginfo_t *info, void *context)
{
	buses++;
}

static void send_bus(int sig, siginfo_t *info, void *context)
{
	look(sig, info, context);
	raise(SIGBUS);
	times += 10 * buses; /* it comes when the handler is over */
}

static void handle_with_all(void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};

	sigfillset(&action.sa_mask);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
}

static void bus_in_a_handlers_mask(void **state)
{
	test_handle(SIGBUS, on_bus, 0);
	for (int i = 0; i < 3; i++) {
		handle_with_all(send_bus);
		buses = times = 0;
		test_evict();
		raise(SIGUSR1);
		assert_true(in_handler & bit(SIGBUS));
		assert_int_equal(to_return_to, 0);
		assert_int_equal(times, 1);
		assert_int_equal(buses, 1);
		assert_int_equal(now(), 0);
	}
	test_handle(SIGBUS, look, 0);
	raise(SIGBUS);
	assert_int_equal(in_handler, bit(SIGBUS));
	test_handle(SIGBUS, look, SA_NODEFER);
	raise(SIGBUS);
	assert_int_equal(in_handler, 0);
	signal(SIGBUS, SIG_DFL);
}

static ucontext_t way_back;
static volatile int way;

static void leave(int sig, siginfo_t *info, void *context)
{
	raise(SIGBUS);
	if (way == 3)
		setcontext(&way_back);
	siglongjmp(out, 1);
}

/* The mask that was saved holds again, SIGBUS included: and what has been sent meanwhile comes. */
static void bus_in_a_handler_that_is_left(void **state)
{
	test_handle(SIGBUS, on_bus, 0);
	handle_with_all(leave);
	for (way = 0; way < 4; way++) {
		volatile bool left = false;

		set_mask(way == 1 ? bit(SIGBUS) : 0);
		buses = 0;
		if (way == 3)
			getcontext(&way_back);
		else if (sigsetjmp(out, way != 2))
			left = true;
		if (!left && buses == 0 && (now() & bit(SIGUSR1)) == 0) {
			left = way == 3;
			raise(SIGUSR1);
		}
		assert_true(left);
		assert_int_equal(buses, way == 0 || way == 3);
		if (way == 2)
			assert_true(now() & bit(SIGUSR2));
		assert_int_equal((now() & bit(SIGBUS)) != 0, way == 1 || way == 2);
		set_mask(0);
		assert_int_equal(buses, 1);
	}
	signal(SIGBUS, SIG_DFL);
}

/* ---- masks and actions that are not there ---- */

struct kernel_action {
	void (*handler)(int);
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

static void bad_addresses(void **state)
{
	const uint64_t usr1 = bit(SIGUSR1);
	char *none = mmap(NULL, TEST_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *far;
	char *bad[] = {(char *)8, none, NULL};
	struct kernel_action action = {.handler = SIG_IGN};

	far = test_far_memory(TEST_STACK);
	assert_int_equal(mprotect(far, TEST_STACK, PROT_NONE), 0);
	bad[2] = far;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad[i], NULL, KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(now(), 0);
		assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &usr1, bad[i], KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(now(), usr1); /* all the same */
		set_mask(0);
		assert_int_equal(sigprocmask(SIG_BLOCK, NULL, (sigset_t *)(void *)bad[i]), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, (sigset_t *)(void *)bad[i]), EFAULT);
		assert_int_equal(syscall(SYS_rt_sigaction, SIGHUP, bad[i], NULL, KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(syscall(SYS_rt_sigaction, SIGHUP, &action, bad[i], KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(syscall(SYS_rt_sigaction, SIGHUP, NULL, bad[i], KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(sigaltstack((stack_t *)(void *)bad[i], NULL), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(sigaltstack(NULL, (stack_t *)(void *)bad[i]), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(syscall(SYS_rt_sigsuspend, bad[i], KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(signal(SIGHUP, SIG_DFL) == SIG_IGN, 1); /* as it has been set */
	}
	munmap(none, TEST_PAGE);
	munmap(far, TEST_STACK);
}

/* The kernel's masks are shorter than the C library's, and so may be the room for them. */
static void short_masks(void **state)
{
	struct {
		uint64_t mask, behind;
	} old = {0, 5}, *far = (void *)test_far_memory(TEST_STACK);
	char *end = test_far_memory(TEST_STACK) + TEST_STACK - TEST_PAGE;
	const uint64_t hup = bit(SIGHUP);

	assert_int_equal(mprotect(end, TEST_PAGE, PROT_NONE), 0);
	memcpy(end - KERNELS, &hup, KERNELS);
	far->behind = 5;
	test_evict();
	assert_int_equal(sigprocmask(SIG_SETMASK, (sigset_t *)(void *)(end - KERNELS), NULL), 0);
	assert_int_equal(sigprocmask(SIG_BLOCK, NULL, (sigset_t *)&old), 0);
	assert_int_equal(sigprocmask(SIG_BLOCK, NULL, (sigset_t *)far), 0);
	assert_true(old.mask == hup && far->mask == hup && old.behind == 5 && far->behind == 5);
	set_mask(0);
	munmap(far, TEST_STACK);
	munmap(end + TEST_PAGE - TEST_STACK, TEST_STACK);
}

/* ---- children ---- */

/* What a vfork child does to itself is not its parent's; it may touch far memory whatever it
 * does. */
static void vfork_children(void **state)
{
	struct sigaction old;

	test_handle(SIGBUS, on_bus, 0);
	for (int by_number = 0; by_number < 2; by_number++) {
		pid_t pid;

		set_mask(bit(SIGBUS) | bit(SIGHUP));
		test_evict();
		pid = by_number ? (pid_t)syscall(SYS_vfork) : vfork();
		if (pid == 0) {
			uint64_t before = now();

			set_mask(0);
			signal(SIGBUS, SIG_IGN);
			sigaction(SIGBUS, NULL, &old);
			test_evict();
			signal(SIGBUS, SIG_DFL);
			test_evict();
			_exit(before == (bit(SIGBUS) | bit(SIGHUP)) && old.sa_handler == SIG_IGN ? 0 : 9);
		}
		assert_int_equal(test_status_of(pid), 0);
		assert_int_equal(now(), bit(SIGBUS) | bit(SIGHUP));
		sigaction(SIGBUS, NULL, &old);
		assert_ptr_equal(old.sa_sigaction, on_bus);
		buses = 0;
		raise(SIGBUS);
		assert_int_equal(buses, 0);
		set_mask(0);
		assert_int_equal(buses, 1);
	}
	signal(SIGBUS, SIG_DFL);
}

/* In a child: becomes a program that tells what it ignores. */
static void tell_ignored(int to)
{
	char name[] = "grep", pattern[] = "SigIgn:", file[] = "/proc/self/status";
	char *const argv[] = {name, pattern, file, NULL}, *const env[] = {NULL};

	dup2(to, 1);
	execve("/no/such/program", argv, env);
	test_evict();
	execve("/bin/grep", argv, env);
	_exit(9);
}

static bool child_ignores_bus(bool by_vfork, bool in_child)
{
	unsigned long long ignored = 0;
	char text[128] = "";
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	signal(SIGBUS, in_child ? SIG_DFL : SIG_IGN);
	pid = by_vfork ? vfork() : fork();
	if (pid == 0) {
		if (in_child)
			signal(SIGBUS, SIG_IGN);
		tell_ignored(ends[1]);
	}
	close(ends[1]);
	assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
	close(ends[0]);
	assert_int_equal(test_status_of(pid), 0);
	assert_int_equal(sscanf(text, "SigIgn: %llx", &ignored), 1);
	signal(SIGBUS, SIG_DFL);
	test_evict();
	return ignored & bit(SIGBUS);
}

static void ignored_across_exec(void **state)
{
	for (int i = 0; i < 4; i++)
		assert_true(child_ignores_bus(i & 1, i & 2));
}

static bool spawned_ignores_bus(const posix_spawnattr_t *attr, bool by_path)
{
	char name[] = "grep", pattern[] = "SigIgn:", file[] = "/proc/self/status",
	     path[] = "PATH=/bin:/usr/bin";
	char *const argv[] = {name, pattern, file, NULL}, *const env[] = {path, NULL};
	unsigned long long ignored = 0;
	posix_spawn_file_actions_t actions;
	char text[128] = "";
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	test_evict();
	assert_int_equal(by_path ? posix_spawnp(&pid, name, &actions, attr, argv, env)
	                         : posix_spawn(&pid, "/bin/grep", &actions, attr, argv, env),
	                 0);
	close(ends[1]);
	assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
	close(ends[0]);
	assert_int_equal(test_status_of(pid), 0);
	posix_spawn_file_actions_destroy(&actions);
	assert_int_equal(sscanf(text, "SigIgn: %llx", &ignored), 1);
	return ignored & bit(SIGBUS);
}

static void ignored_by_the_spawned(void **state)
{
	posix_spawnattr_t attr;
	sigset_t bus;

	sigemptyset(&bus);
	sigaddset(&bus, SIGBUS);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigdefault(&attr, &bus);
	for (int i = 0; i < 4; i++) {
		signal(SIGBUS, SIG_IGN);
		assert_true(spawned_ignores_bus(NULL, i & 1));
		assert_false(spawned_ignores_bus(&attr, i & 1));
		raise(SIGBUS);
		test_evict();
		signal(SIGBUS, SIG_DFL);
		assert_false(spawned_ignores_bus(NULL, i & 1));
	}
	posix_spawnattr_destroy(&attr);
}

/* ---- a SIGBUS that is pending ---- */

static uint64_t pending(bool by_number)
{
	sigset_t set = {0};

	assert_int_equal(by_number ? syscall(SYS_rt_sigpending, &set, KERNELS) : sigpending(&set), 0);
	return *(uint64_t *)&set;
}

/* In each way that there is to send one to oneself. */
static void send_to_self(unsigned how)
{
	assert_int_equal(how == 0   ? raise(SIGBUS)
	                 : how == 1 ? kill(getpid(), SIGBUS)
	                            : sigqueue(getpid(), SIGBUS, (union sigval){.sival_int = 77}),
	                 0);
	assert_int_equal(buses, 0);
	assert_int_equal(pending(how & 1), bit(SIGBUS));
}

static void look_at_bus(int sig, siginfo_t *info, void *context)
{
	look(sig, info, context);
	buses += info->si_value.sival_int == 77 ? 77 : 1;
}

/* It ends each wait that lets it in, as if it came there; and none that does not. */
static void pending_bus_ends_a_wait(void **state)
{
	const uint64_t outside = bit(SIGBUS) | bit(SIGUSR2);

	epoll = epoll_create1(EPOLL_CLOEXEC);
	test_handle(SIGBUS, look_at_bus, 0);
	set_mask(outside);
	for (unsigned i = 0; i < 3 * N_WAITS; i++) {
		buses = times = 0;
		send_to_self(i % 3);
		*(uint64_t *)&during = bit(SIGHUP);
		for_long = (struct timespec){.tv_sec = 300};
		test_evict();
		assert_int_equal(waits[i % N_WAITS](), -1);
		assert_int_equal(errno, EINTR);
		assert_int_equal(buses, i % 3 == 2 ? 77 : 1);
		assert_int_equal(in_handler, bit(SIGHUP) | bit(SIGBUS));
		assert_int_equal(to_return_to, outside);
		assert_int_equal(now(), outside);
		assert_int_equal(pending(false), 0);
	}
	buses = 0;
	raise(SIGBUS);
	*(uint64_t *)&during = bit(SIGBUS);
	assert_int_equal(ppoll(NULL, 0, &(struct timespec){.tv_nsec = 1}, &during), 0);
	assert_int_equal(buses, 0);
	signal(SIGBUS, SIG_IGN);
	*(uint64_t *)&during = 0;
	assert_int_equal(ppoll(NULL, 0, &(struct timespec){.tv_nsec = 1}, &during), 0);
	signal(SIGBUS, SIG_DFL);
	set_mask(0);
	close(epoll);
}

static int wait_for_it(unsigned how, siginfo_t *info)
{
	const struct timespec some = {.tv_sec = 300};
	sigset_t *set = (sigset_t *)(void *)test_far_memory(TEST_STACK);
	siginfo_t *far_info = (siginfo_t *)(void *)((char *)set + TEST_PAGE);
	int sig = 0;

	sigemptyset(set);
	sigaddset(set, SIGBUS);
	sigaddset(set, SIGHUP);
	test_evict();
	if (how == 0)
		assert_int_equal(sigwait(set, &sig), 0);
	else if (how == 1)
		sig = sigwaitinfo(set, far_info);
	else if (how == 2)
		sig = sigtimedwait(set, far_info, &some);
	else
		sig = (int)syscall(SYS_rt_sigtimedwait, set, far_info, NULL, KERNELS);
	*info = *far_info;
	munmap(set, TEST_STACK);
	return sig;
}

static void pending_bus_is_waited_for(void **state)
{
	const struct timespec none = {0};
	sigset_t set = {0};
	siginfo_t info;

	test_handle(SIGBUS, look_at_bus, 0);
	set_mask(bit(SIGBUS) | bit(SIGHUP));
	buses = 0;
	for (unsigned i = 0; i < 12; i++) {
		send_to_self(i % 3);
		assert_int_equal(wait_for_it(i % 4, &info), SIGBUS);
		if (i % 4 > 0)
			assert_int_equal(info.si_signo, SIGBUS);
		if (i % 4 > 0 && i % 3 == 2)
			assert_int_equal(info.si_value.sival_int, 77);
		if (i % 4 > 0 && i % 4 < 3 && i % 3 == 0)
			assert_int_equal(info.si_code, SI_USER);
		assert_int_equal(pending(i & 1), 0);
		raise(SIGHUP);
		assert_int_equal(wait_for_it(i % 4, &info), SIGHUP);
	}
	*(uint64_t *)&set = bit(SIGBUS);
	assert_int_equal(sigtimedwait(&set, NULL, &none), -1);
	assert_int_equal(errno, EAGAIN);
	set_mask(0);
	assert_int_equal(buses, 0);
	signal(SIGBUS, SIG_DFL);
}

/* From a child, while it waits. */
static void bus_that_comes_in_a_wait(void **state)
{
	siginfo_t info;

	set_mask(bit(SIGBUS) | bit(SIGHUP));
	for (unsigned i = 0; i < 8; i++) {
		pid_t parent = getpid(), pid = fork();

		if (pid == 0)
			_exit(kill(parent, SIGBUS) == 0 ? 0 : 9);
		assert_int_equal(wait_for_it(i % 4, &info), SIGBUS);
		if (i % 4 > 0)
			assert_int_equal(info.si_pid, pid);
		assert_int_equal(test_status_of(pid), 0);
	}
	set_mask(0);
}

static void pending_bus_is_no_childs(void **state)
{
	pid_t pid;

	test_handle(SIGBUS, look_at_bus, 0);
	set_mask(bit(SIGBUS));
	buses = 0;
	send_to_self(0);
	pid = fork();
	if (pid == 0) {
		set_mask(0);
		_exit(buses == 0 ? 0 : 9);
	}
	assert_int_equal(test_status_of(pid), 0);
	set_mask(0);
	assert_int_equal(buses, 1);
	signal(SIGBUS, SIG_DFL);
}

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(the_mask_of_a_wait),
	    cmocka_unit_test(a_wait_in_a_wait),
	    cmocka_unit_test(a_wait_that_is_left),
	    cmocka_unit_test(bus_in_a_handlers_mask),
	    cmocka_unit_test(bus_in_a_handler_that_is_left),
	    cmocka_unit_test(bad_addresses),
	    cmocka_unit_test(short_masks),
	    cmocka_unit_test(vfork_children),
	    cmocka_unit_test(ignored_across_exec),
	    cmocka_unit_test(ignored_by_the_spawned),
	    cmocka_unit_test(pending_bus_ends_a_wait),
	    cmocka_unit_test(pending_bus_is_waited_for),
	    cmocka_unit_test(bus_that_comes_in_a_wait),
	    cmocka_unit_test(pending_bus_is_no_childs),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
