/* Lost pages: no node can give them back now. Each ends as LOST and poisoned, so that a touch
 * raises SIGBUS. A page lost only to an outage comes back with its node. Room: uffd/core. */
#ifndef FP_LOST_H
#define FP_LOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "log.h"

#define FP_LOST_MAX 1024u /* so many pages may wait for a report: more than can be on their way */

struct fp_far;

struct fp_lost {
	struct {
		uint32_t page;
		int status;
		uint64_t slot;
		_Atomic bool ready;
	} queue[FP_LOST_MAX];
	_Atomic uint32_t in;
	uint32_t out;
	struct fp_log_limit limit;
	_Atomic bool may_return; /* some page may be readable again: fp_lost_revive has work */
};

/*
 * Hands over a page, ARRIVING, that no node can give back. The reclaim thread reports it on stderr
 * and ends its state. Never blocks: fault threads call this. If too many pages wait, ends this one
 * at once, without a report.
 */
void fp_lost_add(struct fp_far *far, uint32_t page, uint64_t slot, int status);

/* Reports and ends the pages that were handed over. Called by the reclaim thread. */
void fp_lost_report(struct fp_far *far);

/* Empties the queue of reports. Called before the threads start. */
void fp_lost_forget(struct fp_far *far);

/*
 * Ends the state ARRIVING of a page that no node can give back: it becomes LOST and poisoned. It
 * has no token. The parameter again is true if the page was lost before, and a thread has touched
 * it again.
 */
void fp_lost_end(struct fp_far *far, uint32_t page, bool again);

/* Makes a page that the caller owns (ARRIVING, CLAIMED) raise SIGBUS. Aborts the process with a
 * message where the kernel can't poison. */
void fp_lost_poison(struct fp_far *far, uint32_t page);

/*
 * Brings back pages that were lost to an outage and whose node is back. If there may be any, looks
 * at all words of touched chunks: do not call it often. One thread, not during a fork.
 */
void fp_lost_revive(struct fp_far *far);

#endif
