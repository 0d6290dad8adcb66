/*
 * The workload stream: the triad a = b + s * c of J. McCalpin's STREAM over three arrays. Room:
 * tools/bench; see workload.h. All numbers are whole, and small enough that doubles hold them
 * exactly, so the result does not depend on the machine.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "workload.h"

#define PASSES     20
#define VALUE_BITS 40

struct arrays {
	uint64_t n;
	double *a, *b, *c;
};

static void release(void *data)
{
	struct arrays *arrays = data;

	if (!arrays)
		return;
	free(arrays->a);
	free(arrays->b);
	free(arrays->c);
	free(arrays);
}

static int prepare(uint64_t size_bytes, uint64_t seed, void **ret_data)
{
	struct arrays *arrays = calloc(1, sizeof(*arrays));

	if (!arrays)
		return -ENOMEM;
	arrays->n = size_bytes / (3 * sizeof(double));
	arrays->a = malloc(arrays->n * sizeof(double));
	arrays->b = malloc(arrays->n * sizeof(double));
	arrays->c = malloc(arrays->n * sizeof(double));
	if (!arrays->a || !arrays->b || !arrays->c) {
		release(arrays);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < arrays->n; i++) {
		arrays->a[i] = 0;
		arrays->b[i] = (double)(fp_rng_next(&seed) >> (64 - VALUE_BITS));
		arrays->c[i] = (double)(fp_rng_next(&seed) >> (64 - VALUE_BITS));
	}
	*ret_data = arrays;
	return 0;
}

static void run(void *data)
{
	struct arrays *arrays = data;

	for (unsigned s = 1; s <= PASSES; s++)
		for (uint64_t i = 0; i < arrays->n; i++)
			arrays->a[i] = arrays->b[i] + s * arrays->c[i];
}

static uint64_t checksum(void *data)
{
	const struct arrays *arrays = data;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < arrays->n; i++)
		sum = sum * FP_RNG_STEP + (uint64_t)arrays->a[i];
	return sum;
}

const struct fp_workload fp_workload_stream = {
    .name = "stream", .prepare = prepare, .run = run, .checksum = checksum, .release = release};
