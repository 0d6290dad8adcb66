/*
 * mlock and its kin. Room: uffd; see space.h.
 *
 * A locked piece is locked in the kernel too, always on fault: it counts against RLIMIT_MEMLOCK, and neither
 * the kernel nor an evictor can take its pages. FP_PAGE_LOCKED in their words only keeps evictors from
 * trying.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "cleanup.h"
#include "inline.h"

static size_t bytes(uint32_t start, uint32_t end)
{
	return (size_t)(end - start) << FP_PAGE_SHIFT;
}

/* Half of the budget: the rest must still be able to come and go. */
uint64_t fp_space_lockable(const struct fp_space *space)
{
	uint64_t limit = atomic_load(&space->far->room.budget) / 2;

	return limit > space->layout.locked ? limit - space->layout.locked : 0;
}

/* ---- bringing in ---- */

/* The far piece that holds start, cut to end; false at a hole or a foreign piece. */
static bool piece_at(struct fp_space *space, uint32_t start, uint32_t end, struct fp_piece *ret_piece)
{
	const struct fp_piece *p;
	sigset_t mask;
	bool found;

	fp_space_lock(space, &mask);
	p = fp_layout_at(&space->layout, start);
	found = p;
	if (found) {
		*ret_piece = *p;
		ret_piece->start = start;
		ret_piece->end = FP_MIN(p->end, end);
	}
	fp_space_unlock(space, &mask);
	return found;
}

/* The kernel walks the pages, its touches are faults like any. */
static int populate_piece(struct fp_space *space, const struct fp_piece *piece)
{
	int advice = piece->prot & PROT_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	void *addr = fp_far_addr(space->far, piece->start);

	if (piece->prot == PROT_NONE)
		return -ENOMEM;
	if (atomic_load(&space->far->inline_servers)) { /* where the kernel's own touches are no faults */
		fp_inline_bring(space->far->inline_servers, piece->start, piece->end - piece->start,
		                piece->prot & PROT_WRITE);
		return 0;
	}
	if (madvise(addr, bytes(piece->start, piece->end), advice) == 0)
		return 0;
	if (errno != EINVAL) /* a kernel before 5.14 */
		return errno == ENOMEM ? -EAGAIN : -ENOMEM;
	return mlock(addr, bytes(piece->start, piece->end)) < 0 ? -errno : 0;
}

int fp_space_populate(struct fp_space *space, uint32_t start, uint32_t end, uint64_t room_pages)
{
	struct fp_piece piece;
	int r = 0;

	if (end - start > room_pages)
		end = start + (uint32_t)room_pages;
	for (; r == 0 && start < end && piece_at(space, start, end, &piece); start = piece.end)
		r = populate_piece(space, &piece);
	return r;
}

/* ---- locking ---- */

static int set_locked(struct fp_space *space, const struct fp_piece *piece, uint32_t locked)
{
	const struct fp_piece_change change = {
	    .prot = -1, .set = locked, .clear = FP_PIECE_LOCKED | FP_PIECE_LOCK_ON_FAULT};

	return fp_layout_change(&space->layout, piece->start, piece->end, &change);
}

static int lock_piece(struct fp_space *space, const struct fp_piece *piece, uint32_t locked)
{
	unsigned flags = locked & FP_PIECE_LOCK_ON_FAULT ? MLOCK_ONFAULT : 0;
	void *addr = fp_far_addr(space->far, piece->start);
	int r;

	if (piece->flags & FP_PIECE_FOREIGN)
		return mlock2(addr, bytes(piece->start, piece->end), flags) < 0 ? -errno : 0;
	r = fp_space_dress(space, piece->start, piece->end, locked);
	return r < 0 ? r : set_locked(space, piece, locked);
}

static int unlock_piece(struct fp_space *space, const struct fp_piece *piece, uint32_t unused)
{
	int r =
	    munlock(fp_far_addr(space->far, piece->start), bytes(piece->start, piece->end)) < 0 ? -errno : 0;

	if (r < 0 || !(piece->flags & FP_PIECE_LOCKED))
		return r;
	fp_space_mark_locked(space, piece->start, piece->end, false);
	return set_locked(space, piece, 0);
}

/* Up to the first hole, as the kernel. */
static int each_piece(struct fp_space *space, uint32_t start, uint32_t end, uint32_t locked,
                      int (*visit)(struct fp_space *space, const struct fp_piece *piece, uint32_t locked))
{
	int r = 0;

	while (r == 0 && start < end) {
		const struct fp_piece *p = fp_layout_next(&space->layout, start);
		struct fp_piece piece;

		if (!p || p->start > start)
			return -ENOMEM;
		piece = *p;
		piece.start = start;
		piece.end = FP_MIN(piece.end, end);
		r = visit(space, &piece, locked);
		start = piece.end;
	}
	return r;
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

int fp_space_mlock(struct fp_space *space, void *addr, size_t len, bool on_fault)
{
	uint32_t locked = FP_PIECE_LOCKED | (on_fault ? FP_PIECE_LOCK_ON_FAULT : 0), start, end;
	sigset_t mask;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_space_lock(space, &mask);
	if (count_unlocked(space, start, fp_space_mapped_until(space, start, end)) > fp_space_lockable(space))
		r = -ENOSPC;
	else
		r = each_piece(space, start, end, locked, lock_piece);
	fp_space_unlock(space, &mask);
	if (r < 0 || on_fault)
		return r;
	return fp_space_populate(space, start, end, UINT64_MAX);
}

int fp_space_munlock(struct fp_space *space, void *addr, size_t len)
{
	uint32_t start, end;
	sigset_t mask;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_space_lock(space, &mask);
	r = each_piece(space, start, end, 0, unlock_piece);
	fp_space_unlock(space, &mask);
	return r;
}

/* ---- all of it ---- */

/* Far pages that a program could touch now: what is only reserved need not be in memory. */
static uint64_t count_open(const struct fp_space *space)
{
	const struct fp_piece *p = fp_layout_after(&space->layout, 0);
	uint64_t n = 0;

	for (; p; p = fp_layout_after(&space->layout, p->end))
		n += p->prot == PROT_NONE || p->flags & (FP_PIECE_LOCKED | FP_PIECE_AGENT)
		         ? 0
		         : p->end - p->start;
	return n;
}

static int lock_open(struct fp_space *space, uint32_t locked)
{
	const struct fp_piece *p = fp_layout_next(&space->layout, 0);
	int r = 0;

	while (r == 0 && p) {
		struct fp_piece piece = *p;

		if (!(piece.flags & FP_PIECE_AGENT) &&
		    (piece.prot != PROT_NONE || piece.flags & (FP_PIECE_LOCKED | FP_PIECE_FOREIGN)))
			r = lock_piece(space, &piece, locked);
		p = fp_layout_next(&space->layout, piece.end);
	}
	return r;
}

/*
 * The kernel locks the whole range, the agent's pages too, which must be able to leave: so all on fault, as
 * otherwise it would bring everything in; then the range is let go, and its open pieces are locked.
 */
static int lock_all(struct fp_space *space, int flags, uint32_t locked)
{
	if (flags & MCL_CURRENT && count_open(space) > fp_space_lockable(space))
		return -ENOSPC;
	if (mlockall(flags | MCL_ONFAULT) < 0)
		return -errno;
	space->lock_future = flags & MCL_FUTURE ? locked : 0;
	if (!(flags & MCL_CURRENT))
		return 0;
	if (munlock(space->far->base, space->far->n_pages << FP_PAGE_SHIFT) < 0)
		return -errno;
	return lock_open(space, locked);
}

static void populate_all(struct fp_space *space)
{
	const struct fp_piece *p;
	struct fp_piece piece = {.end = 0};
	sigset_t mask;

	do {
		fp_space_lock(space, &mask);
		p = fp_layout_after_with(&space->layout, piece.end, FP_PIECE_LOCKED);
		if (p)
			piece = *p;
		fp_space_unlock(space, &mask);
		if (p && !(piece.flags & FP_PIECE_LOCK_ON_FAULT))
			(void)populate_piece(space, &piece);
	} while (p);
}

int fp_space_mlockall(struct fp_space *space, int flags)
{
	uint32_t locked = FP_PIECE_LOCKED | (flags & MCL_ONFAULT ? FP_PIECE_LOCK_ON_FAULT : 0);
	sigset_t mask;
	int r;

	fp_space_lock(space, &mask);
	r = lock_all(space, flags, locked);
	fp_space_unlock(space, &mask);
	if (r == 0 && !(flags & MCL_ONFAULT))
		populate_all(space);
	return r;
}

int fp_space_munlockall(struct fp_space *space)
{
	const struct fp_piece *p;
	sigset_t mask;
	int r = 0;

	fp_space_lock(space, &mask);
	space->lock_future = 0;
	while (r == 0 && (p = fp_layout_after_with(&space->layout, 0, FP_PIECE_LOCKED))) {
		struct fp_piece piece = *p;

		r = unlock_piece(space, &piece, 0);
	}
	if (munlockall() < 0)
		r = -errno;
	fp_space_unlock(space, &mask);
	return r;
}
