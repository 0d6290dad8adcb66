/*
 * Promises of memory. Room: daemon; see promise.h.
 */
#include "promise.h"

#include <malloc.h>
#include <stdio.h>

#include "cleanup.h"

/* Private and shared memory of this process that is resident. */
static uint64_t resident_bytes(void)
{
	fp_autofclose FILE *f = fopen("/proc/self/status", "re");
	unsigned long long kib, sum_kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %llu", &kib) == 1 || sscanf(line, "RssShmem: %llu", &kib) == 1)
			sum_kib += kib;
	return sum_kib << 10;
}

static uint64_t heap_bytes(void)
{
	const struct mallinfo2 info = mallinfo2();

	return info.arena + info.hblkhd;
}

static uint64_t less(uint64_t bytes, uint64_t by)
{
	return bytes - FP_MIN(bytes, by);
}

/*
 * Leased memory that is resident counts as the node's own. Memory that only a client has touched
 * is not resident here: then the result is too small, and the greatest of all looks is right.
 */
void fp_promise_look(struct fp_promise *promise, const struct fp_hostmem *host,
                     const struct fp_promised *promised)
{
	uint64_t leased_bytes;

	promise->heap_bytes = heap_bytes();
	if (host->available_bytes == UINT64_MAX) {
		promise->all_bytes = UINT64_MAX;
		return;
	}
	leased_bytes = less(resident_bytes(), promise->heap_bytes + promised->preallocated_bytes);
	leased_bytes = FP_MIN(leased_bytes, promised->on_use_bytes);
	promise->all_bytes =
	    FP_MAX(promise->all_bytes, host->available_bytes + leased_bytes + promise->heap_bytes);
}

uint64_t fp_promise_left(const struct fp_promise *promise, const struct fp_promised *promised)
{
	if (promise->all_bytes == UINT64_MAX)
		return UINT64_MAX;
	return less(promise->all_bytes, promise->heap_bytes + promised->on_use_bytes);
}
