/*
 * Descriptors of a program with far memory. A program that closes or replaces numbers that it does
 * not know must not hit those of the agent. Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "underpreload.h"

#define BIG          (8 * TEST_LOCAL_BYTES)
#define DAEMONS      60u
#define DAEMON_OPENS 1500u

static char *filled;

static int fill(void **state)
{
	filled = malloc(BIG);
	test_fill(filled, BIG, 1);
	return filled ? 0 : -1;
}

/*
 * Moves more far memory out and in than before, because that needs the sessions and the
 * userfaultfd.
 */
static void assert_agent_lives(unsigned seed)
{
	char *p = malloc(BIG);

	test_fill(p, BIG, seed);
	assert_true(test_is_filled(p, BIG, seed));
	assert_true(test_is_filled(filled, BIG, 1));
	assert_true(test_far_resident_bytes() <= TEST_LOCAL_BYTES + (1u << 20));
	free(p);
}

static int highest_open(void)
{
	int fd = 4095;

	while (fcntl(fd, F_GETFD) < 0)
		fd--;
	return fd;
}

static void close_everything(void **state)
{
	int own = open("/dev/null", O_RDONLY | O_CLOEXEC), agents = highest_open();

	assert_true(agents >= 512);
	assert_int_equal(own, 3); /* the program has none of the agent's descriptors */
	for (int fd = own; fd < 4096; fd++)
		close(fd);
	assert_int_equal(close(agents), -1);
	assert_int_equal(errno, EBADF);
	assert_agent_lives(50);
	own = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_int_equal(own, 3);
	closefrom(own);
	assert_int_equal(fcntl(own, F_GETFD), -1);
	assert_agent_lives(51);
	own = fcntl(0, F_DUPFD_CLOEXEC, agents + 1);
	assert_int_equal(close_range(3, ~0u, 0), 0);
	assert_int_equal(fcntl(own, F_GETFD), -1);
	assert_agent_lives(52);
}

/*
 * The agent may open a descriptor at the moment of a dup2. For a short time its new descriptor has
 * the lowest free number, which may be the one that the program replaces. Neither side may lose its
 * descriptor.
 */
static void put_on_everything(void **state)
{
	static bool put[1024];
	struct stat own, now;

	assert_int_equal(fstat(0, &own), 0);
	for (int fd = 3; fd < (int)FP_ARRAY_LEN(put); fd++) {
		int r = dup2(0, fd);

		put[fd] = r == fd;
		assert_true(put[fd] || (r == -1 && errno == EBADF && fd >= 512));
		assert_int_equal(dup3(0, fd, O_CLOEXEC), put[fd] ? fd : -1);
	}
	assert_agent_lives(59);
	for (int fd = 3; fd < (int)FP_ARRAY_LEN(put); fd++) {
		if (!put[fd])
			continue;
		assert_int_equal(fstat(fd, &now), 0);
		assert_true(now.st_dev == own.st_dev && now.st_ino == own.st_ino);
	}
	closefrom(3);
	assert_int_equal(dup2(0, 0), 0);
	assert_int_equal(dup2(3, 3), -1);
	assert_int_equal(errno, EBADF);
	assert_agent_lives(60);
}

/*
 * Daemons get their standard input in this way: they close it, and open gives the lowest free
 * number.
 */
static bool opens_as_input(void)
{
	return close(0) == 0 && open("/dev/null", O_RDONLY) == 0 && close(0) == 0 && dup(2) == 0 &&
	       close(0) == 0 && socket(AF_UNIX, SOCK_STREAM, 0) == 0;
}

static void be_daemon(void)
{
	for (unsigned i = 0; i < DAEMON_OPENS; i++)
		if (!opens_as_input())
			_exit(1);
	_exit(0);
}

/*
 * The agent of a child opens its own links at any time. librdmacm opens descriptors without our
 * lock.
 */
static void a_child_opens_the_lowest(void **state)
{
	const char *nodes = getenv("FARPAGE_NODES");

	if (!nodes || strncmp(nodes, "rdma", strlen("rdma")) == 0)
		skip();
	for (unsigned i = 0; i < DAEMONS; i++) {
		pid_t pid = fork();
		int status;

		if (pid == 0)
			be_daemon();
		assert_true(pid > 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	assert_agent_lives(70);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(close_everything),
	    cmocka_unit_test(put_on_everything),
	    cmocka_unit_test(a_child_opens_the_lowest),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
