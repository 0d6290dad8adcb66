/*
 * A program closes or replaces the agent's descriptors by bare calls. Afterwards it reads its own
 * bytes, or ends with a message. Each case runs as a separate program. Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "barecall.h"
#include "cleanup.h"
#include "underpreload.h"

#define BIG        (16 * TEST_LOCAL_BYTES)
#define ROUNDS     3u
#define LIMIT_S    60u
#define FIRST_OURS 512
#define LAST_OURS  700
#define REFUSED    125
#define WRONG      3 /* exit status of a case that read wrong bytes */

enum how { CLOSE_RANGE, CLOSE, DUP2, DUP3, URING, HOWS };
static const char *const how_names[] = {"close_range", "close", "dup2", "dup3", "io_uring"};

/* ---- the program that closes ---- */

static char *far;

static int userfaultfd_number(void)
{
	char path[64], target[64];

	for (int fd = FIRST_OURS; fd < LAST_OURS; fd++) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n > 0 && strncmp(target, "anon_inode:[userfaultfd]", (size_t)n) == 0)
			return fd;
	}
	return -1;
}

/* One IORING_OP_CLOSE in a ring of its own, all by bare calls. */
static void uring_close(int fd)
{
	struct io_uring_params params = {0};
	int ring = (int)bare(SYS_io_uring_setup, (void *)1, (uintptr_t)&params, 0, 0, 0, 0);
	struct io_uring_sqe *sqe;
	uint32_t *array, *tail;
	char *sq;

	if (ring < 0)
		_exit(0); /* this kernel refuses io_uring */
	sq = mmap(NULL, params.sq_off.array + sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
	          IORING_OFF_SQ_RING);
	sqe = mmap(NULL, sizeof(*sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_CLOSE;
	sqe->fd = fd;
	array = (uint32_t *)(void *)(sq + params.sq_off.array);
	tail = (uint32_t *)(void *)(sq + params.sq_off.tail);
	array[0] = 0;
	__atomic_store_n(tail, 1, __ATOMIC_RELEASE);
	bare(SYS_io_uring_enter, (void *)(uintptr_t)ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
}

static void end_it(enum how how, int fd)
{
	static int null = -1;

	if (null < 0)
		null = open("/dev/zero", O_RDWR | O_CLOEXEC);
	switch (how) {
	case CLOSE_RANGE:
		bare(SYS_close_range, (void *)3, ~0u, 0, 0, 0, 0);
		break;
	case CLOSE:
		bare(SYS_close, (void *)(uintptr_t)fd, 0, 0, 0, 0, 0);
		break;
	case DUP2:
	case DUP3:
		bare(SYS_dup3, (void *)(uintptr_t)null, (unsigned)fd, how == DUP3 ? O_CLOEXEC : 0, 0, 0, 0);
		break;
	default:
		uring_close(fd);
	}
}

static void check(void)
{
	if (!test_is_filled(far, BIG, 1))
		_exit(WRONG);
}

static void *check_always(void *unused)
{
	for (;;)
		check();
	return unused;
}

static void *check_rounds(void *unused)
{
	for (unsigned i = 0; i < ROUNDS; i++)
		check();
	return unused;
}

/* Reads, maps, unmaps and forks, because each of these needs another part of the agent. */
static void use_far_memory(void)
{
	char *more;
	pid_t pid;
	int status;

	check_rounds(NULL);
	more = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (more != MAP_FAILED) {
		test_fill(more, BIG, 2);
		if (!test_is_filled(more, BIG, 2))
			_exit(WRONG);
		munmap(more, BIG);
	}
	pid = fork();
	if (pid == 0) {
		check();
		_exit(0);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == WRONG)
		_exit(WRONG);
	check();
}

/*
 * argv has three elements: how to close, which number (0: that of the userfaultfd), and where
 * ("program", "child" or "threads").
 */
static int be_case(char **argv)
{
	enum how how = (enum how)atoi(argv[0]);
	int fd = atoi(argv[1]), status;
	pthread_t reader;

	alarm(LIMIT_S);
	far = malloc(BIG);
	test_fill(far, BIG, 1);
	check();
	if (strcmp(argv[2], "child") == 0) {
		pid_t pid = fork();

		if (pid != 0) {
			check(); /* while the child loses its descriptor */
			waitpid(pid, &status, 0);
			check();
			if (WIFSIGNALED(status))
				kill(getpid(), WTERMSIG(status));
			return WEXITSTATUS(status);
		}
		alarm(LIMIT_S);
	}
	if (strcmp(argv[2], "threads") == 0)
		pthread_create(&reader, NULL, check_always, NULL);
	end_it(how, fd ? fd : userfaultfd_number());
	use_far_memory();
	_exit(0);
}

/* ---- the test ---- */

static ssize_t read_all(int fd, char *buf, size_t len)
{
	size_t n = 0;
	ssize_t r;

	while (n < len - 1 && (r = read(fd, buf + n, len - 1 - n)) > 0)
		n += (size_t)r;
	buf[n] = '\0';
	return (ssize_t)n;
}

static pid_t spawn(enum how how, int fd, const char *where, int *ret_stderr)
{
	char number[16], way[16];
	int ends[2];
	pid_t pid;

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	snprintf(way, sizeof(way), "%d", (int)how);
	snprintf(number, sizeof(number), "%d", fd);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		execl("/proc/self/exe", "test_preload_closing", way, number, where, NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	close(ends[1]);
	*ret_stderr = ends[0];
	return pid;
}

/* Fails unless the case is right or ended with a message. Returns its status. */
static int run_case(enum how how, int fd, const char *where)
{
	char text[4096];
	int status, err;
	pid_t pid = spawn(how, fd, where, &err);

	read_all(err, text, sizeof(text));
	close(err);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status != 0)
		print_message("%s of %d, %s: status %x: %s\n", how_names[how], fd, where, status, text);
	if (status == 0)
		return 0;
	assert_true(WIFEXITED(status) ? WEXITSTATUS(status) == REFUSED : WTERMSIG(status) == SIGBUS);
	assert_non_null(strstr(text, "farpage: "));
	return status;
}

static void the_userfaultfd(void **state)
{
	static const char *const where[] = {"program", "child", "threads"};

	for (enum how how = 0; how < HOWS; how++)
		for (size_t i = 0; i < FP_ARRAY_LEN(where); i++)
			(void)run_case(how, 0, where[i]);
}

/*
 * Closes each number in turn. In the process of a case the number may mean another descriptor of
 * the agent. That is as good a test.
 */
static void each_of_the_agents(void **state)
{
	struct stat unused;

	for (int fd = FIRST_OURS; fd < FIRST_OURS + 24; fd++) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (stat(path, &unused) < 0)
			continue;
		(void)run_case(CLOSE, fd, "program");
		(void)run_case(DUP2, fd, "program");
		(void)run_case(CLOSE, fd, "child");
	}
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(the_userfaultfd),
	    cmocka_unit_test(each_of_the_agents),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	if (getenv("LD_PRELOAD") && argc == 4)
		return be_case(argv + 1);
	return test_under_preload(argc, argv, tests);
}
