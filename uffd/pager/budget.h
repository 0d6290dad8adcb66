/*
 * The budget: how many pages may be resident, and which threads wait for a token. Room: uffd/pager.
 * A page needs a token before it is installed. The token comes back when the page's local memory is
 * really free, so the budget holds at every moment. Lock-free; any thread.
 */
#ifndef FP_BUDGET_H
#define FP_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * How many pages are evicted at once, at most. A batch holds up one fault in so many for as long as
 * it takes. So it is larger than 100, with some room: then the 99th percentile of a fault does not
 * see it. And it is not larger than that, for the sake of the 99.9th.
 */
#define FP_BUDGET_BATCH_MAX 144u

struct fp_budget {
	_Atomic uint64_t pages;
	_Atomic uint64_t *peak_bytes; /* a copy of peak for readers outside the process; NULL: none */
	_Atomic uint64_t pinned;      /* pages that calls have pinned; some may count twice */
	_Atomic uint64_t excess;      /* pages granted beyond the limit, as all resident ones are pinned */
	_Atomic uint32_t need;        /* pages that the threads need at once; 0 if the budget is enough */
	_Atomic uint32_t n_waiting;   /* faults on pages with a slot that wait for a token */
	_Atomic bool starved;         /* a thread sleeps until tokens come back */
	_Atomic bool kicked;          /* the reclaim thread was woken, and has not looked yet */
	int starved_fd;               /* eventfd: signalled when tokens come back */
	int kick_fd;                  /* eventfd: wakes the reclaim thread */
	char pad[64];                 /* each fault reads what is above, and writes what is below */
	_Atomic uint64_t resident;    /* tokens in use: arriving, resident or leaving pages */
	_Atomic uint64_t peak;
	char pad2[64];
};

int fp_budget_init(struct fp_budget *budget, uint64_t budget_pages);
void fp_budget_done(struct fp_budget *budget);

/*
 * From now on *bytes is a copy of the peak, in bytes; with NULL, there is no copy any more. Call it
 * before any thread takes tokens, or after the last one has.
 */
void fp_budget_show_peak(struct fp_budget *budget, _Atomic uint64_t *bytes);

/* Takes up to n tokens and returns their number. Kicks the reclaim thread when few are left. */
unsigned fp_budget_take(struct fp_budget *budget, unsigned n);
/* Takes n tokens beyond the budget, for pages that must come although no page can leave. */
void fp_budget_overdraw(struct fp_budget *budget, unsigned n);
/* Gives back tokens that were not used. */
void fp_budget_give(struct fp_budget *budget, unsigned n);
/*
 * Gives back the tokens of n pages that are no longer local, for whatever reason. Before that, ends
 * n grants (see fp_budget_grant), or all grants if there are fewer.
 */
void fp_budget_leave(struct fp_budget *budget, unsigned n);

/*
 * From now on n pages more are pinned, or n pages fewer. A pinned page can't leave. Pinned pages
 * beyond half of the budget come on top of the budget, so that the other half remains for pages
 * that can leave.
 */
void fp_budget_pin(struct fp_budget *budget, uint64_t n);
void fp_budget_unpin(struct fp_budget *budget, uint64_t n);

/*
 * If the program has pinned all resident pages (O_DIRECT, registered buffers), waiting frees no
 * token. The first thread that waits until its deadline in vain grants one page on top of the
 * budget. While there are grants, each attempt to evict that fails grants one more batch, so that
 * other threads need not wait so long. Each page that leaves ends one grant.
 *
 * If the parameter for_good is true, waiting can't help. Then an attempt that fails grants a batch
 * even if no thread has waited.
 */
void fp_budget_grant(struct fp_budget *budget);
bool fp_budget_tried_in_vain(struct fp_budget *budget, bool for_good); /* true: a page was granted */

/*
 * The program has n threads. Each needs a few pages at once; otherwise threads take pages from each
 * other before use, and none makes progress. If they need more than the budget, their need counts
 * as the budget, up to 16 MiB. Called by the reclaim thread at intervals.
 */
void fp_budget_see_threads(struct fp_budget *budget, unsigned n_threads);
/*
 * True while the threads need more than the budget. Then only pages that threads wait for may come.
 */
bool fp_budget_is_scarce(const struct fp_budget *budget);

/* How many pages are resident beyond the budget. */
uint64_t fp_budget_overdrawn(const struct fp_budget *budget);

uint64_t fp_budget_free(const struct fp_budget *budget);
/* True if half of the budget stays free after n more pages: so many may come before a touch. */
bool fp_budget_keeps_half(const struct fp_budget *budget, unsigned n);

/*
 * How many pages to evict at once: few if the budget is small, so that one batch does not empty it.
 * This is also the low watermark: when fewer tokens are free, the reclaim thread is kicked.
 */
unsigned fp_budget_batch(const struct fp_budget *budget);
/* True below the high watermark, which is a batch and a half of free tokens: then pages leave. */
bool fp_budget_is_low(const struct fp_budget *budget);

/* Wakes the reclaim thread. Further kicks do nothing until it looks. */
void fp_budget_kick(struct fp_budget *budget);

#endif
