/* See capture.h. */
#include "capture.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "abi.h"
#include "cleanup.h"
#include "presence.h"
#include "process_memory.h"
#include "kernel_filled.h"
#include "unheld.h"

void fp_capture_refuse(struct fp_far *far, uint32_t page)
{
	fp_far_end(far, page, FP_EV_REFUSED);
	fp_count(&far->stats->evict_refused, 1);
}

/* buf: the captured bytes. moved: they are the only copy. */
static void batch_add(struct fp_batch *b, uint32_t page, void *buf, bool moved)
{
	struct fp_leaving *l = &b->items[b->n];

	*l = (struct fp_leaving){.page = page, .moved = moved, .batch = b};
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

static void take_by_protect(struct fp_far *far, struct fp_batch *b, uint32_t page)
{
	char *addr = fp_far_addr(far, page);
	void *copy = next_copy(b);

	if (fp_uffd_protect(&far->uffd, addr, FP_PAGE_SIZE, true) < 0) {
		fp_capture_refuse(far, page);
		return;
	}
	if (!fp_process_memory_read(far->mem_fd, addr, copy)) {
		if (fp_presence_is_absent(far->pagemap_fd, addr))
			vanished(far, page);
		else
			fp_capture_refuse(
			    /* keep it protected: a write to a clean page must not go unseen */
			    far, page);
		return;
	}
	batch_add(b, page, copy, false);
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

/*
 * For a clean page that a child shares, the result is -EINVAL. A clean page is protected, so no
 * call has pinned it for writing, and it can be copied instead.
 */
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

/*
 * A page that must not be opened, as the program can't read it, or that can't be moved, as a child
 * shares it. fp_unheld_keep may have to open it later: so first makes it a mapping of its own, by
 * an advice that means nothing for such memory.
 */
static ssize_t take_copied(struct fp_far *far, const struct capture_run *run, int prot)
{
	char *addr = fp_far_addr(far, run->page);
	int r = -EPERM;

	if (fp_uffd_protect(&far->uffd, addr, FP_PAGE_SIZE, true) < 0)
		return -EPERM;
	if (fp_presence_is_absent(far->pagemap_fd, addr))
		return -ENOENT;
	if (madvise(addr, FP_PAGE_SIZE, MADV_SEQUENTIAL) == 0) {
		r = fp_unheld_take(far->mem_fd, far->pagemap_fd, addr, run->dst);
		if (r == -EBUSY && !fp_unheld_keep(&far->uffd, addr, prot))
			r = 0;
		(void)madvise(addr, FP_PAGE_SIZE, MADV_NORMAL);
	}
	if (r == 0)
		return FP_PAGE_SIZE;
	protect_clean(far, run->page, 1);
	return r == -EPERM ? sealed(far) : -EPERM;
}

/* The program's mapping can't change meanwhile: the caller has its lock. */
static ssize_t move_closed(struct fp_far *far, struct fp_batch *b, struct capture_run *run)
{
	const struct fp_piece *piece = fp_layout_next(far->layout, run->page);
	ssize_t r = -EBUSY;

	if (!piece || piece->start > run->page || is_open(piece->prot)) /* it has changed */
		return -EPERM;
	run->n = FP_MIN(run->n, piece->end - run->page);
	if (piece->prot != PROT_NONE) {
		if (piece->prot & PROT_EXEC)
			run->dst = open_twin(b);
		r = run->dst ? move_opened(far, run, piece->prot) : sealed(far);
		if (r != -EBUSY || !fp_presence_is_shared(far->pagemap_fd, fp_far_addr(far, run->page)))
			return r;
	}
	run->n = 1;
	run->dst = next_copy(b);
	return take_copied(far, run, piece->prot);
}

/*
 * Moves the first pages of a run whose protection is not the stage's. The program's thread may have
 * the lock, and wait for this one: then the pages stay for now.
 */
static ssize_t move_unlike(struct fp_far *far, struct fp_batch *b, struct capture_run *run)
{
	struct fp_piece piece;
	uint32_t changes;
	ssize_t r;

	if (!far->layout || !fp_layout_peek(far->layout, run->page, &piece, &changes))
		return -EPERM;
	run->n = FP_MIN(run->n, piece.end - run->page);
	if (is_open(piece.prot)) {
		if (piece.prot & PROT_EXEC)
			run->dst = open_twin(b);
		r = run->dst ? move_run(far, run) : sealed(far);
	} else if (pthread_mutex_trylock(far->layout_lock) == 0) {
		r = move_closed(far, b, run);
		pthread_mutex_unlock(far->layout_lock);
	} else {
		r = -EPERM;
	}
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
		r = move_unlike(far, b, run);
		if (r != -EINVAL || run->n == 1)
			break;
		run->n /= 2;
		run->dst = stage;
		r = move_run(far, run);
	}
	return r;
}

/*
 * Captures the first pages of a run of neighbours. Returns how many are captured or settled now, at
 * least one.
 */
static unsigned take_by_move(struct fp_far *far, struct fp_batch *b, uint32_t page, unsigned n)
{
	struct capture_run run = {.page = page, .n = n, .dst = b->stage + (size_t)b->n * FP_PAGE_SIZE};
	ssize_t r = move_somehow(far, b, &run);
	unsigned k;

	if (r == -EINVAL)
		r = -EPERM;
	if (r == -EBUSY)
		r = unshare_and_move(far, run.dst, page);
	if (r > 0) {
		k = (unsigned)(r >> FP_PAGE_SHIFT);
		for (unsigned i = 0; i < k; i++)
			batch_add(b, page + i, run.dst + (size_t)i * FP_PAGE_SIZE, true);
		return k;
	}
	if (r == -ENOENT)
		vanished(far, page);
	else if (r == -EINVAL)
		take_by_protect(far, b, page);
	else
		fp_capture_refuse(far, page);
	return 1;
}

void fp_capture(struct fp_far *far, struct fp_batch *b, const uint32_t *pages, unsigned n)
{
	for (unsigned i = 0; i < n;) {
		if (far->capture_by_move) {
			i += take_by_move(far, b, pages[i], fp_run_length(pages + i, n - i));
		} else {
			take_by_protect(far, b, pages[i]);
			i++;
		}
	}
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

bool fp_capture_drop_original(struct fp_far *far, const struct fp_leaving *l)
{
	return l->moved || fp_far_drop(far, l->page, 1);
}
