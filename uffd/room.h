/*
 * Room: how many pages may be resident, and who waits for one. A page needs a token before it is installed
 * and gives it back when its local memory is really free, so the budget holds at every moment. Room of the
 * house: uffd. Lock-free; any thread.
 */
#ifndef FP_ROOM_H
#define FP_ROOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FP_ROOM_BATCH_MAX 64u /* pages evicted at once */

struct fp_room {
	_Atomic uint64_t budget;   /* pages */
	_Atomic uint64_t resident; /* tokens out: arriving, resident or leaving pages */
	_Atomic uint64_t peak;
	_Atomic uint64_t *peak_bytes; /* raised with it, for whoever looks from outside; NULL: nobody does */
	_Atomic uint64_t pinned;      /* pages that calls hold, some perhaps counted twice */
	_Atomic uint64_t excess; /* pages granted on top, as all that is resident is pinned by the program */
	_Atomic uint32_t need;   /* pages that threads need at once, where they thrash; else 0 */
	_Atomic uint32_t calm;   /* looks since they last did */
	_Atomic bool starved;    /* the fault thread waits for a token */
	_Atomic bool kicked;     /* the reclaim thread has been told */
	int starved_fd;          /* eventfd: tokens came back */
	int kick_fd;             /* eventfd: the reclaim thread's wake-up */
};

int fp_room_init(struct fp_room *room, uint64_t budget_pages);
void fp_room_done(struct fp_room *room);

/* From now on *bytes is the peak in bytes, brought up to date with each growth; NULL: no longer. Before any
 * thread takes tokens, or after the last has. */
void fp_room_show_peak(struct fp_room *room, _Atomic uint64_t *bytes);

/* Takes up to n tokens; returns how many. Kicks the reclaim thread when little is left. */
unsigned fp_room_take(struct fp_room *room, unsigned n);
/* Takes n tokens beyond the budget: for pages that nothing could make room for. */
void fp_room_overdraw(struct fp_room *room, unsigned n);
/* Gives back tokens that nothing was done with. */
void fp_room_give(struct fp_room *room, unsigned n);
/* The same of pages that are local no more, whichever way they went: what was granted ends first. */
void fp_room_leave(struct fp_room *room, unsigned n);

/*
 * Calls hold n pages more, or fewer. What is held can't leave: beyond half of the budget it comes on top of
 * it, so that the other half remains for what can.
 */
void fp_room_pin(struct fp_room *room, uint64_t n);
void fp_room_unpin(struct fp_room *room, uint64_t n);

/*
 * Where the program has all pinned (O_DIRECT, registered buffers), waiting gives no room. The first that
 * waits a whole deadline in vain grants one page on top of the budget; while some are granted, each try to
 * evict that fails grants a batch more, so that nobody waits as long again. What leaves takes as much back.
 * for_good: no wait would help, so nobody need have waited.
 */
void fp_room_grant(struct fp_room *room);
bool fp_room_tried_in_vain(struct fp_room *room, bool for_good); /* true: it granted */

/*
 * Threads thrash (thrash.h): n pages must fit at once, beside what calls hold. Where that is more than the
 * budget, it counts as the budget until fp_room_calm has been called a number of times without another word.
 * Ignored while half of it is free.
 */
void fp_room_need(struct fp_room *room, uint32_t n);
void fp_room_calm(struct fp_room *room); /* the reclaim thread, at each of its ticks */
/* True while it is so: nothing but what threads wait for shall come in. */
bool fp_room_is_thrashing(const struct fp_room *room);

/* Pages that are resident beyond the budget. */
uint64_t fp_room_overdrawn(const struct fp_room *room);

uint64_t fp_room_free(const struct fp_room *room);

/* The low watermark: eviction starts when less is free, and ends when twice as much is. */
uint64_t fp_room_margin(const struct fp_room *room);
/* Pages to evict at once, so that a small budget is not emptied by one batch. */
unsigned fp_room_batch(const struct fp_room *room);

/* Wakes the reclaim thread, once until it looks. */
void fp_room_kick(struct fp_room *room);

#endif
