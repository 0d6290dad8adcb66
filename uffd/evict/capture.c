/* See capture.h. */
#include "capture.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "presence.h"
#include "process_memory.h"
#include "kernel_filled.h"

void fp_capture_refuse(struct fp_far *far, uint32_t page)
{
	fp_far_end(far, page, FP_EV_REFUSED);
	fp_count(&far->stats->evict_refused, 1);
}

static struct fp_leaving *batch_add(struct fp_batch *b, uint32_t page, bool moved)
{
	struct fp_leaving *l = &b->items[b->n];

	*l = (struct fp_leaving){.page = page, .moved = moved, .batch = b};
	l->io.buf = (moved ? b->stage : b->copies) + (size_t)b->n * FP_PAGE_SIZE;
	l->io.user = l;
	b->n++;
	b->open++;
	return l;
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
	void *copy = b->copies + (size_t)b->n * FP_PAGE_SIZE;

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
	batch_add(b, page, false);
}

static ssize_t move_out(struct fp_far *far, void *dst, uint32_t page, unsigned n)
{
	return fp_uffd_move(&far->uffd, far->pagemap_fd, dst, fp_far_addr(far, page),
	                    (size_t)n << FP_PAGE_SHIFT);
}

/*
 * After a fork, the process and its child share a page until one of them writes to it. So we make
 * the kernel write to a dirty page, to get a copy of our own. First we make the page writable, and
 * it stays writable until it is moved. If it were protected, the kernel's write would wait for this
 * thread, and this thread for the write. For a clean page the result is -EINVAL. A clean page is
 * protected, so no call has pinned it for writing, and it can be copied instead.
 */
static ssize_t unshare_and_move(struct fp_far *far, void *dst, uint32_t page)
{
	char *addr = fp_far_addr(far, page);

	if (!atomic_load_explicit(&far->forked, memory_order_relaxed))
		return -EBUSY;
	if (!(atomic_load_explicit(&far->words[page], memory_order_relaxed) & FP_PAGE_DIRTY))
		return -EINVAL;
	if (fp_uffd_protect(&far->uffd, addr, FP_PAGE_SIZE, false) < 0 ||
	    madvise(addr, FP_PAGE_SIZE, MADV_POPULATE_WRITE) < 0)
		return -EBUSY;
	return move_out(far, dst, page, 1);
}

/*
 * Captures the first pages of a run of neighbours. Returns how many are captured or settled now, at
 * least one.
 */
static unsigned take_by_move(struct fp_far *far, struct fp_batch *b, uint32_t page, unsigned n)
{
	char *dst = b->stage + (size_t)b->n * FP_PAGE_SIZE;
	ssize_t r = move_out(far, dst, page, n);
	unsigned k;

	/*
	 * the kernel also says EINVAL if the range crosses the end of a mapping: only for a range
	 * of one page does EINVAL mean that the page can't be moved
	 */
	while (r == -EINVAL && n > 1) {
		n /= 2;
		r = move_out(far, dst, page, n);
	}
	if (r == -EBUSY)
		r = unshare_and_move(far, dst, page);
	if (r > 0) {
		k = (unsigned)(r >> FP_PAGE_SHIFT);
		for (unsigned i = 0; i < k; i++)
			batch_add(b, page + i, true);
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
void fp_capture_empty_stage(const struct fp_batch *b)
{
	size_t len = (size_t)b->n << FP_PAGE_SHIFT;

	if (madvise(b->stage, len, MADV_DONTNEED) < 0 && munlock(b->stage, len) == 0)
		madvise(b->stage, len, MADV_DONTNEED);
}

bool fp_capture_drop_original(struct fp_far *far, const struct fp_leaving *l)
{
	return l->moved || fp_far_drop(far, l->page, 1);
}
