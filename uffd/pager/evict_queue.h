/*
 * The eviction queue: which local page leaves next. To evict in another order, replace this module.
 * Room: uffd/pager.
 *
 * The pager never sees a touch of a local page. So the queue judges a page by its return: a page
 * that is fetched soon after its eviction was evicted too early. There are several lists, called
 * levels, each first in, first out. A page enters the lowest level. If it returns soon, it enters
 * the next higher level; if it returns late, the next lower. "Soon" means: sooner than half of the
 * returns.
 *
 * The oldest page leaves first, but a page of a higher level counts as younger than it is: at each
 * level, its age is divided by k once more. The queue raises k as long as pages that were evicted
 * from higher levels return soon more often than those from the lowest. Otherwise it lowers k. With
 * k = 1 the queue is first in, first out. Two rules protect a page that has just come, so that the
 * thread that waits for it can use it: while other lists have entries, no page leaves the lowest
 * level within a sixteenth of the budget. And with a small budget all pages enter the lowest level.
 *
 *        push, by the page's past                              pop: the greatest age / k^level
 *   ── never evicted, or late ──► level 0  [ a page ── .. ── the oldest page ] ──► age
 *   ── soon, from level 0 ──────► level 1  [ ..                              ] ──► age / k
 *   ── soon, from level 1 ──────► level 2  [ ..                              ] ──► age / k^2
 *   ── soon, from level 2 or 3 ─► level 3  [ ..                              ] ──► age / k^3
 *
 * Time is counted in evictions. An epoch is a 64th of the budget. The past of a page has
 * FP_EVICT_PAST_BITS bits: the epoch in which the page was evicted, and from which level. 0 means
 * that it never was. The page's word keeps its past (pager.h).
 *
 * A page has one entry at most. The lists are linked through an array with an item for each page,
 * so a push never fails and allocates nothing (law 4). Only agent code takes the locks, for a few
 * instructions; the program's threads block signals first.
 *
 * Threads on many CPUs push at once. So a push goes to an inbox, which few threads share. A full
 * inbox is emptied into the lists, and each pop empties all of them first. So a pop misses no
 * entry.
 */
#ifndef FP_EVICT_QUEUE_H
#define FP_EVICT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_EVICT_LEVELS    4u
#define FP_EVICT_EPOCHS    1024u /* entries that are older than this all count as equally old */
#define FP_EVICT_PAST_BITS 15u
#define FP_EVICT_INBOXES   16u
#define FP_EVICT_INBOX_MAX 32u /* entries */

struct fp_evict_entry {
	uint32_t page;
	uint32_t past; /* to be kept for the next fp_evict_queue_push of the page */
};

/* An inbox's lock is taken before the queue's. */
struct fp_evict_inbox {
	pthread_mutex_t lock;
	_Atomic uint32_t n; /* read without the lock, too */
	struct fp_evict_entry entries[FP_EVICT_INBOX_MAX];
	char pad[64]; /* two inboxes share no cache line */
};

struct fp_evict_list {
	uint32_t head, tail;
	uint64_t n;
	uint64_t oldest;                   /* no entry came before this epoch */
	uint32_t entered[FP_EVICT_EPOCHS]; /* how many of the entries came in an epoch, by its number */
};

/* Recent evictions, and the returns that came soon: [1] of the higher levels, [0] of the lowest. */
struct fp_evict_outcome {
	uint32_t evicted[2], returned_soon[2];
};

struct fp_evict_queue {
	struct fp_evict_inbox inboxes[FP_EVICT_INBOXES];
	pthread_mutex_t lock; /* of all below */
	uint32_t *next;       /* by page: whether it has an entry, and the entry behind it in its list */
	struct fp_evict_list lists[FP_EVICT_LEVELS];
	uint64_t epoch;
	uint32_t epoch_pages; /* the length of an epoch, in evictions */
	uint32_t epoch_left;  /* evictions until its end */
	bool is_small;        /* the budget is small: all pages enter the lowest level */
	uint32_t soon_pages;  /* about half of the returning pages return within so many evictions */
	uint32_t k;           /* in eighths */
	struct fp_evict_outcome outcome;
};

/*
 * next is zeroed memory with an item for each page, at most 2^31 of them. The caller owns it, and
 * it must outlive the queue. Then set the budget.
 */
void fp_evict_queue_init(struct fp_evict_queue *queue, uint32_t *next);
void fp_evict_queue_done(struct fp_evict_queue *queue);
/* How many pages may be local. May be called at any time. */
void fp_evict_queue_set_budget(struct fp_evict_queue *queue, uint64_t pages);
/*
 * Empties the copy of the queue that a forked child has, and makes its locks anew. The parent may
 * have been inside a push, so nothing is assumed of the lists. The caller has zeroed the array.
 */
void fp_evict_queue_renew(struct fp_evict_queue *queue);
/*
 * Drops the entries of all pages outside of [first, last). Takes time for each entry. Afterwards
 * the queue does not use their part of the array.
 */
void fp_evict_queue_cut(struct fp_evict_queue *queue, uint32_t first, uint32_t last);
/*
 * Adds a page that has become local. past is what fp_evict_queue_pop said when the page left; 0: it
 * never did, or left for another reason. A page that has an entry keeps it, and gets no second one.
 */
void fp_evict_queue_push(struct fp_evict_queue *queue, uint32_t page, uint32_t past);
/* Takes up to max entries, those first that are to leave first. Returns their number. */
unsigned fp_evict_queue_pop(struct fp_evict_queue *queue, struct fp_evict_entry *ret_entries, unsigned max);

#endif
