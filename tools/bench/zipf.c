/*
 * Zipf's distribution by the method of Gray et al. (Quickly generating billion-record synthetic
 * databases, SIGMOD 1994). Room: tools/bench.
 */
#include "zipf.h"

#include <math.h>

#include "cleanup.h"
#include "rng.h"

void fp_zipf_init(struct fp_zipf *zipf, uint64_t n, double theta)
{
	double zeta = 0;

	for (uint64_t i = 1; i <= n; i++)
		zeta += 1 / pow((double)i, theta);
	zipf->n = n;
	zipf->alpha = 1 / (1 - theta);
	zipf->zeta = zeta;
	zipf->second = 1 + pow(0.5, theta);
	zipf->eta = (1 - pow(2.0 / (double)n, 1 - theta)) / (1 - zipf->second / zeta);
}

uint64_t fp_zipf_draw(const struct fp_zipf *zipf, uint64_t *rng)
{
	double u = fp_rng_unit(rng), uz = u * zipf->zeta;
	uint64_t rank;

	if (uz < 1)
		return 0;
	if (uz < zipf->second)
		return 1;
	rank = (uint64_t)((double)zipf->n * pow(zipf->eta * u - zipf->eta + 1, zipf->alpha));
	return FP_MIN(rank, zipf->n - 1);
}
