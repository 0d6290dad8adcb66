/*
 * The reclaim thread: keeps tokens free ahead of need, between two watermarks. Room: uffd/evict. It
 * also does work that the fault threads must not do: it reports lost pages, and publishes gauges.
 */
#ifndef FP_RECLAIM_H
#define FP_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "far.h"

struct fp_affinity;
struct fp_thread;
struct fp_reclaim;

struct fp_reclaim_options {
	struct fp_far *far;
	char *stage;                  /* FP_STAGE_PAGES accessible pages of the far range, in no mapping */
	struct fp_affinity *affinity; /* the thread joins it and calls its tick; outlives the thread */
	void (*tend)(void *arg);      /* called in each turn of the thread */
	void *arg;
};

/* Starts the thread. Returns 0 or a negative errno. */
int fp_reclaim_start(const struct fp_reclaim_options *options, struct fp_reclaim **ret_reclaim);
/*
 * Ends the thread and abandons write-backs under way: only for far memory that is no longer used.
 * NULL is fine.
 */
void fp_reclaim_stop(struct fp_reclaim *reclaim);

/*
 * Makes the resident pages of a range leave. Waits until they have left or were refused, at most
 * the deadline. Called by threads of the program, with signals blocked.
 */
void fp_reclaim_pageout(struct fp_reclaim *reclaim, uint32_t page, uint32_t n);

/*
 * Used by a fork. freeze waits until no page is leaving, at most about the deadline of a write.
 * Evictions go on only after thaw.
 */
void fp_reclaim_freeze(struct fp_reclaim *reclaim);
void fp_reclaim_thaw(struct fp_reclaim *reclaim);

/*
 * Updates the gauges of the stats page. The reclaim thread does it some twenty times a second. Any
 * thread.
 */
void fp_reclaim_publish(const struct fp_far *far);

/* The reclaim thread; valid until fp_reclaim_stop. */
const struct fp_thread *fp_reclaim_thread(const struct fp_reclaim *reclaim);

/* Called in the child of a fork, where the thread does not run: frees the struct. NULL is fine. */
void fp_reclaim_abandon(struct fp_reclaim *reclaim);

#endif
