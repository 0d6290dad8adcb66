/*
 * Numbers of descriptors. One program closes and replaces all numbers that are not listed, while
 * threads open and close listed ones. Neither side loses a descriptor, although the kernel hands
 * out the lowest free number.
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
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "fdutil.h"

#define LOW     64
#define HIGH    544
#define ROUNDS  2000u
#define OPENERS 2u

static atomic_bool over;
static atomic_uint steps, opened, wrong;

/*
 * A pause between openings. They have priority: without a pause, two of them would make the program
 * wait for its full time.
 */
static void wait_for_step(void)
{
	unsigned seen = atomic_load(&steps);

	while (atomic_load(&steps) == seen && !atomic_load(&over))
		sched_yield();
}

/*
 * Each descriptor has a count of its own. By it a thread sees whether the descriptor is still the
 * same.
 */
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

/* Acts as the preload library does at the program's dup2. */
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

static void test_an_error_stays_as_it_was(void **state)
{
	errno = 0;
	assert_int_equal(FP_FD_OPEN(open("/nowhere", O_RDONLY)), -1);
	assert_int_equal(errno, ENOENT);
}

static void be_child(bool past_us)
{
	int fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC)), again;

	fp_fd_watch(fd);
	if (past_us)
		close(fd);
	else
		fp_fd_close(fd);
	again = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC));
	_exit(again == fd ? 0 : 1);
}

static void run_child(bool past_us, int expected)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		be_child(past_us);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), expected);
}

static void test_a_watched_number_that_comes_again_ends_the_process(void **state)
{
	run_child(false, 0);
	run_child(true, 125);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_each_keeps_its_own),
	    cmocka_unit_test(test_an_error_stays_as_it_was),
	    cmocka_unit_test(test_a_watched_number_that_comes_again_ends_the_process),
	};

	return cmocka_run_group_tests_name("fdutil", tests, NULL, NULL);
}
