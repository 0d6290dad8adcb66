/*
 * A program with far memory enters other namespaces. That is refused with a message if children
 * could then no longer reach the nodes, or if the agent's threads prevent it. Otherwise it works.
 * Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define BIG (8 * TEST_LOCAL_BYTES)

static char *filled;

static int fill(void **state)
{
	filled = malloc(BIG);
	if (!filled)
		return -1;
	test_fill(filled, BIG, 1);
	return 0;
}

static bool is_wired(void)
{
	return strncmp(getenv("FARPAGE_NODES"), "tcp:", 4) == 0;
}

/* A bare call. */
static long bare(long number, long a, long b)
{
	long r;

	__asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
	return r;
}

/* The output of the process that ran act, and its exit status, or 128 plus its signal. */
struct end {
	int status;
	char text[4096];
};

static struct end run(int (*act)(void))
{
	struct end end = {.text = ""};
	size_t len = 0;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		close(fds[0]);
		close(fds[1]);
		_exit(act());
	}
	close(fds[1]);
	while ((n = read(fds[0], end.text + len, sizeof(end.text) - 1 - len)) > 0)
		len += (size_t)n;
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	if (end.status)
		printf("status %d, said: %s\n", end.status, end.text);
	return end;
}

static void skip_unless_privileged(void)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(bare(SYS_unshare, CLONE_NEWNET | CLONE_NEWNS, 0) < 0);
	waitpid(pid, &status, 0);
	if (status)
		skip();
}

/* Checks its own bytes, and lets a child read and write all of these bytes. */
static int use_far(void)
{
	int status;
	pid_t pid;

	if (!test_is_filled(filled, BIG, 1))
		return 20;
	pid = fork();
	if (pid == 0) {
		if (!test_is_filled(filled, BIG, 1))
			_exit(21);
		test_fill(filled, BIG, 2);
		_exit(test_is_filled(filled, BIG, 2) ? 0 : 22);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- users ---- */

static int enter_users(void)
{
	return unshare(CLONE_NEWUSER) < 0 && errno == EINVAL ? use_far() : 1;
}

static int enter_users_by_number(void)
{
	return syscall(SYS_unshare, CLONE_NEWUSER) < 0 && errno == EINVAL ? use_far() : 1;
}

static void why_users_cannot_be_entered(void **state)
{
	struct end end = run(enter_users);

	assert_int_equal(end.status, 0);
	assert_non_null(strstr(end.text, "unshare"));
	end = run(enter_users_by_number);
	assert_int_equal(end.status, 0);
	assert_non_null(strstr(end.text, "unshare"));
}

/* ---- mounts ---- */

static int enter_mounts(void)
{
	int old = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);

	/* setns first: unshare would give the thread a root of its own, with which setns fails */
	if (old < 0 || setns(old, CLONE_NEWNS) < 0)
		return 1;
	if (unshare(CLONE_NEWNS) < 0)
		return 2;
	return setns(old, 0) < 0 ? 3 : use_far();
}

static void mounts_can_be_entered(void **state)
{
	struct end end;

	skip_unless_privileged();
	end = run(enter_mounts);
	assert_int_equal(end.status, 0);
	assert_string_equal(end.text, "");
}

/* ---- networks ---- */

static int enter_network(void)
{
	int r = unshare(CLONE_NEWNET);

	if (is_wired() ? r == 0 || errno != EPERM : r < 0)
		return 1;
	return use_far();
}

/*
 * Joins the network namespace of another process by setns, twice: first with 0 as the type of
 * namespace, then with CLONE_NEWNET.
 */
static int join_network(void)
{
	int ready[2], net, kinds[] = {0, CLONE_NEWNET};
	pid_t pid;
	char path[64], c;

	if (pipe(ready) < 0)
		return 1;
	pid = fork();
	if (pid == 0) {
		(void)bare(SYS_unshare, CLONE_NEWNET, 0);
		(void)write(ready[1], "", 1);
		pause();
	}
	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	net = read(ready[0], &c, 1) == 1 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	for (unsigned i = 0; net >= 0 && i < 2; i++) {
		int r = i ? setns(net, kinds[i]) : (int)syscall(SYS_setns, net, kinds[i]);

		if (is_wired() ? r == 0 || errno != EPERM : r < 0)
			return 2;
	}
	return net < 0 ? 3 : use_far();
}

static void networks_are_right_or_refused(void **state)
{
	struct end end;

	skip_unless_privileged();
	end = run(enter_network);
	assert_int_equal(end.status, 0);
	assert_true(!is_wired() || strstr(end.text, "unshare"));
	end = run(join_network);
	assert_int_equal(end.status, 0);
	assert_true(!is_wired() || strstr(end.text, "setns"));
}

/* A bare unshare is not refused. The children then end with a message that says why. */
static int enter_network_bare(void)
{
	int status;
	pid_t pid;

	if (bare(SYS_unshare, CLONE_NEWNET, 0) < 0)
		return 1;
	if (!test_is_filled(filled, BIG, 1))
		return 2;
	pid = fork();
	if (pid == 0) {
		for (size_t i = 0; i < BIG; i += 4096)
			if (*(volatile uint64_t *)(filled + i) == 0)
				_exit(3);
		_exit(test_is_filled(filled, BIG, 1) ? 0 : 4);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void a_lost_child_says_why(void **state)
{
	struct end end;

	skip_unless_privileged();
	end = run(enter_network_bare);
	if (!is_wired()) {
		assert_int_equal(end.status, 0);
		return;
	}
	assert_int_equal(end.status, 128 + SIGBUS);
	assert_non_null(strstr(end.text, "farpage"));
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(why_users_cannot_be_entered),
	    cmocka_unit_test(mounts_can_be_entered),
	    cmocka_unit_test(networks_are_right_or_refused),
	    cmocka_unit_test(a_lost_child_says_why),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
