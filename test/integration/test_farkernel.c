/* The far range against the real kernel, without agent threads. Room: test/integration. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "evict.h"
#include "far.h"
#include "kernel_filled.h"
#include "space_priv.h"

#define CHUNK_PAGES (1u << FP_CHUNK_SHIFT)
#define FIRST       1024u                /* the first page that the tests map */
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
	struct fp_evictor *evictor;
	uint32_t next;

	assert_int_equal(fp_pin_table_init(&far.pins), 0);
	assert_int_equal(mprotect(far.base, (size_t)FP_STAGE_PAGES << FP_PAGE_SHIFT, PROT_READ | PROT_WRITE),
	                 0);
	assert_int_equal(fp_evictor_new(&far, NULL, far.base, &evictor), 0);
	(void)fp_evictor_run_range(evictor, page, 1, &next);
	fp_evictor_free(evictor);
	fp_pin_table_done(&far.pins);
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
