/*
 * The evictor: takes victims and makes them leave. Room: uffd/evict. Clean pages are dropped. Dirty
 * pages are captured and written back, and are dropped once the store has them. How bytes are
 * captured: capture.h. One thread owns an evictor, except where it says otherwise. Two evictors may
 * work on the same pages' words at once.
 */
#ifndef FP_EVICT_H
#define FP_EVICT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "far.h"

struct fp_evictor;

/*
 * lane carries write-backs. The caller owns it, and the evictor's thread uses it. It is NULL if all
 * nodes are mapped. stage is where MOVE puts pages: FP_STAGE_PAGES accessible pages of the far
 * range, in no mapping of the program. Returns 0 or -ENOMEM.
 */
int fp_evictor_new(struct fp_far *far, struct fp_lane *lane, char *stage, struct fp_evictor **ret_evictor);
void fp_evictor_free(struct fp_evictor *evictor);

/*
 * Takes the oldest pages and makes them leave. Takes no more pages than the parameter want, which
 * is at most FP_BUDGET_BATCH_MAX. With a lane, write-backs go on after the return. Returns how many
 * pages left or are leaving, also those that a waiting thread got back at once. 0: no page could be
 * taken, or all batches are in use.
 */
unsigned fp_evictor_run(struct fp_evictor *evictor, unsigned want);

/*
 * Evicts a batch, for threads that serve faults: any number of them may share the evictor. Returns
 * the same number as fp_evictor_run, and adds it to stats.evicted_on_fault. 0: no page could leave.
 * -EBUSY: another thread is using the evictor.
 */
int fp_evictor_run_on_fault(struct fp_evictor *evictor);

/*
 * Makes pages leave that the program named: the resident ones among n pages from page on. Otherwise
 * like fp_evictor_run. *ret_next: the page to continue from.
 */
unsigned fp_evictor_run_range(struct fp_evictor *evictor, uint32_t page, uint32_t n, uint32_t *ret_next);

/* Finishes write-backs whose answers have come. Returns their number. */
unsigned fp_evictor_reap(struct fp_evictor *evictor);

/* Checks whether idle nodes are still there. Costs a system call. */
void fp_evictor_check_nodes(struct fp_evictor *evictor);

/* True while write-backs are under way. */
bool fp_evictor_busy(const struct fp_evictor *evictor);

#endif
