/*
 * The pages that a layout call works on. Room: uffd/space; see space_priv.h.
 *
 * A layout call claims its pages (CLAIMED), and waits for those in transit. It changes their
 * mapping in the kernel, then releases the pages with their new words. Meanwhile faults on them
 * wait in the kernel.
 */
#include "space_priv.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "abi.h"
#include "process_memory.h"
#include "cleanup.h"
#include "pin.h"
#include "inline.h"
#include "kernel_filled.h"
#include "presence.h"

#define GIVE_TRIES 1000u

/* Claims the page if nobody owns it. */
static bool try_hold(struct fp_far *far, uint32_t page, uint64_t *ret_old)
{
	return fp_pager_apply(&far->words[page], FP_EV_CLAIM, ret_old).action != FP_ACT_BUSY;
}

void fp_space_pause(void)
{
	const struct timespec pause = {.tv_nsec = 20000};

	nanosleep(&pause, NULL);
}

/*
 * Waits until nobody owns the page, and claims it. The wait is bounded: no owner keeps a page
 * longer than the patience for its node.
 */
uint64_t fp_space_claim(struct fp_far *far, uint32_t page)
{
	uint64_t old;

	for (unsigned tries = 0; !try_hold(far, page, &old); tries++) {
		fp_inline_tend(atomic_load(&far->inline_servers));
		if (tries < 16)
			sched_yield();
		else
			fp_space_pause();
	}
	return old;
}

void fp_space_release(struct fp_far *far, uint32_t page, uint64_t settled)
{
	fp_far_settle(far, page, fp_pager_apply_release(&far->words[page], settled));
}

bool fp_space_untouched(const struct fp_far *far, uint32_t page)
{
	uint64_t chunk = page >> FP_CHUNK_SHIFT;

	return !(atomic_load(&far->touched[chunk / 64]) >> (chunk & 63) & 1);
}

uint32_t fp_space_chunk_end(uint32_t page, uint32_t end)
{
	uint32_t next = (page | ((1u << FP_CHUNK_SHIFT) - 1)) + 1;

	return FP_MIN(end, next);
}

/*
 * Forgets a claimed page whose local memory is gone: frees its slot. Returns how many tokens it
 * had.
 */
static unsigned forget(struct fp_far *far, uint32_t page, uint64_t old)
{
	if (fp_page_slot(old))
		fp_store_slot_free(far->store, fp_page_slot(old));
	fp_space_release(far, page, FP_PAGE_ZERO);
	return fp_page_state(old) == FP_PAGE_RESIDENT;
}

static bool is_for_good(enum fp_drop how)
{
	return how == FP_DROP_FOR_GOOD || how == FP_DROP_SHORT;
}

/*
 * Drops and releases claimed pages. The kernel drops pages up to the first that a bare call locked,
 * and refuses there. Then the pages that are gone read zeros, and all others stay as they were.
 */
static int drop_held(struct fp_far *far, uint32_t start, uint32_t end, const uint64_t *olds, enum fp_drop how)
{
	bool fills = !is_for_good(how) && fp_kernel_filled_fills(far, start);
	unsigned tokens = 0;
	int r = how == FP_DROP_FOR_GOOD ? fp_kernel_filled_end(far, start) : 0;

	if (r == 0 &&
	    madvise(fp_far_addr(far, start), (size_t)(end - start) << FP_PAGE_SHIFT, MADV_DONTNEED) < 0)
		r = -errno;
	for (uint32_t p = start; p < end; p++) {
		uint64_t old = olds[p - start];
		bool gone = r == 0 ? !(fills && fp_kernel_filled_keeps(old))
		                   : fp_page_state(old) == FP_PAGE_RESIDENT &&
		                         fp_presence_is_absent(far->pagemap_fd, fp_far_addr(far, p));

		if (gone)
			tokens += forget(far, p, old);
		else
			fp_space_release(far, p, old);
	}
	fp_budget_leave(&far->budget, tokens);
	return r;
}

/*
 * Zeroes a pinned page in place, as it must stay local until its system call ends. The words of all
 * the call's pages say CLAIMED already: see pin.h.
 */
static bool zero_in_place(struct fp_far *far, uint32_t page, uint64_t old)
{
	if (fp_page_state(old) != FP_PAGE_RESIDENT || !fp_pin_has(&far->pins, page) ||
	    fp_far_unprotect(far, page) < 0 || !fp_process_memory_clear(far->mem_fd, fp_far_addr(far, page)))
		return false;
	if (fp_page_slot(old))
		fp_store_slot_free(far->store, fp_page_slot(old));
	fp_space_release(far, page, FP_PAGE_RESIDENT | FP_PAGE_DIRTY);
	return true;
}

static int drop_unless_handed(struct fp_space *space, uint32_t start, uint32_t end, enum fp_drop how)
{
	struct fp_far *far = space->far;
	uint64_t *olds = space->olds;
	int r = 0;

	fp_pin_fence();
	for (uint32_t p = start; !is_for_good(how) && atomic_load(&far->pins.held) && p < end && r == 0;
	     p++) {
		if (!zero_in_place(far, p, olds[p - start]))
			continue;
		if (p > start)
			r = drop_held(far, start, p, olds, how);
		olds += p + 1 - start;
		start = p + 1;
	}
	if (r < 0) {
		for (uint32_t p = start; p < end; p++)
			fp_space_release(far, p, olds[p - start]);
		return r;
	}
	return start < end ? drop_held(far, start, end, olds, how) : 0;
}

/*
 * Drops pages from start on, up to the first that another thread owns. That owner may itself wait
 * for a token. So the pages claimed so far are dropped first: they may hold the only tokens.
 */
static int drop_some(struct fp_space *space, uint32_t start, uint32_t end, enum fp_drop how)
{
	for (uint32_t p = start; p < end; p++) {
		int r;

		if (try_hold(space->far, p, &space->olds[p - start]))
			continue;
		r = drop_unless_handed(space, start, p, how);
		if (r < 0)
			return r;
		start = p;
		space->olds[0] = fp_space_claim(space->far, p);
	}
	return drop_unless_handed(space, start, end, how);
}

int fp_space_drop(struct fp_space *space, uint32_t start, uint32_t end, enum fp_drop how)
{
	int r = 0;

	while (start < end && r == 0) {
		uint32_t stop = fp_space_chunk_end(start, end);

		if (!fp_space_untouched(space->far, start))
			r = drop_some(space, start, stop, how);
		start = stop;
	}
	return r;
}

bool fp_space_end_filled(struct fp_space *space, uint32_t start, uint32_t end)
{
	bool all = true;

	for (; start < end; start = fp_space_chunk_end(start, end))
		all &= fp_space_untouched(space->far, start) || fp_kernel_filled_end(space->far, start) == 0;
	return all;
}

static void forget_chunk(struct fp_far *far, uint32_t start, uint32_t end)
{
	unsigned tokens = 0;

	for (uint32_t p = start; p < end; p++)
		tokens += forget(far, p, fp_space_claim(far, p));
	fp_budget_leave(&far->budget, tokens);
}

void fp_space_forget(struct fp_space *space, uint32_t start, uint32_t end)
{
	for (; start < end; start = fp_space_chunk_end(start, end))
		if (!fp_space_untouched(space->far, start))
			forget_chunk(space->far, start, fp_space_chunk_end(start, end));
}

/* ---- pages given to the kernel ---- */

/* Brings in a page of a readable mapping. It may leave again before it is claimed. */
static void bring(struct fp_far *far, uint32_t page)
{
	if (atomic_load(&far->inline_servers))
		fp_inline_bring(far->inline_servers, page, 1, false);
	else
		(void)madvise(fp_far_addr(far, page), FP_PAGE_SIZE, MADV_POPULATE_READ);
}

/*
 * Gives a page to the kernel. The thread owns no other page meanwhile, so it may wait for a token.
 */
static int give_page(struct fp_far *far, uint32_t page)
{
	uint64_t old = fp_space_claim(far, page);
	int r;

	for (unsigned tries = 0; fp_page_state(old) == FP_PAGE_REMOTE; tries++) {
		fp_space_release(far, page, old);
		if (tries == GIVE_TRIES)
			return -EAGAIN;
		bring(far, page);
		old = fp_space_claim(far, page);
	}
	r = fp_page_state(old) == FP_PAGE_LOST ? -EAGAIN : 0;
	if (r == 0) /* it may have become kernel-filled again before it was claimed */
		r = fp_kernel_filled_end(far, page);
	if (r == 0)
		r = fp_uffd_unregister(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	if (r < 0)
		fp_space_release(far, page, old);
	else
		fp_budget_leave(&far->budget, forget(far, page, old));
	return r;
}

/* Gives pages from *at on. Then *at is the first page that is not given yet. */
static int give_pages(struct fp_far *far, uint32_t *at, uint32_t end)
{
	while (*at < end) {
		bool untouched = fp_space_untouched(far, *at);
		uint32_t next = untouched ? fp_space_chunk_end(*at, end) : *at + 1;
		int r = untouched ? fp_uffd_unregister(&far->uffd, fp_far_addr(far, *at),
		                                       (size_t)(next - *at) << FP_PAGE_SHIFT)
		                  : give_page(far, *at);

		if (r < 0)
			return r;
		if (untouched && !fp_space_untouched(far, *at)) /* a fault came meanwhile */
			forget_chunk(far, *at, next);
		*at = next;
	}
	return 0;
}

/* Repeats the program's advice for the kernel, which follows it from now on. */
static void hand_advice_on(struct fp_far *far, const struct fp_piece *piece)
{
	char *addr = fp_far_addr(far, piece->start);
	size_t len = (size_t)(piece->end - piece->start) << FP_PAGE_SHIFT;

	if (!(piece->flags & FP_PIECE_DONTFORK))
		fp_far_inherit(far, piece->start, piece->end - piece->start, true);
	if (piece->flags & FP_PIECE_WIPEONFORK)
		madvise(addr, len, MADV_WIPEONFORK);
}

/* The piece becomes foreign first, so that nothing is read ahead there from then on. */
int fp_space_give(struct fp_space *space, const struct fp_piece *piece)
{
	struct fp_piece foreign = {.start = piece->start,
	                           .end = piece->end,
	                           .flags = FP_PIECE_FOREIGN | (piece->flags & FP_PIECE_LENT),
	                           .lazy = true};
	struct fp_piece rest = *piece;
	uint64_t reserved, none;
	int r = fp_space_end_filled(space, piece->start, piece->end) ? 0 : -ENOMEM;

	if (r == 0)
		r = fp_layout_remove(&space->layout, piece->start, piece->end, &reserved);
	if (r < 0)
		return r;
	(void)fp_layout_add(&space->layout, foreign); /* there is room: one was removed */
	r = fp_space_open_range(space->far, piece->start, piece->end - piece->start, piece->prot | PROT_READ);
	if (r == 0)
		r = give_pages(space->far, &rest.start, piece->end);
	(void)fp_space_open_range(space->far, piece->start, piece->end - piece->start, piece->prot);
	if (r < 0) {
		rest.flags &= ~(uint32_t)FP_PIECE_LENT;
		(void)fp_layout_remove(&space->layout, rest.start, rest.end, &none);
		(void)fp_layout_add(&space->layout, rest);
	}
	foreign.end = r < 0 ? rest.start : piece->end;
	foreign.flags |= piece->flags;
	hand_advice_on(space->far, &foreign);
	if (reserved)
		fp_space_unback(space, foreign.end - foreign.start);
	fp_space_publish(space);
	return r;
}
