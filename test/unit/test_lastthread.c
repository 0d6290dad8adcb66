/* The last thread: how many threads the program has, by a stat file and the count of our own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <unistd.h>

#include "lastthread.h"
#include "thread.h"

static int stat_fd;

static void *wait_for_byte(void *read_fd)
{
	char byte;

	(void)!read(*(int *)read_fd, &byte, 1);
	return NULL;
}

/* Writes a stat file that says so many threads, and looks at it. Returns the program's threads. */
static unsigned look(unsigned num_threads)
{
	struct fp_lastthread last = {0};

	assert_int_equal(ftruncate(stat_fd, 0), 0);
	lseek(stat_fd, 0, SEEK_SET);
	assert_true(dprintf(stat_fd, "1 (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 %u 0 0\n", num_threads) >
	            0);
	fp_lastthread_look(&last, stat_fd, 0);
	assert_false(last.ended);
	return last.n_threads;
}

static void threads_of_the_program(void **state)
{
	int fds[2];
	struct fp_thread ours;

	assert_int_equal(look(3), 3);
#ifdef __SANITIZE_THREAD__
	skip(); /* it starts no thread on a stack as small as those of our threads */
#endif
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(fp_thread_start(&ours, "ours", wait_for_byte, &fds[0]), 0);
	assert_int_equal(look(3), 2);
	/* ours was counted, but the file does not have it: 0 would mean that the number is not
	 * known */
	assert_int_equal(look(1), 1);
	close(fds[1]);
	fp_thread_join(&ours);
	close(fds[0]);
}

static void nothing_is_known(void **state)
{
	struct fp_lastthread last = {0};

	fp_lastthread_look(&last, -1, 0);
	assert_int_equal(last.n_threads, 0);
	assert_int_equal(ftruncate(stat_fd, 0), 0);
	last.next_look_ns = 0;
	fp_lastthread_look(&last, stat_fd, 0);
	assert_int_equal(last.n_threads, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(threads_of_the_program),
	    cmocka_unit_test(nothing_is_known),
	};

	stat_fd = memfd_create("stat", MFD_CLOEXEC);
	return stat_fd < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
