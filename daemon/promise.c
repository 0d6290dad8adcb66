/*
 * Promises of memory. Room: daemon; see promise.h.
 */
#include "promise.h"

#include <stdio.h>

#include "cleanup.h"

static uint64_t less(uint64_t bytes, uint64_t by)
{
	return bytes - FP_MIN(bytes, by);
}

/*
 * Memory of this process: private memory, resident or swapped out, and shared memory that is
 * resident.
 */
static uint64_t own_bytes(void)
{
	fp_autofclose FILE *f = fopen("/proc/self/status", "re");
	unsigned long long kib, sum_kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %llu", &kib) == 1 || sscanf(line, "RssShmem: %llu", &kib) == 1 ||
		    sscanf(line, "VmSwap: %llu", &kib) == 1)
			sum_kib += kib;
	return sum_kib << 10;
}

/*
 * What is not of the pools. The allocator is not asked: it would walk all its free pieces, while
 * the loop stands still. Pools hide how much of them was touched. Then the heap is at least what it
 * was.
 */
static uint64_t heap_bytes(const struct fp_promise *promise, uint64_t own, const struct fp_promised *promised)
{
	return promised->pools_bytes ? FP_MAX(promise->heap_bytes, less(own, promised->pools_bytes)) : own;
}

/*
 * Leased memory counts as the node's own if it is resident here, or if clients have touched it.
 * What they have touched since it was looked at is missing: then the result is too small, and the
 * greatest of all looks is right.
 */
void fp_promise_look(struct fp_promise *promise, const struct fp_hostmem *host,
                     const struct fp_promised *promised)
{
	const uint64_t own = own_bytes();
	uint64_t leased_bytes;

	promise->heap_bytes = heap_bytes(promise, own, promised);
	if (host->available_bytes == UINT64_MAX) {
		promise->all_bytes = UINT64_MAX;
		return;
	}
	leased_bytes = less(own, promise->heap_bytes + promised->preallocated_bytes);
	leased_bytes = FP_MIN(leased_bytes + promised->touched_bytes, promised->on_use_bytes);
	promise->all_bytes =
	    FP_MAX(promise->all_bytes, host->available_bytes + leased_bytes + promise->heap_bytes);
}

uint64_t fp_promise_left(const struct fp_promise *promise, const struct fp_promised *promised)
{
	if (promise->all_bytes == UINT64_MAX)
		return UINT64_MAX;
	return less(promise->all_bytes, promise->heap_bytes + promised->on_use_bytes);
}
