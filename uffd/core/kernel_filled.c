/* See kernel_filled.h. On the fault path: no lock, no allocation, bounded work (law 4). */
#include "kernel_filled.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"
#include "cleanup.h"
#include "presence.h"

#define CHUNK_PAGES (1u << FP_CHUNK_SHIFT)
#define FRESH_MIN   8u /* three system calls are not worth it for fewer pages */
#define NO_PAGE     UINT32_MAX

/* Flags of a piece that still allow its pages to be kernel-filled. */
#define HARMLESS ((uint32_t)(FP_PIECE_NORESERVE | FP_PIECE_RANDOM | FP_PIECE_DONTDUMP))

/*
 * A chunk's word: its state, and the run of its pages that is kernel-filled. The rest of the chunk
 * may hold other mappings, also foreign ones, which must not be registered.
 *
 *  31        21 20     11 10      2 1     0
 * +------------+---------+---------+-------+
 * |    zero    | length  |  first  | state |
 * +------------+---------+---------+-------+
 */
enum chunk_state { MANAGED, CONVERTING, FILLED, CHANGING };

#define STATE_MASK   3u
#define FIRST_SHIFT  2
#define LENGTH_SHIFT 11

struct chunk_run {
	uint32_t start, end;
};

static uint32_t filled_word(struct chunk_run run)
{
	return FILLED | (run.start & (CHUNK_PAGES - 1)) << FIRST_SHIFT |
	       (run.end - run.start) << LENGTH_SHIFT;
}

static struct chunk_run filled_run(uint32_t page, uint32_t word)
{
	uint32_t start = (page & ~(CHUNK_PAGES - 1)) + (word >> FIRST_SHIFT & (CHUNK_PAGES - 1));

	return (struct chunk_run){.start = start, .end = start + (word >> LENGTH_SHIFT)};
}

static bool is_filled_word(uint64_t word)
{
	return fp_page_state(word) == FP_PAGE_RESIDENT && (word & FP_PAGE_DIRTY) && !fp_page_slot(word);
}

static bool can_be_filled(uint64_t word)
{
	return fp_page_state(word) == FP_PAGE_ZERO || is_filled_word(word);
}

static _Atomic uint32_t *state_of(const struct fp_far *far, uint32_t page)
{
	return &far->filled_chunks[page >> FP_CHUNK_SHIFT];
}

void fp_kernel_filled_open(struct fp_far *far)
{
	size_t bytes = (far->n_pages >> FP_CHUNK_SHIFT) * sizeof(*far->filled_chunks);

	if (!far->filled_chunks)
		return;
	/*
	 * clears the table. A kernel before 5.18 refuses both calls if the table is locked in
	 * memory. That does no harm. In a child the table is not locked, because a child inherits
	 * no locks. In the process that made the table, the table is new and empty
	 */
	if (madvise((void *)far->filled_chunks, bytes, MADV_DONTNEED_LOCKED) < 0)
		(void)madvise((void *)far->filled_chunks, bytes, MADV_DONTNEED);
	far->may_fill = far->pagemap_fd >= 0;
}

/* ---- begin ---- */

/*
 * True if the budget allows the kernel to fill pages around page. While half of the budget is free,
 * the kernel may fill pages in any chunk. If less is free, but at least two batches and a chunk,
 * the kernel may fill pages in two kinds of chunks only: a chunk that has kernel-filled pages, and
 * the chunk after such a chunk.
 */
static bool is_ample(const struct fp_far *far, uint32_t page)
{
	const _Atomic uint32_t *state = state_of(far, page);
	unsigned least = CHUNK_PAGES + 2 * fp_budget_batch(&far->budget);

	if (fp_budget_free(&far->budget) < least || fp_budget_is_scarce(&far->budget))
		return false;
	return fp_budget_keeps_half(&far->budget, CHUNK_PAGES) ||
	       ((atomic_load_explicit(state, memory_order_relaxed) |
	         atomic_load_explicit(state - 1, memory_order_relaxed)) &
	        FILLED); /* true for FILLED and CHANGING */
}

/*
 * The run of pages around page that can be kernel-filled with it: ZERO pages, and pages whose words
 * say the same as those of kernel-filled pages. The run stays within the chunk and the mapping. If
 * the chunk has a run already, the new one stays on one side of it.
 */
static struct chunk_run find_run(const struct fp_far *far, const struct fp_piece *piece, uint32_t page,
                                 uint32_t word)
{
	uint32_t first = page & ~(CHUNK_PAGES - 1);
	uint32_t low = FP_MAX(piece->start, first), high = FP_MIN(piece->end, first + CHUNK_PAGES);
	struct chunk_run run = {.start = page, .end = page + 1}, before;

	if (word != MANAGED) {
		before = filled_run(page, word);
		if (page < before.start)
			high = FP_MIN(high, before.start);
		else
			low = FP_MAX(low, before.end);
	}
	while (run.end < high && can_be_filled(atomic_load(&far->words[run.end])))
		run.end++;
	while (run.start > low && can_be_filled(atomic_load(&far->words[run.start - 1])))
		run.start--;
	return run;
}

static unsigned count_fresh(const struct fp_far *far, struct chunk_run run)
{
	unsigned n = 1; /* counts page itself, where the fault is */

	for (uint32_t p = run.start; p < run.end; p++)
		n += fp_page_state(atomic_load(&far->words[p])) == FP_PAGE_ZERO;
	return n;
}

/*
 * A chunk has one kernel-filled run at most. So a new run must be next to the present one, as the
 * runs of consecutive mappings are.
 */
static bool can_join(uint32_t page, uint32_t word, struct chunk_run run)
{
	struct chunk_run before = filled_run(page, word);

	return word == MANAGED || run.start == before.end || run.end == before.start;
}

static struct chunk_run join(uint32_t page, uint32_t word, struct chunk_run run)
{
	struct chunk_run before = word == MANAGED ? run : filled_run(page, word);

	return (struct chunk_run){.start = FP_MIN(run.start, before.start),
	                          .end = FP_MAX(run.end, before.end)};
}

static bool own_page(struct fp_far *far, uint32_t page)
{
	return fp_pager_apply(&far->words[page], FP_EV_PREZERO, NULL).action == FP_ACT_ZERO ||
	       fp_pager_apply(&far->words[page], FP_EV_ADOPT, NULL).action == FP_ACT_VERIFY;
}

/* While we own a page, its word still tells whether it was ZERO. */
static bool was_zero(const struct fp_far *far, uint32_t page)
{
	return !(atomic_load(&far->words[page]) & FP_PAGE_DIRTY);
}

/* Ends our ownership of the run's pages. Only page, where the fault is, stays owned. */
static void disown_run(struct fp_far *far, struct chunk_run run, uint32_t page)
{
	for (uint32_t p = run.start; p < run.end; p++) {
		enum fp_page_event as_it_was = was_zero(far, p) ? FP_EV_NOT_INSTALLED : FP_EV_INSTALLED_RW;

		if (p != page)
			fp_far_end(far, p, as_it_was);
	}
}

/* Owns all pages of the run or none. *ret_fresh: how many of them have no token yet. */
static bool own_run(struct fp_far *far, struct chunk_run run, uint32_t page, unsigned *ret_fresh)
{
	unsigned n = 0;

	for (uint32_t p = run.start; p < run.end; p++) {
		if (p != page && !own_page(far, p)) {
			disown_run(far, (struct chunk_run){.start = run.start, .end = p}, page);
			return false;
		}
		n += was_zero(far, p);
	}
	*ret_fresh = n;
	return true;
}

static bool take_tokens(struct fp_far *far, unsigned n)
{
	unsigned got = fp_budget_take(&far->budget, n);

	if (got < n)
		fp_budget_give(&far->budget, got);
	return got == n;
}

/*
 * Lets the kernel fill these pages. The kernel still reports a bare call that ends their mapping.
 * At its limit of mappings, the kernel may stop half-way: by then it has unregistered some pages,
 * and may have filled them. Then this function registers as many pages of the run again as it can,
 * but counts the whole run as kernel-filled. A page that is registered again may be absent although
 * its word says RESIDENT: the agent fills it at its next fault.
 */
static int give_to_kernel(struct fp_far *far, struct chunk_run run)
{
	size_t len = (size_t)(run.end - run.start) << FP_PAGE_SHIFT;
	char *addr = fp_far_addr(far, run.start);
	int r = fp_uffd_unregister(&far->uffd, addr, len);

	if (r < 0 && r != -ENOMEM)
		return r; /* nothing was changed */
	if (r == 0)
		r = fp_uffd_register_fills(&far->uffd, addr, len);
	if (r < 0) {
		(void)fp_uffd_register(&far->uffd, addr, len);
		fp_uffd_wake(&far->uffd, addr, len);
	}
	/* the kernel does not report a bare munmap that comes between the two calls */
	if (fp_presence_has_hole(addr, len))
		fp_far_refuse_bare_call("munmap", addr);
	return 0;
}

/*
 * Gives an owned run to the kernel, unless the layout has changed since it was read: if the mapping
 * is gone, the run must stay registered. A call that ends the mapping from now on waits for the
 * pages that we own.
 */
static bool release_run(struct fp_far *far, const struct fp_layout *layout, uint32_t changes,
                        struct chunk_run run, unsigned n_fresh)
{
	if (!take_tokens(far, n_fresh))
		return false;
	if (fp_layout_changes(layout) == changes && give_to_kernel(far, run) == 0)
		return true;
	fp_budget_give(&far->budget, n_fresh);
	return false;
}

static bool convert(struct fp_far *far, const struct fp_layout *layout, uint32_t page, uint32_t word,
                    struct chunk_run *ret_run)
{
	struct fp_piece piece;
	uint32_t changes;
	unsigned n_fresh;

	if (!fp_layout_peek(layout, page, &piece, &changes) || !(piece.prot & PROT_WRITE) ||
	    piece.flags & ~HARMLESS)
		return false;
	*ret_run = find_run(far, &piece, page, word);
	if (!can_join(page, word, *ret_run) || count_fresh(far, *ret_run) < FRESH_MIN ||
	    !own_run(far, *ret_run, page, &n_fresh))
		return false;
	if (release_run(far, layout, changes, *ret_run, n_fresh))
		return true;
	disown_run(far, *ret_run, page);
	return false;
}

/* Takes the chunk if no other thread has it. *ret_word: its former word. */
static bool take_chunk(_Atomic uint32_t *state, uint32_t *ret_word)
{
	uint32_t word = *ret_word = atomic_load(state);

	return (word == MANAGED || (word & STATE_MASK) == FILLED) &&
	       atomic_compare_exchange_strong(state, &word, word == MANAGED ? CONVERTING : CHANGING);
}

static bool may_begin(const struct fp_far *far, uint32_t page)
{
	return far->may_fill && page >= FP_FAR_OWN_PAGES && is_ample(far, page);
}

static void settle_run(struct fp_far *far, struct chunk_run run)
{
	for (uint32_t p = run.start; p < run.end; p++)
		fp_far_end(far, p, FP_EV_INSTALLED_RW);
}

bool fp_kernel_filled_begin(struct fp_far *far, const struct fp_layout *layout, uint32_t page)
{
	_Atomic uint32_t *state = state_of(far, page);
	struct chunk_run run;
	uint32_t word;

	if (!may_begin(far, page) || !take_chunk(state, &word))
		return false;
	if (!convert(far, layout, page, word, &run)) {
		atomic_store(state, word);
		return false;
	}
	/*
	 * set before the words change: a thread that takes one of these pages then waits until all
	 * are settled, and finds them kernel-filled
	 */
	atomic_store(state, CHANGING);
	settle_run(far, run);
	atomic_store(state, filled_word(join(page, word, run)));
	return true;
}

/* Makes a chunk kernel-filled from page on, as a fault on page would. */
static void begin_chunk(struct fp_far *far, const struct fp_layout *layout, uint32_t page)
{
	if (!may_begin(far, page))
		return;
	fp_far_touch(far, page);
	if (fp_pager_apply(&far->words[page], FP_EV_PREZERO, NULL).action == FP_ACT_ZERO &&
	    !fp_kernel_filled_begin(far, layout, page))
		fp_far_end(far, page, FP_EV_NOT_INSTALLED);
}

/*
 * The calling thread's stack is local. So the thread can't fault on a page of these chunks while it
 * owns that page.
 */
void fp_kernel_filled_begin_mapping(struct fp_far *far, const struct fp_layout *layout, uint32_t start,
                                    uint32_t end)
{
	if (end - start < FRESH_MIN || end - start > FP_KERNEL_FILLED_SHORT)
		return;
	for (uint32_t p = start; p < end; p = (p | (CHUNK_PAGES - 1)) + 1)
		begin_chunk(far, layout, p);
}

/* ---- end ---- */

/*
 * Sets pages that were given to the kernel and never filled back to ZERO, and returns their tokens.
 * The pages are registered again, so no thread can fill one that is owned here. Pages with another
 * owner stay as they are.
 */
static void return_absent(struct fp_far *far, struct chunk_run run)
{
	unsigned n = run.end - run.start, n_owned = 0, tokens = 0;
	uint64_t entries[CHUNK_PAGES];
	bool owned[CHUNK_PAGES], seen;

	for (unsigned i = 0; i < n; i++) {
		owned[i] =
		    fp_pager_apply(&far->words[run.start + i], FP_EV_ADOPT, NULL).action == FP_ACT_VERIFY;
		n_owned += owned[i];
	}
	seen = n_owned && fp_presence_read(far->pagemap_fd, fp_far_addr(far, run.start), entries, n);
	for (unsigned i = 0; i < n; i++) {
		bool absent = seen && !(entries[i] & FP_PAGEMAP_HERE);

		if (!owned[i])
			continue;
		fp_far_end(far, run.start + i, absent ? FP_EV_NOT_INSTALLED : FP_EV_INSTALLED_RW);
		tokens += absent;
	}
	fp_budget_leave(&far->budget, tokens);
}

/*
 * Registers the run, and returns its absent pages. During the registration the kernel lets no
 * thread fill a page. After it, only we can.
 */
static int end(struct fp_far *far, _Atomic uint32_t *state, struct chunk_run run)
{
	int r = fp_uffd_register(&far->uffd, fp_far_addr(far, run.start),
	                         (size_t)(run.end - run.start) << FP_PAGE_SHIFT);

	if (r == 0)
		return_absent(far, run);
	atomic_store(state, r < 0 ? filled_word(run) : MANAGED);
	return r;
}

/*
 * Registers the chunk if it is FILLED. If it is CHANGING, waits first, which is short: no thread
 * blocks in that state. In all other states the caller's page is already registered. That is so
 * even if the chunk is CONVERTING: the converting thread unregisters only pages that it owns.
 */
int fp_kernel_filled_end(struct fp_far *far, uint32_t page)
{
	_Atomic uint32_t *state = state_of(far, page);
	uint32_t word;

	while ((word = atomic_load(state)) & FILLED) { /* true for FILLED and CHANGING */
		if ((word & STATE_MASK) == FILLED && atomic_compare_exchange_strong(state, &word, CHANGING))
			return end(far, state, filled_run(page, word));
		sched_yield();
	}
	return 0;
}

/* ---- from one mapping to the next ---- */

/*
 * Turns a free kernel-filled run into pages of the new mapping. False: at this moment another
 * thread owns one of the pages, or there are too few tokens.
 */
static bool resume_run(struct fp_far *far, struct chunk_run part)
{
	unsigned n_fresh;

	if (!own_run(far, part, NO_PAGE, &n_fresh))
		return false;
	if (!take_tokens(far, n_fresh)) {
		disown_run(far, part, NO_PAGE);
		return false;
	}
	settle_run(far, part);
	return true;
}

static bool try_resume(struct fp_far *far, struct chunk_run fresh)
{
	_Atomic uint32_t *state = state_of(far, fresh.start);
	uint32_t word = atomic_load(state);
	struct chunk_run part = filled_run(fresh.start, word);
	bool resumed;

	if ((word & STATE_MASK) != FILLED || !atomic_compare_exchange_strong(state, &word, CHANGING))
		return false;
	part.start = FP_MAX(part.start, fresh.start);
	part.end = FP_MIN(part.end, fresh.end);
	resumed = part.start >= part.end || resume_run(far, part);
	atomic_store(state, word);
	return resumed;
}

int fp_kernel_filled_resume(struct fp_far *far, const struct fp_piece *piece, uint32_t start, uint32_t end)
{
	bool fits = (piece->prot & PROT_WRITE) && !(piece->flags & ~HARMLESS);

	if (fits && may_begin(far, start) && try_resume(far, (struct chunk_run){.start = start, .end = end}))
		return 0;
	return fp_kernel_filled_end(far, start);
}

void fp_kernel_filled_forget_absent(struct fp_far *far, uint32_t page)
{
	uint32_t first = page & ~(CHUNK_PAGES - 1), managed = MANAGED;
	_Atomic uint32_t *state = state_of(far, page);

	if (!far->may_fill || page < FP_FAR_OWN_PAGES ||
	    !atomic_compare_exchange_strong(state, &managed, CONVERTING))
		return;
	return_absent(far, (struct chunk_run){.start = first, .end = first + CHUNK_PAGES});
	atomic_store(state, MANAGED);
}

bool fp_kernel_filled_fills(const struct fp_far *far, uint32_t page)
{
	return atomic_load(state_of(far, page)) & FILLED; /* true for FILLED and CHANGING */
}

bool fp_kernel_filled_keeps(uint64_t word)
{
	return is_filled_word(word);
}
