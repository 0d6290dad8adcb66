/*
 * The workload kmeans: S. P. Lloyd's algorithm on points of bytes. Room: tools/bench; see
 * workload.h. All numbers are whole, so the result does not depend on the machine.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "workload.h"

#define DIMENSIONS 64
#define CLUSTERS   8
#define PASSES     4
#define NOISE      48 /* a point differs from its true centre by less than this, in each dimension */

struct points {
	uint64_t n;
	uint8_t (*at)[DIMENSIONS];
	uint8_t *cluster; /* of each point */
	uint8_t centre[CLUSTERS][DIMENSIONS];
};

static void release(void *data)
{
	struct points *points = data;

	if (!points)
		return;
	free(points->at);
	free(points->cluster);
	free(points);
}

/* Eight coordinates from one random number. */
static void make_point(const uint8_t *centre, uint8_t *ret_point, uint64_t *rng)
{
	for (unsigned d = 0; d < DIMENSIONS; d += 8) {
		uint64_t random = fp_rng_next(rng);

		for (unsigned k = 0; k < 8; k++, random >>= 8)
			ret_point[d + k] = (uint8_t)(centre[d + k] + random % NOISE);
	}
}

static int prepare(uint64_t size_bytes, uint64_t seed, void **ret_data)
{
	struct points *points = calloc(1, sizeof(*points));
	uint8_t truth[CLUSTERS][DIMENSIONS];

	if (!points)
		return -ENOMEM;
	points->n = size_bytes / (DIMENSIONS + 1);
	points->at = malloc(points->n * sizeof(*points->at));
	points->cluster = malloc(points->n);
	if (!points->at || !points->cluster) {
		release(points);
		return -ENOMEM;
	}
	for (unsigned c = 0; c < CLUSTERS; c++)
		for (unsigned d = 0; d < DIMENSIONS; d++)
			truth[c][d] = (uint8_t)(fp_rng_next(&seed) % (UINT8_MAX - NOISE));
	for (uint64_t i = 0; i < points->n; i++)
		make_point(truth[fp_rng_next(&seed) % CLUSTERS], points->at[i], &seed);
	memset(points->cluster, 0, points->n);
	for (unsigned c = 0; c < CLUSTERS; c++)
		memcpy(points->centre[c], points->at[fp_rng_next(&seed) % points->n], DIMENSIONS);
	*ret_data = points;
	return 0;
}

static unsigned distance(const uint8_t *a, const uint8_t *b)
{
	unsigned sum = 0;

	for (unsigned d = 0; d < DIMENSIONS; d++) {
		int by = (int)a[d] - (int)b[d];

		sum += (unsigned)(by * by);
	}
	return sum;
}

static uint8_t nearest(const struct points *points, const uint8_t *point)
{
	unsigned best = UINT_MAX;
	uint8_t found = 0;

	for (uint8_t c = 0; c < CLUSTERS; c++) {
		unsigned now = distance(points->centre[c], point);

		if (now < best) {
			best = now;
			found = c;
		}
	}
	return found;
}

static void pass(struct points *points)
{
	uint64_t sum[CLUSTERS][DIMENSIONS] = {{0}}, n[CLUSTERS] = {0};

	for (uint64_t i = 0; i < points->n; i++) {
		uint8_t c = nearest(points, points->at[i]);

		points->cluster[i] = c;
		n[c]++;
		for (unsigned d = 0; d < DIMENSIONS; d++)
			sum[c][d] += points->at[i][d];
	}
	for (unsigned c = 0; c < CLUSTERS; c++)
		for (unsigned d = 0; n[c] && d < DIMENSIONS; d++)
			points->centre[c][d] = (uint8_t)(sum[c][d] / n[c]);
}

static void run(void *data)
{
	for (unsigned i = 0; i < PASSES; i++)
		pass(data);
}

static uint64_t checksum(void *data)
{
	const struct points *points = data;
	uint64_t sum = 0;

	for (unsigned c = 0; c < CLUSTERS; c++)
		for (unsigned d = 0; d < DIMENSIONS; d++)
			sum = sum * FP_RNG_STEP + points->centre[c][d];
	for (uint64_t i = 0; i < points->n; i++)
		sum = sum * FP_RNG_STEP + points->cluster[i];
	return sum;
}

const struct fp_workload fp_workload_kmeans = {
    .name = "kmeans", .prepare = prepare, .run = run, .checksum = checksum, .release = release};
