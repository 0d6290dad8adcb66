/*
 * Calls that change the bytes or the place of memory, other than mmap and madvise, in a program
 * whose large mappings are far. Each is right, or refused with a message. Room: test/integration.
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

#include "barecall.h"
#include "underpreload.h"

/* Older headers lack them. */
#define ADVICE_COLLAPSE         25
#define ADVICE_SOFT_OFFLINE     101
#define ADVICE_GUARD_INSTALL    102
#define ADVICE_GUARD_REMOVE     103
#define ADVICE_MAX              110
#define NUMBER_MSEAL            462
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

/* The ways in which a program makes the call. */
enum by { BY_LIBRARY, BY_NUMBER };

static int open_self(void)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	assert_true(fd >= 0);
	return fd;
}

#define assert_fails(call, error)                                                                            \
	do {                                                                                                 \
		errno = 0;                                                                                   \
		assert_true((intptr_t)(call) == -1);                                                         \
		assert_int_equal(errno, error);                                                              \
	} while (0)

/*
 * For far memory process_madvise takes only hints, although the kernel takes more. Calls on local
 * memory go to the kernel.
 */
static void hints_alone_are_taken(void **state)
{
	char *far = map_filled(), local[3 * PAGE];
	char *page = (char *)(((uintptr_t)local + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
	const struct iovec vec[] = {{page, PAGE}, {far + PAGE, PAGE}};
	int self = open_self();
	bool any = process_madvise(self, NULL, 0, MADV_DONTNEED, 0) == 0;

	page[0] = 7;
	for (int advice = 0; advice < ADVICE_MAX; advice++)
		if (advice == MADV_COLD || advice == MADV_PAGEOUT || advice == MADV_WILLNEED)
			assert_int_equal(process_madvise(self, vec, 2, advice, 0), 2 * PAGE);
		else
			assert_true(process_madvise(self, vec, 2, advice, 0) < 0 ||
			            advice == ADVICE_COLLAPSE);
	assert_fails(process_madvise(self, vec, 2, MADV_DONTNEED, 0), EINVAL);
	assert_fails(syscall(SYS_process_madvise, self, vec, 2, MADV_DONTNEED, 0), EINVAL);
	assert_fails(process_madvise(SELF_PROCESS, vec, 2, MADV_DONTNEED, 0), EINVAL);
	assert_true(page[0] == 7 && test_is_filled(far, BIG, 1));
	if (any)
		assert_int_equal(process_madvise(self, vec, 1, MADV_DONTNEED, 0), PAGE);
	assert_true(!any || page[0] == 0);
	assert_fails(process_madvise(self, (struct iovec *)1, 1, MADV_COLD, 0), EFAULT);
	assert_fails(process_madvise(-1, vec, 1, MADV_COLD, 0), EBADF);
	close(self);
	munmap(far, BIG);
}

/*
 * A child has its own memory. So the kernel decides about advice that a parent gives for its child.
 */
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

/*
 * True if act, run in a child, prints the word on stderr. The child's status is 0 if act succeeded.
 */
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

/* An error of 0: accepted, unless this kernel lacks the advice. */
static void advise(char *far, int advice, int error)
{
	int r = madvise(far, BIG, advice);

	expect(error ? r < 0 && errno == error : r == 0 || errno == EINVAL, 1);
	r = (int)syscall(SYS_madvise, far, BIG, advice);
	expect(error ? r < 0 && errno == error : r == 0 || errno == EINVAL, 2);
	expect(test_is_filled(far, BIG, 1), 3);
}

static void collapse(char *far)
{
	advise(far, ADVICE_COLLAPSE, EINVAL);
}

static void poison(char *far)
{
	advise(far, MADV_HWPOISON, EINVAL);
}

/* The bytes stay, also after a bare call for which there is nothing to collapse. */
static void without_effect(char *far)
{
	advise(far, MADV_MERGEABLE, 0);
	advise(far, MADV_UNMERGEABLE, 0);
	advise(far, ADVICE_SOFT_OFFLINE, EINVAL);
	(void)bare(SYS_madvise, far, BIG, ADVICE_COLLAPSE, 0, 0, 0);
	expect(test_is_filled(far, BIG, 1), 4);
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

/*
 * The merging of equal pages (KSM) is refused. It removes a page's write protection, by which far
 * memory sees what was written.
 */
static void merge(char *far)
{
	expect(prctl(OPTION_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0 && errno == EPERM, 1);
	expect(syscall(SYS_prctl, OPTION_SET_MEMORY_MERGE, 1, 0, 0, 0) < 0 && errno == EPERM, 2);
	expect(prctl(OPTION_GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0, 3);
}

static bool is_known(int advice)
{
	return madvise(NULL, 0, advice) == 0;
}

static void refused_with_a_message(void **state)
{
	char *p = map_filled();

	/* without a line where the kernel does not know the advice, either */
	assert_true(is_said(guard, p, is_known(ADVICE_GUARD_INSTALL) ? "MADV_GUARD_INSTALL" : ""));
	assert_true(is_said(collapse, p, is_known(ADVICE_COLLAPSE) ? "MADV_COLLAPSE" : ""));
	assert_true(is_said(poison, p, is_known(MADV_HWPOISON) ? "MADV_HWPOISON" : ""));
	assert_true(is_said(without_effect, p, ""));
	assert_true(is_said(seal, p, "mseal"));
	assert_true(is_said(attach, p, "shmat"));
	assert_true(is_said(attach_by_number, p, "shmat"));
	assert_true(is_said(merge, p, "PR_SET_MEMORY_MERGE"));
	munmap(p, BIG);
}

/* On local memory all these calls are left to the kernel. */
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

/*
 * Merging that was set before the program starts (systemd's MemoryKSM) ends when the agent starts.
 */
static void merging_is_not_inherited(void **state)
{
	assert_true(prctl(OPTION_GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0);
}

/*
 * A bare call has locked a page. The kernel drops the pages before it, and then refuses. Pages that
 * were dropped read zeros from then on, also after they were evicted.
 */
static void dropped_up_to_a_locked_page(void **state)
{
	const size_t len = 32 * PAGE, half = len / 2;
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_true(test_is_far(p));
	test_fill(p, len, 1);
	assert_int_equal(madvise(p, len, MADV_PAGEOUT), 0);
	assert_int_equal(pages_not_zero(p, len), 32); /* local again, and the node has the same bytes */
	assert_int_equal(bare(SYS_mlock2, p + half, PAGE, MLOCK_ONFAULT, 0, 0, 0), 0);
	assert_int_equal(madvise(p, len, MADV_DONTNEED), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(madvise(p, half, MADV_PAGEOUT), 0);
	assert_int_equal(pages_not_zero(p, half), 0);
	assert_int_equal(pages_not_zero(p + half, half), 16);
	munmap(p, len);
}

/* ---- where pages lie, by number ---- */

static bool may_be(long r)
{
	return r >= 0 || errno == ENOSYS || errno == EPERM; /* a kernel without NUMA, a container */
}

/* The kernel places or moves what is local; the bytes stay. It makes shadow stacks elsewhere. */
static void policies_change_no_bytes(void **state)
{
	const unsigned long first_node = 1;
	const long map_shadow_stack = 453; /* newer than some headers */
	char *p = map_filled();
	void *pages[] = {p, p + BIG / 2};
	int nodes[] = {0, 0}, results[2];
	long r;

	assert_true(may_be(syscall(SYS_mbind, p, BIG, 2L, &first_node, 64L, 2L)));
	assert_true(may_be(syscall(SYS_set_mempolicy_home_node, p, BIG, 0L, 0L)));
	assert_true(may_be(syscall(SYS_mbind, p, BIG, 0L, NULL, 0L, 0L)));
	assert_true(may_be(syscall(SYS_set_mempolicy, 2L, &first_node, 64L)));
	test_fill(p, BIG, 2);
	assert_true(may_be(syscall(SYS_set_mempolicy, 0L, NULL, 0L)));
	assert_true(may_be(syscall(SYS_move_pages, 0L, 2L, pages, nodes, results, 2L)));
	assert_true(may_be(syscall(SYS_migrate_pages, 0L, 64L, &first_node, &first_node)));
	r = syscall(map_shadow_stack, 0L, (long)BIG, 0L);
	assert_true(r < 0 || !test_is_far((void *)r));
	assert_true(test_is_filled(p, BIG, 2));
	munmap(p, BIG);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(refused_with_a_message), /* first, as each message is printed once */
	    cmocka_unit_test(merging_is_not_inherited),    cmocka_unit_test(hints_alone_are_taken),
	    cmocka_unit_test(dropped_up_to_a_locked_page), cmocka_unit_test(a_child_is_no_self),
	    cmocka_unit_test(local_memory_is_the_kernels), cmocka_unit_test(policies_change_no_bytes),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

int main(int argc, char **argv)
{
	if (!getenv("LD_PRELOAD"))
		(void)prctl(OPTION_SET_MEMORY_MERGE, 1, 0, 0, 0);
	return test_under_preload(argc, argv, tests);
}
