/*
 * The hold table: which pages stay resident because a call has handed them to the kernel. Room:
 * uffd. A hazard-pointer protocol: who holds publishes its ranges first and looks at the pages'
 * words then; who would take a page makes its word say so first (LEAVING, CLAIMED) and looks into
 * the table then. Both are sequentially consistent, so at least one of the two sees the other:
 *
 *     caller                            evictor
 *     publish [page, page + n)          word: RESIDENT -> LEAVING
 *     fp_pin_fence                     fp_pin_fence
 *     word LEAVING? wait, bring back    published? put back: RESIDENT
 *
 * Pure: page numbers and one piece of memory. Lock-free, and async-signal-safe: a call that is
 * interrupted half-way leaves at most a range that it clears when it goes on.
 */
#ifndef FP_PIN_H
#define FP_PIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_PIN_LINE     8u         /* ranges that share a cache line, and the threads' places are one apart */
#define FP_PIN_MAX      (1u << 18) /* ranges held at once, by all threads */
#define FP_PIN_NO_PLACE UINT32_MAX

struct fp_page_range {
	uint32_t page, n; /* n > 0 */
};

struct fp_pin_table {
	_Atomic uint64_t *ranges; /* page << 32 | n, 0: free; memory comes as it is touched */
	_Atomic uint32_t top;     /* none beyond this one was ever used */
	_Atomic uint32_t held;    /* ranges that are published now */
};

/* 0 or -ENOMEM. */
int fp_pin_table_init(struct fp_pin_table *table);
void fp_pin_table_done(struct fp_pin_table *table);

/*
 * Publishes n ranges in a row of places, from hint on where that is free. Returns the first place,
 * or FP_PIN_NO_PLACE if the table is full. Any thread, signal handlers too.
 */
uint32_t fp_pin_publish(struct fp_pin_table *table, const struct fp_page_range *ranges, uint32_t n,
                        uint32_t hint);
/* Clears n places from place on, which are the caller's. */
void fp_pin_clear(struct fp_pin_table *table, uint32_t place, uint32_t n);

/* What stands at a place. */
static inline struct fp_page_range fp_pin_at(const struct fp_pin_table *table, uint32_t place)
{
	uint64_t range = atomic_load_explicit(&table->ranges[place], memory_order_relaxed);

	return (struct fp_page_range){.page = (uint32_t)(range >> 32), .n = (uint32_t)range};
}

/* Between what was published, or a word that was changed, and the look at the other. */
static inline void fp_pin_fence(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/*
 * Which of n pages (at most 64) are held: a bit each. The evictor's question, after a fence. False
 * alarms are possible (a call that has just ended), the reverse is not.
 */
uint64_t fp_pin_look(const struct fp_pin_table *table, const uint32_t *pages, unsigned n);

/* The same of one page. */
bool fp_pin_has(const struct fp_pin_table *table, uint32_t page);

/* In a forked child, which has one thread: clears all places but the n_keep ranges of places in
 * keep. */
void fp_pin_forked(struct fp_pin_table *table, const struct fp_page_range *keep, unsigned n_keep);

#endif
