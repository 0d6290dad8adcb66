/*
 * Monotonic time in nanoseconds. Room: common.
 */
#ifndef FP_CLOCK_H
#define FP_CLOCK_H

#include <stdint.h>
#include <time.h>

#define FP_NSEC_PER_USEC 1000ull
#define FP_NSEC_PER_MSEC 1000000ull
#define FP_NSEC_PER_SEC  1000000000ull

/* Nanoseconds of CLOCK_MONOTONIC: answered by the vDSO, so it never blocks and suits the fault path. */
static inline uint64_t fp_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * FP_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

#endif
