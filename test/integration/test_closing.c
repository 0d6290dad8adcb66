/*
 * What must not hang on time: a page that somebody holds, in memory that a thread closes meanwhile;
 * an evictor's run that lasts long, when the agent gets wary; and who writes between two tries. The
 * linker puts our functions before two of the product's, so that we stop the evictor there and turn
 * the clock on. The real kernel, no agent threads. Room: test/integration.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "evict.h"
#include "far.h"
#include "presence.h"
#include "space_priv.h"
#include "unheld.h"

#define PAGE   FP_FAR_OWN_PAGES
#define MAPPED 3u    /* pages; one of them is present, and a pipe holds it */
#define YIELDS 1000u /* so often we look whether a thread has returned */

bool __real_fp_unheld_touch(void *addr);
bool __wrap_fp_unheld_touch(void *addr);
uint64_t __real_fp_clock_ns(void);
uint64_t __wrap_fp_clock_ns(void);
int __real_madvise(void *addr, size_t len, int advice);
int __wrap_madvise(void *addr, size_t len, int advice);

static struct fp_far far;
static struct fp_space space;
static struct fp_statspage stats;
static char bytes[FP_PAGE_SIZE] __attribute__((aligned(4096)));
static _Atomic uint64_t turned_ns;
static atomic_bool is_touching, is_closed, has_evicted, has_returned, returned_early;
static void (*meanwhile)(void);
static void (*after_try)(void);

uint64_t __wrap_fp_clock_ns(void)
{
	return __real_fp_clock_ns() + atomic_fetch_add(&turned_ns, 10 * FP_NSEC_PER_MSEC);
}

static void turn_clock(void)
{
	atomic_fetch_add(&turned_ns, 3600 * FP_NSEC_PER_SEC);
}

/* The evictor comes here when it has found that somebody holds the page. */
bool __wrap_fp_unheld_touch(void *addr)
{
	if (!atomic_exchange(&is_touching, true))
		meanwhile();
	return __real_fp_unheld_touch(addr);
}

int __wrap_madvise(void *addr, size_t len, int advice)
{
	int r = __real_madvise(addr, len, advice);
	void (*act)(void) = after_try;

	if (advice == MADV_PAGEOUT && act) {
		after_try = NULL;
		act();
	}
	return r;
}

/* ---- a page in a pipe, and an evictor ---- */

static int held[2];
static struct fp_evictor *evictor;

static void hold_page(void)
{
	struct iovec part = {.iov_base = fp_far_addr(&far, PAGE), .iov_len = FP_PAGE_SIZE};

	assert_int_equal(pipe2(held, O_CLOEXEC), 0);
	assert_int_equal(vmsplice(held[1], &part, 1, 0), FP_PAGE_SIZE);
}

static void let_go(void)
{
	close(held[0]);
	close(held[1]);
}

static int set_up(void **state)
{
	const struct fp_piece piece = {
	    .start = PAGE, .end = PAGE + MAPPED, .prot = PROT_READ | PROT_WRITE, .lazy = true};
	char *addr;

	is_touching = is_closed = has_evicted = has_returned = returned_early = false;
	memset(bytes, 'x', sizeof(bytes));
	far = (struct fp_far){.stats = &stats, .deadline_ns = FP_NSEC_PER_SEC, .pidfd = -1};
	far.mem_fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	far.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fp_uffd_open(0, &far.uffd) < 0 || fp_far_reserve(&far) < 0 ||
	    fp_budget_init(&far.budget, 64) < 0 || fp_pin_table_init(&far.pins) < 0 ||
	    fp_space_init(&space, &far, NULL) < 0)
		return -1;
	addr = fp_far_addr(&far, PAGE);
	if (mprotect(addr, MAPPED * FP_PAGE_SIZE, PROT_READ | PROT_WRITE) < 0 ||
	    mprotect(far.base, (size_t)FP_STAGE_PAGES << FP_PAGE_SHIFT, PROT_READ | PROT_WRITE) < 0 ||
	    fp_layout_add(&space.layout, piece) < 0 || fp_budget_take(&far.budget, 1) != 1 ||
	    fp_evictor_new(&far, NULL, far.base, &evictor) < 0)
		return -1;
	fp_far_touch(&far, PAGE);
	atomic_store(&far.words[PAGE], FP_PAGE_ARRIVING);
	if (fp_far_install(&far, PAGE, 1, bytes, true) != 1)
		return -1;
	hold_page();
	return 0;
}

static int tear_down(void **state)
{
	fp_evictor_free(evictor);
	fp_space_done(&space);
	fp_pin_table_done(&far.pins);
	fp_budget_done(&far.budget);
	fp_uffd_close(&far.uffd);
	fp_far_unreserve(&far);
	close(far.mem_fd);
	close(far.pagemap_fd);
	return 0;
}

static void evict_page(void)
{
	uint32_t next;

	assert_int_equal(fp_evictor_run_range(evictor, PAGE, 1, &next), 0);
	assert_true(is_touching);
	atomic_store(&has_evicted, true);
}

/* The kernel is asked to drop what it may. It must have lost the right to drop this page. */
static void assert_kept(void)
{
	char *addr = fp_far_addr(&far, PAGE);

	let_go();
	for (unsigned i = 0; i < 10; i++)
		(void)madvise(addr, FP_PAGE_SIZE, MADV_PAGEOUT);
	assert_false(fp_presence_is_absent(far.pagemap_fd, addr));
	assert_memory_equal(addr, bytes, FP_PAGE_SIZE);
}

/* ---- memory that is closed meanwhile ---- */

/* Then keeps the lock, as a long call on mappings does. */
static void *close_memory(void *arg)
{
	void *addr = fp_far_addr(&far, PAGE);
	int r;

	while (!atomic_load(&is_touching))
		sched_yield();
	r = fp_space_protect(&space, addr, FP_PAGE_SIZE, PROT_READ);
	fp_space_lock(&space);
	atomic_store(&is_closed, true);
	while (!atomic_load(&has_evicted))
		sched_yield();
	fp_space_unlock(&space);
	return r == 0 ? arg : NULL;
}

static void await_closing(void)
{
	while (!atomic_load(&is_closed) && !atomic_load(&far.closing))
		sched_yield();
	turn_clock();
}

static void a_held_page_in_memory_that_is_closed(void **state)
{
	pthread_t thread;
	void *done;

	meanwhile = await_closing;
	assert_int_equal(pthread_create(&thread, NULL, close_memory, &far), 0);
	evict_page();
	assert_int_equal(pthread_join(thread, &done), 0);
	assert_ptr_equal(done, &far);
	assert_kept();
}

/* ---- at the kernel's limit on mappings ---- */

#define FILLERS 200000u
#define CUTS    8u /* more than the whole call needs */

static char *fillers[FILLERS];

/* Neighbours differ, so that the kernel does not merge them. Returns how many there are. */
static unsigned fill_mappings(void)
{
	unsigned n = 0;

	for (; n < FILLERS; n++) {
		fillers[n] = mmap(NULL, FP_PAGE_SIZE, n % 2 ? PROT_READ : PROT_NONE,
		                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (fillers[n] == MAP_FAILED)
			break;
	}
	return n;
}

static void drop_filler(unsigned i)
{
	assert_int_equal(munmap(fillers[i], FP_PAGE_SIZE), 0);
}

/* Each number of mappings may fail another step of the call. */
static void a_held_page_in_closed_memory_that_moves(void **state)
{
	const struct fp_remap what = {.old_addr = fp_far_addr(&far, PAGE),
	                              .old_len = MAPPED * FP_PAGE_SIZE,
	                              .new_len = 2ul * MAPPED * FP_PAGE_SIZE,
	                              .flags = FP_REMAP_MAYMOVE | FP_REMAP_FIXED,
	                              .new_addr = fp_far_addr(&far, PAGE + 100)};
	unsigned n;
	void *moved;

	meanwhile = turn_clock;
	assert_int_equal(fp_space_protect(&space, what.old_addr, what.old_len, PROT_READ), 0);
	n = fill_mappings();
	for (unsigned cuts = 0; cuts < CUTS; cuts++) {
		int r;

		drop_filler(--n);
		r = fp_space_remap_to(&space, &what, &moved);
		assert_true(r == -EBUSY || r == -ENOMEM);
		assert_kept();
		hold_page();
	}
	while (n)
		drop_filler(--n);
	let_go();
}

/* ---- a long run ---- */

static pthread_t wary_thread;

static void *get_wary(void *arg)
{
	fp_far_be_wary(&far);
	atomic_store(&has_returned, true);
	return arg;
}

static void await_wary(void)
{
	assert_int_equal(pthread_create(&wary_thread, NULL, get_wary, NULL), 0);
	while (!atomic_load(&far.wary))
		sched_yield();
	turn_clock();
	for (unsigned i = 0; i < YIELDS && !atomic_load(&has_returned); i++)
		sched_yield();
	atomic_store(&returned_early, atomic_load(&has_returned));
}

static void a_run_that_began_before_the_agent_is_wary(void **state)
{
	meanwhile = await_wary;
	evict_page();
	assert_int_equal(pthread_join(wary_thread, NULL), 0);
	assert_false(returned_early);
	let_go();
}

/* ---- who writes to a page, and lets it go between two tries to drop it ---- */

static struct io_uring ring;
static int y_file = -1;
static char *buffer;

/* io_uring does not mark the pages of its registered buffers as written. */
static void write_and_let_go(void)
{
	struct io_uring_cqe *cqe;

	io_uring_prep_read_fixed(io_uring_get_sqe(&ring), y_file, buffer, FP_PAGE_SIZE, 0, 0);
	assert_int_equal(io_uring_submit_and_wait(&ring, 1), 1);
	assert_int_equal(io_uring_wait_cqe(&ring, &cqe), 0);
	assert_int_equal(cqe->res, FP_PAGE_SIZE);
	io_uring_cqe_seen(&ring, cqe);
	assert_int_equal(io_uring_unregister_buffers(&ring), 0);
}

static void a_holder_that_writes_and_lets_go(void **state)
{
	char y[FP_PAGE_SIZE];
	struct iovec part = {.iov_len = FP_PAGE_SIZE};
	int r;

	if (io_uring_queue_init(1, &ring, 0) < 0)
		skip();
	buffer = mmap(NULL, FP_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(buffer, MAP_FAILED);
	memset(buffer, 'x', FP_PAGE_SIZE);
	memset(y, 'y', sizeof(y));
	y_file = memfd_create("y", MFD_CLOEXEC);
	assert_int_equal(write(y_file, y, sizeof(y)), sizeof(y));
	part.iov_base = buffer;
	assert_int_equal(io_uring_register_buffers(&ring, &part, 1), 0);
	after_try = write_and_let_go;
	r = fp_unheld_take(far.mem_fd, far.pagemap_fd, buffer, true, bytes);
	assert_null(after_try);
	assert_memory_equal(r == 0 ? bytes : buffer, y, FP_PAGE_SIZE);
	munmap(buffer, FP_PAGE_SIZE);
	close(y_file);
	io_uring_queue_exit(&ring);
	let_go();
}

/* ---- */

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(a_held_page_in_memory_that_is_closed),
	    TEST(a_held_page_in_closed_memory_that_moves),
	    TEST(a_run_that_began_before_the_agent_is_wary),
	    TEST(a_holder_that_writes_and_lets_go),
	};
	struct fp_uffd uffd;
	int r = fp_uffd_open(0, &uffd);

	if (r < 0) {
		printf("no userfaultfd: %s\n", strerror(-r));
		return 77;
	}
	fp_uffd_close(&uffd);
	return cmocka_run_group_tests_name("closing", tests, NULL, NULL);
}
