/*
 * Numbers with Zipf's distribution: rank 0 is the most frequent one, and rank r is drawn in
 * proportion to 1 / (r + 1) ^ theta. Room: tools/bench. It uses its arguments alone.
 */
#ifndef FP_ZIPF_H
#define FP_ZIPF_H

#include <stdint.h>

struct fp_zipf {
	uint64_t n;
	double alpha, zeta, eta;
	double second; /* below it: rank 0 or 1 */
};

/* Prepares for ranks 0 to n - 1; n is at least 2, theta at least 0 and below 1. Takes O(n) time. */
void fp_zipf_init(struct fp_zipf *zipf, uint64_t n, double theta);

/* Draws a rank. *rng: the state of rng.h. */
uint64_t fp_zipf_draw(const struct fp_zipf *zipf, uint64_t *rng);

#endif
