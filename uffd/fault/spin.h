/*
 * Spinning: a thread that waits for an answer over a wire first looks for it for a while. That
 * saves a sleep and a wake-up. Spinning does not pay if the node is far or needs this very CPU:
 * then only few waits try it. Room: uffd/fault. One waiting thread at a time.
 */
#ifndef FP_SPIN_H
#define FP_SPIN_H

#include <stdbool.h>

#include "cleanup.h"
#include "clock.h"

#define FP_SPIN_NS    (250 * FP_NSEC_PER_USEC) /* no longer than a sleep and a wake-up would cost */
#define FP_SPIN_SCORE 16                       /* the highest score */
#define FP_SPIN_PROBE 128u                     /* while spinning does not pay, one wait in so many tries it */

struct fp_spin {
	int score; /* above 0: spinning pays */
	unsigned waits;
	bool probes; /* true: this wait only tries whether spinning pays */
};

/* Begins a wait. True: spin for at most FP_SPIN_NS, then say by fp_spin_end whether that paid. */
static inline bool fp_spin_begin(struct fp_spin *spin)
{
	spin->probes = ++spin->waits % FP_SPIN_PROBE == 0;
	return spin->score > 0 || spin->probes;
}

static inline void fp_spin_end(struct fp_spin *spin, bool paid)
{
	if (paid)
		spin->score = FP_MIN(spin->score + (spin->probes ? 4 : 1), FP_SPIN_SCORE);
	else
		spin->score = FP_MAX(spin->score - 2, 0);
}

#endif
