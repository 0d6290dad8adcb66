/*
 * The workload columns: queries over a column store. A query scans one column, notes the rows that
 * it selects, and adds up two other columns at these rows. Columns are chosen by Zipf's
 * distribution. Room: tools/bench; see workload.h.
 */
#include <errno.h>
#include <stdlib.h>

#include "rng.h"
#include "workload.h"
#include "zipf.h"

#define COLUMNS 15 /* the list of selected rows takes as much as one more */
#define QUERIES 150
#define THETA   0.99

struct store {
	uint64_t n_rows, seed, sum;
	uint32_t *columns[COLUMNS], *selected;
};

static void release(void *data)
{
	struct store *store = data;

	if (!store)
		return;
	for (unsigned c = 0; c < COLUMNS; c++)
		free(store->columns[c]);
	free(store->selected);
	free(store);
}

static int prepare(uint64_t size_bytes, uint64_t seed, void **ret_data)
{
	struct store *store = calloc(1, sizeof(*store));
	int r = store ? 0 : -ENOMEM;

	if (r < 0)
		return r;
	store->n_rows = size_bytes / ((COLUMNS + 1) * sizeof(uint32_t));
	store->seed = ~seed;
	for (unsigned c = 0; r == 0 && c < COLUMNS; c++) {
		store->columns[c] = malloc(store->n_rows * sizeof(uint32_t));
		r = store->columns[c] ? 0 : -ENOMEM;
		for (uint64_t i = 0; r == 0 && i < store->n_rows; i++)
			store->columns[c][i] = (uint32_t)fp_rng_next(&seed);
	}
	store->selected = malloc(store->n_rows * sizeof(uint32_t));
	if (r < 0 || !store->selected) {
		release(store);
		return -ENOMEM;
	}
	*ret_data = store;
	return 0;
}

/* Notes the rows whose value lies in a range; returns how many they are. */
static uint64_t select_rows(const struct store *store, const uint32_t *column, uint32_t from, uint32_t length)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < store->n_rows; i++) {
		store->selected[n] = (uint32_t)i;
		n += column[i] - from < length;
	}
	return n;
}

static void run(void *data)
{
	struct store *store = data;
	struct fp_zipf zipf;

	fp_zipf_init(&zipf, COLUMNS, THETA);
	for (unsigned query = 0; query < QUERIES; query++) {
		const uint32_t *where = store->columns[fp_zipf_draw(&zipf, &store->seed)];
		const uint32_t *first = store->columns[fp_zipf_draw(&zipf, &store->seed)];
		const uint32_t *second = store->columns[fp_zipf_draw(&zipf, &store->seed)];
		uint32_t from = (uint32_t)fp_rng_next(&store->seed), length = UINT32_MAX / 100 * 5;
		uint64_t n = select_rows(store, where, from, length);

		for (uint64_t i = 0; i < n; i++)
			store->sum += (uint64_t)first[store->selected[i]] * second[store->selected[i]];
		store->sum = store->sum * FP_RNG_STEP + n;
	}
}

static uint64_t checksum(void *data)
{
	const struct store *store = data;

	return store->sum;
}

const struct fp_workload fp_workload_columns = {
    .name = "columns", .prepare = prepare, .run = run, .checksum = checksum, .release = release};
