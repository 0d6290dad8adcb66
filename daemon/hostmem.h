/*
 * Host memory: how much the machine can still give this process. The bound is the memory that is
 * free or can be freed at once, swap included. Each cgroup memory limit on the process, v1 or v2,
 * bounds it further; limits of parent groups count too. Room: daemon. It reads files and knows no
 * pools.
 */
#ifndef FP_HOSTMEM_H
#define FP_HOSTMEM_H

#include <stdint.h>

struct fp_hostmem {
	uint64_t available_bytes; /* UINT64_MAX: no bound is known */
	char bound[256];          /* the file that sets the bound, and the bytes it allows */
};

/*
 * Reads it from /proc and the cgroups mounted at /sys/fs/cgroup, all below root, which is "" except
 * in tests. A file that cannot be read sets no bound. Takes about 60 µs. Any thread.
 */
void fp_hostmem_read(const char *root, struct fp_hostmem *ret_host);

#endif
