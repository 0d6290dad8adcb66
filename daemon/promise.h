/*
 * How much memory the node may promise: leases that are granted and not touched yet are in no
 * usage, so a look at the host alone would promise the same memory again and again. Room: daemon.
 * It knows bytes, no leases.
 *
 *   all = the most that was available at any look, and with it what the node itself had then
 *   all - the node's heap - what is leased = what it may still promise
 */
#ifndef FP_PROMISE_H
#define FP_PROMISE_H

#include <stdint.h>

#include "hostmem.h"

/* Zero-initialised, it has not looked. */
struct fp_promise {
	uint64_t all_bytes;  /* UINT64_MAX: no bound is known */
	uint64_t heap_bytes; /* of this process, at the last look */
};

/* What the pools have leased. Both without huge pages, which the host sets aside. */
struct fp_promised {
	uint64_t on_use_bytes;       /* of pools that take memory on use: maybe not touched yet */
	uint64_t touched_bytes;      /* of these, what clients are known to have touched by themselves */
	uint64_t preallocated_bytes; /* of preallocated pools */
	uint64_t pools_bytes;        /* the most that pools of both kinds have of this process's memory */
};

/* Updates the promise after a look at the host. Reads /proc/self/status. */
void fp_promise_look(struct fp_promise *promise, const struct fp_hostmem *host,
                     const struct fp_promised *promised);

/* Returns how much a pool that takes memory on use may still lease. UINT64_MAX: any amount. */
uint64_t fp_promise_left(const struct fp_promise *promise, const struct fp_promised *promised);

#endif
