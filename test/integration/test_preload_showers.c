/*
 * Showers of signals in a program with far memory: on threads that come and go, with handlers that
 * jump out, and with frames that are unwound. test_preload_signals.c tests one signal at a time.
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

#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "farsignals.h"

static sigjmp_buf out;

#define THREADS 3

static atomic_bool go_on;
static atomic_ulong handled;
static __thread sigjmp_buf away;
static __thread volatile bool may_jump;
static __thread char *own_stack; /* the thread's signal stack; NULL: it has none */

/*
 * A jump unblocks the signals before it leaves the handler's frame. Then the next signal gets a
 * frame below it, and could jump, too. So nobody jumps from the lower half of a signal stack.
 */
static bool is_deep(void)
{
	const char here = 0;
	uintptr_t depth = (uintptr_t)&here - (uintptr_t)own_stack;

	return own_stack && depth < TEST_STACK / 2;
}

static void shower(int sig, siginfo_t *info, void *context)
{
	((volatile char *)
	     test_pressure)[((uintptr_t)context * 7919u + (unsigned)handled * TEST_PAGE) % TEST_PRESSURE]++;
	handled++;
	if (may_jump && handled % 3 == 0 && !is_deep())
		siglongjmp(away, 1);
}

/*
 * Fills and checks its own far memory while signals arrive, with a signal stack or without.
 * Handlers jump out of this function.
 */
static void *stand_in_it(void *arg)
{
	unsigned self = (unsigned)(uintptr_t)arg;
	size_t len = TEST_LOCAL_BYTES / 2;
	char *mine = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
	     *stack = mmap(NULL, TEST_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const stack_t ss = {.ss_sp = stack, .ss_size = TEST_STACK};
	volatile bool right = true;
	volatile unsigned n = 0;

	if (self % 2) {
		own_stack = stack;
		sigaltstack(&ss, NULL);
	}
	while (go_on && right) {
		int null = open("/dev/zero", O_RDWR | O_CLOEXEC);

		test_fill(mine, len, self + n);
		right = test_is_filled(mine, len, self + n);
		if (sigsetjmp(away, 1) == 0) {
			may_jump = true;
			for (size_t i = 0; i < len; i += 3 * TEST_PAGE)
				if (write(null, mine + i, TEST_PAGE) != TEST_PAGE && errno != EINTR)
					right = false;
		}
		may_jump = false;
		right = right && test_is_filled(mine, len, self + n++);
		close(null);
	}
	test_no_stack();
	munmap(mine, len);
	munmap(stack, TEST_STACK);
	return (void *)(uintptr_t)right;
}

static void *come_and_go(void *arg)
{
	handled++;
	return arg;
}

static void showers(void **state)
{
	pthread_t thread[THREADS], other;
	void *right;
	unsigned sent = 0;

	test_handle(SIGUSR1, shower, SA_ONSTACK | SA_RESTART);
	test_handle(SIGUSR2, shower, SA_RESTART);
	handled = 0;
	go_on = true;
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, stand_in_it, (void *)(uintptr_t)i), 0);
	while (sent < 6000 && handled < 2000) {
		for (unsigned i = 0; i < THREADS; i++)
			assert_int_equal(pthread_kill(thread[i], sent++ % 2 ? SIGUSR1 : SIGUSR2), 0);
		if (sent % 16 == 0) {
			assert_int_equal(pthread_create(&other, NULL, come_and_go, NULL), 0);
			pthread_kill(other, SIGUSR2);
			pthread_join(other, NULL);
		}
		sched_yield();
	}
	go_on = false;
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &right);
		assert_true(right);
	}
	assert_true(handled > 100);
}

static void jump_away(int sig, siginfo_t *info, void *context)
{
	test_evict();
	siglongjmp(out, 1);
}

/*
 * Jumps many times out of handlers, which run on the signal stack or on the thread's stack. The
 * jumps must not use up anything.
 */
static void jumps(void **state)
{
	volatile int n = 0;

	test_set_stack(0);
	test_handle(SIGUSR1, jump_away, SA_ONSTACK);
	test_handle(SIGUSR2, jump_away, 0);
	sigsetjmp(out, 1);
	if (n++ < 20)
		raise(n % 2 ? SIGUSR1 : SIGUSR2);
	assert_int_equal(n, 21);
	test_no_stack();
}

static void leave_thread(int sig, siginfo_t *info, void *context)
{
	pthread_exit((void *)5);
}

static void note_cleanup(void *arg)
{
	++*(int *)arg;
}

static void *wait_to_be_ended(void *arg)
{
	pthread_cleanup_push(note_cleanup, arg);
	go_on = true;
	for (;;)
		pause();
	pthread_cleanup_pop(0);
	return NULL;
}

/*
 * A handler ends its thread. The unwinder passes the handler's frame, and the interrupted function
 * cleans up.
 */
static void threads_that_end_in_handlers(void **state)
{
	int cleaned = 0;

	test_handle(SIGUSR1, leave_thread, 0);
	for (int i = 1; i <= 5; i++) {
		pthread_t thread;
		void *result;

		go_on = false;
		assert_int_equal(pthread_create(&thread, NULL, wait_to_be_ended, &cleaned), 0);
		while (!go_on)
			sched_yield();
		pthread_kill(thread, SIGUSR1);
		pthread_join(thread, &result);
		assert_ptr_equal(result, (void *)5);
		assert_int_equal(cleaned, i);
	}
}

static void *frames[64];
static volatile int n_frames;

static void trace(int sig, siginfo_t *info, void *context)
{
	n_frames = backtrace(frames, 64);
}

__attribute__((noinline)) static void interrupted_function(void)
{
	raise(SIGUSR1);
	__asm__ volatile("" : : : "memory");
}

static void backtraces(void **state)
{
	const char *start = (const char *)(uintptr_t)interrupted_function;
	bool found = false;

	backtrace(frames, 64); /* makes it load its library now */
	for (int with = 0; with < 2; with++) {
		if (with)
			test_set_stack(0);
		test_handle(SIGUSR1, trace, with ? SA_ONSTACK : 0);
		interrupted_function();
		for (int i = 0; i < n_frames; i++)
			found |= (const char *)frames[i] >= start && (const char *)frames[i] < start + 64;
		assert_true(found);
	}
	test_no_stack();
}

/* ---- */

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(showers),
	    cmocka_unit_test(jumps),
	    cmocka_unit_test(threads_that_end_in_handlers),
	    cmocka_unit_test(backtraces),
	};

	return cmocka_run_group_tests(all, test_farsignals_begin, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
