/* See layout.h. A sorted array: there are a few thousand mappings at most, and the fault path only
 * reads it. */
#include "layout.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"

#define PIECES_MAX (1u << 20)

/*
 * For functions that may read while another thread changes the layout: see fp_layout_peek. A race
 * detector should not report these.
 */
#define RACY __attribute__((no_sanitize("thread")))

int fp_layout_init(struct fp_layout *layout, uint32_t n_pages)
{
	void *p = mmap(NULL, PIECES_MAX * sizeof(struct fp_piece), PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	*layout = (struct fp_layout){.pieces = p, .end = n_pages};
	return 0;
}

void fp_layout_done(struct fp_layout *layout)
{
	if (layout->pieces)
		munmap(layout->pieces, PIECES_MAX * sizeof(struct fp_piece));
	layout->pieces = NULL;
}

/* The index of the first piece that ends after page. */
RACY static size_t index_after(const struct fp_layout *layout, uint32_t page)
{
	size_t low = 0, high = layout->n;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (layout->pieces[mid].end <= page)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

RACY static bool is_foreign(const struct fp_piece *piece)
{
	return piece->flags & FP_PIECE_FOREIGN;
}

const struct fp_piece *fp_layout_next(const struct fp_layout *layout, uint32_t page)
{
	size_t i = index_after(layout, page);

	return i < layout->n ? &layout->pieces[i] : NULL;
}

bool fp_layout_is_free(const struct fp_layout *layout, uint32_t start, uint32_t end)
{
	const struct fp_piece *p = fp_layout_next(layout, start);

	return !p || p->start >= end;
}

const struct fp_piece *fp_layout_after(const struct fp_layout *layout, uint32_t page)
{
	size_t i = index_after(layout, page);

	while (i < layout->n && is_foreign(&layout->pieces[i]))
		i++;
	return i < layout->n ? &layout->pieces[i] : NULL;
}

const struct fp_piece *fp_layout_after_with(const struct fp_layout *layout, uint32_t page, uint32_t flags)
{
	const struct fp_piece *p = fp_layout_after(layout, page);

	while (p && !(p->flags & flags))
		p = fp_layout_after(layout, p->end);
	return p;
}

static bool can_be_backed(const struct fp_piece *p)
{
	return p->lazy && !(p->flags & FP_PIECE_NORESERVE);
}

uint64_t fp_layout_count_unbacked(const struct fp_layout *layout, uint32_t start, uint32_t end)
{
	const struct fp_piece *p = fp_layout_after(layout, start);
	uint64_t n = 0;

	for (; p && p->start < end; p = fp_layout_after(layout, p->end))
		if (can_be_backed(p))
			n += (p->end < end ? p->end : end) - (p->start > start ? p->start : start);
	return n;
}

struct align {
	uint32_t pages;
	uint64_t base_page;
};

static int find_from(const struct fp_layout *layout, uint64_t start, uint32_t n, struct align align,
                     uint32_t *ret_start)
{
	for (size_t i = index_after(layout, (uint32_t)start); i <= layout->n; i++) {
		uint64_t gap_end = i < layout->n ? layout->pieces[i].start : layout->end;

		start =
		    (start + align.base_page + align.pages - 1) / align.pages * align.pages - align.base_page;
		if (start + n <= gap_end) {
			*ret_start = (uint32_t)start;
			return 0;
		}
		if (i < layout->n)
			start = layout->pieces[i].end;
	}
	return -ENOMEM;
}

int fp_layout_find(const struct fp_layout *layout, uint32_t n, uint32_t align_pages, uint64_t base_page,
                   uint32_t *ret_start)
{
	const struct align align = {.pages = align_pages, .base_page = base_page};
	int r = find_from(layout, layout->origin, n, align, ret_start);

	return r < 0 ? find_from(layout, 0, n, align, ret_start) : r;
}

uint32_t fp_layout_changes(const struct fp_layout *layout)
{
	return atomic_load(&layout->changes);
}

/*
 * Reads without the lock, as in a sequence lock: what was read during a change is thrown away. The
 * array never moves.
 */
RACY bool fp_layout_peek(const struct fp_layout *layout, uint32_t page, struct fp_piece *ret_piece,
                         uint32_t *ret_changes)
{
	uint32_t before = atomic_load_explicit(&layout->changes, memory_order_acquire);
	size_t i = index_after(layout, page), n = layout->n;
	struct fp_piece piece;

	if (i >= n || i >= PIECES_MAX)
		return false;
	piece = layout->pieces[i];
	atomic_thread_fence(memory_order_acquire);
	if ((before & 1) || atomic_load_explicit(&layout->changes, memory_order_relaxed) != before ||
	    piece.start > page || piece.end <= page)
		return false;
	*ret_piece = piece;
	*ret_changes = before;
	return true;
}

uint32_t fp_layout_mapped_ahead(const struct fp_layout *layout, uint32_t page, int32_t step, uint32_t n)
{
	struct fp_piece piece;
	uint32_t changes, room;

	if (!fp_layout_peek(layout, page, &piece, &changes) ||
	    (piece.flags & (FP_PIECE_FOREIGN | FP_PIECE_RANDOM)))
		return 0;
	room = step > 0 ? (piece.end - 1 - page) / (uint32_t)step : (page - piece.start) / (uint32_t)-step;
	return FP_MIN(room, n);
}

static void change_begin(struct fp_layout *layout)
{
	atomic_fetch_add_explicit(&layout->changes, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
}

static void change_end(struct fp_layout *layout)
{
	atomic_fetch_add_explicit(&layout->changes, 1, memory_order_release);
}

static bool alike(const struct fp_piece *a, const struct fp_piece *b)
{
	return a->end == b->start && a->prot == b->prot && a->lazy == b->lazy && a->flags == b->flags;
}

static void insert_at(struct fp_layout *layout, size_t i, struct fp_piece piece)
{
	memmove(&layout->pieces[i + 1], &layout->pieces[i], (layout->n - i) * sizeof(piece));
	layout->pieces[i] = piece;
	layout->n++;
}

static void remove_at(struct fp_layout *layout, size_t i, size_t n)
{
	memmove(&layout->pieces[i], &layout->pieces[i + n], (layout->n - i - n) * sizeof(layout->pieces[0]));
	layout->n -= n;
}

/* Joins piece i with its successor if they are alike. */
static void join_at(struct fp_layout *layout, size_t i)
{
	if (i + 1 < layout->n && alike(&layout->pieces[i], &layout->pieces[i + 1])) {
		layout->pieces[i].end = layout->pieces[i + 1].end;
		remove_at(layout, i + 1, 1);
	}
}

/*
 * Counts n far pages of the piece as newly mapped, or as unmapped if n is negative. Foreign pieces
 * do not count.
 */
static void account(struct fp_layout *layout, const struct fp_piece *piece, int64_t n)
{
	if (!is_foreign(piece))
		layout->mapped += (uint64_t)n;
}

int fp_layout_add(struct fp_layout *layout, struct fp_piece piece)
{
	size_t i = index_after(layout, piece.start);

	if (layout->n + 1 >= PIECES_MAX)
		return -ENOMEM;
	change_begin(layout);
	insert_at(layout, i, piece);
	account(layout, &piece, piece.end - piece.start);
	join_at(layout, i);
	if (i > 0)
		join_at(layout, i - 1);
	change_end(layout);
	return 0;
}

/* Cuts the piece that contains page, so that a piece begins there. */
static void split_at(struct fp_layout *layout, uint32_t page)
{
	size_t i = index_after(layout, page);
	struct fp_piece tail;

	if (i == layout->n || layout->pieces[i].start >= page)
		return;
	tail = layout->pieces[i];
	tail.start = page;
	layout->pieces[i].end = page;
	insert_at(layout, i + 1, tail);
}

int fp_layout_remove(struct fp_layout *layout, uint32_t start, uint32_t end, uint64_t *ret_reserved)
{
	uint64_t reserved = 0;
	size_t first, last;

	if (layout->n + 2 >= PIECES_MAX)
		return -ENOMEM;
	change_begin(layout);
	split_at(layout, start);
	split_at(layout, end);
	first = last = index_after(layout, start);
	for (; last < layout->n && layout->pieces[last].end <= end; last++) {
		uint32_t pages = layout->pieces[last].end - layout->pieces[last].start;

		account(layout, &layout->pieces[last], -(int64_t)pages);
		reserved += layout->pieces[last].lazy ? 0 : pages;
	}
	remove_at(layout, first, last - first);
	change_end(layout);
	*ret_reserved = reserved;
	return 0;
}

static void apply(struct fp_layout *layout, struct fp_piece *piece, const struct fp_piece_change *change)
{
	int64_t n = piece->end - piece->start;

	if (is_foreign(piece))
		return;
	account(layout, piece, -n);
	piece->flags = (piece->flags & ~change->clear) | change->set;
	account(layout, piece, n);
	if (change->prot >= 0)
		piece->prot = change->prot;
	if (change->back && can_be_backed(piece))
		piece->lazy = false;
	if (change->ease)
		piece->lazy = true;
}

int fp_layout_change(struct fp_layout *layout, uint32_t start, uint32_t end,
                     const struct fp_piece_change *change)
{
	size_t i, first;

	if (layout->n + 2 >= PIECES_MAX)
		return -ENOMEM;
	change_begin(layout);
	split_at(layout, start);
	split_at(layout, end);
	first = index_after(layout, start);
	for (i = first; i < layout->n && layout->pieces[i].end <= end; i++)
		apply(layout, &layout->pieces[i], change);
	/* from the last to the first, so that indices stay valid */
	while (i-- > first)
		join_at(layout, i);
	if (first > 0)
		join_at(layout, first - 1);
	change_end(layout);
	return 0;
}

int fp_layout_protect(struct fp_layout *layout, uint32_t start, uint32_t end, int prot)
{
	const struct fp_piece_change change = {.prot = prot};

	return fp_layout_change(layout, start, end, &change);
}
