/*
 * Random numbers for tests: small and seeded. The seed is printed, and FP_TEST_SEED=N repeats a
 * failed run. Room: test/lib.
 */
#ifndef FP_TESTRNG_H
#define FP_TESTRNG_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"

/* The seed of this run, printed under the test's name. */
static inline uint64_t test_seed(const char *test_name)
{
	const char *given = getenv("FP_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : fp_clock_ns();

	printf("%s: FP_TEST_SEED=%" PRIu64 "\n", test_name, seed);
	fflush(stdout);
	return seed;
}

/* splitmix64: any seed is good, even seeds that differ by one. */
static inline uint64_t test_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

#endif
