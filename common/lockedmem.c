/*
 * Locked memory. Room: common.
 */
#include "lockedmem.h"

#include <sys/mman.h>

static void *map(size_t len, int flags)
{
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

void *fp_lockedmem_new(size_t len)
{
	void *mem = map(len, MAP_POPULATE);

	if (!mem)
		return NULL;
	/* a limit that is too low costs latency under memory pressure, not correctness */
	(void)mlock(mem, len);
	return mem;
}

void *fp_lockedmem_lazy(size_t len)
{
	void *mem = map(len, 0);

	if (mem)
		(void)mlock2(mem, len, MLOCK_ONFAULT);
	return mem;
}

void fp_lockedmem_free(void *mem, size_t len)
{
	if (mem)
		munmap(mem, len);
}
