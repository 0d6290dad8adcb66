/*
 * Locked memory. Room: common.
 */
#include "lockedmem.h"

#include <sys/mman.h>

void *fp_lockedmem_new(size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
	void *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (mem == MAP_FAILED)
		return NULL;
	/* a limit that is too low costs latency under memory pressure, not correctness */
	(void)mlock(mem, len);
	return mem;
}

void fp_lockedmem_free(void *mem, size_t len)
{
	if (mem)
		munmap(mem, len);
}
