/*
 * Bare calls that change mappings of far memory: userfaultfd reports them. The agent forgets the
 * old pages, and new memory there is the kernel's alone. Far memory that is moved so is refused
 * with a message.
 */
#include "preload_events_rig.h"

#ifndef NO_BARE_CALLS

/* ---- munmap ---- */

/* Each token comes back exactly once: local memory matches the budget. */
static int check_budget(void **state)
{
	uint64_t budget = atomic_load(&stats->budget_bytes);
	size_t len = budget > BIG ? BIG : 2 * (size_t)budget;
	char *p = map_filled(len, 99);

	assert_true(test_is_filled(p, len, 99));
	if (budget < len)
		assert_in_range(test_far_resident_bytes(), budget / 2, budget + TEST_LOCAL_BYTES);
	assert_int_equal(munmap(p, len), 0);
	return 0;
}

/* Slots and tokens come back: the rounds together need more than the node has. */
static void what_is_unmapped_is_forgotten(void **state)
{
	uint64_t mapped = atomic_load(&stats->mapped_bytes), remote = atomic_load(&stats->remote_bytes);
	size_t len = 16 * BIG;

	for (unsigned i = 0; i < 10; i++) {
		char *p = map_filled(len, i + 1);

		bare_munmap(p, len);
		assert_true(is_unmapped(p));
		assert_true(is_unmapped(p + len - 1));
	}
	wait_until_at_most(&stats->mapped_bytes, mapped);
	wait_until_at_most(&stats->remote_bytes, remote + TEST_LOCAL_BYTES);
	wait_until_at_most(&stats->resident_bytes, atomic_load(&stats->budget_bytes));
}

static void neighbours_stay(void **state)
{
	size_t third = BIG / 4;
	char *p = map_filled(3 * third, 5), *all = malloc(3 * third);

	test_fill(all, 3 * third, 5);
	bare_munmap(p + third, third);
	assert_true(is_unmapped(p + third));
	assert_true(is_unmapped(p + 2 * third - 1));
	assert_memory_equal(p, all, third);
	assert_memory_equal(p + 2 * third, all + 2 * third, third);
	/* the C library's munmap covers what is there and what is not */
	assert_int_equal(munmap(p, 3 * third), 0);
	assert_true(is_unmapped(p));
	free(all);
}

/* The hole belongs to the kernel: calls of the C library on it get the kernel's answers. */
static void the_hole_is_a_hole(void **state)
{
	char *p = map_filled(BIG, 6), *q;

	bare_munmap(p, BIG);
	assert_int_equal(mprotect(p, BIG, PROT_READ), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(madvise(p, BIG, MADV_DONTNEED), -1);
	assert_int_equal(errno, ENOMEM);
	q = mmap(p, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	assert_ptr_equal(q, p);
	assert_true(test_is_far(q));
	for (size_t at = 0; at < BIG; at += PAGE)
		assert_int_equal(q[at], 0);
	test_fill(q, BIG, 7);
	assert_true(test_is_filled(q, BIG, 7));
	assert_int_equal(munmap(q, BIG), 0);
}

/* ---- threads that wait there ---- */

struct reader {
	pthread_t thread;
	const char *p;
	size_t len;
	atomic_bool begun, ended, wrong;
};

static void *read_until_gone(void *arg)
{
	struct reader *reader = arg;

	if (sigsetjmp(back, 1) == 0) {
		for (;;) {
			for (size_t at = 0; at < reader->len; at += PAGE) {
				if (*(const volatile char *)(reader->p + at) != 1)
					atomic_store(&reader->wrong, true);
				atomic_store(&reader->begun, true);
			}
		}
	}
	atomic_store(&reader->ended, true);
	return NULL;
}

/*
 * Faults that wait for a token do not keep the event from being read: it may unmap the only pages
 * that could leave.
 */
static void who_waits_there_is_woken(void **state)
{
	struct reader readers[4];
	uint64_t begin_ns;
	char *p;

	for (unsigned round = 0; round < 60; round++) {
		p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(p, 1, BIG);
		signal(SIGSEGV, on_segv);
		for (unsigned i = 0; i < 4; i++) {
			readers[i] = (struct reader){.p = p, .len = BIG};
			assert_int_equal(
			    pthread_create(&readers[i].thread, NULL, read_until_gone, &readers[i]), 0);
		}
		for (unsigned i = 0; i < 4; i++)
			while (!atomic_load(&readers[i].begun))
				usleep(100);
		begin_ns = fp_clock_ns();
		bare_munmap(p, BIG);
		assert_true(fp_clock_ns() - begin_ns < FAULT_DEADLINE_S * FP_NSEC_PER_SEC);
		for (unsigned i = 0; i < 4; i++) {
			assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
			assert_true(atomic_load(&readers[i].ended));
			assert_false(atomic_load(&readers[i].wrong));
		}
		signal(SIGSEGV, SIG_DFL);
	}
}

/* ---- what comes there is the kernel's ---- */

static void assert_kept(const char *p, size_t len, unsigned seed)
{
	assert_false(test_is_far(p));
	assert_true(test_is_filled(p, len, seed));
}

/* Pages of the range are on their way out when it goes, and others take its place at once. */
static void a_hole_is_filled_at_once(void **state)
{
	uint64_t rng = test_seed("events");
	struct churner churner;
	char *kept[16];
	size_t len = BIG / 8;

	churn_begin(&churner);
	for (unsigned round = 0; round < 208; round++) {
		unsigned i = round % 16, pages = (unsigned)(test_random(&rng) % (len / PAGE - 1)) + 1;

		if (round >= 16) {
			assert_kept(kept[i], len, round - 16);
			assert_int_equal(munmap(kept[i], len), 0);
		}
		kept[i] = map_filled(len, round + 1000);
		madvise(kept[i], len / 2, MADV_PAGEOUT);
		if (round % 2) {
			bare_munmap(kept[i], (size_t)pages * PAGE);
			bare_munmap(kept[i] + (size_t)pages * PAGE, len - (size_t)pages * PAGE);
			assert_ptr_equal(bare_mmap(kept[i], len, MAP_FIXED_NOREPLACE), kept[i]);
		} else {
			assert_ptr_equal(bare_mmap(kept[i], len, MAP_FIXED), kept[i]);
		}
		test_fill(kept[i], len, round);
	}
	for (unsigned round = 192; round < 208; round++) {
		assert_kept(kept[round % 16], len, round);
		assert_int_equal(munmap(kept[round % 16], len), 0);
	}
	churn_end(&churner);
}

/* Reservations that are made and thrown away by such calls, as some allocators do, and shared
 * memory over them. */
static void files_over_far_memory(void **state)
{
	char *p = map_filled(BIG, 8), *q;
	struct churner churner;
	int fd = memfd_create("events", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, BIG), 0);
	churn_begin(&churner);
	assert_ptr_equal(
	    (char *)bare(SYS_mmap, p, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0), p);
	q = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	test_fill(p, BIG, 9);
	for (unsigned i = 0; i < 8; i++) {
		char *more = map_filled(BIG, 10);

		assert_kept(p, BIG, 9);
		assert_true(test_is_filled(q, BIG, 9));
		bare_munmap(more, BIG);
	}
	churn_end(&churner);
	assert_int_equal(munmap(p, BIG), 0);
	assert_int_equal(munmap(q, BIG), 0);
	close(fd);
}

static void *use_stack(void *arg)
{
	volatile char frame[256 * 1024];

	memset((char *)frame, 3, sizeof(frame));
	for (unsigned i = 0; i < 4; i++) {
		char *p = map_filled(BIG / 4, 11);

		for (size_t at = 0; at < sizeof(frame); at++)
			if (frame[at] != 3)
				*(bool *)arg = true;
		munmap(p, BIG / 4);
	}
	return NULL;
}

static void stacks_and_libraries_come(void **state)
{
	struct churner churner;

	churn_begin(&churner);
	for (unsigned round = 0; round < 8; round++) {
		size_t len = 64u << 20;
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		pthread_t threads[4];
		bool wrong[4] = {false};
		double (*cube_root)(double);
		void *lib;

		test_fill(p, BIG / 4, round);
		bare_munmap(p, len);
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, use_stack, &wrong[i]), 0);
		lib = dlopen("libm.so.6", RTLD_NOW);
		assert_non_null(lib);
		*(void **)&cube_root = dlsym(lib, "cbrt");
		assert_true(cube_root && cube_root(27) > 2.9 && cube_root(27) < 3.1);
		dlclose(lib);
		for (unsigned i = 0; i < 4; i++) {
			assert_int_equal(pthread_join(threads[i], NULL), 0);
			assert_false(wrong[i]);
		}
	}
	churn_end(&churner);
}

/* ---- address space ---- */

/* Maps and unmaps more than the range has: empty pieces are used again. */
static void the_range_is_not_used_up(void **state)
{
	size_t len = (size_t)64 << 30;

	for (unsigned i = 0; i < 200; i++) {
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		               -1, 0);

		assert_ptr_not_equal(p, MAP_FAILED);
		assert_int_equal(p[len / 2], 0);
		p[len / 2] = 1;
		bare_munmap(p, len);
	}
}

/* ---- several at once ---- */

static void *unmap_much(void *arg)
{
	for (unsigned i = 0; i < 100; i++) {
		char *p = map_filled(BIG / 16, i);

		if (!test_is_filled(p, BIG / 16, i))
			*(bool *)arg = true;
		if (bare(SYS_munmap, p, BIG / 16, 0, 0, 0, 0) != 0)
			*(bool *)arg = true;
	}
	return NULL;
}

static void from_many_threads(void **state)
{
	struct churner churner;
	bool wrong[4] = {false};
	pthread_t threads[4];

	churn_begin(&churner);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, unmap_much, &wrong[i]), 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_false(wrong[i]);
	}
	churn_end(&churner);
}

/* ---- on a stack in far memory ---- */

#define STACK_BYTES (256u << 10)

static struct {
	ucontext_t outside, inside;
	char *stack;
	atomic_bool ended, wrong;
} caller;

/* Calls that take long, under the layout lock, on a stack that leaves and comes back all the
 * time. */
static void call_much(void)
{
	const size_t len = 4 * BIG;

	for (unsigned i = 0; i < 4; i++) {
		char *p = map_filled(len, i), *q = map_filled(len, i + 1);

		if (mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, q) != q || !test_is_filled(q, len, i))
			atomic_store(&caller.wrong, true);
		if (munmap(q, len) != 0)
			atomic_store(&caller.wrong, true);
	}
	atomic_store(&caller.ended, true);
}

static void *on_far_stack(void *arg)
{
	getcontext(&caller.inside);
	caller.inside.uc_stack = (stack_t){.ss_sp = caller.stack, .ss_size = STACK_BYTES};
	caller.inside.uc_link = &caller.outside;
	makecontext(&caller.inside, call_much, 0);
	swapcontext(&caller.outside, &caller.inside);
	return arg;
}

/* More of them than can be followed while such a call goes on, each at a place of its own. */
static void unmap_until_ended(void)
{
	while (!atomic_load(&caller.ended)) {
		char *p = map_filled(4 * BIG, 1);

		for (size_t at = 0; at < 4 * BIG; at += 2 * (size_t)PAGE)
			bare_munmap(p + at, PAGE);
		assert_true(is_unmapped(p));
		assert_int_equal(munmap(p, 4 * BIG), 0);
	}
}

static void calls_on_a_far_stack(void **state)
{
	struct churner churner;
	pthread_t thread;

	caller.stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(test_is_far(caller.stack));
	churn_begin(&churner);
	assert_int_equal(pthread_create(&thread, NULL, on_far_stack, NULL), 0);
	unmap_until_ended();
	churn_end(&churner);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(atomic_load(&caller.wrong));
	munmap(caller.stack, STACK_BYTES);
}

/* ---- fork ---- */

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void children_have_the_same_holes(void **state)
{
	for (unsigned round = 0; round < 5; round++) {
		char *p = map_filled(BIG, 12);
		pid_t pid;

		bare_munmap(p + BIG / 4, BIG / 4);
		bare_munmap(p + BIG / 2, PAGE);
		assert_ptr_equal(bare_mmap(p + BIG / 2, PAGE, MAP_FIXED), p + BIG / 2);
		p[BIG / 2] = 7;
		pid = fork();
		if (pid == 0) {
			bool good =
			    is_unmapped(p + BIG / 4) && p[BIG / 2] == 7 && test_is_filled(p, BIG / 4, 12);

			bare(SYS_munmap, p, BIG / 4, 0, 0, 0, 0);
			_exit(good && is_unmapped(p) && p[BIG - 1] ? 0 : 1);
		}
		assert_int_equal(status_of(pid), 0);
		assert_true(test_is_filled(p, BIG / 4, 12));
		assert_int_equal(p[BIG / 2], 7);
		assert_int_equal(munmap(p, BIG), 0);
	}
}

/* ---- mremap ---- */

static bool has_ample_room(void)
{
	return atomic_load(&stats->budget_bytes) / 8 * 3 > BIG;
}

static void cutting_is_unmapping(void **state)
{
	char *p = map_filled(BIG, 13);

	assert_int_equal(bare(SYS_mremap, p, BIG, BIG / 2, 0, 0, 0), (long)p);
	assert_true(test_is_filled(p, BIG / 2, 13));
	assert_true(is_unmapped(p + BIG / 2));
	assert_int_equal(munmap(p, BIG), 0);
}

/* A move into a hole: the kernel reports nothing. The agent forgets the memory there in the end. */
static void growing_in_place_is_right(void **state)
{
	char *p = map_filled(BIG, 13);
	long r;

	bare_munmap(p + BIG / 2, BIG / 2);
	r = bare(SYS_mremap, p, BIG / 2, BIG, 0, 0, 0);
	assert_int_equal(r, (long)p);
	assert_true(test_is_filled(p, BIG / 2, 13));
	for (size_t at = BIG / 2; at < BIG; at += PAGE)
		assert_int_equal(p[at], 0);
	test_fill(p, BIG, 15);
	assert_true(test_is_filled(p, BIG, 15));
	assert_int_equal(munmap(p, BIG), 0);
	assert_ptr_equal(mmap(p, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	                 p);
	for (size_t at = 0; at < BIG; at += PAGE)
		assert_int_equal(p[at], 0);
	assert_int_equal(munmap(p, BIG), 0);
}

/* Runs act in a child. Its status; *ret_told: whether it said why it ended. */
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
	*ret_told = n > 0 && strstr(text, "mremap") && strstr(text, "bare system call");
	return status;
}

/* It may go on for as long as the bytes are right, which they are if none was remote: it is being
 * stopped. */
static void look_at(char *p, size_t len)
{
	if ((intptr_t)p < 0)
		_exit(3);
	if (!test_is_filled(p, len, 14))
		_exit(2);
	for (;;)
		pause();
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

/* Newer than some headers that we build with. */
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static void leave_behind(char *p)
{
	look_at((char *)bare(SYS_mremap, p, BIG, BIG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0, 0), BIG);
}

static void moving_is_refused(void **state)
{
	void (*const acts[])(char *p) = {move_out, move_within, leave_behind};
	char *p = map_filled(BIG, 14);
	bool told;

	for (unsigned i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		assert_int_equal(child(acts[i], p, &told), REFUSED);
		assert_true(told);
	}
	assert_true(test_is_filled(p, BIG, 14));
	assert_int_equal(munmap(p, BIG), 0);
}

/* ---- locks ---- */

/*
 * The C library's mremap of memory that a bare call has locked: nothing of it stays at the old
 * place.
 */
static void what_is_locked_unseen_moves(void **state)
{
	const size_t len = BIG / 4;
	char *p = map_filled(len, 16), *q;

	for (unsigned i = 1; i < 4; i++)
		((volatile char *)p)[i * PAGE] =
		    ((volatile char *)p)[i * PAGE]; /* inline, the kernel can't bring them in */
	(void)bare(SYS_mlock, p + PAGE, 3 * PAGE, 0, 0, 0, 0);
	q = mremap(p, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	assert_ptr_not_equal(q, MAP_FAILED);
	assert_ptr_not_equal(q, p);
	assert_true(test_is_filled(q, len, 16));
	for (size_t at = 0; at < len; at++)
		assert_int_equal(p[at], 0);
	assert_int_equal(munmap(p, len), 0);
	assert_int_equal(munmap(q, len), 0);
}

/*
 * A hole that only the kernel knows, in a mapping of the kernel's: the pages before it are locked,
 * and count.
 */
static void locking_up_to_a_hole_unseen(void **state)
{
	size_t len = atomic_load(&stats->budget_bytes) / 8 * 3, whole = len + 2 * (size_t)PAGE;
	char *p, *q;

	if (has_ample_room()) /* as much can't be locked everywhere */
		skip();
	p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	q = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_equal(mmap(p + len, 2 * PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
	                 p + len);
	bare_munmap(p + len + PAGE, PAGE);
	assert_int_equal(mlock(p, whole), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(mlock(q, len), -1); /* more than half of the budget */
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(munlock(p, whole), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(mlock(q, len), 0);
	assert_int_equal(munmap(p, whole), 0);
	assert_int_equal(munmap(q, len), 0);
}

/*
 * Of a sealed mapping that can only be read the kernel drops nothing, so it stays local, beyond the
 * budget; but no fault waits until its deadline. Last, as the mapping can't be removed.
 */
static void what_is_sealed_unseen_stays(void **state)
{
	const uint64_t until_ns =
	    fp_clock_ns() + FAULT_DEADLINE_S * 500000000ull; /* no fault waits its deadline */
	char *p = map_filled(BIG, 16);

	assert_int_equal(mprotect(p, BIG, PROT_READ), 0);
	if (bare(SYS_mseal, p, BIG, 0, 0, 0, 0) < 0)
		skip(); /* Linux 6.10 */
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
	    cmocka_unit_test_teardown(what_is_unmapped_is_forgotten, check_budget),
	    cmocka_unit_test(neighbours_stay),
	    cmocka_unit_test(the_hole_is_a_hole),
	    cmocka_unit_test(who_waits_there_is_woken),
	    cmocka_unit_test_teardown(a_hole_is_filled_at_once, check_budget),
	    cmocka_unit_test(files_over_far_memory),
	    cmocka_unit_test(stacks_and_libraries_come),
	    cmocka_unit_test_teardown(the_range_is_not_used_up, check_budget),
	    cmocka_unit_test_teardown(from_many_threads, check_budget),
	    cmocka_unit_test_teardown(calls_on_a_far_stack, check_budget),
	    cmocka_unit_test(children_have_the_same_holes),
	    cmocka_unit_test(cutting_is_unmapping),
	    cmocka_unit_test_teardown(growing_in_place_is_right, check_budget),
	    cmocka_unit_test(moving_is_refused),
	    cmocka_unit_test(what_is_locked_unseen_moves),
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
