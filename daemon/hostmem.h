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
	uint64_t total_bytes;     /* with what is in use now; UINT64_MAX: unknown */
	char bound[256];          /* names the file that sets the bound, and the bytes that it allows */
};

/*
 * Returns how much of available_bytes is kept back for what clients make the node keep: sessions,
 * input and answers. It is a sixteenth of total_bytes, and 1 GiB at most. holding.h divides it.
 */
uint64_t fp_hostmem_kept_back(const struct fp_hostmem *host);

/*
 * Reads the bound from /proc and from the cgroups mounted at /sys/fs/cgroup. Both lie below root,
 * which is "" except in tests. A file that cannot be read sets no bound. Takes about 60 µs. Any
 * thread.
 */
void fp_hostmem_read(const char *root, struct fp_hostmem *ret_host);

#endif
