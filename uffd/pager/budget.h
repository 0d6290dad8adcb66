/*
 * Room: how many pages may be resident, and who waits for one. A page needs a token before it is
 * installed and gives it back when its local memory is really free, so the budget holds at every
 * moment. Room of the house: uffd. Lock-free; any thread.
 */
#ifndef FP_BUDGET_H
#define FP_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_BUDGET_BATCH_MAX 64u /* pages evicted at once */

struct fp_budget {
	_Atomic uint64_t pages;
	_Atomic uint64_t resident; /* tokens out: arriving, resident or leaving pages */
	_Atomic uint64_t peak;
	_Atomic uint64_t *peak_bytes; /* raised with it, for whoever looks from outside; NULL: nobody does */
	_Atomic uint64_t pinned;      /* pages that calls hold, some perhaps counted twice */
	_Atomic uint64_t excess; /* pages granted on top, as all that is resident is pinned by the program */
	_Atomic uint32_t need; /* pages that the program's threads need at once, if more than that; else 0 */
	_Atomic bool starved;  /* the fault thread waits for a token */
	_Atomic bool kicked;   /* the reclaim thread has been told */
	int starved_fd;        /* eventfd: tokens came back */
	int kick_fd;           /* eventfd: the reclaim thread's wake-up */
};

int fp_budget_init(struct fp_budget *budget, uint64_t budget_pages);
void fp_budget_done(struct fp_budget *budget);

/* From now on *bytes is the peak in bytes, brought up to date with each growth; NULL: no longer.
 * Before any thread takes tokens, or after the last has. */
void fp_budget_show_peak(struct fp_budget *budget, _Atomic uint64_t *bytes);

/* Takes up to n tokens; returns how many. Kicks the reclaim thread when little is left. */
unsigned fp_budget_take(struct fp_budget *budget, unsigned n);
/* Takes n tokens beyond the budget: for pages that nothing could make room for. */
void fp_budget_overdraw(struct fp_budget *budget, unsigned n);
/* Gives back tokens that nothing was done with. */
void fp_budget_give(struct fp_budget *budget, unsigned n);
/* The same of pages that are local no more, whichever way they went: what was granted ends
 * first. */
void fp_budget_leave(struct fp_budget *budget, unsigned n);

/*
 * Calls hold n pages more, or fewer. What is held can't leave: beyond half of the budget it comes
 * on top of it, so that the other half remains for what can.
 */
void fp_budget_pin(struct fp_budget *budget, uint64_t n);
void fp_budget_unpin(struct fp_budget *budget, uint64_t n);

/*
 * Where the program has all pinned (O_DIRECT, registered buffers), waiting gives no budget. The
 * first that waits a whole deadline in vain grants one page on top of the budget; while some are
 * granted, each try to evict that fails grants a batch more, so that nobody waits as long again.
 * What leaves takes as much back. for_good: no wait would help, so nobody need have waited.
 */
void fp_budget_grant(struct fp_budget *budget);
bool fp_budget_tried_in_vain(struct fp_budget *budget, bool for_good); /* true: it granted */

/*
 * The program has n threads. Each needs a few pages at once, or threads take them from each other
 * before use and none comes further. If they need more than the budget, that counts as the budget,
 * up to 16 MiB. The reclaim thread, now and then.
 */
void fp_budget_see_threads(struct fp_budget *budget, unsigned n_threads);
/* True while it is so: nothing but what threads wait for shall come in. */
bool fp_budget_is_scarce(const struct fp_budget *budget);

/* Pages that are resident beyond the budget. */
uint64_t fp_budget_overdrawn(const struct fp_budget *budget);

uint64_t fp_budget_free(const struct fp_budget *budget);

/* The low watermark: eviction starts when less is free, and ends when twice as much is. */
uint64_t fp_budget_margin(const struct fp_budget *budget);
/* Pages to evict at once, so that a small budget is not emptied by one batch. */
unsigned fp_budget_batch(const struct fp_budget *budget);

/* Wakes the reclaim thread, once until it looks. */
void fp_budget_kick(struct fp_budget *budget);

#endif
