/*
 * Shared by the tests of fork: memory that is mostly remote, whose bytes the tests check. Room:
 * test/integration, test_preload_fork*.c.
 */
#ifndef FP_PRELOAD_FORK_RIG_H
#define FP_PRELOAD_FORK_RIG_H

#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "statsmap.h"
#include "testrng.h"
#include "transport.h"
#include "underpreload.h"

#define BIG         (8 * TEST_LOCAL_BYTES)
#define DEADLINE_NS (20 * FP_NSEC_PER_SEC)
#define MANY        200u

#define PARTS 8u /* parts of `filled`, each of which is checked by itself */

static char *filled;
static const struct fp_statspage *stats;

static inline void fill_parts(char *mem, unsigned from, unsigned to, unsigned seed)
{
	for (unsigned i = from; i < to; i++)
		test_fill(mem + i * (BIG / PARTS), BIG / PARTS, seed);
}

static inline bool are_filled(const char *mem, unsigned from, unsigned to, unsigned seed)
{
	for (unsigned i = from; i < to; i++)
		if (!test_is_filled(mem + i * (BIG / PARTS), BIG / PARTS, seed))
			return false;
	return true;
}

static inline void fill_all(char *mem, unsigned seed)
{
	fill_parts(mem, 0, PARTS, seed);
}

static inline bool all_filled(const char *mem, unsigned seed)
{
	return are_filled(mem, 0, PARTS, seed);
}

static inline int fill(void **state)
{
	filled = malloc(BIG);
	stats = fp_statsmap_own();
	if (!filled || !stats)
		return -1;
	fill_all(filled, 1);
	return 0;
}

static inline int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/*
 * Reads from a pipe the verdict of a process that is not our child. The verdict is 'y' if all was
 * right there, and another letter if not. Returns 0 if no letter came in time.
 */
static inline char await_word(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	char word = 0;

	if (poll(&pfd, 1, (int)(DEADLINE_NS / FP_NSEC_PER_MSEC)) != 1 || read(fd, &word, 1) != 1)
		return 0;
	return word;
}

static inline void say(int fd, bool good)
{
	(void)!write(fd, good ? "y" : "n", 1);
}

#endif
