/*
 * Signal masks of a program with far memory: masks that waiting calls set, and masks with SIGBUS.
 * Fault mode inline serves faults by that signal. All is as without Farpage. Other tests of
 * signals: test_preload_signals.c. Room: test/integration.
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

#define KERNELS 8u /* size of the kernel's mask in bytes */

static uint64_t bit(int sig)
{
	return 1ull << (sig - 1);
}

/* ---- the mask in a handler ---- */

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

/* ---- calls that wait under another mask ---- */

static sigset_t during; /* the mask in force during the wait */
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

/*
 * While a handler that ended a wait runs, its own mask and a second mask are in force. Returns the
 * second mask. It is the mask of the wait, or the mask from before the wait if the shim moves
 * signal frames (test_moves_frames).
 */
static uint64_t masks_of(uint64_t during_wait, uint64_t outside)
{
	return test_moves_frames() ? outside : during_wait;
}

/* A signal is pending, and the mask of the wait does not block it: the wait ends at once. */
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
		assert_int_equal(in_handler, masks_of(mask, outside) | bit(SIGUSR1));
		assert_int_equal(to_return_to, outside);
		assert_int_equal(now(), outside);
		raise(SIGHUP); /* outside any wait */
		assert_int_equal(in_handler, outside | bit(SIGHUP));
	}
	set_mask(0);
	close(epoll);
}

static long (*inner)(void);

/* Waits in a handler that interrupted a wait. */
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
		assert_int_equal(in_handler, masks_of(bit(SIGALRM), bit(SIGHUP)) | bit(SIGHUP));
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

/*
 * A handler jumps out of a wait. A later handler must not be treated as one that interrupted a
 * wait.
 */
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

/* ---- masks and actions at bad addresses ---- */

static void bad_addresses(void **state)
{
	const uint64_t usr1 = bit(SIGUSR1);
	char *none = mmap(NULL, TEST_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *far;
	char *bad[] = {(char *)8, none, NULL};

	far = test_far_memory(TEST_STACK);
	assert_int_equal(mprotect(far, TEST_STACK, PROT_NONE), 0);
	bad[2] = far;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad[i], NULL, KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(now(), 0);
		assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &usr1, bad[i], KERNELS), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(now(), usr1); /* the mask has changed although the call failed */
		set_mask(0);
		assert_int_equal(sigprocmask(SIG_BLOCK, NULL, (sigset_t *)(void *)bad[i]), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, (sigset_t *)(void *)bad[i]), EFAULT);
		assert_int_equal(sigaltstack((stack_t *)(void *)bad[i], NULL), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(sigaltstack(NULL, (stack_t *)(void *)bad[i]), -1);
		assert_int_equal(errno, EFAULT);
		assert_int_equal(syscall(SYS_rt_sigsuspend, bad[i], KERNELS), -1);
		assert_int_equal(errno, EFAULT);
	}
	munmap(none, TEST_PAGE);
	munmap(far, TEST_STACK);
}

/*
 * The kernel's masks are shorter than the C library's. A caller may have space for a short mask
 * only.
 */
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

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(the_mask_of_a_wait),  cmocka_unit_test(a_wait_in_a_wait),
	    cmocka_unit_test(a_wait_that_is_left), cmocka_unit_test(bad_addresses),
	    cmocka_unit_test(short_masks),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
