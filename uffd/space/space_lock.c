/*
 * mlock and its relatives, memory that is held local, and calls that bring pages in. Room:
 * uffd/space; see space.h.
 *
 * Locked or held memory is the kernel's own until it is unmapped: a foreign piece. So the kernel
 * alone locks, counts and unlocks, and evictors never meet a page that the program has locked.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "cleanup.h"
#include "inline.h"

/* How many pages are brought in before they are locked or held. With more, some could leave in
 * between. */
#define LOCKED_AT_ONCE 64u
#define LENT_MIN       16u /* pages that may be lent whatever the budget is: as many as a pipe holds */

static size_t bytes(uint32_t start, uint32_t end)
{
	return (size_t)(end - start) << FP_PAGE_SHIFT;
}

/* ---- bringing in ---- */

/* Finds the piece that holds start, or else the next one, cut to [start, end). Takes the lock. */
static bool next_piece(struct fp_space *space, uint32_t start, uint32_t end, struct fp_piece *ret_piece)
{
	bool found;

	fp_space_lock(space);
	found = fp_space_next_piece(space, start, end, ret_piece);
	fp_space_unlock(space);
	return found;
}

/*
 * The kernel touches the pages, and we serve its faults as usual. In fault mode inline its touches
 * can't be served, so we bring in the first page, and cut the piece to it. For the next page the
 * caller takes the layout lock again. So a limit that shrinks the range waits for one page at most.
 */
static int populate_piece(struct fp_space *space, struct fp_piece *piece, int advice)
{
	int needs = advice == MADV_POPULATE_WRITE ? PROT_WRITE : PROT_READ;
	void *addr = fp_far_addr(space->far, piece->start);

	if (piece->flags & FP_PIECE_FOREIGN || !atomic_load(&space->far->inline_servers))
		return madvise(addr, bytes(piece->start, piece->end), advice) < 0 ? -errno : 0;
	if (!(piece->prot & needs))
		return -EINVAL;
	piece->end = piece->start + 1;
	atomic_fetch_add(&space->far->bringing, 1);
	fp_inline_bring(space->far->inline_servers, piece->start, 1, needs == PROT_WRITE);
	atomic_fetch_sub(&space->far->bringing, 1);
	return 0;
}

void fp_space_populate(struct fp_space *space, uint32_t start, uint32_t end)
{
	uint64_t easily = fp_budget_free(&space->far->budget) / 2;
	struct fp_piece piece;

	end = (uint32_t)FP_MIN((uint64_t)end, start + easily);
	for (; start < end && next_piece(space, start, end, &piece); start = piece.end)
		if (!(piece.flags & FP_PIECE_FOREIGN))
			(void)populate_piece(space, &piece,
			                     piece.prot & PROT_WRITE ? MADV_POPULATE_WRITE
			                                             : MADV_POPULATE_READ);
}

int fp_space_populate_as(struct fp_space *space, uint32_t start, uint32_t end, int advice)
{
	struct fp_piece piece;
	int r = 0;

	for (; r == 0 && start < end; start = piece.end) {
		if (!next_piece(space, start, end, &piece) || piece.start > start)
			return -ENOMEM;
		r = populate_piece(space, &piece, advice);
	}
	return r;
}

/* ---- locking ---- */

/*
 * Unlocks the far pages of a range after the lock failed half-way: evictors must never meet a
 * locked page. Foreign pieces keep their locks. The program may have locked them before, and the
 * kernel too leaves pages locked when its call fails half-way.
 */
static void unlock_far(struct fp_space *space, uint32_t start, uint32_t end)
{
	struct fp_piece piece;

	for (; fp_space_next_piece(space, start, end, &piece); start = piece.end)
		if (!(piece.flags & FP_PIECE_FOREIGN))
			munlock(fp_far_addr(space->far, piece.start), bytes(piece.start, piece.end));
}

/* Gives all far pieces of the range to the kernel. lent: FP_PIECE_LENT or 0. */
static int give_far(struct fp_space *space, uint32_t start, uint32_t end, uint32_t lent)
{
	struct fp_piece piece;
	int r = 0;

	for (; r == 0 && fp_space_next_piece(space, start, end, &piece); start = piece.end) {
		if (piece.flags & FP_PIECE_FOREIGN)
			continue;
		piece.flags |= lent;
		r = fp_space_give(space, &piece);
	}
	return r;
}

/*
 * First lets the kernel lock the range with MLOCK_ONFAULT, then gives the pages to the kernel.
 * Pages that the kernel does not lock stay far.
 */
static int lock_and_give(struct fp_space *space, uint32_t start, uint32_t end)
{
	int r = 0;

	if (start < end && mlock2(fp_far_addr(space->far, start), bytes(start, end), MLOCK_ONFAULT) < 0)
		r = -errno;
	if (r == 0)
		r = give_far(space, start, end, 0);
	if (r < 0)
		unlock_far(space, start, end);
	return r;
}

/*
 * Locks pages up to the first hole; -ENOMEM if there is one. Brings the pages in before it takes
 * the layout lock: otherwise fork and other calls would wait for the node.
 */
static int lock_some(struct fp_space *space, uint32_t start, uint32_t end)
{
	uint32_t stop;
	int r;

	(void)fp_space_populate_as(space, start, end, MADV_POPULATE_READ);
	fp_space_lock(space);
	stop = fp_space_mapped_until(space, start, end);
	r = lock_and_give(space, start, stop);
	fp_space_unlock(space);
	return r == 0 && stop < end ? -ENOMEM : r;
}

/*
 * As in the kernel: locks all pages before the first hole. If a page can't be brought in, the far
 * pages of its part (LOCKED_AT_ONCE) are not locked. The parts before it stay locked.
 */
int fp_space_mlock(struct fp_space *space, void *addr, size_t len, bool on_fault)
{
	uint32_t start, end;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	for (; r == 0 && start < end; start += FP_MIN(LOCKED_AT_ONCE, end - start))
		r = lock_some(space, start, FP_MIN(start + LOCKED_AT_ONCE, end));
	if (r == 0 && !on_fault && mlock(addr, len) < 0)
		r = -errno;
	return r;
}

int fp_space_munlock(struct fp_space *space, void *addr, size_t len)
{
	uint32_t start, end, stop;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_space_lock(space);
	stop = fp_space_mapped_until(space, start, end);
	if (start < stop && munlock(addr, bytes(start, stop)) < 0)
		r = -errno;
	fp_space_unlock(space);
	return r == 0 && stop < end ? -ENOMEM : r;
}

/* ---- holding and lending ---- */

/* How many pages of [start, end) are far. */
static uint64_t count_far(const struct fp_space *space, uint32_t start, uint32_t end)
{
	struct fp_piece piece;
	uint64_t n = 0;

	for (; fp_space_next_piece(space, start, end, &piece); start = piece.end)
		n += piece.flags & FP_PIECE_FOREIGN ? 0 : piece.end - piece.start;
	return n;
}

static uint64_t count_lent(const struct fp_space *space)
{
	const struct fp_piece *p = fp_layout_next(&space->layout, 0);
	uint64_t n = 0;

	for (; p; p = fp_layout_next(&space->layout, p->end))
		n += p->flags & FP_PIECE_LENT ? p->end - p->start : 0;
	return n;
}

/* -ENOMEM if more would be lent than may be. Called with the lock. */
static int may_lend(const struct fp_space *space, uint32_t start, uint32_t end)
{
	uint64_t most = FP_MAX(atomic_load(&space->far->budget.pages) / 4, (uint64_t)LENT_MIN);
	uint64_t more = count_far(space, start, end);

	return more > 0 && more + count_lent(space) > most ? -ENOMEM : 0;
}

/*
 * As lock_some, but skips holes and locks nothing. Another thread may lend meanwhile: so whether
 * the pages may be lent is asked under the same lock that they are given with.
 */
static int hold_some(struct fp_space *space, uint32_t start, uint32_t end, uint32_t lent)
{
	int r;

	(void)fp_space_populate_as(space, start, end, MADV_POPULATE_READ);
	fp_space_lock(space);
	r = lent ? may_lend(space, start, end) : 0;
	if (r == 0)
		r = give_far(space, start, end, lent);
	fp_space_unlock(space);
	return r;
}

static int hold_all(struct fp_space *space, uint32_t start, uint32_t end, uint32_t lent)
{
	int r = 0;

	for (; r == 0 && start < end; start += FP_MIN(LOCKED_AT_ONCE, end - start))
		r = hold_some(space, start, FP_MIN(start + LOCKED_AT_ONCE, end), lent);
	return r;
}

int fp_space_hold(struct fp_space *space, void *addr, size_t len)
{
	uint32_t start, end;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	return r < 0 ? r : hold_all(space, start, end, 0);
}

/* First asks for the whole: what is refused should stay far. */
int fp_space_lend(struct fp_space *space, void *addr, size_t len)
{
	uint32_t start, end;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_space_lock(space);
	r = may_lend(space, start, end);
	fp_space_unlock(space);
	return r < 0 ? r : hold_all(space, start, end, FP_PIECE_LENT);
}
