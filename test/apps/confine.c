/*
 * confine WAY ...: programs whose system calls are filtered, and one that has a userfaultfd of its
 * own. Room: test/apps; it knows nothing of Farpage.
 *
 *   docker COMMAND...  runs a command without io_uring and userfaultfd, like Docker by default
 *   strict             permits itself only the calls that write and exit, then checks its bytes
 *   all-threads        forbids io_uring and userfaultfd to all its threads, then checks its bytes
 *   userfaultfd        serves the faults of a mapping of its own
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"

#define BYTES      (16u * MIB)
#define CALLS_MAX  16u
#define LOAD_CALL  BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(it) BPF_STMT(BPF_RET | BPF_K, (it))

/* Filters system calls: the listed calls get one answer, all other calls another. */
static void filter(const int *calls, unsigned n, unsigned answer, unsigned otherwise, unsigned flags)
{
	struct sock_filter code[2 * CALLS_MAX + 2] = {LOAD_CALL};
	struct sock_fprog program = {.len = (unsigned short)(2 * n + 2), .filter = code};

	for (unsigned i = 0; i < n; i++) {
		code[1 + 2 * i] =
		    (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], 0, 1);
		code[2 + 2 * i] = (struct sock_filter)ANSWER(answer);
	}
	code[1 + 2 * n] = (struct sock_filter)ANSWER(otherwise);
	require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
	require(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0, "seccomp");
}

static void refuse_calls(unsigned flags)
{
	const int refused[] = {SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter,
	                       SYS_io_uring_register};

	filter(refused, 4, SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW, flags);
}

static int docker(char **command)
{
	refuse_calls(0);
	execvp(command[0], command);
	perror(command[0]);
	return 127;
}

static void strict(void)
{
	const int allowed[] = {SYS_write, SYS_exit_group, SYS_rt_sigreturn};
	const char text[] = "strict: every word as it should be\n";
	char *memory = map_bytes(BYTES);

	fill(memory, BYTES, 1);
	push_out();
	fflush(stdout);
	filter(allowed, 3, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, 0);
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < BYTES / 8; i++)
			if (((uint64_t *)memory)[i] != word_of(i, 1 + (uint64_t)round))
				syscall(SYS_exit_group, 1);
		fill(memory, BYTES, 2 + (uint64_t)round);
	}
	syscall(SYS_exit_group, write(STDOUT_FILENO, text, sizeof(text) - 1) < 0);
}

static void all_threads(void)
{
	char *memory = map_bytes(BYTES);
	pid_t child;
	int status;

	fill(memory, BYTES, 1);
	refuse_calls(SECCOMP_FILTER_FLAG_TSYNC);
	require(syscall(SYS_userfaultfd, O_CLOEXEC) < 0 && errno == EPERM, "userfaultfd is refused");
	push_out();
	verify(memory, BYTES, 1, "memory of a confined program");
	child = fork();
	if (child == 0) {
		verify(memory, BYTES, 1, "memory of a confined child");
		_exit(0);
	}
	require(waitpid(child, &status, 0) == child, "waitpid");
	verify(memory, BYTES, 1, "memory of a confined parent");
	if (status)
		exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* ---- a userfaultfd of its own ---- */

static char *own;
static int own_fd;

static void *serve(void *unused)
{
	static uint64_t page[PAGE / 8];

	for (size_t i = 0; i < BYTES / PAGE; i++) {
		struct uffdio_copy copy = {.src = (uintptr_t)page, .len = PAGE};
		struct uffd_msg msg;

		require(read(own_fd, &msg, sizeof(msg)) == sizeof(msg), "read of a message");
		copy.dst = msg.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
		fill(page, PAGE, copy.dst - (uintptr_t)own);
		require(ioctl(own_fd, UFFDIO_COPY, &copy) == 0, "UFFDIO_COPY");
	}
	return unused;
}

static int own_pager(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	pthread_t server;

	own = map_bytes(BYTES);
	own_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	require(own_fd >= 0 && ioctl(own_fd, UFFDIO_API, &api) == 0, "userfaultfd");
	range.range.start = (uintptr_t)own;
	range.range.len = BYTES;
	if (ioctl(own_fd, UFFDIO_REGISTER, &range) < 0) {
		printf("UFFDIO_REGISTER: %s\n", strerror(errno));
		return 1;
	}
	require(pthread_create(&server, NULL, serve, NULL) == 0, "pthread_create");
	for (size_t at = 0; at < BYTES; at += PAGE)
		verify(own + at, PAGE, at, "memory of its own pager");
	push_out();
	for (size_t at = 0; at < BYTES; at += PAGE)
		verify(own + at, PAGE, at, "memory of its own pager, again");
	return 0;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (strcmp(way, "docker") == 0 && argc > 2)
		return docker(argv + 2);
	if (strcmp(way, "strict") == 0)
		strict();
	else if (strcmp(way, "all-threads") == 0)
		all_threads();
	else if (strcmp(way, "userfaultfd") != 0)
		return 2;
	else if (own_pager())
		return 1;
	printf("%s: every word as it should be\n", way);
	return 0;
}
