/*
 * Protection and advice of far pieces. Room: uffd/space; see space.h. On several pieces, a call
 * does what the kernel does. mprotect ends at the first hole. madvise goes on behind a hole, and
 * reports the hole at its end. Both end at the first piece that refuses.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "capture.h"
#include "cleanup.h"

/* ---- protection ---- */

static int protect_piece(struct fp_space *space, const struct fp_piece *piece, int prot)
{
	const struct fp_piece_change change = {
	    .prot = prot & (PROT_READ | PROT_WRITE | PROT_EXEC),
	    .back = prot & PROT_WRITE,
	};
	int r;

	fp_capture_pause(space->far);
	r = fp_space_open_range(space->far, piece->start, piece->end - piece->start, prot);
	if (r == 0 && !(piece->flags & FP_PIECE_FOREIGN))
		r = fp_layout_change(&space->layout, piece->start, piece->end, &change);
	fp_capture_resume(space->far);
	return r;
}

/* Protects the pages mapped from start on without a hole. */
static int protect_locked(struct fp_space *space, uint32_t start, uint32_t end, int prot)
{
	int r = 0;

	for (struct fp_piece piece; r == 0 && start < end; start = piece.end) {
		if (!fp_space_next_piece(space, start, end, &piece) || piece.start > start)
			return -ENOMEM;
		r = protect_piece(space, &piece, prot);
	}
	return r;
}

/*
 * Counts the pages that become writable and have no slots yet. Reserves slots for them, and takes
 * the lock.
 */
static int back_opened(struct fp_space *space, uint32_t start, uint32_t end, uint64_t *ret_more)
{
	for (;;) {
		uint64_t more;

		fp_space_lock(space);
		more =
		    fp_layout_count_unbacked(&space->layout, start, fp_space_mapped_until(space, start, end));
		fp_space_unlock(space);
		if (fp_space_back(space, more) < 0)
			return -ENOMEM;
		fp_space_lock(space);
		if (fp_layout_count_unbacked(&space->layout, start,
		                             fp_space_mapped_until(space, start, end)) == more) {
			*ret_more = more;
			return 0;
		}
		fp_space_unlock(space);
		fp_space_unback(space, more);
	}
}

int fp_space_protect(struct fp_space *space, void *addr, size_t len, int prot)
{
	uint64_t more = 0, left = 0;
	uint32_t start, end, stop;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	if (prot & PROT_WRITE)
		r = back_opened(space, start, end, &more);
	else
		fp_space_lock(space);
	if (r < 0)
		return r;
	stop = fp_space_mapped_until(space, start, end);
	r = protect_locked(space, start, end, prot);
	if (more)
		left = fp_layout_count_unbacked(&space->layout, start, stop);
	fp_space_unlock(space);
	fp_space_unback(space, left);
	return r;
}

/* ---- advice ---- */

static int change_flags(struct fp_space *space, const struct fp_piece *piece, uint32_t set, uint32_t clear)
{
	const struct fp_piece_change change = {.prot = -1, .set = set, .clear = clear};

	return fp_layout_change(&space->layout, piece->start, piece->end, &change);
}

static int dump_piece(struct fp_space *space, const struct fp_piece *piece, int advice)
{
	bool dont = advice == MADV_DONTDUMP;
	size_t len = (size_t)(piece->end - piece->start) << FP_PAGE_SHIFT;

	if (madvise(fp_far_addr(space->far, piece->start), len, advice) < 0)
		return -errno;
	return change_flags(space, piece, dont ? FP_PIECE_DONTDUMP : 0, FP_PIECE_DONTDUMP);
}

static int advise_piece(struct fp_space *space, const struct fp_piece *piece, int advice)
{
	switch (advice) {
	case MADV_DONTNEED:
	case MADV_DONTNEED_LOCKED:
	case MADV_FREE:
		return fp_space_drop(space, piece->start, piece->end, FP_DROP);
	case MADV_NORMAL:
	case MADV_SEQUENTIAL: /* read-ahead notices that by itself */
	case MADV_RANDOM:
		return change_flags(space, piece, advice == MADV_RANDOM ? FP_PIECE_RANDOM : 0,
		                    FP_PIECE_RANDOM);
	case MADV_DONTFORK:
	case MADV_DOFORK:
		return change_flags(space, piece, advice == MADV_DONTFORK ? FP_PIECE_DONTFORK : 0,
		                    FP_PIECE_DONTFORK);
	case MADV_WIPEONFORK:
	case MADV_KEEPONFORK:
		return change_flags(space, piece, advice == MADV_WIPEONFORK ? FP_PIECE_WIPEONFORK : 0,
		                    FP_PIECE_WIPEONFORK);
	case MADV_DONTDUMP:
	case MADV_DODUMP:
		return dump_piece(space, piece, advice);
	case MADV_COLD: /* these three are done after the lock is released */
	case MADV_PAGEOUT:
	case MADV_WILLNEED:
	case MADV_HUGEPAGE: /* hints, which far memory does not need */
	case MADV_NOHUGEPAGE:
	case MADV_MERGEABLE:
	case MADV_UNMERGEABLE:
		return 0;
	default:
		return -EINVAL;
	}
}

/* *ret_stop: the start of the piece that refused, or end. */
static int advise_locked(struct fp_space *space, uint32_t start, uint32_t end, int advice, uint32_t *ret_stop)
{
	struct fp_piece piece;
	int r = 0, hole = 0;

	while (start < end && fp_space_next_piece(space, start, end, &piece)) {
		hole = piece.start > start ? -ENOMEM : hole;
		*ret_stop = piece.start;
		if (!(piece.flags & FP_PIECE_FOREIGN))
			r = advise_piece(space, &piece, advice);
		else if (madvise(fp_far_addr(space->far, piece.start),
		                 (size_t)(piece.end - piece.start) << FP_PAGE_SHIFT, advice) < 0)
			r = -errno;
		if (r < 0)
			return r;
		start = piece.end;
	}
	*ret_stop = end;
	return start < end ? -ENOMEM : hole;
}

int fp_space_advise(struct fp_space *space, void *addr, size_t len, int advice)
{
	uint32_t start, end, stop = 0;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	if (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE)
		return fp_space_populate_as(space, start, end, advice);
	fp_space_lock(space);
	r = advise_locked(space, start, end, advice, &stop);
	fp_space_unlock(space);
	if (advice == MADV_WILLNEED)
		fp_space_populate(space, start, stop);
	else if ((advice == MADV_COLD || advice == MADV_PAGEOUT) && stop > start)
		fp_reclaim_pageout(space->reclaim, start, stop - start);
	return r;
}

/* ---- residency ---- */

/*
 * Some programs call mincore before each touch, so the usual case takes no lock. The lock is taken
 * only if there is a hole, or if the layout changes during the look.
 */
static uint32_t look_mapped_until(struct fp_space *space, uint32_t start, uint32_t end)
{
	struct fp_piece piece;
	uint32_t changes;

	while (start < end && fp_layout_peek(&space->layout, start, &piece, &changes))
		start = piece.end;
	if (start >= end)
		return end;
	fp_space_lock(space);
	start = fp_space_mapped_until(space, start, end);
	fp_space_unlock(space);
	return start;
}

/* *ret_len: the bytes from addr on that are mapped, at least len if all are. */
static int measure_mapped(struct fp_space *space, void *addr, size_t len, size_t *ret_len)
{
	uint32_t start, end;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return r;
	fp_far_check_family(space->far);
	*ret_len = (size_t)(look_mapped_until(space, start, end) - start) << FP_PAGE_SHIFT;
	return 0;
}

int fp_space_mincore(struct fp_space *space, void *addr, size_t len, unsigned char *vec)
{
	size_t mapped;
	int r = measure_mapped(space, addr, len, &mapped);

	if (r < 0)
		return r;
	if (mapped > 0 && mincore(addr, mapped, vec) < 0)
		return -errno;
	return mapped < len ? -ENOMEM : 0;
}

int fp_space_msync(struct fp_space *space, void *addr, size_t len, int flags)
{
	size_t mapped;
	int r = measure_mapped(space, addr, len, &mapped);

	if (r < 0)
		return r;
	if (msync(addr, mapped, flags) < 0)
		return -errno;
	return mapped < len ? -ENOMEM : 0;
}
