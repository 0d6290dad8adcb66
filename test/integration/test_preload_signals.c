/*
 * Signals of a program with far memory, in both fault modes: where its handlers run, what they see
 * and what they change. All is as without Farpage. Stacks are far, and handlers touch far memory.
 * Room: test/integration.
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

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "farsignals.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* sigstack: deprecated, but still used */

#define AUTODISARM (1u << 31)

static const stack_t off = {.ss_flags = SS_DISABLE};

/* ---- where handlers run ---- */

static struct {
	volatile int times, depth;
	void *volatile at[8];
	stack_t told, in_context;
	volatile int set_in_it, set_errno;
} seen;

static void look(int sig, siginfo_t *info, void *context)
{
	const stack_t other = {.ss_sp = test_pressure, .ss_size = TEST_STACK};
	char here;

	seen.at[seen.times++ % 8] = &here;
	sigaltstack(NULL, &seen.told);
	seen.in_context = ((ucontext_t *)context)->uc_stack;
	seen.set_in_it = sigaltstack(&other, NULL);
	seen.set_errno = errno;
}

static void fresh(void)
{
	memset(&seen, 0, sizeof(seen));
	test_evict();
}

static void on_the_programs_stack(void **state)
{
	char *top = test_stack + TEST_STACK;

	test_set_stack(0);
	test_handle(SIGUSR1, look, SA_ONSTACK);
	fresh();
	raise(SIGUSR1);
	assert_int_equal(seen.times, 1);
	assert_in_range(top - (char *)seen.at[0], 1, 16384);
	assert_int_equal(seen.told.ss_flags, SS_ONSTACK);
	assert_ptr_equal(seen.told.ss_sp, test_stack);
	assert_int_equal(seen.told.ss_size, TEST_STACK);
	assert_ptr_equal(seen.in_context.ss_sp, test_stack);
	assert_int_equal(seen.set_in_it, -1);
	assert_int_equal(seen.set_errno, EPERM);
	assert_int_equal(sigaltstack(&off, &seen.told), 0);
	assert_int_equal(seen.told.ss_flags, 0);
}

static void on_the_interrupted_stack(void **state)
{
	char here;

	test_set_stack(0);
	test_handle(SIGUSR1, look, 0);
	fresh();
	raise(SIGUSR1);
	assert_in_range(&here - (char *)seen.at[0], 0, 65536);
	assert_int_equal(seen.told.ss_flags, 0);
	assert_int_equal(seen.set_in_it, 0); /* sigreturn undoes what the handler set */
	sigaltstack(NULL, &seen.told);
	assert_ptr_equal(seen.told.ss_sp, test_stack);
	test_no_stack();
	test_no_stack();
}

static void handler_without_its_stack(void **state)
{
	char *const top = __builtin_frame_address(0);

	test_handle(SIGUSR1, look, SA_ONSTACK);
	fresh();
	raise(SIGUSR1);
	assert_int_equal(seen.times, 1);
	assert_int_equal(top - (char *)seen.at[0] > 0 && top - (char *)seen.at[0] < 65536,
	                 !test_moves_frames());
	assert_int_equal(seen.told.ss_flags, SS_DISABLE);
	test_no_stack();
}

static void disarmed(void **state)
{
	test_set_stack(AUTODISARM);
	test_handle(SIGUSR1, look, SA_ONSTACK);
	fresh();
	raise(SIGUSR1);
	assert_true(test_is_on_stack(seen.at[0]));
	assert_int_equal(seen.told.ss_flags, SS_DISABLE);
	assert_int_equal((unsigned)seen.in_context.ss_flags, AUTODISARM);
	assert_int_equal(seen.set_in_it, 0);
	sigaltstack(NULL, &seen.told);
	assert_ptr_equal(seen.told.ss_sp, test_stack);
	assert_int_equal((unsigned)seen.told.ss_flags, AUTODISARM);
	test_no_stack();
}

static void again(int sig, siginfo_t *info, void *context)
{
	char here;

	seen.at[seen.depth] = &here;
	if (++seen.depth < 5) {
		test_evict();
		raise(seen.depth % 2 ? SIGUSR2 : SIGUSR1);
	}
	seen.times++;
}

static void one_in_another(void **state)
{
	test_set_stack(0);
	test_handle(SIGUSR1, again, SA_ONSTACK | SA_NODEFER);
	test_handle(SIGUSR2, again, SA_NODEFER);
	fresh();
	raise(SIGUSR1);
	assert_int_equal(seen.times, 5);
	for (int i = 0; i < 5; i++)
		assert_true(test_is_on_stack(seen.at[i]) && (i == 0 || seen.at[i] < seen.at[i - 1]));
	test_no_stack();
}

static void for_ever(int sig, siginfo_t *info, void *context)
{
	raise(sig);
}

/* A signal stack that overflows ends the process. */
static void used_up(void **state)
{
	pid_t pid = fork();

	if (pid == 0) {
		test_set_stack(0);
		test_handle(SIGUSR1, for_ever, SA_ONSTACK | SA_NODEFER);
		raise(SIGUSR1);
		_exit(0);
	}
	assert_int_equal(test_status_of(pid), test_moves_frames() ? 125 : 128 + SIGSEGV);
}

/*
 * sigstack does not tell the size of the stack. So it is refused where the kernel could not write
 * to that stack.
 */
static void old_sigstack(void **state)
{
	int (*const old_way)(struct sigstack *, struct sigstack *) = dlsym(RTLD_DEFAULT, "sigstack");
	struct sigstack ss = {.ss_sp = test_stack + TEST_STACK}, old;

	assert_int_equal(old_way(&ss, &old), test_moves_frames() ? -1 : 0);
	if (test_moves_frames())
		assert_int_equal(errno, ENOSYS);
	test_no_stack();
}

/* ---- stacks that the program makes itself ---- */

static ucontext_t outside, inside;
static volatile unsigned rounds;
static char *coroutine_stack;

/* Recurses so deep that the kernel writes the signal frame to a part of the stack not used
 * lately. */
__attribute__((noinline)) static unsigned deep(unsigned n)
{
	volatile char room[1024];

	memset((char *)room, (int)n, sizeof(room));
	return n == 0 ? (unsigned)room[5] : deep(n - 1) + (unsigned)room[7];
}

static void coroutine(void)
{
	for (unsigned i = 0; i < rounds; i++) {
		deep(40);
		test_evict();
		raise(SIGUSR1);
	}
}

static void on_a_coroutine(void **state)
{
	coroutine_stack = test_far_memory(TEST_STACK);
	test_handle(SIGUSR1, look, 0);
	memset(&seen, 0, sizeof(seen));
	rounds = 15;
	assert_int_equal(getcontext(&inside), 0);
	inside.uc_stack = (stack_t){.ss_sp = coroutine_stack, .ss_size = TEST_STACK};
	inside.uc_link = &outside;
	makecontext(&inside, coroutine, 0);
	assert_int_equal(swapcontext(&outside, &inside), 0);
	assert_int_equal(seen.times, 15);
	assert_in_range((char *)seen.at[14 % 8] - coroutine_stack, 0, TEST_STACK);
	munmap(coroutine_stack, TEST_STACK);
	test_no_stack();
}

/*
 * The other way to make a stack: jump out of a handler that runs on the signal stack, and much
 * later jump back into it.
 */
static sigjmp_buf in_main, in_handler;
static volatile bool wants_more;

static void stay(int sig, siginfo_t *info, void *context)
{
	char mine[1000];

	memset(mine, 'm', sizeof(mine));
	if (sigsetjmp(in_handler, 0) == 0)
		siglongjmp(in_main, 1);
	for (size_t i = 0; i < sizeof(mine); i++)
		if (mine[i] != 'm')
			_exit(9);
	siglongjmp(in_main, 2);
}

static void handler_that_is_left_and_taken_up(void **state)
{
	int way;

	test_set_stack(AUTODISARM);
	test_handle(SIGUSR1, stay, SA_ONSTACK);
	test_evict();
	way = sigsetjmp(in_main, 1);
	if (way == 0)
		raise(SIGUSR1);
	if (way == 1) {
		test_evict();
		siglongjmp(in_handler, 1);
	}
	assert_int_equal(way, 2);
	test_no_stack();
}

/* ---- what handlers see and change ---- */

static void spoil(int sig, siginfo_t *info, void *context)
{
	test_evict();
	seen.times += info->si_value.sival_int == 77 && info->si_pid == getpid();
}

/* After a handler, all registers have the values from before it. */
static void registers(void **state)
{
#ifdef __x86_64__
	siginfo_t info = {.si_code = SI_QUEUE};

	info.si_pid = getpid();
	info.si_value.sival_int = 77;
	test_handle(SIGRTMIN, spoil, 0);
	memset(&seen, 0, sizeof(seen));
	for (uint64_t i = 1; i <= 20; i++) {
		uint64_t a = i, b = ~i, c = i * 3, d = i << 40, x = 0;
		long r;

		__asm__ volatile(
		    "movq %[a], %%xmm9\n"
		    "mov %[pid], %%rdi\n"
		    "mov %[sig], %%rsi\n"
		    "mov %[info], %%rdx\n"
		    "mov $129, %%eax\n" /* rt_sigqueueinfo */
		    "syscall\n"
		    "movq %%xmm9, %[x]\n"
		    : [x] "=&b"(x), "=&a"(r), "+r"(a), "+r"(b), "+r"(c), "+r"(d)
		    : [a] "r"(i), [pid] "r"((long)getpid()), [sig] "r"((long)SIGRTMIN), [info] "r"(&info)
		    : "rdi", "rsi", "rdx", "rcx", "r11", "xmm9", "memory");
		assert_true(r == 0 && x == i && a == i && b == ~i && c == i * 3 && d == i << 40);
	}
	assert_int_equal(seen.times, 20);
#else
	skip();
#endif
}

static void block_all(int sig, siginfo_t *info, void *context)
{
	sigfillset(&((ucontext_t *)context)->uc_sigmask);
}

static void unblock_all(int sig, siginfo_t *info, void *context)
{
	sigemptyset(&((ucontext_t *)context)->uc_sigmask);
}

static void masks_that_handlers_change(void **state)
{
	sigset_t now, all;

	test_handle(SIGUSR1, block_all, 0);
	raise(SIGUSR1);
	test_evict();
	assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &now), 0);
	assert_true(sigismember(&now, SIGUSR2) && sigismember(&now, SIGUSR1));
	sigemptyset(&all);
	sigaddset(&all, SIGUSR1);
	sigprocmask(SIG_UNBLOCK, &all, NULL);
	test_handle(SIGUSR1, unblock_all, 0);
	raise(SIGUSR1);
	test_evict();
	sigprocmask(SIG_BLOCK, NULL, &now);
	assert_false(sigismember(&now, SIGUSR2));
}

static volatile int masked;

static void look_at_mask(int sig, siginfo_t *info, void *context)
{
	sigset_t now;

	test_evict();
	sigprocmask(SIG_BLOCK, NULL, &now);
	masked = sigismember(&now, SIGUSR1) + 2 * sigismember(&now, SIGUSR2) + 4 * sigismember(&now, SIGHUP);
}

static void masks_of_handlers(void **state)
{
	struct sigaction action = {.sa_sigaction = look_at_mask, .sa_flags = SA_SIGINFO}, old;
	sigset_t now;

	sigfillset(&action.sa_mask);
	sigdelset(&action.sa_mask, SIGHUP);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	raise(SIGUSR1);
	assert_int_equal(masked, 3);
	assert_int_equal(sigaction(SIGUSR1, NULL, &old), 0);
	assert_true(sigismember(&old.sa_mask, SIGBUS) && sigismember(&old.sa_mask, SIGUSR2) &&
	            !sigismember(&old.sa_mask, SIGHUP));
	test_handle(SIGUSR1, look_at_mask, SA_NODEFER);
	raise(SIGUSR1);
	assert_int_equal(masked, 0);
	sigprocmask(SIG_BLOCK, NULL, &now);
	assert_int_equal(sigismember(&now, SIGUSR1), 0);
}

static volatile int counted;

static void count(int sig)
{
	counted++;
}

static void ways_to_set_them(void **state)
{
	struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESETHAND}, old;

	counted = 0;
	sigaction(SIGHUP, &action, NULL);
	raise(SIGHUP);
	assert_int_equal(counted, 1);
	sigaction(SIGHUP, NULL, &old);
	assert_ptr_equal(old.sa_handler, SIG_DFL);
	assert_ptr_equal(signal(SIGHUP, count), SIG_DFL);
	assert_ptr_equal(signal(SIGHUP, SIG_IGN), count);
	raise(SIGHUP);
	assert_ptr_equal(sysv_signal(SIGHUP, count), SIG_IGN);
	raise(SIGHUP);
	assert_int_equal(counted, 2);
	assert_ptr_equal(signal(SIGHUP, count), SIG_DFL);
	assert_int_equal(siginterrupt(SIGHUP, 1), 0);
	sigaction(SIGHUP, NULL, &old);
	assert_int_equal(old.sa_flags & SA_RESTART, 0);
	assert_ptr_equal(signal(SIGHUP, count), count);
	sigaction(SIGHUP, NULL, &old);
	assert_int_equal(old.sa_flags & SA_RESTART, 0);
	siginterrupt(SIGHUP, 0);
	assert_ptr_equal(sigset(SIGHUP, SIG_DFL), count);
	assert_int_equal(sigaction(SIGKILL, &action, NULL), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(sigaction(32, &action, NULL), -1);
	assert_int_equal(sigaction(65, NULL, NULL), -1);
}

/* ---- by syscall() ---- */

static void by_number(void **state)
{
	const uint64_t usr1 = 1ull << (SIGUSR1 - 1), bus = 1ull << (SIGBUS - 1), all = UINT64_MAX;
	uint64_t action[4] = {0};
	struct {
		const uint64_t *mask;
		size_t size;
	} under = {&all, 8};
	const struct timespec soon = {.tv_nsec = 1000};
	stack_t ss = {.ss_sp = test_stack, .ss_size = TEST_STACK};
	uint64_t mask = 0;

	if (!test_is_inline())
		skip(); /* refused only in mode inline */
	assert_int_equal(syscall(SYS_rt_sigaction, SIGHUP, action, NULL, 8), -1);
	assert_int_equal(errno, ENOSYS);
	assert_int_equal(syscall(SYS_rt_sigaction, SIGHUP, NULL, action, 8), -1);
	assert_int_equal(errno, ENOSYS);

	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, &mask, 8), 0);
	test_evict();
	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &mask, 8), 0);
	assert_int_equal(mask & (bus | usr1), usr1);

	assert_int_equal(syscall(SYS_sigaltstack, &ss, NULL), 0);
	test_handle(SIGUSR1, look, SA_ONSTACK);
	fresh();
	raise(SIGUSR1);
	assert_true(test_is_on_stack(seen.at[0]));
	assert_int_equal(syscall(SYS_sigaltstack, &off, NULL), 0);

	for (int i = 0; i < 20; i++) {
		assert_int_equal(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &soon, &under), 0);
		assert_int_equal(syscall(SYS_ppoll, NULL, 0, &soon, &all, 8), 0);
	}
}

static void touch_far(int sig, siginfo_t *info, void *context)
{
	test_evict();
	counted++;
}

/* Waits under masks that contain SIGBUS. A handler touches far memory when the wait ends. */
static void waiting(void **state)
{
	struct itimerval timer = {.it_value.tv_usec = 2000};
	struct timespec long_time = {.tv_sec = 60};
	sigset_t but, alarm_too;
	struct {
		const sigset_t *mask;
		size_t size;
	} under = {&but, 8};

	test_handle(SIGALRM, touch_far, 0);
	counted = 0;
	sigemptyset(&alarm_too);
	sigaddset(&alarm_too, SIGALRM);
	sigprocmask(SIG_BLOCK, &alarm_too, NULL);
	sigfillset(&but);
	sigdelset(&but, SIGALRM);
	for (int i = 0; i < 5; i++) {
		setitimer(ITIMER_REAL, &timer, NULL);
		assert_int_equal(sigsuspend(&but), -1);
		setitimer(ITIMER_REAL, &timer, NULL);
		assert_int_equal(ppoll(NULL, 0, &long_time, &but), -1);
		setitimer(ITIMER_REAL, &timer, NULL);
		assert_int_equal(pselect(0, NULL, NULL, NULL, &long_time, &but), -1);
		setitimer(ITIMER_REAL, &timer, NULL);
		assert_int_equal(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &long_time, &under), -1);
		assert_int_equal(errno, EINTR);
		setitimer(ITIMER_REAL, &timer, NULL);
		assert_int_equal(syscall(SYS_ppoll, NULL, 0, &long_time, &but, 8), -1);
	}
	assert_int_equal(counted, 25);
	sigprocmask(SIG_UNBLOCK, &alarm_too, NULL);
}

/* ---- a SIGBUS that the program causes ---- */

static sigjmp_buf out;

static void on_bus(int sig, siginfo_t *info, void *context)
{
	char here;

	test_evict();
	seen.times++;
	seen.at[0] = &here;
	if (info->si_code > 0)
		siglongjmp(out, 1);
}

static void its_own_bus(void **state)
{
	int fd = memfd_create("short", MFD_CLOEXEC);
	char *p = mmap(NULL, TEST_PAGE, PROT_READ, MAP_SHARED, fd, 0);

	test_set_stack(0);
	test_handle(SIGBUS, on_bus, SA_ONSTACK);
	memset(&seen, 0, sizeof(seen));
	for (volatile int i = 0; i < 20; i++)
		if (sigsetjmp(out, 1) == 0)
			fail_msg("%d", *(volatile char *)p);
	assert_int_equal(seen.times, 20);
	assert_true(test_is_on_stack(seen.at[0]));
	signal(SIGBUS, SIG_DFL);
	test_no_stack();
	munmap(p, TEST_PAGE);
	close(fd);
}

/* ---- children ---- */

static void handlers_in_children(void **state)
{
	pid_t pid;

	test_set_stack(0);
	test_handle(SIGUSR1, look, SA_ONSTACK);
	test_evict();
	pid = fork();
	if (pid == 0) {
		memset(&seen, 0, sizeof(seen));
		raise(SIGUSR1);
		_exit(test_is_on_stack(seen.at[0]) && seen.times == 1 ? 0 : 1);
	}
	assert_int_equal(test_status_of(pid), 0);
	pid = vfork();
	if (pid == 0) {
		signal(SIGUSR1, SIG_DFL);
		_exit(0);
	}
	assert_int_equal(test_status_of(pid), 0);
	fresh();
	raise(SIGUSR1);
	assert_int_equal(seen.times, 1);
	test_no_stack();
}

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(on_the_programs_stack),
	    cmocka_unit_test(on_the_interrupted_stack),
	    cmocka_unit_test(handler_without_its_stack),
	    cmocka_unit_test(disarmed),
	    cmocka_unit_test(one_in_another),
	    cmocka_unit_test(used_up),
	    cmocka_unit_test(old_sigstack),
	    cmocka_unit_test(on_a_coroutine),
	    cmocka_unit_test(handler_that_is_left_and_taken_up),
	    cmocka_unit_test(registers),
	    cmocka_unit_test(masks_that_handlers_change),
	    cmocka_unit_test(masks_of_handlers),
	    cmocka_unit_test(ways_to_set_them),
	    cmocka_unit_test(by_number),
	    cmocka_unit_test(waiting),
	    cmocka_unit_test(its_own_bus),
	    cmocka_unit_test(handlers_in_children),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
