/* The far range against the real kernel, without agent threads. Room: test/integration. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "evict.h"
#include "far.h"
#include "kernel_filled.h"
#include "space_priv.h"

#define CHUNK_PAGES (1u << FP_CHUNK_SHIFT)
#define FIRST       FP_FAR_OWN_PAGES
#define MAPPED      4096u                /* number of mapped pages */
#define ELSE        (FIRST + MAPPED - 1) /* this page is unmapped during an install */
#define BUDGET      65536u
#define DEADLINE    (20 * FP_NSEC_PER_MSEC)

static struct fp_far far;
static struct fp_statspage stats;
static char bytes[FP_PAGE_SIZE] __attribute__((aligned(4096)));

static int set_up(void **state)
{
	memset(&stats, 0, sizeof(stats));
	memset(bytes, 'x', sizeof(bytes));
	far = (struct fp_far){.stats = &stats, .deadline_ns = DEADLINE, .pidfd = -1, .pagemap_fd = -1};
	if (fp_uffd_open(0, &far.uffd) < 0 || fp_far_reserve(&far) < 0 ||
	    fp_budget_init(&far.budget, BUDGET) < 0)
		return -1;
	far.mem_fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	return mprotect(fp_far_addr(&far, FIRST), (size_t)MAPPED << FP_PAGE_SHIFT, PROT_READ | PROT_WRITE);
}

static int tear_down(void **state)
{
	fp_budget_done(&far.budget);
	fp_uffd_close(&far.uffd);
	fp_far_unreserve(&far);
	close(far.mem_fd);
	return 0;
}

static void set_word(uint32_t page, uint64_t word)
{
	fp_far_touch(&far, page);
	atomic_store(&far.words[page], word);
}

static uint64_t word_of(uint32_t page)
{
	return atomic_load(&far.words[page]) & ~FP_PAGE_QUEUED;
}

/* ---- bare calls ---- */

static void *unmap_it(void *arg)
{
	return munmap(fp_far_addr(&far, ELSE), FP_PAGE_SIZE) == 0 ? arg : NULL;
}

static void install_meanwhile(void)
{
	pthread_t thread;

	if (set_up(NULL) < 0 || pthread_create(&thread, NULL, unmap_it, &far) != 0)
		_exit(1);
	while (!fp_uffd_is_changing(&far.uffd))
		sched_yield();
	set_word(FIRST, FP_PAGE_ARRIVING);
	(void)fp_far_install(&far, FIRST, 1, bytes, false);
	_exit(0);
}

/*
 * Only the thread that waits in the install can read the event. It ends the process at once. It
 * does not wait for its deadline or for ever.
 */
static void an_install_during_a_bare_call_ends_the_process(void **state)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		install_meanwhile();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 125);
}

/* ---- kernel-filled memory ---- */

#define CHUNK ((FIRST / CHUNK_PAGES + 1) * CHUNK_PAGES) /* first page of a chunk that is mapped as a whole */

static struct fp_space space;

/* Makes the page's chunk kernel-filled, by a fault on the page. */
static void make_native(uint32_t page)
{
	set_word(page, FP_PAGE_ARRIVING);
	assert_int_equal(fp_budget_take(&far.budget, 1), 1);
	assert_true(fp_kernel_filled_begin(&far, &space.layout, page));
	fp_budget_give(&far.budget, 1); /* the chunk has taken a token for each page */
	assert_true(fp_kernel_filled_fills(&far, page));
	memset(fp_far_addr(&far, page), 'n', FP_PAGE_SIZE);
}

static void map_all(void)
{
	const struct fp_piece piece = {
	    .start = FIRST, .end = FIRST + MAPPED, .prot = PROT_READ | PROT_WRITE, .lazy = true};

	assert_int_equal(fp_space_init(&space, &far, NULL), 0);
	assert_int_equal(fp_layout_add(&space.layout, piece), 0);
	far.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	assert_true(far.pagemap_fd >= 0);
	fp_kernel_filled_open(&far);
}

static void unmap_all(void)
{
	close(far.pagemap_fd);
	far.pagemap_fd = -1;
	fp_space_done(&space);
}

/* ---- at the kernel's limit on mappings ---- */

#define FILLERS 200000u

static struct {
	char *page[FILLERS];
	unsigned n;
} fillers;

/*
 * Makes as many mappings as the kernel allows. Neighbours differ, so that the kernel does not merge
 * them.
 */
static void fill_mappings(void)
{
	for (fillers.n = 0; fillers.n < FILLERS; fillers.n++) {
		void *p = mmap(NULL, FP_PAGE_SIZE, fillers.n % 2 ? PROT_READ : PROT_NONE,
		               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (p == MAP_FAILED)
			return;
		fillers.page[fillers.n] = p;
	}
}

static void drop_fillers(unsigned n)
{
	while (n-- && fillers.n)
		assert_int_equal(munmap(fillers.page[--fillers.n], FP_PAGE_SIZE), 0);
}

/*
 * Makes mappings up to the kernel's limit, then removes so many that n cuts of a mapping are
 * possible. One more is removed, because mmap may exceed the limit by one.
 */
static void leave_cuts(unsigned n)
{
	fill_mappings();
	if (fillers.n == FILLERS) {
		drop_fillers(FILLERS);
		print_message("this kernel allows more mappings than the test makes\n");
		skip();
	}
	drop_fillers(n + 1);
}

static bool is_registered(uint32_t page)
{
	return fp_uffd_protect(&far.uffd, fp_far_addr(&far, page), FP_PAGE_SIZE, false) == 0;
}

/* For the kernel the chunk is two mappings. The limit allows only the first of them to be cut. */
static void a_chunk_half_given_to_the_kernel(void **state)
{
	uint32_t middle = CHUNK + CHUNK_PAGES / 2;
	bool begun;

	map_all();
	assert_int_equal(madvise(fp_far_addr(&far, middle), (size_t)CHUNK_PAGES * FP_PAGE_SIZE, MADV_DODUMP),
	                 0);
	set_word(CHUNK, FP_PAGE_ARRIVING);
	leave_cuts(1);
	begun = fp_kernel_filled_begin(&far, &space.layout, CHUNK);
	drop_fillers(FILLERS);
	assert_true(fp_page_state(word_of(CHUNK)) == (begun ? FP_PAGE_RESIDENT : FP_PAGE_ARRIVING));
	/* the kernel must not fill a page that still counts as never touched */
	for (uint32_t p = CHUNK + 1; p < CHUNK + CHUNK_PAGES; p++)
		assert_true(fp_page_state(word_of(p)) == FP_PAGE_RESIDENT || is_registered(p));
	assert_int_equal(fp_kernel_filled_end(&far, CHUNK), 0);
	for (uint32_t p = CHUNK; p < CHUNK + CHUNK_PAGES; p++)
		assert_true(is_registered(p));
	unmap_all();
}

static struct fp_evictor *new_evictor(void)
{
	struct fp_evictor *evictor;

	assert_int_equal(fp_pin_table_init(&far.pins), 0);
	assert_int_equal(mprotect(far.base, (size_t)FP_STAGE_PAGES << FP_PAGE_SHIFT, PROT_READ | PROT_WRITE),
	                 0);
	assert_int_equal(fp_evictor_new(&far, NULL, far.base, &evictor), 0);
	return evictor;
}

static void free_evictor(struct fp_evictor *evictor)
{
	fp_evictor_free(evictor);
	fp_pin_table_done(&far.pins);
}

#define WANT 8u

/*
 * Three neighbouring chunks are kernel-filled. The middle one has the oldest pages. The limit on
 * mappings allows no cut, so its pages can't leave. Those of the others can, unless they are
 * claimed. Returns how many pages leave if the evictor wants WANT.
 */
static unsigned evict_around_the_middle(bool claimed)
{
	struct fp_evictor *evictor;
	unsigned n_left;

	map_all();
	evictor = new_evictor();
	far.capture_by_move = far.uffd.has_move;
	make_native(CHUNK + CHUNK_PAGES);
	make_native(CHUNK);
	make_native(CHUNK + 2 * CHUNK_PAGES);
	memset(fp_far_addr(&far, CHUNK), 0, WANT * FP_PAGE_SIZE); /* zero pages leave without a node */
	for (uint32_t p = CHUNK; claimed && p < CHUNK + 3 * CHUNK_PAGES; p++)
		if (p / CHUNK_PAGES != CHUNK / CHUNK_PAGES + 1)
			set_word(p, FP_PAGE_CLAIMED);
	leave_cuts(0);
	n_left = fp_evictor_run(evictor, WANT);
	drop_fillers(FILLERS);
	free_evictor(evictor);
	unmap_all();
	return n_left;
}

static void pages_behind_others_that_cannot_leave(void **state)
{
	assert_int_equal(evict_around_the_middle(false), WANT);
	assert_true(atomic_load(&stats.evict_refused) >= CHUNK_PAGES);
}

static void a_search_ends_if_no_page_can_leave(void **state)
{
	assert_int_equal(evict_around_the_middle(true), 0);
	assert_true(atomic_load(&stats.evict_refused) <= 3 * CHUNK_PAGES);
}

/* ---- calls that the limit on mappings refuses ---- */

#define PART 8u /* pages */

/* Makes pages resident and writable, all bytes 'x'. */
static void fill_pages(uint32_t page, uint32_t n)
{
	assert_int_equal(fp_budget_take(&far.budget, n), n);
	for (uint32_t p = page; p < page + n; p++) {
		set_word(p, FP_PAGE_ARRIVING);
		assert_int_equal(fp_far_install(&far, p, 1, bytes, true), 1);
	}
}

/* True if the page has its bytes and the program can read it. */
static bool is_intact(uint32_t page)
{
	int fds[2];
	char got[FP_PAGE_SIZE];
	bool same;

	if (fp_page_state(word_of(page)) != FP_PAGE_RESIDENT)
		return false; /* nobody would serve a fault */
	assert_int_equal(pipe(fds), 0);
	same = write(fds[1], fp_far_addr(&far, page), sizeof(got)) == (ssize_t)sizeof(got) &&
	       read(fds[0], got, sizeof(got)) == (ssize_t)sizeof(got) && memcmp(got, bytes, sizeof(got)) == 0;
	close(fds[0]);
	close(fds[1]);
	return same;
}

static bool are_intact(uint32_t page, uint32_t n)
{
	while (n > 0 && is_intact(page)) {
		page++;
		n--;
	}
	return n == 0;
}

/*
 * Maps all, with the first 2 * PART pages filled. For the kernel the first PART pages are a mapping
 * of their own.
 */
static void map_two_parts(unsigned flags)
{
	const struct fp_piece_change change = {.prot = -1, .set = flags};
	char *addr = fp_far_addr(&far, FIRST);

	map_all();
	far.capture_by_move = far.uffd.has_move;
	assert_int_equal(fp_layout_change(&space.layout, FIRST, FIRST + MAPPED, &change), 0);
	assert_int_equal(madvise(addr, (size_t)MAPPED << FP_PAGE_SHIFT,
	                         flags & FP_PIECE_DONTDUMP ? MADV_DONTDUMP : MADV_DODUMP),
	                 0);
	assert_int_equal(madvise(addr, PART * FP_PAGE_SIZE, MADV_DOFORK), 0);
	fill_pages(FIRST, 2 * PART);
}

static int unmap(uint32_t page, uint32_t n)
{
	return fp_space_unmap(&space, fp_far_addr(&far, page), (size_t)n << FP_PAGE_SHIFT);
}

/* The kernel's second mapping would have to be cut. The first one stays accessible too. */
static void refuse_unmap(unsigned flags)
{
	map_two_parts(flags);
	leave_cuts(0);
	assert_int_equal(unmap(FIRST, PART + 1), -ENOMEM);
	drop_fillers(FILLERS);
	assert_true(are_intact(FIRST, 2 * PART));
	assert_int_equal(unmap(FIRST, PART + 1), 0);
	assert_true(are_intact(FIRST + PART + 1, PART - 1));
	assert_true(fp_layout_is_free(&space.layout, FIRST, FIRST + PART + 1));
	unmap_all();
}

static void a_refused_unmap_changes_nothing(void **state)
{
	refuse_unmap(0);
}

static void a_refused_unmap_without_dumps(void **state)
{
	refuse_unmap(FP_PIECE_DONTDUMP);
}

/* The first piece could be unmapped, but not the second. */
static void a_refused_unmap_of_two_pieces(void **state)
{
	map_two_parts(0);
	assert_int_equal(fp_space_protect(&space, fp_far_addr(&far, FIRST), PART * FP_PAGE_SIZE, PROT_READ),
	                 0);
	leave_cuts(0);
	assert_int_equal(unmap(FIRST, PART + 1), -ENOMEM);
	drop_fillers(FILLERS);
	assert_true(are_intact(FIRST, 2 * PART));
	unmap_all();
}

#define FILLED (5 * CHUNK_PAGES)

/*
 * The pages are kernel-filled, and so are their neighbours. To register only these pages again, the
 * kernel would have to cut a mapping a third time. The limit allows two cuts.
 */
static void an_unmap_leaves_pages_kernel_filled(void **state)
{
	uint32_t start = CHUNK + CHUNK_PAGES, n = FILLED - 2 * CHUNK_PAGES;

	map_two_parts(0);
	for (uint32_t p = CHUNK; p < CHUNK + FILLED; p += CHUNK_PAGES)
		make_native(p);
	assert_true(n > FP_KERNEL_FILLED_SHORT);
	leave_cuts(2);
	assert_int_equal(unmap(start, n), 0);
	drop_fillers(FILLERS);
	assert_true(fp_layout_is_free(&space.layout, start, start + n));
	for (uint32_t p = start; p < start + n; p++)
		assert_int_equal(word_of(p), FP_PAGE_ZERO);
	assert_int_equal(*fp_far_addr(&far, CHUNK), 'n');
	assert_int_equal(*fp_far_addr(&far, start + n), 'n');
	assert_int_equal(fp_space_map_at(&space, fp_far_addr(&far, start), (size_t)n << FP_PAGE_SHIFT,
	                                 PROT_READ | PROT_WRITE, FP_MAP_LAZY),
	                 0);
	for (uint32_t p = start; p < start + n; p++)
		assert_true(is_registered(p));
	unmap_all();
}

/*
 * The pages are in the middle of a mapping, which must be cut twice. The limit allows one cut. The
 * new place joins the end of the mapping.
 */
static void refuse_move(unsigned flags)
{
	uint32_t from = FIRST + PART / 2, to = FIRST + MAPPED;
	const struct fp_remap remap = {.old_addr = fp_far_addr(&far, from),
	                               .old_len = 2 * FP_PAGE_SIZE,
	                               .new_len = 2 * FP_PAGE_SIZE,
	                               .flags = FP_REMAP_MAYMOVE | FP_REMAP_FIXED,
	                               .new_addr = fp_far_addr(&far, to)};
	void *moved;

	map_two_parts(flags);
	leave_cuts(1);
	assert_int_equal(fp_space_remap_to(&space, &remap, &moved), -ENOMEM);
	drop_fillers(FILLERS);
	assert_true(are_intact(FIRST, 2 * PART));
	assert_true(fp_layout_is_free(&space.layout, to, to + 2));
	assert_int_equal(fp_space_remap_to(&space, &remap, &moved), 0);
	assert_true(are_intact(to, 2));
	unmap_all();
}

static void a_refused_move_changes_nothing(void **state)
{
	refuse_move(0);
}

static void a_refused_move_without_dumps(void **state)
{
	refuse_move(FP_PIECE_DONTDUMP);
}

static bool is_locked(uint32_t page)
{
	return madvise(fp_far_addr(&far, page), FP_PAGE_SIZE, MADV_DONTNEED) < 0 && errno == EINVAL;
}

static int lock(uint32_t page, uint32_t n)
{
	return fp_space_mlock(&space, fp_far_addr(&far, page), (size_t)n << FP_PAGE_SHIFT, true);
}

/* Each of the kernel's two mappings would have to be cut. The limit allows one cut. */
static void a_refused_lock_locks_nothing(void **state)
{
	map_two_parts(0);
	leave_cuts(1);
	assert_true(lock(FIRST + 1, 2 * PART - 2) < 0);
	drop_fillers(FILLERS);
	for (uint32_t p = FIRST; p < FIRST + 2 * PART; p++)
		assert_false(is_locked(p));
	unmap_all();
}

/* The first page is lost, so it can't be locked. The last pages keep the lock that they have. */
static void a_lock_that_fails_keeps_locks(void **state)
{
	map_two_parts(0);
	assert_int_equal(lock(FIRST + PART, PART), 0);
	set_word(FIRST, FP_PAGE_LOST);
	assert_int_equal(lock(FIRST, 2 * PART), -EAGAIN);
	for (uint32_t p = FIRST; p < FIRST + 2 * PART; p++)
		assert_true(is_locked(p) == (p >= FIRST + PART));
	unmap_all();
}

/* ---- a limit that shrinks the range ---- */

#define SMALL (1ull << 30)

/* A call may have pinned pages where nothing is mapped, and reads their words. */
static void shrink_around_a_pin(void)
{
	const struct fp_page_range range = {.page = (uint32_t)far.n_pages - CHUNK_PAGES, .n = 2};
	uint32_t place;

	map_all();
	if (fp_pin_table_init(&far.pins) < 0)
		_exit(2);
	place = fp_pin_publish(&far.pins, &range, 1, 0);
	if (fp_space_fit(&space, RLIMIT_AS, SMALL) != -EBUSY || !fp_far_has(&far, range.page) ||
	    word_of(range.page) != FP_PAGE_ZERO)
		_exit(3);
	fp_pin_clear(&far.pins, place, 1);
	if (!fp_layout_is_free(&space.layout, range.page, range.page + range.n) ||
	    fp_space_fit(&space, RLIMIT_AS, SMALL) != 0 || fp_far_has(&far, range.page))
		_exit(4);
	_exit(0);
}

#define PINS    (FP_PIN_MAX / 2)
#define REFUSED 100u

static atomic_bool refused_all;

/* Returns NULL if the last chunk was in the range all the time. */
static void *watch_range(void *arg)
{
	void *seen = NULL;

	while (!atomic_load(&refused_all))
		if (!fp_far_has(&far, (uint32_t)far.n_pages - 1))
			seen = arg;
	return seen;
}

/* Before the pin outside of the new range, the table has many inside. So the search takes long. */
static void shrink_in_vain(void)
{
	const struct fp_page_range inside = {.page = FIRST, .n = 1},
	                           outside = {.page = (uint32_t)far.n_pages - CHUNK_PAGES, .n = 2};
	pthread_t thread;
	void *seen;

	map_all();
	if (fp_pin_table_init(&far.pins) < 0)
		_exit(2);
	for (uint32_t i = 0; i < PINS; i++)
		(void)fp_pin_publish(&far.pins, &inside, 1, i);
	(void)fp_pin_publish(&far.pins, &outside, 1, PINS);
	if (pthread_create(&thread, NULL, watch_range, &far) != 0)
		_exit(3);
	for (unsigned i = 0; i < REFUSED; i++)
		if (fp_space_fit(&space, RLIMIT_AS, SMALL) != -EBUSY)
			_exit(4);
	atomic_store(&refused_all, true);
	_exit(pthread_join(thread, &seen) == 0 && !seen ? 0 : 5);
}

/* In a process of its own: a range that was shrunk can't be unreserved. */
static int status_of_shrink(void (*shrink)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		if (set_up(NULL) < 0)
			_exit(1);
		shrink();
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void a_limit_leaves_pinned_pages(void **state)
{
	assert_int_equal(status_of_shrink(shrink_around_a_pin), 0);
}

static void nobody_sees_a_range_that_is_refused(void **state)
{
	assert_int_equal(status_of_shrink(shrink_in_vain), 0);
}

/* ---- granted tokens ---- */

#define GRANTED 100u

/*
 * Acts as if all resident pages were pinned, and as if this page had got a token beyond the budget.
 */
static void grant_one(uint32_t page, uint64_t word)
{
	atomic_store(&far.budget.excess, GRANTED);
	assert_int_equal(fp_budget_take(&far.budget, 1), 1);
	set_word(page, word);
}

static void assert_taken_back(unsigned n)
{
	assert_int_equal(atomic_load(&far.budget.excess), GRANTED - n);
	assert_int_equal(atomic_load(&far.budget.resident), 0);
}

static void evict_absent(uint32_t page)
{
	struct fp_evictor *evictor = new_evictor();
	uint32_t next;

	(void)fp_evictor_run_range(evictor, page, 1, &next);
	free_evictor(evictor);
}

/* A token granted beyond the budget ends with its page, in whichever way the page is removed. */
static void what_goes_takes_grants_back(void **state)
{
	char *addr = fp_far_addr(&far, FIRST);
	const struct fp_remap to_next = {.old_addr = addr,
	                                 .old_len = FP_PAGE_SIZE,
	                                 .new_len = FP_PAGE_SIZE,
	                                 .flags = FP_REMAP_MAYMOVE | FP_REMAP_FIXED,
	                                 .new_addr = addr + 2 * FP_PAGE_SIZE};
	void *fresh;

	map_all();
	far.capture_by_move = far.uffd.has_move;
	grant_one(FIRST, FP_PAGE_RESIDENT | FP_PAGE_DIRTY);
	assert_int_equal(fp_space_advise(&space, addr, FP_PAGE_SIZE, MADV_DONTNEED), 0);
	assert_taken_back(1);

	grant_one(FIRST, FP_PAGE_RESIDENT | FP_PAGE_DIRTY); /* the kernel's own mapping replaces it */
	fp_space_forget(&space, FIRST, FIRST + 1);
	assert_taken_back(1);

	grant_one(FIRST, FP_PAGE_RESIDENT | FP_PAGE_DIRTY); /* a bare madvise drops it; an evictor notices */
	evict_absent(FIRST);
	assert_int_equal(word_of(FIRST), FP_PAGE_ZERO);
	assert_taken_back(1);

	grant_one(FIRST, FP_PAGE_RESIDENT | FP_PAGE_DIRTY); /* the same, but mremap notices */
	assert_int_equal(fp_space_remap_to(&space, &to_next, &fresh), 0);
	assert_taken_back(1);

	grant_one(FIRST + 1, FP_PAGE_ARRIVING); /* the page's mapping is gone */
	assert_int_equal(fp_uffd_unregister(&far.uffd, addr, 2 * FP_PAGE_SIZE), 0);
	assert_int_equal(fp_far_install(&far, FIRST + 1, 1, bytes, true), 0);
	assert_taken_back(1);

	make_native(CHUNK); /* only one page is filled when the kernel's filling ends */
	atomic_store(&far.budget.excess, 2 * CHUNK_PAGES);
	assert_int_equal(fp_kernel_filled_end(&far, CHUNK), 0);
	assert_int_equal(atomic_load(&far.budget.excess), CHUNK_PAGES + 1);
	unmap_all();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_install_during_a_bare_call_ends_the_process),
	    TEST(a_chunk_half_given_to_the_kernel),
	    TEST(pages_behind_others_that_cannot_leave),
	    TEST(a_search_ends_if_no_page_can_leave),
	    TEST(a_refused_unmap_changes_nothing),
	    TEST(a_refused_unmap_without_dumps),
	    TEST(a_refused_unmap_of_two_pieces),
	    TEST(an_unmap_leaves_pages_kernel_filled),
	    TEST(a_refused_move_changes_nothing),
	    TEST(a_refused_move_without_dumps),
	    TEST(a_refused_lock_locks_nothing),
	    TEST(a_lock_that_fails_keeps_locks),
	    cmocka_unit_test(a_limit_leaves_pinned_pages),
	    cmocka_unit_test(nobody_sees_a_range_that_is_refused),
	    TEST(what_goes_takes_grants_back),
	};
	struct fp_uffd uffd;
	int r = fp_uffd_open(0, &uffd);

	if (r < 0) {
		printf("no userfaultfd: %s\n", strerror(-r));
		return 77;
	}
	fp_uffd_close(&uffd);
	return cmocka_run_group_tests_name("farkernel", tests, NULL, NULL);
}
