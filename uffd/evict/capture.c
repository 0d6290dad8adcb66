/* See capture.h. */
#include "capture.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "abi.h"
#include "cleanup.h"
#include "clock.h"
#include "presence.h"
#include "kernel_filled.h"
#include "unheld.h"

#define KEEP_NS 100000000u /* how long the lock of the layout is tried, if a bare call closed a page */

void fp_capture_refuse(struct fp_far *far, uint32_t page)
{
	fp_far_end(far, page, FP_EV_REFUSED);
	fp_count(&far->stats->evict_refused, 1);
}

/* buf: the captured bytes, now the only copy. */
static void batch_add(struct fp_batch *b, uint32_t page, void *buf)
{
	struct fp_leaving *l = &b->items[b->n];

	*l = (struct fp_leaving){.page = page, .batch = b};
	l->io.buf = buf;
	l->io.user = l;
	b->n++;
	b->open++;
}

static char *next_copy(const struct fp_batch *b)
{
	return b->copies + (size_t)b->n * FP_PAGE_SIZE;
}

/*
 * Ends the capture of a page that a bare call dropped without an event. It reads zeros now, as the
 * kernel promised the program.
 */
static void vanished(struct fp_far *far, uint32_t page)
{
	uint64_t old;
	struct fp_page_step s = fp_pager_apply(&far->words[page], FP_EV_WAS_ZERO, &old);

	if (fp_page_slot(old))
		fp_store_slot_free(far->store, fp_page_slot(old));
	fp_far_settle(far, page, s);
	fp_budget_leave(&far->budget, 1);
}

static ssize_t move_out(struct fp_far *far, void *dst, uint32_t page, unsigned n)
{
	return fp_uffd_move(&far->uffd, far->pagemap_fd, dst, fp_far_addr(far, page),
	                    (size_t)n << FP_PAGE_SHIFT);
}

/*
 * First makes the page writable, and it stays writable until it is moved. If it were protected, the
 * kernel's write would wait for this thread, and this thread for the write.
 */
int fp_capture_unshare(struct fp_far *far, uint32_t page)
{
	char *addr = fp_far_addr(far, page);

	if (!atomic_load_explicit(&far->forked, memory_order_relaxed) ||
	    fp_uffd_protect(&far->uffd, addr, FP_PAGE_SIZE, false) < 0 ||
	    madvise(addr, FP_PAGE_SIZE, MADV_POPULATE_WRITE) < 0)
		return -EBUSY;
	return 0;
}

/* For a clean page that a child shares, the result is -EINVAL: it can be copied instead. */
static ssize_t unshare_and_move(struct fp_far *far, void *dst, uint32_t page)
{
	ssize_t r;

	if (!atomic_load_explicit(&far->forked, memory_order_relaxed))
		return -EBUSY;
	if (!(atomic_load_explicit(&far->words[page], memory_order_relaxed) & FP_PAGE_DIRTY))
		return -EINVAL;
	if (fp_capture_unshare(far, page) < 0)
		return -EBUSY;
	r = move_out(far, dst, page, 1);
	return r == -EINVAL ? -EPERM : r; /* its protection has changed meanwhile */
}

/* A run of neighbours that is to be moved, and where to. n: how many pages; cut as we learn
 * more. */
struct capture_run {
	uint32_t page;
	unsigned n;
	char *dst;
};

/* The kernel refuses for good: reclaim then grants more local memory instead of waiting. */
static ssize_t sealed(struct fp_far *far)
{
	atomic_store_explicit(&far->sealed, true, memory_order_relaxed);
	return -EPERM;
}

static char *twin_of(const struct fp_batch *b)
{
	return b->stage + (size_t)FP_STAGE_PAGES * FP_PAGE_SIZE;
}

/* The batch's next place in the twin of its stage. NULL: the system permits no such memory. */
static char *open_twin(struct fp_batch *b)
{
	if (!b->twin_open)
		b->twin_open = mprotect(twin_of(b), (size_t)FP_BUDGET_BATCH_MAX * FP_PAGE_SIZE,
		                        PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
	b->twin_used |= b->twin_open;
	return b->twin_open ? twin_of(b) + (size_t)b->n * FP_PAGE_SIZE : NULL;
}

static ssize_t move_run(struct fp_far *far, const struct capture_run *run)
{
	return move_out(far, run->dst, run->page, run->n);
}

/* A dirty page that stays must not be write-protected, a clean page must be. */
static void protect_clean(struct fp_far *far, uint32_t page, unsigned n)
{
	for (uint32_t p = page; p < page + n; p++) {
		bool dirty = atomic_load_explicit(&far->words[p], memory_order_relaxed) & FP_PAGE_DIRTY;

		(void)fp_uffd_protect(&far->uffd, fp_far_addr(far, p), FP_PAGE_SIZE, !dirty);
	}
}

/* True if pages of this protection can be moved as they are, to the stage or its twin. */
static bool is_open(int prot)
{
	return (prot & (PROT_READ | PROT_WRITE)) == (PROT_READ | PROT_WRITE);
}

/* Pages that are accessible, but not open: makes them writable for the time of the move. */
static ssize_t move_opened(struct fp_far *far, const struct capture_run *run, int prot)
{
	char *addr = fp_far_addr(far, run->page);
	size_t len = (size_t)run->n << FP_PAGE_SHIFT;
	unsigned moved;
	ssize_t r;

	if (fp_uffd_protect(&far->uffd, addr, len, true) < 0)
		return -EPERM;
	if (mprotect(addr, len, prot | PROT_READ | PROT_WRITE) < 0) {
		protect_clean(far, run->page, run->n);
		return sealed(far);
	}
	r = move_run(far, run);
	fp_unheld_close(addr, len, prot);
	moved = r > 0 ? (unsigned)(r >> FP_PAGE_SHIFT) : 0;
	protect_clean(far, run->page + moved, run->n - moved);
	return r;
}

/* Copies a page, and drops it if nobody holds it. -EBUSY: fp_unheld_keep must follow. */
static int copy_out(struct fp_far *far, uint32_t page, bool is_open, void *dst)
{
	char *addr = fp_far_addr(far, page);
	int r;

	if (fp_uffd_protect(&far->uffd, addr, FP_PAGE_SIZE, true) < 0)
		return -EAGAIN;
	r = fp_unheld_take(far->mem_fd, far->pagemap_fd, addr, is_open, dst);
	return r == -EIO && fp_presence_is_absent(far->pagemap_fd, addr) ? -ENOENT : r;
}

static ssize_t end_copy(struct fp_far *far, uint32_t page, int r)
{
	if (r == 0)
		return FP_PAGE_SIZE;
	if (r == -ENOENT)
		return r;
	protect_clean(far, page, 1);
	return r == -EPERM ? sealed(far) : -EPERM;
}

/* Before a page is kept. A thread may then write to it unseen, so the page counts as written. */
static void expose(struct fp_far *far, uint32_t page)
{
	atomic_fetch_or(&far->words[page], FP_PAGE_DIRTY);
	while (fp_far_unprotect(far, page) == -EAGAIN)
		; /* a bare call changes a mapping, and that ends the process */
}

/*
 * Takes a page that the program can't read, or can't write. The caller has the lock. fp_unheld_keep
 * may have to open the page. So this first makes it a mapping of its own, by an advice that means
 * nothing for such memory.
 */
static ssize_t copy_closed(struct fp_far *far, const struct capture_run *run, int prot)
{
	char *addr = fp_far_addr(far, run->page);
	int r = -EPERM;

	if (madvise(addr, FP_PAGE_SIZE, MADV_SEQUENTIAL) == 0) {
		r = copy_out(far, run->page, false, run->dst);
		if (r == -EBUSY) {
			expose(far, run->page);
			if (!fp_unheld_keep(addr, prot))
				r = 0;
		}
		(void)madvise(addr, FP_PAGE_SIZE, MADV_NORMAL);
	}
	return end_copy(far, run->page, r);
}

/* Keeps a page whose mapping was closed just now. Returns 1, 0 if the kernel has dropped it, or
 * -EBUSY. */
static int keep_closed(struct fp_far *far, uint32_t page)
{
	const struct fp_piece *piece;
	int r = -EBUSY;

	if (!far->layout || pthread_mutex_trylock(far->layout_lock) != 0)
		return -EBUSY;
	piece = fp_layout_next(far->layout, page);
	if (piece && piece->start <= page)
		r = fp_unheld_keep(fp_far_addr(far, page), piece->prot);
	pthread_mutex_unlock(far->layout_lock);
	return r;
}

/*
 * Keeps a page of open memory, without the lock. False: the kernel has dropped the page. Only a
 * bare call can have closed it: see copy_open. Then the lock is tried for a short time, as its
 * holder may wait for this page.
 */
static bool keep_open(struct fp_far *far, uint32_t page)
{
	uint64_t until = fp_clock_ns() + KEEP_NS;
	char *addr = fp_far_addr(far, page);
	int r;

	expose(far, page);
	do {
		if (fp_unheld_touch(addr))
			return true;
		if (!fp_presence_is_here(far->pagemap_fd, addr))
			return false;
		r = keep_closed(far, page);
		if (r >= 0)
			return r;
		sched_yield();
	} while (fp_clock_ns() < until);
	return true;
}

static bool is_open_now(const struct fp_far *far, uint32_t page)
{
	struct fp_piece piece = {.prot = PROT_READ | PROT_WRITE};
	uint32_t changes;

	return !far->layout || (fp_layout_peek(far->layout, page, &piece, &changes) && is_open(piece.prot));
}

/*
 * For a page that is readable and writable: needs no lock. Sequentially consistent with
 * fp_capture_pause: it sees us, and waits until the page is kept; or we see that the memory is
 * being closed, or is closed.
 */
static ssize_t copy_open(struct fp_far *far, const struct capture_run *run)
{
	int r = -EPERM;

	atomic_fetch_add(&far->copying, 1);
	if (!atomic_load(&far->closing) && is_open_now(far, run->page)) {
		r = copy_out(far, run->page, true, run->dst);
		if (r == -EBUSY && !keep_open(far, run->page))
			r = 0;
		r = (int)end_copy(far, run->page, r);
	}
	atomic_fetch_sub(&far->copying, 1);
	return r;
}

void fp_capture_pause(struct fp_far *far)
{
	atomic_fetch_add(&far->closing, 1);
	while (atomic_load(&far->copying))
		sched_yield();
}

void fp_capture_resume(struct fp_far *far)
{
	atomic_fetch_sub(&far->closing, 1);
}

/* The program's mapping can't change meanwhile: the caller has its lock. */
static ssize_t take_closed(struct fp_far *far, struct fp_batch *b, struct capture_run *run)
{
	const struct fp_piece *piece = fp_layout_next(far->layout, run->page);
	ssize_t r = -EBUSY;

	if (!piece || piece->start > run->page || is_open(piece->prot)) /* it has changed */
		return -EPERM;
	run->n = FP_MIN(run->n, piece->end - run->page);
	if (piece->prot & (PROT_READ | PROT_WRITE) && fp_far_moves(far)) {
		if (piece->prot & PROT_EXEC)
			run->dst = open_twin(b);
		r = run->dst ? move_opened(far, run, piece->prot) : sealed(far);
		if (r != -EBUSY || !fp_presence_is_shared(far->pagemap_fd, fp_far_addr(far, run->page)))
			return r;
	}
	run->n = 1;
	run->dst = next_copy(b);
	return copy_closed(far, run, piece->prot);
}

static ssize_t take_open(struct fp_far *far, struct fp_batch *b, struct capture_run *run, int prot)
{
	if (!fp_far_moves(far)) {
		run->n = 1;
		run->dst = next_copy(b);
		return copy_open(far, run);
	}
	if (prot & PROT_EXEC)
		run->dst = open_twin(b);
	return run->dst ? move_run(far, run) : sealed(far);
}

/*
 * Takes the first pages of a run according to their protection. The program's thread may have the
 * lock, and wait for this one: then closed pages stay for now.
 */
static ssize_t take_by_protection(struct fp_far *far, struct fp_batch *b, struct capture_run *run)
{
	struct fp_piece piece = {.end = UINT32_MAX, .prot = PROT_READ | PROT_WRITE};
	uint32_t changes;
	ssize_t r;

	if (far->layout && !fp_layout_peek(far->layout, run->page, &piece, &changes))
		return -EPERM;
	run->n = FP_MIN(run->n, piece.end - run->page);
	if (is_open(piece.prot))
		return take_open(far, b, run, piece.prot);
	if (pthread_mutex_trylock(far->layout_lock) != 0)
		return -EPERM;
	r = take_closed(far, b, run);
	pthread_mutex_unlock(far->layout_lock);
	return r;
}

/*
 * The kernel says EINVAL if protections differ, but also if the range crosses the end of a mapping,
 * whose parts may differ in more than protection. So tries fewer pages, too.
 */
static ssize_t move_somehow(struct fp_far *far, struct fp_batch *b, struct capture_run *run)
{
	char *stage = run->dst;
	ssize_t r = move_run(far, run);

	while (r == -EINVAL) {
		run->dst = stage;
		r = take_by_protection(far, b, run);
		if (r != -EINVAL || run->n == 1)
			break;
		run->n /= 2;
		run->dst = stage;
		r = move_run(far, run);
	}
	return r;
}

static ssize_t take_run(struct fp_far *far, struct fp_batch *b, struct capture_run *run)
{
	ssize_t r;

	if (!fp_far_moves(far))
		return take_by_protection(far, b, run);
	r = move_somehow(far, b, run);
	if (r == -EINVAL)
		return -EPERM;
	if (r == -EBUSY)
		r = unshare_and_move(far, run->dst, run->page);
	if (r != -EINVAL)
		return r;
	run->n = 1;
	run->dst = next_copy(b);
	return copy_open(far, run);
}

/*
 * Captures the first pages of a run of neighbours. Returns how many are captured or settled now, at
 * least one.
 */
static unsigned take(struct fp_far *far, struct fp_batch *b, uint32_t page, unsigned n)
{
	struct capture_run run = {.page = page, .n = n, .dst = b->stage + (size_t)b->n * FP_PAGE_SIZE};
	ssize_t r = take_run(far, b, &run);
	unsigned k = r > 0 ? (unsigned)(r >> FP_PAGE_SHIFT) : 1;

	for (unsigned i = 0; r > 0 && i < k; i++)
		batch_add(b, page + i, run.dst + (size_t)i * FP_PAGE_SIZE);
	if (r == -ENOENT)
		vanished(far, page);
	else if (r <= 0)
		fp_capture_refuse(far, page);
	return k;
}

void fp_capture(struct fp_far *far, struct fp_batch *b, const uint32_t *pages, unsigned n)
{
	for (unsigned i = 0; i < n;)
		i += take(far, b, pages[i], fp_run_length(pages + i, n - i));
}

/*
 * Drops the stage's pages. If the program has locked all its memory, ours too (mlockall), madvise
 * fails: then unlocks the stage first.
 */
static void empty(char *stage, unsigned n)
{
	size_t len = (size_t)n << FP_PAGE_SHIFT;

	if (madvise(stage, len, MADV_DONTNEED) < 0 && munlock(stage, len) == 0)
		madvise(stage, len, MADV_DONTNEED);
}

void fp_capture_empty_stage(struct fp_batch *b)
{
	empty(b->stage, b->n);
	if (b->twin_used)
		empty(twin_of(b), b->n);
	b->twin_used = false;
}
