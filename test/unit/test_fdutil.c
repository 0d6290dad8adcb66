/*
 * Numbers of descriptors: a program that closes and replaces whatever is not listed, and threads that open
 * and close what is, keep what is theirs, though the kernel hands out the lowest number first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "fdutil.h"

#define LOW     64
#define HIGH    544
#define ROUNDS  2000u
#define OPENERS 2u

static atomic_bool over;
static atomic_uint steps, opened, wrong;

/* Openings go first: without a pause, two that take turns would leave the program to its patience. */
static void wait_for_step(void)
{
	unsigned seen = atomic_load(&steps);

	while (atomic_load(&steps) == seen && !atomic_load(&over))
		sched_yield();
}

/* Each descriptor counts something of its own, and tells whether it is still the same. */
static void *open_and_close(void *arg)
{
	unsigned value = 1 + (unsigned)(uintptr_t)arg;

	while (!atomic_load(&over)) {
		int fd = FP_FD_OPEN(eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK));
		eventfd_t found = 0;

		if (fd < 512 || eventfd_read(fd, &found) < 0 || found != value)
			atomic_fetch_add(&wrong, 1);
		fp_fd_close(fd);
		atomic_fetch_add(&opened, 1);
		value += OPENERS;
		wait_for_step();
	}
	return NULL;
}

/* As the preload library does for the program. */
static bool put(int own, int fd)
{
	struct fp_fd_hold hold;
	bool done;

	fp_fd_lock_shared(&hold);
	done = !fp_fd_is_ours(fd) && dup3(own, fd, O_CLOEXEC) == fd;
	fp_fd_unlock_shared(&hold);
	atomic_fetch_add(&steps, 1);
	return done;
}

static void take_away(int fd)
{
	struct fp_fd_hold hold;

	fp_fd_lock_shared(&hold);
	if (!fp_fd_is_ours(fd))
		close(fd);
	fp_fd_unlock_shared(&hold);
}

static bool is_same(int own, int fd)
{
	struct stat a, b;

	return fstat(own, &a) == 0 && fstat(fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void put_and_take_away(int own, int from, int to)
{
	bool done[HIGH] = {false};

	for (int fd = from; fd < to; fd++)
		done[fd] = put(own, fd);
	for (int fd = from; fd < to; fd++)
		assert_true(!done[fd] || is_same(own, fd));
	for (int fd = from; fd < to; fd++)
		if (done[fd])
			take_away(fd);
}

static void test_each_keeps_its_own(void **state)
{
	int own = open("/dev/null", O_RDONLY | O_CLOEXEC);
	pthread_t openers[OPENERS];

	assert_true(own >= 0 && own < LOW);
	for (uintptr_t i = 0; i < OPENERS; i++)
		assert_int_equal(pthread_create(&openers[i], NULL, open_and_close, (void *)i), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		put_and_take_away(own, own + 1, LOW);
		put_and_take_away(own, 512, HIGH);
	}
	assert_true(atomic_load(&opened) > 2 * OPENERS);
	atomic_store(&over, true);
	for (unsigned i = 0; i < OPENERS; i++)
		assert_int_equal(pthread_join(openers[i], NULL), 0);
	assert_int_equal(atomic_load(&wrong), 0);
	assert_int_equal(fp_fd_next(0), -1);
	close(own);
}

static bool is_free(void)
{
	char byte;

	return fp_fd_read_file("/proc/self/comm", &byte, 1, false) == 1;
}

static void *enter_a_call(void *hold)
{
	fp_fd_lock_shared(hold);
	return NULL;
}

/*
 * Who was in a call when another thread forked is not in the child. Who forked may be, if it was a handler
 * that did: its end takes nothing away from others.
 */
static void test_a_child_waits_for_nobody(void **state)
{
	struct fp_fd_hold theirs, own = {true};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, enter_a_call, &theirs), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(theirs.is_mine);
	assert_false(is_free());
	fp_fd_forked();
	assert_true(is_free());
	fp_fd_unlock_shared(&own);
	assert_true(is_free());
}

/* A call that lasts, in the same thread: an opening does not wait for ever, and neither does the reverse. */
static void test_nobody_waits_for_ever(void **state)
{
	struct fp_fd_hold hold;

	fp_fd_lock_shared(&hold);
	assert_true(hold.is_mine);
	assert_false(fp_fd_lock_exclusive());
	fp_fd_unlock_shared(&hold);
	assert_true(fp_fd_lock_exclusive());
	fp_fd_lock_shared(&hold);
	assert_false(hold.is_mine);
	assert_false(fp_fd_lock_exclusive());
	fp_fd_unlock_shared(&hold);
	fp_fd_unlock(true);
	fp_fd_lock_shared(&hold);
	assert_true(hold.is_mine);
	fp_fd_unlock_shared(&hold);
	assert_true(is_free());
}

static uint64_t vain_opening_ns(void)
{
	uint64_t start = fp_clock_ns();

	assert_false(fp_fd_lock_exclusive());
	return fp_clock_ns() - start;
}

/* Only the first opening that meets a call that lasts holds up the others, and the first after that. */
static void test_a_call_that_lasts_is_waited_for_once(void **state)
{
	struct fp_fd_hold hold;
	uint64_t first, next = 0;

	for (unsigned round = 0; round < 2; round++) {
		fp_fd_lock_shared(&hold);
		first = vain_opening_ns();
		next = 0;
		for (unsigned i = 0; i < 16; i++)
			next += vain_opening_ns();
		assert_true(next < 8 * first);
		fp_fd_unlock_shared(&hold);
		assert_true(fp_fd_lock_exclusive());
		fp_fd_unlock(true);
	}
}

static sigjmp_buf out;

/* Its hold lies on the stack, above those of what it calls: not where a sanitizer keeps variables. */
__attribute__((noinline, no_sanitize("address"))) static void call(void within(void))
{
	struct fp_fd_hold hold;

	fp_fd_lock_shared(&hold);
	if (within)
		within();
	assert_false(is_free());
	fp_fd_unlock_shared(&hold);
}

static void call_once(void)
{
	call(NULL);
	assert_false(is_free()); /* the outer one still has it */
}

static void jump_out(void)
{
	siglongjmp(out, 1);
}

/* As signal handlers do. */
static void test_a_call_within_a_call(void **state)
{
	call(call_once);
	assert_true(is_free());
}

static void test_a_call_that_is_jumped_out_of(void **state)
{
	if (!sigsetjmp(out, 0))
		call(jump_out);
	assert_false(is_free());
	call(NULL);
	assert_true(is_free());
}

static void test_an_error_stays_as_it_was(void **state)
{
	errno = 0;
	assert_int_equal(FP_FD_OPEN(open("/nowhere", O_RDONLY)), -1);
	assert_int_equal(errno, ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_each_keeps_its_own),
	    cmocka_unit_test(test_a_child_waits_for_nobody),
	    cmocka_unit_test(test_nobody_waits_for_ever),
	    cmocka_unit_test(test_a_call_that_lasts_is_waited_for_once),
	    cmocka_unit_test(test_a_call_within_a_call),
	    cmocka_unit_test(test_a_call_that_is_jumped_out_of),
	    cmocka_unit_test(test_an_error_stays_as_it_was),
	};

	return cmocka_run_group_tests_name("fdutil", tests, NULL, NULL);
}
