/*
 * The pin table: which pages stay resident because a call has handed them to the kernel. Room:
 * uffd/pager. A hazard-pointer protocol: a caller first publishes its ranges, then looks at the
 * pages' words. An evictor or a layout call first changes the page's word (LEAVING, CLAIMED), then
 * looks into the table. Both are sequentially consistent, so at least one of them sees the other:
 *
 *     caller                            evictor
 *     publish [page, page + n)          word: RESIDENT -> LEAVING
 *     fp_pin_fence                      fp_pin_fence
 *     word LEAVING? wait, bring back    published? put back: RESIDENT
 *
 * Pure: page numbers and one piece of memory. Lock-free and async-signal-safe: a call that is
 * interrupted half-way leaves at most a range, which it clears when it goes on.
 */
#ifndef FP_PIN_H
#define FP_PIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_PIN_LINE     8u         /* ranges in a cache line; each thread begins to search in another line */
#define FP_PIN_MAX      (1u << 18) /* how many ranges all threads can pin at once */
#define FP_PIN_NO_PLACE UINT32_MAX
#define FP_PIN_LOOK_MAX 64u /* how many pages one look asks for, a bit each */

struct fp_page_range {
	uint32_t page, n; /* n > 0 */
};

struct fp_pin_table {
	_Atomic uint64_t *ranges; /* page << 32 | n; 0: a free place. Memory comes on touch */
	_Atomic uint32_t top;     /* places from this one on were never used */
	_Atomic uint32_t held;    /* how many ranges are published now */
};

/* 0 or -ENOMEM. */
int fp_pin_table_init(struct fp_pin_table *table);
void fp_pin_table_done(struct fp_pin_table *table);

/*
 * Publishes n ranges in consecutive places. It takes the places from hint on if they are free,
 * otherwise the next free ones. Returns the first place, or FP_PIN_NO_PLACE if the table is full.
 * Any thread, signal handlers too.
 */
uint32_t fp_pin_publish(struct fp_pin_table *table, const struct fp_page_range *ranges, uint32_t n,
                        uint32_t hint);
/* Clears the n places that begin with `place`. They must be the caller's. */
void fp_pin_clear(struct fp_pin_table *table, uint32_t place, uint32_t n);

/* The range at a place. */
static inline struct fp_page_range fp_pin_at(const struct fp_pin_table *table, uint32_t place)
{
	uint64_t range = atomic_load_explicit(&table->ranges[place], memory_order_relaxed);

	return (struct fp_page_range){.page = (uint32_t)(range >> 32), .n = (uint32_t)range};
}

/*
 * Orders two steps of a thread. In the first it writes its own side: a range, or a page's word. In
 * the second it looks at the other side.
 */
static inline void fp_pin_fence(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/*
 * Tells which of n pages (at most FP_PIN_LOOK_MAX) are pinned: one bit for each page. The evictor
 * calls it after a fence. The result never misses a pin, but may contain one that has just ended.
 */
uint64_t fp_pin_look(const struct fp_pin_table *table, const uint32_t *pages, unsigned n);

/*
 * True if the page is pinned. Like fp_pin_look, it never misses a pin, but may see one that has
 * just ended.
 */
bool fp_pin_has(const struct fp_pin_table *table, uint32_t page);

/*
 * True if a page outside of [first, last) is pinned. Like fp_pin_look, it never misses a pin, but
 * may see one that has just ended.
 */
bool fp_pin_any_outside(const struct fp_pin_table *table, uint32_t first, uint32_t last);

/*
 * Called in a forked child, which has one thread. Keeps the places that are listed in keep (n_keep
 * ranges of places), and clears all others.
 */
void fp_pin_forked(struct fp_pin_table *table, const struct fp_page_range *keep, unsigned n_keep);

#endif
