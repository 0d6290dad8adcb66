/*
 * Bare calls on mappings of far memory: userfaultfd sends an event for each. The process ends with
 * a message before it can read wrong bytes. But bare calls may change mappings of files that lie
 * over far memory, because these belong to the kernel. Room: test/integration.
 */
#include "preload_events_rig.h"

#ifndef NO_BARE_CALLS

/* ---- what is refused ---- */

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs act in a child and returns its status. *ret_told: whether the child said why it ended. */
static int child(void (*act)(char *p), char *p, bool *ret_told)
{
	char text[1024] = "";
	int err[2], status;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(err), 0);
	pid = fork();
	if (pid == 0) {
		dup2(err[1], STDERR_FILENO);
		act(p);
		_exit(0);
	}
	close(err[1]);
	status = status_of(pid);
	n = read(err[0], text, sizeof(text) - 1);
	close(err[0]);
	*ret_told = n > 0 && strstr(text, "bare system call") && strstr(text, "far memory at 0x");
	return status;
}

static _Noreturn void wait_for_end(void)
{
	for (;;)
		pause();
}

static void unmap_all(char *p)
{
	(void)bare(SYS_munmap, p, BIG, 0, 0, 0, 0);
	wait_for_end();
}

static void unmap_a_page(char *p)
{
	(void)bare(SYS_munmap, p + BIG / 2, PAGE, 0, 0, 0, 0);
	wait_for_end();
}

static void map_over(char *p)
{
	(void)bare_mmap(p, BIG / 2, MAP_FIXED);
	wait_for_end();
}

static void cut_off(char *p)
{
	(void)bare(SYS_mremap, p, BIG, BIG / 2, 0, 0, 0);
	wait_for_end();
}

/*
 * Called after a bare call for which the agent will end the process. Until then the process may run
 * on, if none of the bytes at p was remote. It must never see wrong bytes there.
 */
static void look_at(char *p, size_t len)
{
	if ((intptr_t)p < 0)
		_exit(3);
	if (!test_is_filled(p, len, 14))
		_exit(2);
	wait_for_end();
}

static void move_out(char *p)
{
	look_at((char *)bare(SYS_mremap, p, BIG / 2, 2 * BIG, MREMAP_MAYMOVE, 0, 0), BIG / 2);
}

static void move_within(char *p)
{
	char *to = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	look_at((char *)bare(SYS_mremap, p, BIG, BIG, MREMAP_MAYMOVE | MREMAP_FIXED, (long)to, 0), BIG);
}

/* Older headers lack it. */
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static void leave_behind(char *p)
{
	look_at((char *)bare(SYS_mremap, p, BIG, BIG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0, 0), BIG);
}

/* At the same time faults wait for tokens, which they can't get before the event is read. */
static void unmap_under_pressure(char *p)
{
	struct churner churners[4];

	for (unsigned i = 0; i < 4; i++)
		churn_begin(&churners[i]);
	test_is_filled(p, BIG, 14);
	unmap_a_page(p);
}

static void *unmap_its_own(void *arg)
{
	unmap_all(map_filled(BIG, 3));
	return arg;
}

static void unmap_in_threads(char *p)
{
	pthread_t threads[4];

	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, unmap_its_own, NULL), 0);
	look_at(p, BIG);
}

static void all_are_refused(void **state)
{
	void (*const acts[])(char *p) = {unmap_all,       unmap_a_page, map_over,     cut_off,
	                                 move_out,        move_within,  leave_behind, unmap_under_pressure,
	                                 unmap_in_threads};
	char *p = map_filled(BIG, 14);
	bool told;

	for (unsigned i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		assert_int_equal(child(acts[i], p, &told), REFUSED);
		assert_true(told);
	}
	assert_true(test_is_filled(p, BIG, 14));
	assert_int_equal(munmap(p, BIG), 0);
}

/* ---- what is right ---- */

/* The program mapped files there, which belong to the kernel. So bare calls may remove them. */
static void files_over_far_memory(void **state)
{
	char *p = map_filled(BIG, 8), *q;
	struct churner churner;
	int fd = memfd_create("events", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, BIG), 0);
	churn_begin(&churner);
	assert_ptr_equal(mmap(p, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), p);
	q = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	test_fill(p, BIG, 9);
	bare_munmap(p + BIG / 2, BIG / 4);
	assert_true(is_unmapped(p + BIG / 2));
	assert_true(test_is_filled(q, BIG, 9));
	assert_ptr_equal(bare_mmap(p + BIG / 2, BIG / 4, MAP_FIXED), p + BIG / 2);
	assert_int_equal(p[BIG / 2], 0);
	churn_end(&churner);
	assert_int_equal(munmap(p, BIG), 0);
	assert_true(is_unmapped(p + BIG / 2));
	assert_int_equal(munmap(q, BIG), 0);
	close(fd);
}

/* ---- locks ---- */

/*
 * A bare call locks memory, and the C library's mremap moves it. No page may stay at the old place.
 */
static void what_is_locked_unseen_moves(void **state)
{
	const size_t len = BIG / 4;
	char *p = map_filled(len, 16), *q;

	/* in fault mode inline the kernel's mlock can't bring pages in, so the program touches
	 * them */
	for (unsigned i = 1; i < 4; i++)
		((volatile char *)p)[i * PAGE] = ((volatile char *)p)[i * PAGE];
	(void)bare(SYS_mlock, p + PAGE, 3 * PAGE, 0, 0, 0, 0);
	q = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(q, MAP_FAILED);
	assert_ptr_equal(mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, q), q);
	assert_true(test_is_filled(q, len, 16));
	p = mmap(p, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	for (size_t at = 0; at < len; at++)
		assert_int_equal(p[at], 0);
	assert_int_equal(munmap(p, len), 0);
	assert_int_equal(munmap(q, len), 0);
}

/*
 * A bare call makes memory read-only, and the C library's mremap can't move it. It says so, and
 * locks nothing.
 */
static void what_is_protected_unseen_is_not_locked(void **state)
{
	const char *capture = getenv("FARPAGE_CAPTURE");
	const size_t len = BIG / 4;
	char *p = map_filled(len, 16);
	void *q;

	if (capture && strcmp(capture, "protect") == 0)
		skip();                                    /* it copies, whatever the protection is */
	((volatile char *)p)[0] = ((volatile char *)p)[0]; /* local, and written */
	assert_int_equal(bare(SYS_mprotect, p, PAGE, PROT_READ, 0, 0, 0), 0);
	q = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_equal(mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, q), MAP_FAILED);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(bare(SYS_madvise, p, PAGE, MADV_COLD, 0, 0, 0), 0); /* EINVAL: it is locked */
	assert_int_equal(munmap(p, len), 0);
}

/* mlock over a hole in the program's own kernel mapping. Only the kernel knows of the hole. */
static void locking_up_to_a_hole_unseen(void **state)
{
	char *p = map_filled(4 * PAGE + BIG, 16);

	assert_ptr_equal(mmap(p + PAGE, 2 * PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	                 p + PAGE);
	bare_munmap(p + 2 * PAGE, PAGE);
	assert_int_equal(mlock(p, 4 * PAGE), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(munlock(p, 4 * PAGE), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(mlock(p, 2 * PAGE), 0);
	assert_int_equal(munmap(p, 4 * PAGE + BIG), 0);
}

/*
 * The kernel drops no page of a sealed read-only mapping. So the mapping stays local, beyond the
 * budget. But no fault may wait until its deadline. This test runs last, because nobody can remove
 * the mapping.
 */
static void what_is_sealed_unseen_stays(void **state)
{
	const uint64_t until_ns =
	    fp_clock_ns() + FAULT_DEADLINE_S * 500000000ull; /* half the time that a fault may take */
	char *p = map_filled(BIG, 16);

	assert_int_equal(mprotect(p, BIG, PROT_READ), 0);
	if (bare(SYS_mseal, p, BIG, 0, 0, 0, 0) < 0)
		skip(); /* needs Linux 6.10 */
	for (unsigned round = 0; round < 3; round++)
		for (size_t i = 0; i < BIG; i += PAGE) {
			(void)((volatile char *)p)[i];
			assert_true(fp_clock_ns() < until_ns);
		}
	assert_true(test_is_filled(p, BIG, 16));
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(all_are_refused),
	    cmocka_unit_test(files_over_far_memory),
	    cmocka_unit_test(what_is_locked_unseen_moves),
	    cmocka_unit_test(what_is_protected_unseen_is_not_locked),
	    cmocka_unit_test(locking_up_to_a_hole_unseen),
	    cmocka_unit_test(what_is_sealed_unseen_stays),
	};

	return cmocka_run_group_tests(all, open_stats, NULL);
}

#endif

int main(int argc, char **argv)
{
#ifdef NO_BARE_CALLS
	return TEST_SKIPPED;
#else
	setenv("FARPAGE_DEADLINE", SECONDS(FAULT_DEADLINE_S), 1);
	return test_under_preload(argc, argv, tests);
#endif
}
