/*
 * Host memory: how much the machine can still give this process. The bound is what is free or can
 * be freed at once, swap included. Each memory limit of a cgroup of the process, v1 or v2, and of
 * the groups above it bounds it further. Room: daemon. It reads files and knows no pools.
 */
#ifndef FP_HOSTMEM_H
#define FP_HOSTMEM_H

#include <stdint.h>

struct fp_hostmem {
	uint64_t available_bytes; /* UINT64_MAX: no bound is known */
	char bound[256];          /* the file that says so, and how much it allows */
};

/*
 * Reads it from /proc and the mounted cgroups below root: "" but for tests. What can't be read is
 * no bound. It takes about 60 µs. Any thread.
 */
void fp_hostmem_read(const char *root, struct fp_hostmem *ret_host);

#endif
