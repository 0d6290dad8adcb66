/* See native.h. On the fault path: no lock, no allocation, bounded work (law 4). */
#include "native.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "evict.h"
#include "fdutil.h"

#define CHUNK_PAGES  (1u << FP_CHUNK_SHIFT)
#define FIRST_CHUNK  ((2 * FP_STAGE_PAGES >> FP_CHUNK_SHIFT) + 1) /* below: stages and bell */
#define RUN_MIN      16u                                          /* fewer are not worth three system calls */
#define PAGEMAP_HERE (3ull << 62)                                 /* present or swapped */

/* Newer than some headers that we build with. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

/*
 * A chunk's word: its state, and which run of its pages is native. The rest of it may hold other mappings,
 * foreign ones too, which must not be registered.
 *
 *  31        21 20     11 10      2 1     0
 * +------------+---------+---------+-------+
 * |    zero    | length  |  first  | state |
 * +------------+---------+---------+-------+
 */
enum chunk_state { MANAGED, CONVERTING, NATIVE, ENDING };

#define STATE_MASK   3u
#define FIRST_SHIFT  2
#define LENGTH_SHIFT 11

struct run {
	uint32_t start, end;
};

static uint32_t native_word(struct run run)
{
	return NATIVE | (run.start & (CHUNK_PAGES - 1)) << FIRST_SHIFT |
	       (run.end - run.start) << LENGTH_SHIFT;
}

static struct run native_run(uint32_t page, uint32_t word)
{
	uint32_t start = (page & ~(CHUNK_PAGES - 1)) + (word >> FIRST_SHIFT & (CHUNK_PAGES - 1));

	return (struct run){.start = start, .end = start + (word >> LENGTH_SHIFT)};
}

static _Atomic uint32_t *state_of(const struct fp_far *far, uint32_t page)
{
	return &far->native[page >> FP_CHUNK_SHIFT];
}

void fp_native_open(struct fp_far *far)
{
	size_t bytes = (far->n_pages >> FP_CHUNK_SHIFT) * sizeof(*far->native);

	fp_native_close(far);
	if (!far->native)
		return;
	/* an older kernel refuses both where it is locked, that is, in the process that made it: it is new
	 * there */
	if (madvise((void *)far->native, bytes, MADV_DONTNEED_LOCKED) < 0)
		(void)madvise((void *)far->native, bytes, MADV_DONTNEED);
	far->pagemap_fd = fp_fd_move_high(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
}

void fp_native_close(struct fp_far *far)
{
	fp_cleanup_close(&far->pagemap_fd);
	far->pagemap_fd = -1;
}

/* ---- begin ---- */

/* Half of the budget is given freely; beyond that, only what goes on from native memory, up to the margin. */
static bool is_ample(const struct fp_far *far, uint32_t page)
{
	uint64_t free_pages = fp_room_free(&far->room), margin = 2 * fp_room_margin(&far->room);
	uint64_t budget = atomic_load_explicit(&far->room.budget, memory_order_relaxed);

	if (free_pages < CHUNK_PAGES + margin)
		return false;
	return free_pages - CHUNK_PAGES >= budget / 2 ||
	       (atomic_load_explicit(state_of(far, page) - 1, memory_order_relaxed) & STATE_MASK) == NATIVE;
}

/* Owns the ZERO pages around page, within the chunk and the mapping. */
static struct run own_run(struct fp_far *far, const struct fp_piece *piece, uint32_t page)
{
	uint32_t first = page & ~(CHUNK_PAGES - 1);
	uint32_t low = FP_MAX(piece->start, first), high = FP_MIN(piece->end, first + CHUNK_PAGES);
	struct run run = {.start = page, .end = page + 1};

	while (run.end < high &&
	       fp_pager_apply(&far->words[run.end], FP_EV_PREZERO, NULL).action == FP_ACT_ZERO)
		run.end++;
	while (run.start > low &&
	       fp_pager_apply(&far->words[run.start - 1], FP_EV_PREZERO, NULL).action == FP_ACT_ZERO)
		run.start--;
	return run;
}

/* The fault's own page goes on as it came. */
static void disown_run(struct fp_far *far, struct run run, uint32_t page)
{
	for (uint32_t p = run.start; p < run.end; p++)
		if (p != page)
			fp_far_settle(far, p, fp_pager_apply(&far->words[p], FP_EV_NOT_INSTALLED, NULL));
}

static bool take_tokens(struct fp_far *far, unsigned n)
{
	unsigned got = fp_room_take(&far->room, n);

	if (got < n)
		fp_room_give(&far->room, got);
	return got == n;
}

/*
 * Looks at the layout once more when the pages are owned: had their mapping ended before, they could be made
 * native in no mapping; if it ends now, the call that ends it waits for us.
 */
static bool release_run(struct fp_far *far, const struct fp_layout *layout, uint32_t changes, struct run run)
{
	unsigned n = run.end - run.start;

	if (n < RUN_MIN || !take_tokens(far, n))
		return false;
	if (fp_layout_changes(layout) == changes &&
	    fp_uffd_unregister(&far->uffd, fp_far_addr(far, run.start), (size_t)n << FP_PAGE_SHIFT) == 0)
		return true;
	fp_room_give(&far->room, n);
	return false;
}

static bool convert(struct fp_far *far, const struct fp_layout *layout, uint32_t page, struct run *ret_run)
{
	struct fp_piece piece;
	uint32_t changes;

	if (!fp_layout_peek(layout, page, &piece, &changes) || !(piece.prot & PROT_WRITE) || piece.flags)
		return false;
	*ret_run = own_run(far, &piece, page);
	if (release_run(far, layout, changes, *ret_run))
		return true;
	disown_run(far, *ret_run, page);
	return false;
}

bool fp_native_begin(struct fp_far *far, const struct fp_layout *layout, uint32_t page)
{
	_Atomic uint32_t *state = state_of(far, page);
	uint32_t managed = MANAGED;
	struct run run;

	if (far->pagemap_fd < 0 || page >> FP_CHUNK_SHIFT < FIRST_CHUNK || !is_ample(far, page) ||
	    !atomic_compare_exchange_strong(state, &managed, CONVERTING))
		return false;
	if (!convert(far, layout, page, &run)) {
		atomic_store(state, MANAGED);
		return false;
	}
	/* before the words: who takes one of these pages must find it native */
	atomic_store(state, native_word(run));
	for (uint32_t p = run.start; p < run.end; p++)
		fp_far_settle(far, p, fp_pager_apply(&far->words[p], FP_EV_INSTALLED_RW, NULL));
	return true;
}

/* ---- end ---- */

static bool read_pagemap(const struct fp_far *far, uint32_t page, uint64_t *ret_entries, unsigned n)
{
	size_t len = n * sizeof(*ret_entries);
	off_t at = (off_t)(((uintptr_t)fp_far_addr(far, page) >> FP_PAGE_SHIFT) * sizeof(*ret_entries));

	return pread(far->pagemap_fd, ret_entries, len, at) == (ssize_t)len;
}

bool fp_native_is_absent(const struct fp_far *far, uint32_t page)
{
	uint64_t entry;

	return read_pagemap(far, page, &entry, 1) && !(entry & PAGEMAP_HERE);
}

static bool is_native_word(uint64_t word)
{
	return fp_page_state(word) == FP_PAGE_RESIDENT && (word & FP_PAGE_DIRTY) && !fp_page_slot(word);
}

/* Owns the pages of the run that were never filled, as far as the page map tells. */
static void own_absent(struct fp_far *far, struct run run, const uint64_t *entries, uint64_t *olds)
{
	for (uint32_t p = run.start; p < run.end; p++) {
		uint32_t i = p - run.start;
		uint64_t old;

		olds[i] = 0;
		if (entries[i] & PAGEMAP_HERE || !is_native_word(atomic_load(&far->words[p])) ||
		    fp_pager_apply(&far->words[p], FP_EV_CLAIM, &old).action != FP_ACT_CLAIMED)
			continue;
		if (is_native_word(old))
			olds[i] = old;
		else
			fp_far_settle(far, p, fp_pager_apply_release(&far->words[p], old));
	}
}

/*
 * What was given to the kernel and never filled goes back to ZERO, and its tokens to the room. A page may be
 * filled between the look and the claim, so those that are owned are looked at again: now nobody can.
 */
static void return_absent(struct fp_far *far, struct run run)
{
	uint64_t entries[CHUNK_PAGES], olds[CHUNK_PAGES];
	unsigned n = run.end - run.start, tokens = 0;
	bool seen;

	if (!read_pagemap(far, run.start, entries, n))
		return;
	own_absent(far, run, entries, olds);
	seen = read_pagemap(far, run.start, entries, n);
	for (unsigned i = 0; i < n; i++) {
		_Atomic uint64_t *word = &far->words[run.start + i];
		bool absent = seen && !(entries[i] & PAGEMAP_HERE);

		if (!olds[i])
			continue;
		fp_far_settle(far, run.start + i,
		              fp_pager_apply_release(word, absent ? FP_PAGE_ZERO : olds[i]));
		tokens += absent;
	}
	fp_room_give(&far->room, tokens);
}

/* While the registration is under way the kernel lets nobody fill a page; after it, nobody can but us. */
static int end(struct fp_far *far, _Atomic uint32_t *state, struct run run)
{
	size_t len = (size_t)(run.end - run.start) << FP_PAGE_SHIFT;
	int r = fp_uffd_register(&far->uffd, fp_far_addr(far, run.start), len);

	if (r == 0)
		return_absent(far, run);
	atomic_store(state, r < 0 ? native_word(run) : MANAGED);
	return r;
}

/* A chunk that is CONVERTING was MANAGED, and what is being converted is not the caller's. */
int fp_native_end(struct fp_far *far, uint32_t page)
{
	_Atomic uint32_t *state = state_of(far, page);
	uint32_t word;

	while ((word = atomic_load(state)) & NATIVE) { /* NATIVE or ENDING */
		if ((word & STATE_MASK) == NATIVE && atomic_compare_exchange_strong(state, &word, ENDING))
			return end(far, state, native_run(page, word));
		sched_yield();
	}
	return 0;
}

bool fp_native_fills(const struct fp_far *far, uint32_t page)
{
	return atomic_load(state_of(far, page)) & NATIVE; /* NATIVE or ENDING */
}

bool fp_native_keeps(uint64_t word)
{
	return is_native_word(word);
}
