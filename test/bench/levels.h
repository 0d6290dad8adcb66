/*
 * A policy that the benchmark victims compares with first in, first out: which page leaves next.
 * Room: test/bench.
 *
 * The pager never sees a touch of a resident page. So this queue judges a page by its return: a
 * page that is fetched soon after its eviction was evicted too early. There are LEVELS lists, each
 * first in, first out. A page enters the lowest list. If it returns soon, it enters the next higher
 * list; if it returns late, the next lower. "Soon" means: sooner than half of the returns.
 *
 * The heads of the lists are compared by age, the time since they entered. A list's age counts only
 * 1/k of that of the list below. With k = 1 the oldest entry leaves first, whatever its list. The
 * queue raises k as long as pages evicted from the higher lists come back soon more often than
 * those from the lowest, and lowers it otherwise.
 *
 * Time is counted in evictions. An epoch is a 64th of the budget. A page's past has 15 bits. It
 * says in which epoch the page was evicted, and from which list; 0: it never was.
 *
 * The lists are linked through an array with an item for each page, so a push allocates nothing. A
 * page must not be pushed while it has an entry.
 */
#ifndef LEVELS_H
#define LEVELS_H

#include <stdint.h>

#define LEVELS 4u
#define EPOCHS 1024u /* entries that are older than this all count as equally old */

struct level_list {
	uint32_t head, tail;
	uint64_t n;
	uint64_t oldest;          /* no entry came before this epoch */
	uint32_t entered[EPOCHS]; /* how many entries came in an epoch, by its number */
};

/* What became of evicted pages, of late: [1] of the higher lists, [0] of the lowest. */
struct level_outcome {
	uint32_t evicted[2], returned_soon[2];
};

struct level_queue {
	uint32_t *next; /* by page: the entry that follows the page's own in its list */
	struct level_list lists[LEVELS];
	uint64_t epoch;
	uint32_t epoch_pages; /* the length of an epoch, in evictions */
	uint32_t epoch_left;  /* evictions until its end */
	uint32_t soon_pages;  /* about half of the returning pages come back within so many evictions */
	uint32_t k;           /* in eighths */
	struct level_outcome outcome;
};

struct level_entry {
	uint32_t page;
	uint32_t past; /* to be kept for level_queue_push */
};

/* next is an array with an item for each page; its contents don't matter. budget: pages that may be
 * resident. */
void level_queue_init(struct level_queue *queue, uint32_t *next, uint64_t budget);
/* past is what level_queue_pop said when the page left; 0: it never did. */
void level_queue_push(struct level_queue *queue, uint32_t page, uint32_t past);
/* Takes up to max entries, those first that are to leave first. Returns their number. */
unsigned level_queue_pop(struct level_queue *queue, struct level_entry *ret_entries, unsigned max);

#endif
