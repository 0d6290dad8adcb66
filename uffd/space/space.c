/*
 * The far address space: mappings are pieces of the reserved range. Room: uffd/space. See space.h.
 */
#include "space_priv.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "cleanup.h"
#include "kernel_filled.h"

int fp_space_init(struct fp_space *space, struct fp_far *far, struct fp_reclaim *reclaim)
{
	int r;

	space->far = far;
	space->reclaim = reclaim;
	pthread_mutex_init(&space->lock, NULL);
	r = fp_layout_init(&space->layout, (uint32_t)far->n_pages);
	space->layout.origin = far->origin;
	far->layout = &space->layout;
	far->layout_lock = &space->lock;
	return r;
}

void fp_space_done(struct fp_space *space)
{
	fp_layout_done(&space->layout);
	pthread_mutex_destroy(&space->lock);
}

void fp_space_lock(struct fp_space *space)
{
	fp_far_check_family(space->far);
	pthread_mutex_lock(&space->lock);
}

void fp_space_unlock(struct fp_space *space)
{
	pthread_mutex_unlock(&space->lock);
}

/* ---- ranges ---- */

bool fp_space_owns(const struct fp_space *space, const void *addr)
{
	uintptr_t page = ((uintptr_t)addr - (uintptr_t)space->far->base) >> FP_PAGE_SHIFT;

	return page >= space->far->first && page < space->far->last;
}

/* The first page of the program's part: the agent's own pages lie before it, and no call gets
 * them. */
static uint32_t first_of_program(const struct fp_space *space)
{
	return FP_MAX(space->far->first, FP_FAR_OWN_PAGES);
}

static bool touches(uintptr_t start, size_t len, const char *first, const char *last)
{
	return start < (uintptr_t)last && len > 0 && start + len > (uintptr_t)first;
}

bool fp_space_overlaps(const struct fp_space *space, const void *addr, size_t len)
{
	struct fp_space_borders at = fp_space_borders(space);

	return touches((uintptr_t)addr, len, at.own_start, at.own_end) ||
	       touches((uintptr_t)addr, len, at.start, at.end);
}

struct fp_space_borders fp_space_borders(const struct fp_space *space)
{
	return (struct fp_space_borders){
	    .own_start = space->far->base,
	    .own_end = fp_far_addr(space->far, FP_FAR_OWN_PAGES),
	    .start = fp_far_addr(space->far, first_of_program(space)),
	    .end = fp_far_addr(space->far, space->far->last),
	};
}

uint64_t fp_space_mapped_bytes(const struct fp_space *space)
{
	return atomic_load(&space->far->stats->mapped_bytes);
}

int fp_space_to_pages(const struct fp_space *space, const void *addr, size_t len, uint32_t *ret_start,
                      uint32_t *ret_end)
{
	uint32_t page = fp_far_page(space->far, (uintptr_t)addr);

	if ((uintptr_t)addr % FP_PAGE_SIZE || len % FP_PAGE_SIZE)
		return -EINVAL;
	if (!fp_space_owns(space, addr) || page < first_of_program(space) ||
	    len >> FP_PAGE_SHIFT > space->far->last - page)
		return -ENOMEM;
	*ret_start = page;
	*ret_end = page + (uint32_t)(len >> FP_PAGE_SHIFT);
	return 0;
}

uint32_t fp_space_mapped_until(const struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece *p;

	while (start < end && (p = fp_layout_next(&space->layout, start)) && p->start <= start)
		start = p->end;
	return FP_MIN(start, end);
}

bool fp_space_next_piece(const struct fp_space *space, uint32_t start, uint32_t end,
                         struct fp_piece *ret_piece)
{
	const struct fp_piece *p = fp_layout_next(&space->layout, start);

	if (start >= end || !p || p->start >= end)
		return false;
	*ret_piece = *p;
	ret_piece->start = FP_MAX(p->start, start);
	ret_piece->end = FP_MIN(p->end, end);
	return true;
}

void fp_space_publish(struct fp_space *space)
{
	struct fp_statspage *stats = space->far->stats;
	uint64_t bytes = space->layout.mapped << FP_PAGE_SHIFT;

	atomic_store(&stats->mapped_bytes, bytes);
	if (bytes > atomic_load(&stats->mapped_peak_bytes)) {
		atomic_store(&stats->mapped_peak_bytes, bytes);
		if (space->on_growth)
			space->on_growth(space->on_growth_arg, bytes);
	}
}

/* ---- pieces in the kernel ---- */

int fp_space_open_range(struct fp_far *far, uint32_t start, uint32_t n, int prot)
{
	return mprotect(fp_far_addr(far, start), (size_t)n << FP_PAGE_SHIFT, prot) < 0 ? -errno : 0;
}

/*
 * Unmapped parts are kept out of core dumps. Otherwise a dump would look at the whole range, page
 * by page. Returns false if the kernel has too many mappings.
 */
static bool set_dumped(struct fp_space *space, uint32_t start, uint32_t end, bool dumped)
{
	return madvise(fp_far_addr(space->far, start), (size_t)(end - start) << FP_PAGE_SHIFT,
	               dumped ? MADV_DODUMP : MADV_DONTDUMP) == 0;
}

int fp_space_cut_out(struct fp_space *space, uint32_t start, uint32_t end)
{
	struct fp_piece piece;

	for (uint32_t at = start; fp_space_next_piece(space, at, end, &piece); at = piece.end)
		if (!(piece.flags & FP_PIECE_FOREIGN) && !set_dumped(space, piece.start, piece.end, false)) {
			fp_space_restore(space, start, end);
			return -ENOMEM;
		}
	return 0;
}

void fp_space_restore(struct fp_space *space, uint32_t start, uint32_t end)
{
	struct fp_piece piece;

	for (; fp_space_next_piece(space, start, end, &piece); start = piece.end) {
		fp_space_open_range(space->far, start, piece.start - start, PROT_NONE);
		if (piece.flags & FP_PIECE_FOREIGN)
			continue;
		fp_space_open_range(space->far, piece.start, piece.end - piece.start, piece.prot);
		set_dumped(space, piece.start, piece.end, !(piece.flags & FP_PIECE_DONTDUMP));
	}
	fp_space_open_range(space->far, start, end - start, PROT_NONE);
}

/* Drops pages. If a bare call has locked them, unlocks them first. */
static int drop_unlocked(struct fp_space *space, uint32_t start, uint32_t end, enum fp_drop how)
{
	int r = fp_space_drop(space, start, end, how);

	if (r == -EINVAL &&
	    munlock(fp_far_addr(space->far, start), (size_t)(end - start) << FP_PAGE_SHIFT) == 0)
		r = fp_space_drop(space, start, end, how);
	return r;
}

/* ---- map ---- */

void fp_space_stop_backing(struct fp_space *space)
{
	atomic_store(&space->forking, true);
	while (atomic_load(&space->n_backing))
		fp_space_pause();
}

void fp_space_allow_backing(struct fp_space *space)
{
	atomic_store(&space->forking, false);
}

/*
 * Begins to take slots. Returns false if a fork is under way and the caller must not wait for it.
 * Such a caller is an allocator: the fork may wait for its lock.
 */
static bool begin_backing(struct fp_space *space, bool may_wait)
{
	for (;;) {
		atomic_fetch_add(&space->n_backing, 1);
		if (!atomic_load(&space->forking))
			return true;
		atomic_fetch_sub(&space->n_backing, 1);
		if (!may_wait)
			return false;
		fp_space_pause();
	}
}

/*
 * Reserves slots for n pages, unless *lazy is set. If a fork forbids it, sets *lazy. Blocks on the
 * nodes, so the caller holds no lock.
 */
static int back(struct fp_space *space, uint64_t n, unsigned flags, bool *lazy)
{
	int r = 0;

	fp_far_check_family(space->far);
	if (*lazy || n == 0)
		return 0;
	if (begin_backing(space, !(flags & FP_MAP_HEAP))) {
		r = fp_store_reserve(space->far->store, n);
		atomic_fetch_sub(&space->n_backing, 1);
	} else {
		*lazy = true;
	}
	return r;
}

int fp_space_back(struct fp_space *space, uint64_t n)
{
	bool lazy = false;

	return back(space, n, 0, &lazy);
}

void fp_space_unback(struct fp_space *space, uint64_t n)
{
	if (n)
		fp_store_unreserve(space->far->store, n);
}

/*
 * Finds kernel-filled pages that an earlier mapping left at the addresses of this piece, and makes
 * them pages of the piece.
 */
static int resume_filled(struct fp_space *space, const struct fp_piece *piece)
{
	int r = 0;

	for (uint32_t p = piece->start, end; r == 0 && p < piece->end; p = end) {
		end = fp_space_chunk_end(p, piece->end);
		if (!fp_space_untouched(space->far, p))
			r = fp_kernel_filled_resume(space->far, piece, p, end);
	}
	return r;
}

int fp_space_add(struct fp_space *space, struct fp_piece piece)
{
	int r = resume_filled(space, &piece);

	if (r == 0)
		r = fp_space_open_range(space->far, piece.start, piece.end - piece.start, piece.prot);
	if (r == 0)
		r = fp_layout_add(&space->layout, piece);
	if (r == 0)
		set_dumped(space, piece.start, piece.end, !(piece.flags & FP_PIECE_DONTDUMP));
	if (r < 0) {
		fp_space_open_range(space->far, piece.start, piece.end - piece.start, PROT_NONE);
		(void)fp_space_drop(space, piece.start, piece.end, FP_DROP_FOR_GOOD);
	} else {
		fp_space_publish(space);
	}
	return r;
}

/* A new piece of n pages that has no place yet. */
static struct fp_piece make_piece(const struct fp_space *space, uint32_t n, int prot, unsigned flags)
{
	bool never = space->overcommit || (flags & FP_MAP_LAZY);

	return (struct fp_piece){
	    .end = n,
	    .prot = prot & (PROT_READ | PROT_WRITE | PROT_EXEC),
	    .flags = never ? FP_PIECE_NORESERVE : 0,
	    .lazy = never || prot == PROT_NONE,
	};
}

static int map_somewhere(struct fp_space *space, struct fp_piece *piece, uint32_t align_pages)
{
	uint64_t base_page = (uintptr_t)space->far->base >> FP_PAGE_SHIFT;
	uint32_t n = piece->end, start;
	int r = fp_layout_find(&space->layout, n, align_pages, base_page, &start);

	if (r < 0)
		return r;
	piece->start = start;
	piece->end = start + n;
	return fp_space_add(space, *piece);
}

/* Follows MAP_POPULATE and the like. Reports no failures, as the kernel does not. */
static void finish_map(struct fp_space *space, const struct fp_piece *piece, unsigned flags)
{
	if (flags & FP_MAP_POPULATE)
		fp_space_populate(space, piece->start, piece->end);
}

int fp_space_map(struct fp_space *space, size_t len, size_t align, int prot, unsigned flags, void **ret_addr)
{
	struct fp_piece piece;
	int r;

	if (len == 0 || len % FP_PAGE_SIZE || (align & (align - 1)))
		return -EINVAL;
	if (len >> FP_PAGE_SHIFT > space->far->n_pages || align >> FP_PAGE_SHIFT > space->far->n_pages)
		return -ENOMEM;
	piece = make_piece(space, (uint32_t)(len >> FP_PAGE_SHIFT), prot, flags);
	if (back(space, piece.end, flags, &piece.lazy) < 0)
		return -ENOMEM;
	fp_space_lock(space);
	r = map_somewhere(space, &piece, FP_MAX((uint32_t)(align >> FP_PAGE_SHIFT), 1u));
	if (r == 0)
		fp_kernel_filled_begin_mapping(space->far, &space->layout, piece.start, piece.end);
	fp_space_unlock(space);
	if (r < 0) {
		fp_space_unback(space, piece.lazy ? 0 : len >> FP_PAGE_SHIFT);
		return r;
	}
	finish_map(space, &piece, flags);
	*ret_addr = fp_far_addr(space->far, piece.start);
	return 0;
}

/* ---- map at a place ---- */

static int close_foreign(struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece *p = fp_layout_next(&space->layout, start);
	uint64_t none;
	int r = 0;

	while (r == 0 && p && p->start < end) {
		uint32_t from = FP_MAX(p->start, start), to = FP_MIN(p->end, end), behind = p->end;

		if (p->flags & FP_PIECE_FOREIGN) {
			r = fp_space_close(space, from, to);
			if (r == 0)
				r = fp_layout_remove(&space->layout, from, to, &none);
		}
		p = fp_layout_next(&space->layout, behind);
	}
	return r;
}

/*
 * Replaces the mappings in the piece's place by the piece. Changes the protection of the old pages
 * first, then drops them: otherwise a late write could survive in a page that is no longer
 * writable. If a later step fails, nothing is mapped there.
 */
static int replace(struct fp_space *space, struct fp_piece piece, uint64_t *ret_reserved)
{
	int r = close_foreign(space, piece.start, piece.end);

	if (r == 0 && !fp_space_end_filled(space, piece.start, piece.end))
		r = -ENOMEM;
	if (r < 0)
		return r;
	r = fp_space_open_range(space->far, piece.start, piece.end - piece.start, piece.prot);
	if (r < 0) {
		fp_space_restore(space, piece.start, piece.end);
		return r;
	}
	r = drop_unlocked(space, piece.start, piece.end, FP_DROP_FOR_GOOD);
	if (r == 0)
		r = fp_layout_remove(&space->layout, piece.start, piece.end, ret_reserved);
	if (r == 0)
		r = fp_layout_add(&space->layout, piece);
	if (r == 0)
		set_dumped(space, piece.start, piece.end, !(piece.flags & FP_PIECE_DONTDUMP));
	else if (fp_layout_is_free(&space->layout, piece.start, piece.end))
		fp_space_open_range(space->far, piece.start, piece.end - piece.start, PROT_NONE);
	fp_space_publish(space);
	return r;
}

/* Maps a piece whose place is known. */
static int map_piece_at(struct fp_space *space, struct fp_piece piece, unsigned flags)
{
	uint64_t more = piece.lazy ? 0 : piece.end - piece.start, reserved = 0;
	int r;

	if (fp_space_back(space, more) < 0)
		return -ENOMEM;
	fp_space_lock(space);
	if ((flags & FP_MAP_NOREPLACE) && !fp_layout_is_free(&space->layout, piece.start, piece.end))
		r = -EEXIST;
	else
		r = replace(space, piece, &reserved);
	fp_space_unlock(space);
	fp_space_unback(space, reserved + (r < 0 ? more : 0));
	if (r == 0)
		finish_map(space, &piece, flags);
	return r;
}

int fp_space_map_at(struct fp_space *space, void *addr, size_t len, int prot, unsigned flags)
{
	struct fp_piece piece = make_piece(space, 0, prot, flags);
	int r = fp_space_to_pages(space, addr, len, &piece.start, &piece.end);

	return r < 0 ? r : map_piece_at(space, piece, flags);
}

/* ---- unmap ---- */

/*
 * Makes far pages inaccessible, so that no thread can bring one back before it is dropped. Ends the
 * foreign pieces. If the kernel refuses that, everything is as before, except for foreign pieces
 * that have ended.
 */
static int close_all(struct fp_space *space, uint32_t start, uint32_t end)
{
	struct fp_piece piece;
	int r = fp_space_cut_out(space, start, end);

	if (r < 0)
		return r;
	for (uint32_t at = start; r == 0 && fp_space_next_piece(space, at, end, &piece); at = piece.end)
		if (!(piece.flags & FP_PIECE_FOREIGN))
			r = fp_space_open_range(space->far, piece.start, piece.end - piece.start, PROT_NONE);
	if (r == 0)
		r = close_foreign(space, start, end);
	if (r < 0)
		fp_space_restore(space, start, end);
	return r;
}

/*
 * Drops an inaccessible piece. If the kernel has too many mappings, it can't register kernel-filled
 * pages again. Then they stay kernel-filled, as those of a short piece do.
 */
static int drop_closed(struct fp_space *space, const struct fp_piece *piece)
{
	int r = -ENOMEM;

	if (piece->end - piece->start > FP_KERNEL_FILLED_SHORT)
		r = drop_unlocked(space, piece->start, piece->end, FP_DROP_FOR_GOOD);
	return r == -ENOMEM ? drop_unlocked(space, piece->start, piece->end, FP_DROP_SHORT) : r;
}

int fp_space_remove(struct fp_space *space, uint32_t start, uint32_t end, uint64_t *ret_reserved)
{
	struct fp_piece piece;
	uint64_t reserved;
	int r = close_all(space, start, end);

	for (uint32_t at = start; r == 0 && fp_space_next_piece(space, at, end, &piece); at = piece.end)
		r = drop_closed(space, &piece);
	if (r == 0)
		r = fp_layout_remove(&space->layout, start, end, &reserved);
	if (r == 0)
		*ret_reserved += reserved;
	fp_space_publish(space);
	return r;
}

/* True if the range lies in the agent's own pages. */
static bool is_own(const struct fp_space *space, const char *addr, size_t len)
{
	struct fp_space_borders at = fp_space_borders(space);

	return addr >= at.own_start && addr < at.own_end && len <= (size_t)(at.own_end - addr);
}

int fp_space_unmap(struct fp_space *space, void *addr, size_t len)
{
	uint64_t reserved = 0;
	uint32_t start, end;
	int r = fp_space_to_pages(space, addr, len, &start, &end);

	if (r < 0)
		return is_own(space, addr, len) ? 0 : r; /* a hole, to the program */
	fp_space_lock(space);
	r = fp_space_remove(space, start, end, &reserved);
	fp_space_unlock(space);
	fp_space_unback(space, reserved);
	return r;
}

/* ---- limits ---- */

/* The range from the first mapped page to the last, in whole chunks. */
static void find_mapped(const struct fp_space *space, uint32_t from, uint32_t *ret_start, uint32_t *ret_end)
{
	const uint32_t chunk = 1u << FP_CHUNK_SHIFT, last = space->far->last;
	const struct fp_piece *p = fp_layout_next(&space->layout, from);
	uint32_t end = FP_MIN(FP_MAX(space->layout.origin, from), last);

	*ret_start = (p && p->start < last ? FP_MAX(p->start, from) : end) & ~(chunk - 1);
	for (; p && p->start < last; p = fp_layout_next(&space->layout, p->end))
		end = p->end;
	*ret_end = (end + chunk - 1) & ~(chunk - 1);
}

static int close_off(struct fp_space *space, uint32_t start, uint32_t end)
{
	const struct fp_piece piece = {.start = start, .end = end, .flags = FP_PIECE_FOREIGN, .lazy = true};

	return start == end ? 0 : fp_layout_add(&space->layout, piece);
}

/* Undoes close_off. */
static void reopen(struct fp_space *space, uint32_t start, uint32_t end)
{
	uint64_t none;

	(void)fp_layout_remove(&space->layout, start, end, &none);
}

/* Shrinks the range to n pages. The layout then marks the rest of the range as foreign: not
 * ours. */
static int shrink(struct fp_space *space, uint64_t n)
{
	uint32_t from = FP_MAX(space->far->first, FP_FAR_OWN_PAGES), last = space->far->last, start, end;
	int r;

	if (last - from <= n)
		return 0;
	find_mapped(space, from, &start, &end);
	if (n < FP_FAR_MIN_BYTES >> FP_PAGE_SHIFT || end - start > n)
		return -EPERM;
	start = FP_MIN(start, last - (uint32_t)n);
	end = start + (uint32_t)n;
	r = close_off(space, from, start);
	if (r == 0)
		r = close_off(space, end, last);
	if (r == 0)
		r = fp_far_shrink(space->far, start, end);
	if (r < 0) {
		reopen(space, from, start);
		reopen(space, end, last);
	}
	return r;
}

int fp_space_fit(struct fp_space *space, int kind, uint64_t limit)
{
	uint64_t n = fp_far_fitting_bytes(kind, limit) >> (FP_PAGE_SHIFT + FP_CHUNK_SHIFT) << FP_CHUNK_SHIFT;
	int r;

	fp_space_lock(space);
	r = shrink(space, n);
	fp_space_unlock(space);
	return r;
}
