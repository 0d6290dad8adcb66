/* The layout, compared with a plain array of pages after random calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>

#include "cleanup.h"
#include "layout.h"
#include "testrng.h"

#define PAGES 200u
#define CALLS 20000u

struct model {
	struct fp_layout layout;
	struct page {
		bool mapped, lazy; /* mapped: in a mapping, far or foreign */
		int prot;
		uint32_t flags;
	} pages[PAGES];
	uint64_t rng;
};

static uint32_t below(struct model *m, uint32_t n)
{
	return (uint32_t)(test_random(&m->rng) % n);
}

static bool is_far(const struct page *page)
{
	return page->mapped && !(page->flags & FP_PIECE_FOREIGN);
}

static bool all(const struct model *m, uint32_t start, uint32_t end, bool mapped)
{
	for (uint32_t p = start; p < end; p++)
		if (m->pages[p].mapped != mapped)
			return false;
	return true;
}

/* True if all these pages are far, or if there are no pages. */
static bool all_far(const struct model *m, uint32_t start, uint32_t end, bool far)
{
	for (uint32_t p = start; p < end; p++)
		if (is_far(&m->pages[p]) != far)
			return false;
	return true;
}

static void add(struct model *m, uint32_t start, uint32_t end)
{
	static const uint32_t kinds[] = {
	    0, 0, FP_PIECE_NORESERVE, FP_PIECE_DONTDUMP, FP_PIECE_RANDOM, FP_PIECE_FOREIGN};
	struct fp_piece piece = {.start = start, .end = end, .prot = (int)below(m, 3), .lazy = below(m, 2)};

	piece.flags = kinds[below(m, sizeof(kinds) / sizeof(kinds[0]))];
	if (piece.flags & FP_PIECE_FOREIGN)
		piece.lazy = true;
	if (!all(m, start, end, false))
		return;
	assert_int_equal(fp_layout_add(&m->layout, piece), 0);
	for (uint32_t p = start; p < end; p++)
		m->pages[p] = (struct page){
		    .mapped = true, .lazy = piece.lazy, .prot = piece.prot, .flags = piece.flags};
}

static void drop(struct model *m, uint32_t start, uint32_t end)
{
	uint64_t reserved, expected = 0;

	for (uint32_t p = start; p < end; p++) {
		expected += m->pages[p].mapped && !m->pages[p].lazy;
		m->pages[p] = (struct page){.mapped = false};
	}
	assert_int_equal(fp_layout_remove(&m->layout, start, end, &reserved), 0);
	assert_int_equal(reserved, expected);
}

static void change(struct model *m, uint32_t start, uint32_t end)
{
	struct fp_piece_change c = {
	    .prot = (int)below(m, 4) - 1,
	    .set = 1u << (2 + below(m, 7)),
	    .clear = 1u << (2 + below(m, 7)),
	    .back = below(m, 2),
	};

	assert_int_equal(fp_layout_change(&m->layout, start, end, &c), 0);
	for (uint32_t p = start; p < end; p++) {
		struct page *page = &m->pages[p];

		if (!is_far(page))
			continue;
		if (c.prot >= 0)
			page->prot = c.prot;
		page->flags = (page->flags & ~c.clear) | c.set;
		if (c.back && !(page->flags & FP_PIECE_NORESERVE))
			page->lazy = false;
	}
}

/* The pieces must match the pages, be in order, and be as few as possible. */
static void compare(const struct model *m)
{
	const struct fp_layout *layout = &m->layout;
	struct page pages[PAGES] = {0};
	uint64_t mapped = 0;

	for (size_t i = 0; i < layout->n; i++) {
		const struct fp_piece *piece = &layout->pieces[i], *next = piece + 1;

		assert_true(piece->start < piece->end && piece->end <= PAGES);
		if (i + 1 < layout->n) {
			assert_true(piece->end <= next->start);
			assert_false(piece->end == next->start && piece->prot == next->prot &&
			             piece->lazy == next->lazy && piece->flags == next->flags);
		}
		for (uint32_t p = piece->start; p < piece->end; p++) {
			pages[p] = (struct page){
			    .mapped = true, .lazy = piece->lazy, .prot = piece->prot, .flags = piece->flags};
			mapped += is_far(&pages[p]);
		}
	}
	for (uint32_t p = 0; p < PAGES; p++) {
		assert_int_equal(pages[p].mapped, m->pages[p].mapped);
		assert_int_equal(pages[p].lazy, m->pages[p].lazy);
		assert_int_equal(pages[p].prot, m->pages[p].prot);
		assert_int_equal(pages[p].flags, m->pages[p].flags);
	}
	assert_int_equal(layout->mapped, mapped);
}

static void ask_counts(const struct model *m, uint32_t start, uint32_t end)
{
	uint64_t unbacked = 0;

	for (uint32_t p = start; p < end; p++) {
		const struct page *page = &m->pages[p];

		unbacked += is_far(page) && page->lazy && !(page->flags & FP_PIECE_NORESERVE);
	}
	assert_int_equal(fp_layout_count_unbacked(&m->layout, start, end), unbacked);
	assert_int_equal(fp_layout_is_free(&m->layout, start, end), all(m, start, end, false));
}

/* Checks where a walk over the pieces with one of these flags must begin. */
static void ask_with(const struct model *m, uint32_t start, uint32_t flags)
{
	const struct fp_piece *with = fp_layout_after_with(&m->layout, start, flags);

	while (start < PAGES && !(is_far(&m->pages[start]) && m->pages[start].flags & flags))
		start++;
	assert_int_equal(with != NULL, start < PAGES);
	assert_true(!with || (with->start <= start && start < with->end));
}

/* The pages that may be read ahead, upwards or downwards, lie in the piece of the page. */
static void ask_ahead(struct model *m, uint32_t page, uint32_t n, const struct fp_piece *at)
{
	uint32_t step = 1 + below(m, 3);
	bool down = below(m, 2);
	uint32_t ahead = fp_layout_mapped_ahead(&m->layout, page, down ? -(int32_t)step : (int32_t)step, n);
	uint32_t low = down ? page - step * ahead : page, high = down ? page : page + step * ahead;

	assert_true(ahead <= n && (ahead == 0 || all_far(m, low, high + 1, true)));
	if (at && at->flags & FP_PIECE_RANDOM)
		assert_int_equal(ahead, 0);
	else if (at)
		assert_int_equal(ahead, FP_MIN(n, (down ? page - at->start : at->end - 1 - page) / step));
}

static void ask(struct model *m, uint32_t start, uint32_t end)
{
	const struct fp_piece *after = fp_layout_after(&m->layout, start),
	                      *next = fp_layout_next(&m->layout, start),
	                      *at = after && after->start <= start ? after : NULL;

	assert_int_equal(at != NULL, is_far(&m->pages[start]));
	assert_true(after ? after->end > start && all_far(m, start, after->start, false)
	                  : all_far(m, start, PAGES, false));
	assert_true(next ? next->end > start && all(m, start, next->start, false)
	                 : all(m, start, PAGES, false));
	ask_ahead(m, start, end - start, at);
	ask_counts(m, start, end);
	ask_with(m, start, 1u << (2 + below(m, 7)));
}

static bool is_gap(struct model *m, uint32_t at, uint32_t n, uint32_t align, uint32_t base)
{
	return (at + base) % align == 0 && all(m, at, at + n, false);
}

/* Finds the first gap from an address on, and compares it with a search page by page. */
static void find(struct model *m)
{
	uint32_t n = 1 + below(m, 12), align = 1u << below(m, 5), base = below(m, 64), found = UINT32_MAX,
	         origin = m->layout.origin = below(m, PAGES / 4), at = origin;
	int r = fp_layout_find(&m->layout, n, align, base, &found);

	while (at + n <= PAGES && !is_gap(m, at, n, align, base))
		at++;
	if (at + n > PAGES)
		for (at = 0; at + n <= PAGES && !is_gap(m, at, n, align, base);)
			at++;
	if (at + n > PAGES)
		assert_int_equal(r, -ENOMEM);
	else
		assert_true(r == 0 && found == at);
}

static void test_random_calls(void **state)
{
	struct model m = {.rng = test_seed("layout")};

	(void)state;
	assert_int_equal(fp_layout_init(&m.layout, PAGES), 0);
	for (unsigned i = 0; i < CALLS; i++) {
		uint32_t start = below(&m, PAGES), end = start + 1 + below(&m, FP_MIN(PAGES - start, 40u));

		switch (below(&m, 8)) {
		case 0 ... 3:
			add(&m, start, end);
			break;
		case 4:
			drop(&m, start, end);
			break;
		case 5 ... 6:
			change(&m, start, FP_MIN(end, start + 8));
			break;
		default:
			find(&m);
		}
		compare(&m);
		ask(&m, start, end);
	}
	fp_layout_done(&m.layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_random_calls),
	};

	return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
