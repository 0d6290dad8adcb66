/*
 * mlock and its kin. Room: uffd/space; see space.h.
 *
 * A locked piece is locked in the kernel too, always on fault. So it counts against RLIMIT_MEMLOCK,
 * and neither the kernel nor an evictor can take its pages. FP_PAGE_LOCKED in their words only
 * keeps evictors from trying.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "cleanup.h"
#include "inline.h"
#include "lockedmem.h"

#define ANY_LOCK (FP_PIECE_LOCKED | FP_PIECE_LOCK_ON_FAULT)

static size_t bytes(uint32_t start, uint32_t end)
{
	return (size_t)(end - start) << FP_PAGE_SHIFT;
}

/* Half of the budget: the rest must still be able to come and go. */
uint64_t fp_space_lockable(const struct fp_space *space)
{
	uint64_t limit = atomic_load(&space->far->budget.pages) / 2;

	return limit > space->layout.locked ? limit - space->layout.locked : 0;
}

/* ---- bringing in ---- */

/* Finds the piece that holds start, or else the next one, cut to [start, end), with the layout's
 * number of changes. Takes the lock. */
static bool next_piece(struct fp_space *space, uint32_t start, uint32_t end, struct fp_piece *ret_piece,
                       uint32_t *ret_changes)
{
	bool found;

	fp_space_lock(space);
	found = fp_space_next_piece(space, start, end, ret_piece);
	if (found)
		*ret_changes = fp_layout_changes(&space->layout);
	fp_space_unlock(space);
	return found;
}

/* Unlocks what the kernel locked without our lock: by now it may be another mapping, or none. */
static void unlock_strays(struct fp_space *space, uint32_t start, uint32_t end)
{

	fp_space_lock(space);
	while (start < end) {
		const struct fp_piece *p = fp_layout_next(&space->layout, start);
		uint32_t from = p ? FP_MIN(FP_MAX(p->start, start), end) : end;
		uint32_t to = p ? FP_MIN(p->end, end) : end;

		if (from > start) /* a hole */
			munlock(fp_far_addr(space->far, start), bytes(start, from));
		if (to > from && !(p->flags & (FP_PIECE_FOREIGN | FP_PIECE_LOCKED)))
			munlock(fp_far_addr(space->far, from), bytes(from, to));
		start = to;
	}
	fp_space_unlock(space);
}

/* Brings in pages that are locked on fault, by a full mlock. Not under the lock: the thread that
 * fills them may want it. */
static int populate_by_lock(struct fp_space *space, const struct fp_piece *piece, uint32_t changes)
{
	int r =
	    mlock(fp_far_addr(space->far, piece->start), bytes(piece->start, piece->end)) < 0 ? -errno : 0;

	if (fp_layout_changes(&space->layout) != changes)
		unlock_strays(space, piece->start, piece->end);
	return r;
}

/* The kernel walks the pages, and its touches are ordinary faults. */
static int populate_far(struct fp_space *space, const struct fp_piece *piece, uint32_t changes)
{
	int advice = piece->prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	if (piece->prot == PROT_NONE)
		return -ENOMEM;
	if (atomic_load(&space->far->inline_servers)) { /* the kernel's own touches are no faults there */
		fp_inline_bring(space->far->inline_servers, piece->start, piece->end - piece->start,
		                piece->prot & PROT_WRITE);
		return 0;
	}
	if (madvise(fp_far_addr(space->far, piece->start), bytes(piece->start, piece->end), advice) == 0)
		return 0;
	if (errno != EINVAL || !(piece->flags & FP_PIECE_LOCKED))
		return errno == ENOMEM ? -EAGAIN : -ENOMEM;
	return populate_by_lock(space, piece, changes); /* before Linux 5.14, or execute-only memory */
}

void fp_space_populate(struct fp_space *space, uint32_t start, uint32_t end, uint64_t room_pages)
{
	struct fp_piece piece;
	uint32_t changes;

	if (end - start > room_pages)
		end = start + (uint32_t)room_pages;
	for (; start < end && next_piece(space, start, end, &piece, &changes); start = piece.end)
		if (!(piece.flags & FP_PIECE_FOREIGN))
			(void)populate_far(space, &piece, changes);
}

static int populate_piece_as(struct fp_space *space, const struct fp_piece *piece, int advice)
{
	int needs = advice == MADV_POPULATE_WRITE ? PROT_WRITE : PROT_READ;
	void *addr = fp_far_addr(space->far, piece->start);

	if (piece->flags & FP_PIECE_FOREIGN || !atomic_load(&space->far->inline_servers))
		return madvise(addr, bytes(piece->start, piece->end), advice) < 0 ? -errno : 0;
	if (!(piece->prot & needs))
		return -EINVAL;
	fp_inline_bring(space->far->inline_servers, piece->start, piece->end - piece->start,
	                needs == PROT_WRITE);
	return 0;
}

int fp_space_populate_as(struct fp_space *space, uint32_t start, uint32_t end, int advice)
{
	struct fp_piece piece;
	uint32_t changes;
	int r = 0;

	for (; r == 0 && start < end; start = piece.end) {
		if (!next_piece(space, start, end, &piece, &changes) || piece.start > start)
			return -ENOMEM;
		r = populate_piece_as(space, &piece, advice);
	}
	return r;
}

/* foreign_too: the caller has locked those pieces on fault. */
static int populate_locked(struct fp_space *space, uint32_t start, uint32_t end, bool foreign_too)
{
	struct fp_piece piece;
	uint32_t changes;
	int r = 0;

	for (; r == 0 && start < end && next_piece(space, start, end, &piece, &changes); start = piece.end)
		if (foreign_too && piece.flags & FP_PIECE_FOREIGN)
			r = populate_by_lock(space, &piece, changes);
		else if ((piece.flags & ANY_LOCK) == FP_PIECE_LOCKED)
			r = populate_far(space, &piece, changes);
	return r;
}

int fp_space_populate_locked(struct fp_space *space, uint32_t start, uint32_t end)
{
	return populate_locked(space, start, end, false);
}

/* ---- locking ---- */

/* The kernel's mappings can end without an event: they are not registered. */
static bool has_hole(const struct fp_far *far, uint32_t start, uint32_t end)
{
	return msync(fp_far_addr(far, start), bytes(start, end), MS_ASYNC) < 0 && errno == ENOMEM;
}

/* The first hole, or end. */
static uint32_t first_hole(const struct fp_far *far, uint32_t start, uint32_t end)
{
	if (!has_hole(far, start, end))
		return end;
	while (end - start > 1) {
		uint32_t middle = start + (end - start) / 2;

		if (has_hole(far, start, middle))
			end = middle;
		else
			start = middle;
	}
	return start;
}

/* The page at which the kernel would stop, as nothing is mapped there; at most end. */
static uint32_t mapped_until(const struct fp_space *space, uint32_t start, uint32_t end)
{
	uint32_t stop = fp_space_mapped_until(space, start, end);

	for (struct fp_piece p; fp_space_next_piece(space, start, stop, &p); start = p.end) {
		uint32_t hole = p.flags & FP_PIECE_FOREIGN ? first_hole(space->far, p.start, p.end) : p.end;

		if (hole < p.end)
			return hole;
	}
	return stop;
}

/* Marks the words of the far pieces that are not LOCKED. */
static void mark_others(struct fp_space *space, uint32_t start, uint32_t end, bool locked)
{
	const struct fp_piece *p = fp_layout_after(&space->layout, start);

	for (; p && p->start < end; p = fp_layout_after(&space->layout, p->end))
		if (!(p->flags & FP_PIECE_LOCKED))
			fp_space_mark_locked(space, FP_MAX(p->start, start), FP_MIN(p->end, end), locked);
}

/* Locks pages mapped without a hole: all of them or, if the kernel refuses, none. The words come
 * first: an evictor must not meet the kernel's lock before ours. */
static int lock_mapped(struct fp_space *space, uint32_t start, uint32_t end, uint32_t locked)
{
	const struct fp_piece_change change = {.prot = -1, .set = locked, .clear = ANY_LOCK};
	int r = 0;

	if (start == end)
		return 0;
	mark_others(space, start, end, true);
	if (mlock2(fp_far_addr(space->far, start), bytes(start, end), MLOCK_ONFAULT) < 0)
		r = -errno;
	else
		r = fp_layout_change(&space->layout, start, end, &change);
	if (r < 0)
		mark_others(space, start, end, false);
	return r;
}

static int unlock_mapped(struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece_change change = {.prot = -1, .clear = ANY_LOCK};
	const struct fp_piece *p = fp_layout_after_with(&space->layout, start, FP_PIECE_LOCKED);

	if (start < end && munlock(fp_far_addr(space->far, start), bytes(start, end)) < 0)
		return -errno;
	for (; p && p->start < end; p = fp_layout_after_with(&space->layout, p->end, FP_PIECE_LOCKED))
		fp_space_mark_locked(space, FP_MAX(p->start, start), FP_MIN(p->end, end), false);
	return fp_layout_change(&space->layout, start, end, &change);
}

/* Far pages of the range that are not locked yet. */
static uint64_t count_unlocked(const struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece *p = fp_layout_after(&space->layout, start);
	uint64_t n = 0;

	for (; p && p->start < end; p = fp_layout_after(&space->layout, p->end))
		if (!(p->flags & FP_PIECE_LOCKED))
			n += FP_MIN(p->end, end) - FP_MAX(p->start, start);
	return n;
}

/*
 * As the kernel: locks all before the first hole. Pages that can't be brought in stay locked too.
 */
int fp_space_mlock(struct fp_space *space, void *addr, size_t len, bool on_fault)
{
	uint32_t locked = FP_PIECE_LOCKED | (on_fault ? FP_PIECE_LOCK_ON_FAULT : 0), start, end, stop;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_space_lock(space);
	stop = mapped_until(space, start, end);
	if (count_unlocked(space, start, stop) > fp_space_lockable(space))
		r = -ENOSPC;
	else
		r = lock_mapped(space, start, stop, locked);
	fp_space_unlock(space);
	if (r == 0 && stop < end)
		r = -ENOMEM;
	return r < 0 || on_fault ? r : populate_locked(space, start, end, true);
}

int fp_space_munlock(struct fp_space *space, void *addr, size_t len)
{
	uint32_t start, end, stop;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_space_lock(space);
	stop = mapped_until(space, start, end);
	r = unlock_mapped(space, start, stop);
	fp_space_unlock(space);
	return r == 0 && stop < end ? -ENOMEM : r;
}

/* ---- mlockall ---- */

/* mlockall needs only accessible pieces in memory. Reserved ones stay as they are. */
static bool is_open(const struct fp_piece *piece)
{
	return !(piece->flags & FP_PIECE_AGENT) &&
	       (piece->prot != PROT_NONE || piece->flags & (FP_PIECE_LOCKED | FP_PIECE_FOREIGN));
}

static uint64_t count_open(const struct fp_space *space)
{
	const struct fp_piece *p = fp_layout_after(&space->layout, 0);
	uint64_t n = 0;

	for (; p; p = fp_layout_after(&space->layout, p->end))
		n += is_open(p) && !(p->flags & FP_PIECE_LOCKED) ? p->end - p->start : 0;
	return n;
}

/* Like the kernel, reports nothing about pieces that it could not lock. */
static void lock_open(struct fp_space *space, uint32_t locked)
{
	const struct fp_piece *p = fp_layout_next(&space->layout, 0);

	while (p) {
		struct fp_piece piece = *p;

		if (is_open(&piece))
			(void)lock_mapped(space, piece.start, piece.end, locked);
		p = fp_layout_next(&space->layout, piece.end);
	}
}

static int unlock_stretch(struct fp_space *space, uint32_t start, uint32_t end)
{
	return munlock(fp_far_addr(space->far, start), (size_t)(end - start) << FP_PAGE_SHIFT);
}

/* Foreign pieces stay locked, as the program wishes. Skips holes, where munlock would stop. */
static int unlock_range(struct fp_space *space)
{
	const struct fp_layout *layout = &space->layout;
	uint32_t start = 0, end = (uint32_t)space->far->n_pages;
	const struct fp_piece *p;

	for (p = fp_layout_next(layout, 0); p; p = fp_layout_next(layout, p->end)) {
		if (!(p->flags & FP_PIECE_FOREIGN))
			continue;
		if (p->start > start && unlock_stretch(space, start, p->start) < 0)
			return -errno;
		start = p->end;
	}
	return start < end && unlock_stretch(space, start, end) < 0 ? -errno : 0;
}

/*
 * The kernel locks the whole range, also the agent's pages, which must be able to leave. So it
 * locks on fault, as otherwise it would bring everything in. Then the range is unlocked, and its
 * open pieces are locked.
 */
static int lock_all(struct fp_space *space, int flags, uint32_t locked)
{
	int r;

	if (flags & MCL_CURRENT && count_open(space) > fp_space_lockable(space))
		return -ENOSPC;
	if (mlockall(flags | MCL_ONFAULT) < 0)
		return -errno;
	space->lock_future = flags & MCL_FUTURE ? locked : 0;
	if (!(flags & MCL_CURRENT))
		return 0;
	r = unlock_range(space);
	if (r < 0) {
		space->lock_future = 0;
		(void)munlockall();
		fp_lockedmem_again();
		return r;
	}
	lock_open(space, locked);
	return 0;
}

int fp_space_mlockall(struct fp_space *space, int flags)
{
	uint32_t locked = FP_PIECE_LOCKED | (flags & MCL_ONFAULT ? FP_PIECE_LOCK_ON_FAULT : 0);
	uint32_t end = (uint32_t)space->far->n_pages, changes;
	struct fp_piece piece = {.end = 0};
	int r;

	fp_space_lock(space);
	r = lock_all(space, flags, locked);
	fp_space_unlock(space);
	if (r < 0 || !(flags & MCL_CURRENT) || flags & MCL_ONFAULT)
		return r;
	while (next_piece(space, piece.end, end, &piece, &changes))
		(void)populate_locked(space, piece.start, piece.end, true);
	return 0;
}

int fp_space_munlockall(struct fp_space *space)
{
	const struct fp_piece *p;
	int r = 0;

	fp_space_lock(space);
	space->lock_future = 0;
	while (r == 0 && (p = fp_layout_after_with(&space->layout, 0, FP_PIECE_LOCKED)))
		r = unlock_mapped(space, p->start, p->end);
	if (munlockall() < 0)
		r = -errno;
	fp_lockedmem_again();
	fp_space_unlock(space);
	return r;
}
