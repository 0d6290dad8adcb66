/*
 * Random numbers of the benches: small, seeded, and the same on each machine. Room: tools/bench. It
 * uses its arguments alone.
 */
#ifndef FP_RNG_H
#define FP_RNG_H

#include <stdint.h>

#define FP_RNG_STEP 0x9e3779b97f4a7c15ull

/* The output function of S. Vigna's SplitMix64: a bijection without visible structure. */
static inline uint64_t fp_rng_mix(uint64_t x)
{
	x += FP_RNG_STEP;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* The next number of a sequence. *state: any seed at first, also seeds that differ by one. */
static inline uint64_t fp_rng_next(uint64_t *state)
{
	uint64_t value = fp_rng_mix(*state);

	*state += FP_RNG_STEP;
	return value;
}

/* The next number of a sequence, at least 0 and below 1. */
static inline double fp_rng_unit(uint64_t *state)
{
	return (double)(fp_rng_next(state) >> 11) / 9007199254740992.0;
}

#endif
