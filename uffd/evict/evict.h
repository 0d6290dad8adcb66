/*
 * The evictor: takes victims and makes them leave. Clean ones are dropped; dirty ones are captured,
 * written back and, once the store has them, forgotten. One thread owns an evictor; two may run
 * side by side on the same pages' words. Room: uffd. How bytes are captured: capture.h.
 */
#ifndef FP_EVICT_H
#define FP_EVICT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "far.h"

struct fp_evictor;

/*
 * lane: for write-backs, owned by the caller and by the evictor's thread; NULL: the store is
 * direct. stage: where MOVE puts pages: FP_STAGE_PAGES pages of the far range, opened and in no
 * mapping. 0 or -ENOMEM.
 */
int fp_evictor_new(struct fp_far *far, struct fp_lane *lane, char *stage, struct fp_evictor **ret_evictor);
void fp_evictor_free(struct fp_evictor *evictor);

/*
 * Takes up to want (at most FP_BUDGET_BATCH_MAX) of the oldest pages and makes them leave; with a
 * lane the write-backs go on after the return. Returns how many pages left or are leaving. 0:
 * nothing could be taken, or all batches are under way.
 */
unsigned fp_evictor_run(struct fp_evictor *evictor, unsigned want);

/* The same for the resident pages among n from page on, named by the program. *ret_next: where to
 * go on. */
unsigned fp_evictor_run_range(struct fp_evictor *evictor, uint32_t page, uint32_t n, uint32_t *ret_next);

/* Finishes write-backs that have completed. Returns how many pages. */
unsigned fp_evictor_reap(struct fp_evictor *evictor);

/* Looks whether idle nodes are still there. Cheap, but a system call. */
void fp_evictor_check_nodes(struct fp_evictor *evictor);

/* True while write-backs are under way. */
bool fp_evictor_busy(const struct fp_evictor *evictor);

#endif
