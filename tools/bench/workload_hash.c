/*
 * The workload hash: look-ups in an open addressing table by Zipf's distribution, a tenth of them
 * writes. Room: tools/bench; see workload.h.
 *
 * Keys are random numbers, so their high bits serve as the hash. There is one key in each of many
 * equal parts of the numbers. In this order they fill the table from its beginning to its end.
 */
#include <errno.h>
#include <stdlib.h>

#include "rng.h"
#include "workload.h"
#include "zipf.h"

#define VALUE_WORDS 7
#define SPARE       64 /* slots behind the last one that a key hashes to: none has to wrap */
#define THETA       0.99
#define SCATTER     2654435761u /* a prime: neighbours in rank lie far apart */

struct entry {
	uint64_t key; /* 0: empty */
	uint64_t value[VALUE_WORDS];
};

struct table {
	uint64_t n_slots, n_keys, seed, read;
	struct fp_zipf zipf;
	struct entry *slots;
};

static void release(void *data)
{
	struct table *table = data;

	if (!table)
		return;
	free(table->slots);
	free(table);
}

static uint64_t key_of(const struct table *table, uint64_t i)
{
	uint64_t part = UINT64_MAX / table->n_keys;

	return (i * part + fp_rng_mix(table->seed ^ fp_rng_mix(i)) % part) | 1;
}

/* The slot that has the key, or the empty one where it belongs. */
static struct entry *find(const struct table *table, uint64_t key)
{
	struct entry *at = &table->slots[(uint64_t)((unsigned __int128)key * table->n_slots >> 64)];

	while (at->key && at->key != key)
		at++;
	return at;
}

static int prepare(uint64_t size_bytes, uint64_t seed, void **ret_data)
{
	struct table *table = calloc(1, sizeof(*table));

	if (!table)
		return -ENOMEM;
	table->n_slots = size_bytes / sizeof(*table->slots);
	table->n_keys = table->n_slots / 4 * 3;
	table->seed = seed;
	table->slots = calloc(table->n_slots + SPARE, sizeof(*table->slots));
	if (!table->slots) {
		release(table);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < table->n_keys; i++) {
		uint64_t key = key_of(table, i);
		struct entry *entry = find(table, key);

		entry->key = key;
		for (unsigned w = 0; w < VALUE_WORDS; w++)
			entry->value[w] = fp_rng_next(&seed);
	}
	fp_zipf_init(&table->zipf, table->n_keys, THETA);
	*ret_data = table;
	return 0;
}

static void run(void *data)
{
	struct table *table = data;
	uint64_t rng = ~table->seed;

	for (uint64_t i = 0; i < table->n_keys / 2 * 3; i++) {
		uint64_t rank = fp_zipf_draw(&table->zipf, &rng);
		struct entry *entry = find(table, key_of(table, rank * SCATTER % table->n_keys));

		if (fp_rng_next(&rng) % 10 == 0)
			entry->value[i % VALUE_WORDS] += i;
		else
			table->read = table->read * FP_RNG_STEP + entry->value[i % VALUE_WORDS];
	}
}

static uint64_t checksum(void *data)
{
	const struct table *table = data;
	uint64_t sum = table->read;

	for (uint64_t i = 0; i < table->n_slots + SPARE; i++)
		for (unsigned w = 0; w < VALUE_WORDS; w++)
			sum = sum * FP_RNG_STEP + (table->slots[i].key ^ table->slots[i].value[w]);
	return sum;
}

const struct fp_workload fp_workload_hash = {
    .name = "hash", .prepare = prepare, .run = run, .checksum = checksum, .release = release};
