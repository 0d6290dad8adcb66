/*
 * The deadlines of a request: when the present try ends, and when the whole request ends. Room:
 * store. Only pure functions.
 *
 *   begun ── deadline ──► link broken, next try ── twice as long ──► ... ──► until: it is over
 */
#ifndef FP_RETRY_H
#define FP_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "cleanup.h"
#include "clock.h"

#define FP_RETRY_GROW 3u /* how often the time for a try doubles, at most */

struct fp_retry {
	uint64_t until_ns;
	unsigned n_late; /* tries that have passed their deadline */
};

/*
 * Begins a request that may wait for wait_ns, all tries together. Returns the deadline of its first
 * try.
 */
static inline uint64_t fp_retry_begin(struct fp_retry *tries, uint64_t now_ns, uint64_t deadline_ns,
                                      uint64_t wait_ns)
{
	*tries = (struct fp_retry){.until_ns = fp_clock_after(now_ns, wait_ns)};
	return FP_MIN(fp_clock_after(now_ns, deadline_ns), tries->until_ns);
}

/*
 * Returns the deadline of the next try, given last_ns, the deadline of the try before. Each try
 * gets more time, in case the node is merely slow.
 */
static inline uint64_t fp_retry_next(struct fp_retry *tries, uint64_t now_ns, uint64_t deadline_ns,
                                     uint64_t last_ns)
{
	tries->n_late += now_ns >= last_ns;
	return FP_MIN(fp_clock_after(now_ns, deadline_ns << FP_MIN(tries->n_late, FP_RETRY_GROW)),
	              tries->until_ns);
}

#endif
