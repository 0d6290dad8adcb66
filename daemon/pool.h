/*
 * Pools: the memory that a node exports. Every lease gets memory of its own from a pool (a mapping, and but
 * for anonymous pools a sealed memfd, so that a client who holds it reaches nothing else), and that memory
 * goes back to the kernel when the lease ends: whoever gets those pages next, in this process or another,
 * gets them zeroed. Room: daemon. It knows sizes and mappings, never sessions.
 *
 * A preallocated pool holds its free part as a reserve of populated pages, so that nobody else on the host
 * can take them. A grant gives up a piece of the reserve and populates the lease; a return does the reverse.
 */
#ifndef FP_POOL_H
#define FP_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

/* The memory of one lease. */
struct fp_chunk {
	void *base;
	uint64_t size_bytes;
	int fd; /* -1: anonymous, or given away */
};

struct fp_pool {
	char name[64];
	uint64_t size_bytes;
	uint64_t unit_bytes; /* sizes are multiples of it */
	int backing;
	uint64_t numa_node;
	bool preallocate;
	_Atomic bool ending;
	uint64_t used_bytes;     /* leased; the loop's thread alone */
	uint64_t n_leases;       /* that these are, each once however many sessions have it; as above */
	struct fp_chunk reserve; /* address space of a preallocated pool; the keeper's thread alone */
	uint64_t reserve_bytes;  /* the first so many of it are populated */
};

/*
 * Makes a pool and proves that its memory is to be had: preallocates, reserves huge pages, tries the NUMA
 * binding. 0 and *ret_pool; else a negative errno and error->text. Release with fp_pool_close when all chunks
 * are back.
 */
int fp_pool_open(const struct fp_pool_config *config, struct fp_pool **ret_pool, struct fp_conf_error *error);
void fp_pool_close(struct fp_pool *pool);

/* True if leases of it can be passed to clients on this machine. */
bool fp_pool_is_shareable(const struct fp_pool *pool);

/* size_bytes rounded up to the pool's unit; at most FP_POOL_MAX_BYTES may be asked. */
uint64_t fp_pool_round(const struct fp_pool *pool, uint64_t size_bytes);

/* Accounting: takes size_bytes (rounded) out of what is free, or not. The loop's thread. */
bool fp_pool_charge(struct fp_pool *pool, uint64_t size_bytes);
void fp_pool_uncharge(struct fp_pool *pool, uint64_t size_bytes);

/*
 * Maps a zeroed chunk of size_bytes (rounded and charged before). 0 and *ret_chunk, or a negative errno:
 * -ENOMEM when the host has no memory. May take long: the keeper's thread.
 */
int fp_pool_take(struct fp_pool *pool, uint64_t size_bytes, struct fp_chunk *ret_chunk);
/*
 * The node ends: from now on chunks that clients have mapped are let go as they are, and stay theirs until
 * they unmap them. Nothing is taken any more. Any thread.
 */
void fp_pool_end(struct fp_pool *pool);

/*
 * Scrubs a chunk by giving its pages back to the kernel, also where a client still maps its memfd. May take
 * long: the keeper's thread. Returns 0, or -ENOMEM if a preallocated pool could not take as much back into
 * its reserve.
 */
int fp_pool_give(struct fp_pool *pool, struct fp_chunk *chunk);

#endif
