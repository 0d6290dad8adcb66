/*
 * The workload quicksort: sorts random 64-bit numbers. Room: tools/bench; see workload.h.
 */
#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "rng.h"
#include "workload.h"

#define SHORT 16 /* so few numbers are sorted by insertion */

struct numbers {
	uint64_t n;
	int64_t *values;
};

static void release(void *data)
{
	struct numbers *numbers = data;

	if (!numbers)
		return;
	free(numbers->values);
	free(numbers);
}

static int prepare(uint64_t size_bytes, uint64_t seed, void **ret_data)
{
	struct numbers *numbers = calloc(1, sizeof(*numbers));

	if (!numbers)
		return -ENOMEM;
	numbers->n = size_bytes / sizeof(*numbers->values);
	numbers->values = malloc(numbers->n * sizeof(*numbers->values));
	if (!numbers->values) {
		release(numbers);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < numbers->n; i++)
		numbers->values[i] = (int64_t)fp_rng_next(&seed);
	*ret_data = numbers;
	return 0;
}

static void insertion_sort(int64_t *first, int64_t *last)
{
	for (int64_t *next = first + 1; next <= last; next++) {
		int64_t value = *next, *at = next;

		for (; at > first && at[-1] > value; at--)
			*at = at[-1];
		*at = value;
	}
}

static int64_t median_of_three(int64_t a, int64_t b, int64_t c)
{
	return FP_MAX(FP_MIN(a, b), FP_MIN(FP_MAX(a, b), c));
}

/* C. A. R. Hoare's partition: swaps until *ret_low and *ret_high have passed each other. */
static void partition(int64_t *first, int64_t *last, int64_t **ret_low, int64_t **ret_high)
{
	int64_t pivot = median_of_three(*first, first[(last - first) / 2], *last);
	int64_t *low = first, *high = last;

	while (low <= high) {
		while (*low < pivot)
			low++;
		while (*high > pivot)
			high--;
		if (low <= high) {
			int64_t value = *low;

			*low++ = *high;
			*high-- = value;
		}
	}
	*ret_low = low;
	*ret_high = high;
}

/* Sorts the shorter part by recursion and the longer one in the loop: the stack stays small. */
static void sort(int64_t *first, int64_t *last)
{
	while (last - first >= SHORT) {
		int64_t *low, *high;

		partition(first, last, &low, &high);
		if (high - first < last - low) {
			sort(first, high);
			first = low;
		} else {
			sort(low, last);
			last = high;
		}
	}
	insertion_sort(first, last);
}

static void run(void *data)
{
	struct numbers *numbers = data;

	sort(numbers->values, numbers->values + numbers->n - 1);
}

/* Depends on the order too. */
static uint64_t checksum(void *data)
{
	const struct numbers *numbers = data;
	uint64_t sum = 0;

	for (uint64_t i = 0; i < numbers->n; i++)
		sum = sum * FP_RNG_STEP + (uint64_t)numbers->values[i];
	return sum;
}

const struct fp_workload fp_workload_quicksort = {
    .name = "quicksort", .prepare = prepare, .run = run, .checksum = checksum, .release = release};
