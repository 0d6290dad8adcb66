/*
 * Thrashing: pages leave before the thread that asked for them has used them. An instruction may
 * need four pages at once; where the budget is less than what all threads need so, each takes away
 * what another is about to use, and none goes on. Then faults are, nearly all, of pages that the
 * same thread has asked for just before. A window of faults in which three of four are such tells;
 * what is needed then is counted in threads that fault, so it is bounded. As long as no window
 * tells, one fault in four at least is of a page that its thread did not need for the same
 * instruction before: that is progress.
 *
 * Room: uffd; pure. Any thread may call any of it: fields are relaxed, a lost count does no harm.
 */
#ifndef FP_THRASH_H
#define FP_THRASH_H

#include <stdatomic.h>
#include <stdint.h>

/* Two operands in memory, of which each lies across a boundary of pages. */
#define FP_THRASH_PAGES   4u
#define FP_THRASH_BITS    10u
#define FP_THRASH_THREADS (1u << FP_THRASH_BITS) /* two that share a place are not told apart */
#define FP_THRASH_WINDOW  64u                    /* faults */
/* What a thread needs, and as much again for what is on its way in and out. */
#define FP_THRASH_NEED 8u
/* The most that is ever needed: the eviction queue has places for that beyond the budget. */
#define FP_THRASH_NEED_MAX 4096u

struct fp_thrash_thread {
	_Atomic uint32_t id;
	_Atomic uint32_t window; /* of its last fault */
	_Atomic uint32_t next;   /* the place of the page that it asked for first */
	_Atomic uint32_t page[FP_THRASH_PAGES];
} __attribute__((aligned(32)));

struct fp_thrash {
	_Atomic uint32_t window; /* counts windows, from 1 on */
	_Atomic uint32_t faults; /* in this window */
	_Atomic uint32_t again;  /* of those, of pages that the same thread has asked for just before */
	struct fp_thrash_thread thread[FP_THRASH_THREADS];
};

/*
 * A thread, by any number that no other has, waits for a page that is not local. Returns 0, or how
 * many pages must fit at once so that the threads that fault go on.
 */
uint32_t fp_thrash_fault(struct fp_thrash *thrash, uint32_t thread, uint32_t page);

#endif
