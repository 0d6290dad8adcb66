/* See presence.h. */
#include "presence.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "store.h"

#define PAGES_AT_ONCE 512u

bool fp_presence_read(int pagemap_fd, const void *addr, uint64_t *ret_entries, unsigned n)
{
	size_t len = n * sizeof(*ret_entries);
	off_t at = (off_t)(((uintptr_t)addr >> FP_PAGE_SHIFT) * sizeof(*ret_entries));

	return pread(pagemap_fd, ret_entries, len, at) == (ssize_t)len;
}

bool fp_presence_is_absent(int pagemap_fd, const void *addr)
{
	uint64_t entry;

	return fp_presence_read(pagemap_fd, addr, &entry, 1) && !(entry & FP_PAGEMAP_HERE);
}

bool fp_presence_is_here(int pagemap_fd, const void *addr)
{
	uint64_t entry = 0;
	unsigned char vec = 0;

	if (syscall(SYS_mincore, addr, FP_PAGE_SIZE, &vec) == 0)
		return vec & 1;
	return fp_presence_read(pagemap_fd, addr, &entry, 1) && entry & FP_PAGEMAP_HERE;
}

bool fp_presence_is_shared(int pagemap_fd, const void *addr)
{
	uint64_t entry;

	return fp_presence_read(pagemap_fd, addr, &entry, 1) && entry & (1ull << 63) &&
	       !(entry & FP_PAGEMAP_ALONE);
}

bool fp_presence_has_hole(const void *addr, size_t len)
{
	unsigned char vec[PAGES_AT_ONCE];

	for (size_t done = 0, n; done < len; done += n) {
		n = FP_MIN(len - done, (size_t)PAGES_AT_ONCE << FP_PAGE_SHIFT);
		if (syscall(SYS_mincore, (const char *)addr + done, n, vec) < 0 && errno == ENOMEM)
			return true;
	}
	return false;
}
