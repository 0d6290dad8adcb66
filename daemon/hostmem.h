/*
 * Host memory: how much the machine can still give this process. That is the memory that is free or
 * can be freed at once, swap included. It is less if a cgroup memory limit (v1 or v2) on the
 * process or on a parent group allows less. Room: daemon. It reads files and knows no pools.
 */
#ifndef FP_HOSTMEM_H
#define FP_HOSTMEM_H

#include <stdint.h>

struct fp_hostmem {
	uint64_t available_bytes; /* UINT64_MAX: no bound is known */
	char bound[256];          /* names the file that sets the bound, and the bytes that it allows */
};

/*
 * Reads the bound from /proc and from the cgroups mounted at /sys/fs/cgroup. Both lie below root,
 * which is "" except in tests. A file that cannot be read sets no bound. Takes about 60 µs. Any
 * thread.
 */
void fp_hostmem_read(const char *root, struct fp_hostmem *ret_host);

#endif
