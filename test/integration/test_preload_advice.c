/*
 * Calls that change what memory holds, or where it lies, by other doors than mmap and madvise, in a
 * program whose large mappings are far: each is right, or refused with a message.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

/* Newer than some headers that we build with. */
#define ADVICE_GUARD_INSTALL    102
#define ADVICE_GUARD_REMOVE     103
#define ADVICE_MAX              110
#define NUMBER_MSEAL            462
#define SELF_THREAD             (-10000)
#define SELF_PROCESS            (-10001)
#define OPTION_SET_MEMORY_MERGE 67
#define OPTION_GET_MEMORY_MERGE 68

#define PAGE 4096u
#define BIG  (8 * TEST_LOCAL_BYTES)

static char *map_filled(void)
{
	char *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_true(test_is_far(p) || test_is_native(p));
	test_fill(p, BIG, 1);
	return p;
}

static unsigned pages_not_zero(const char *p, size_t len)
{
	unsigned n = 0;

	for (size_t at = 0; at < len; at += PAGE)
		n += p[at] != 0 || memcmp(p + at, p + at + 1, PAGE - 1) != 0;
	return n;
}

/* ---- process_madvise ---- */

/* How a program can name itself, and make the call. */
enum by { BY_LIBRARY, BY_NUMBER };

static ssize_t advise_by(enum by by, int self, const struct iovec *vec, size_t n, int advice)
{
	return by == BY_LIBRARY ? process_madvise(self, vec, n, advice, 0)
	                        : syscall(SYS_process_madvise, self, vec, n, advice, 0);
}

static int open_self(void)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	assert_true(fd >= 0);
	return fd;
}

/* Kernels before 6.13 refuse both: then only hints may be given, which change nothing. */
static void skip_unless_any_advice(void)
{
	int fd = open_self();
	ssize_t r = process_madvise(fd, NULL, 0, MADV_DONTNEED, 0);

	close(fd);
	if (r < 0)
		skip();
}

static void discard_by(enum by by, int self)
{
	char *p = map_filled();
	struct iovec one = {.iov_base = p, .iov_len = BIG};

	if (advise_by(by, self, NULL, 0, MADV_DONTNEED) == 0) { /* else it does not know this name */
		assert_int_equal(advise_by(by, self, &one, 1, MADV_DONTNEED), BIG);
		assert_int_equal(pages_not_zero(p, BIG), 0);
	}
	munmap(p, BIG);
}

static void discards_by_any_name(void **state)
{
	int fd = open_self();

	skip_unless_any_advice();
	for (enum by by = BY_LIBRARY; by <= BY_NUMBER; by++) {
		discard_by(by, fd);
		discard_by(by, SELF_THREAD);
		discard_by(by, SELF_PROCESS);
	}
	close(fd);
}

/* Far, local and far again, with the vector itself in far memory that has left. */
static void vectors_are_followed(void **state)
{
	char *far = map_filled(), *vectors = map_filled(), local[3 * PAGE];
	struct iovec *vec = (struct iovec *)vectors;
	char *page = (char *)(((uintptr_t)local + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
	int self = open_self();

	skip_unless_any_advice();
	page[0] = 7;
	vec[0] = (struct iovec){.iov_base = far + PAGE, .iov_len = PAGE};
	vec[1] = (struct iovec){.iov_base = page, .iov_len = 1};
	vec[2] = (struct iovec){.iov_base = far + 3 * PAGE, .iov_len = 0};
	vec[3] = (struct iovec){.iov_base = far + 4 * PAGE, .iov_len = PAGE + 1};
	memset(vectors + BIG / 2, 1, BIG / 2); /* so that the vector leaves */
	assert_int_equal(process_madvise(self, vec, 4, MADV_DONTNEED, 0), PAGE + 1 + PAGE + 1);
	assert_int_equal(page[0], 0);
	assert_int_equal(pages_not_zero(far, 7 * PAGE), 4);
	assert_int_equal(pages_not_zero(far + PAGE, PAGE), 0);
	assert_int_equal(pages_not_zero(far + 4 * PAGE, 2 * PAGE), 0);
	close(self);
	munmap(far, BIG);
	munmap(vectors, BIG);
}

#define assert_fails(call, error)                                                                            \
	do {                                                                                                 \
		errno = 0;                                                                                   \
		assert_true((intptr_t)(call) == -1);                                                         \
		assert_int_equal(errno, error);                                                              \
	} while (0)

/* The part before the mistake is done, as by the kernel. */
static void mistakes_are_told(void **state)
{
	char *p = map_filled();
	struct iovec vec[] = {{p, PAGE}, {p + PAGE + 1, PAGE}, {p + 2 * PAGE, PAGE}};
	struct iovec negative[] = {{p, PAGE}, {p + PAGE, SIZE_MAX}};
	int self = open_self();

	skip_unless_any_advice();
	assert_int_equal(process_madvise(self, vec, 3, MADV_DONTNEED, 0), PAGE);
	assert_int_equal(pages_not_zero(p, 3 * PAGE), 2);
	assert_fails(process_madvise(self, vec + 1, 1, MADV_DONTNEED, 0), EINVAL);
	assert_fails(process_madvise(self, negative, 2, MADV_DONTNEED, 0), EINVAL);
	assert_fails(process_madvise(self, vec, 3, MADV_DONTNEED, 1), EINVAL);
	assert_fails(process_madvise(self, vec, 3, 12345, 0), EINVAL);
	assert_fails(process_madvise(self, vec, 1025, MADV_DONTNEED, 0), EINVAL);
	assert_fails(process_madvise(self, (struct iovec *)1, 1, MADV_DONTNEED, 0), EFAULT);
	assert_fails(process_madvise(-1, vec, 1, MADV_DONTNEED, 0), EBADF);
	assert_int_equal(pages_not_zero(p, 3 * PAGE), 2);
	munmap(p + 8 * PAGE, PAGE);
	vec[0] = (struct iovec){.iov_base = p + 7 * PAGE, .iov_len = 3 * PAGE};
	assert_fails(process_madvise(self, vec, 1, MADV_DONTNEED, 0), ENOMEM);
	assert_int_equal(pages_not_zero(p + 9 * PAGE, PAGE), 0);
	close(self);
	munmap(p, BIG);
}

/* Each advice answers as madvise's does, and far memory holds what it shall. */
static void every_advice(void **state)
{
	char *p = map_filled();
	int self = open_self();

	skip_unless_any_advice();
	for (int advice = 0; advice < ADVICE_MAX; advice++) {
		struct iovec one = {.iov_base = p, .iov_len = 4 * PAGE};
		int r = madvise(p, 4 * PAGE, advice), error = r < 0 ? errno : 0;

		errno = 0;
		assert_int_equal(process_madvise(self, &one, 1, advice, 0), r < 0 ? -1 : (int)one.iov_len);
		assert_int_equal(errno, error);
	}
	for (size_t at = 4 * PAGE; at < BIG; at += PAGE)
		assert_int_equal(pages_not_zero(p + at, PAGE), 1);
	close(self);
	munmap(p, BIG);
}

/* A child's memory is its own: its parent's advice is the kernel's to judge. */
static void a_child_is_no_self(void **state)
{
	char *p = map_filled();
	struct iovec one = {.iov_base = p, .iov_len = BIG};
	pid_t pid = fork();
	int fd, status;

	if (pid == 0) {
		pause();
		_exit(1);
	}
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_int_equal(process_madvise(fd, &one, 1, MADV_DONTNEED, 0), -1);
	(void)process_madvise(fd, &one, 1, MADV_COLD, 0);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	close(fd);
	for (size_t at = 0; at < BIG; at += BIG / 8)
		assert_true(pages_not_zero(p + at, PAGE) == 1);
	assert_true(test_is_filled(p, BIG, 1));
	munmap(p, BIG);
}

/* ---- what is refused ---- */

/* True if act, in a child, has the word said on stderr. The child's status is 0 if it got its
 * way. */
static bool is_said(void (*act)(char *far), char *far, const char *word)
{
	char text[4096] = "";
	size_t len = 0;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		act(far);
		_exit(0);
	}
	close(fds[1]);
	while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	close(fds[0]);
	waitpid(pid, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		printf("status %#x, said: %s\n", (unsigned)status, text);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 && strstr(text, word);
}

static void expect(bool condition, int status)
{
	if (!condition)
		_exit(status);
}

static void guard(char *far)
{
	expect(madvise(far, PAGE, ADVICE_GUARD_INSTALL) < 0 && errno == EINVAL, 1);
	expect(syscall(SYS_madvise, far, PAGE, ADVICE_GUARD_REMOVE) < 0 && errno == EINVAL, 2);
	expect(test_is_filled(far, BIG, 1), 3);
}

static void seal(char *far)
{
	expect(syscall(NUMBER_MSEAL, far, PAGE, 0) < 0 && errno == ENOSYS, 1);
	expect(test_is_filled(far, BIG, 1), 2);
	expect(munmap(far, BIG) == 0, 3);
}

static void attach_by(enum by by, char *far)
{
	int id = shmget(IPC_PRIVATE, 2 * (size_t)PAGE, 0600);
	void *p;

	expect(id >= 0, 1);
	p = by == BY_LIBRARY ? shmat(id, far + PAGE, SHM_REMAP)
	                     : (void *)syscall(SYS_shmat, id, far + PAGE, SHM_REMAP);
	(void)shmctl(id, IPC_RMID, NULL);
	expect((intptr_t)p == -1 && errno == EINVAL, 2);
	expect(test_is_filled(far, BIG, 1), 3);
}

static void attach(char *far)
{
	attach_by(BY_LIBRARY, far);
}

static void attach_by_number(char *far)
{
	attach_by(BY_NUMBER, far);
}

/* Merged pages lose their write protection, by which far memory knows what was written. */
static void merge(char *far)
{
	expect(prctl(OPTION_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0 && errno == EPERM, 1);
	expect(syscall(SYS_prctl, OPTION_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0 && errno == EPERM, 2);
	expect(prctl(OPTION_GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0, 3);
}

static void refused_with_a_message(void **state)
{
	char *p = map_filled();

	if (madvise(NULL, 0, ADVICE_GUARD_INSTALL) == 0) /* else the kernel does not know it either */
		assert_true(is_said(guard, p, "MADV_GUARD_INSTALL"));
	assert_true(is_said(seal, p, "mseal"));
	assert_true(is_said(attach, p, "shmat"));
	assert_true(is_said(attach_by_number, p, "shmat"));
	assert_true(is_said(merge, p, "PR_SET_MEMORY_MERGE"));
	munmap(p, BIG);
}

/* Beside far memory all of them are the kernel's. */
static void local_memory_is_the_kernels(void **state)
{
	char *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int id = shmget(IPC_PRIVATE, PAGE, 0600), r;

	assert_false(test_is_far(p));
	r = madvise(NULL, 0, ADVICE_GUARD_INSTALL);
	assert_int_equal(madvise(p, PAGE, ADVICE_GUARD_INSTALL), r);
	assert_int_equal(madvise(p, PAGE, ADVICE_GUARD_REMOVE), r);
	assert_true(shmat(id, p + PAGE, SHM_REMAP) == p + PAGE);
	assert_int_equal(shmdt(p + PAGE), 0);
	assert_ptr_not_equal(shmat(id, NULL, 0), (void *)-1);
	(void)shmctl(id, IPC_RMID, NULL);
	(void)syscall(NUMBER_MSEAL, p + 2 * PAGE, PAGE, 0);
	assert_int_equal(prctl(PR_GET_DUMPABLE), 1);
	munmap(p, PAGE);
}

/* One that is set before the program starts, as systemd's MemoryKSM does, ends at the agent's
 * start. */
static void merging_is_not_inherited(void **state)
{
	assert_true(prctl(OPTION_GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(refused_with_a_message), /* first, as each message comes once */
	    cmocka_unit_test(merging_is_not_inherited),
	    cmocka_unit_test(discards_by_any_name),
	    cmocka_unit_test(vectors_are_followed),
	    cmocka_unit_test(mistakes_are_told),
	    cmocka_unit_test(every_advice),
	    cmocka_unit_test(a_child_is_no_self),
	    cmocka_unit_test(local_memory_is_the_kernels),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	if (!getenv("LD_PRELOAD"))
		(void)prctl(OPTION_SET_MEMORY_MERGE, 1, 0, 0, 0);
	return test_under_preload(argc, argv, tests);
}
