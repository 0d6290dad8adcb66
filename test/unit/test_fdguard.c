/*
 * The guard of descriptors: which descriptors its own table has, and that the program's table stays
 * as it is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fdguard.h"
#include "fdutil.h"

static void start(struct fp_fdguard *guard, uint8_t mark)
{
	static struct fp_thread peer;

	peer.tid = getpid();
	*guard = (struct fp_fdguard){.mark = mark};
	assert_int_equal(fp_fdguard_start(guard, &peer), 0);
	assert_int_equal(fp_fdguard_wait(guard), 0);
}

static int open_vital(uint8_t mark)
{
	int fd = eventfd(0, EFD_CLOEXEC);

	assert_true(fd >= 0);
	fp_fd_keep(fd);
	fp_fd_make_vital(fd, mark);
	return fd;
}

/*
 * Two far memories mark their descriptors before either guard starts. Each guard takes only those
 * with its own mark.
 */
static void takes_what_has_its_mark(void **state)
{
	struct fp_fdguard guards[2];
	int fds[4];

	for (unsigned i = 0; i < 4; i++)
		fds[i] = open_vital(1 + i % 2);
	for (unsigned i = 0; i < 2; i++) {
		start(&guards[i], 1 + i);
		assert_int_equal(guards[i].n_fds, 2);
		assert_int_equal(guards[i].fds[0], fds[i]);
		assert_int_equal(guards[i].fds[1], fds[2 + i]);
	}
	for (unsigned i = 0; i < 4; i++)
		assert_true(fcntl(fds[i], F_GETFD) >= 0);
	for (unsigned i = 0; i < 2; i++)
		fp_fdguard_stop(&guards[i]);
	for (unsigned i = 0; i < 4; i++)
		fp_fd_close(fds[i]);
}

/*
 * The vital descriptor is number 0, and no number is lower. The guard still needs a table of its
 * own.
 */
static void keeps_descriptor_0(void **state)
{
	int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
	struct fp_fdguard guard;

	close(STDIN_FILENO);
	assert_int_equal(open_vital(1), STDIN_FILENO);
	start(&guard, 1);
	assert_int_equal(guard.n_fds, 1);
	assert_int_equal(guard.fds[0], STDIN_FILENO);
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		assert_true(fcntl(fd, F_GETFD) >= 0);
	fp_fdguard_stop(&guard);
	fp_fd_close(STDIN_FILENO);
	assert_int_equal(dup2(saved, STDIN_FILENO), STDIN_FILENO);
	close(saved);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(takes_what_has_its_mark),
	    cmocka_unit_test(keeps_descriptor_0),
	};

#ifdef __SANITIZE_THREAD__
	puts("ThreadSanitizer starts no thread on a stack as small as those of the agent's threads");
	return 77;
#endif
	return cmocka_run_group_tests(tests, NULL, NULL);
}
