/*
 * Pools: the memory that a node exports. Every lease gets memory of its own from a pool: a mapping
 * and, except in anonymous pools, a sealed memfd. So a client that has the memfd reaches no other
 * lease. Memory that was passed to a client comes back only when the client has released it. The
 * next owner of the pages gets zeros from the kernel. Room: daemon. It knows sizes and mappings,
 * never sessions.
 *
 * A node must see when no client has a memfd any more. So it opens the file once for itself and
 * once for the client. It closes the descriptor that memfd_create gave, because the kernel does not
 * count that one. Then the kernel grants a write lease (fcntl(2), F_SETLEASE) only if nobody else
 * has the file open. Each descriptor that open(2) gave counts, also one in flight in a socket, and
 * so does each mapping. Nobody else can open the file again: its mode is 0600. An O_PATH descriptor
 * does not count, but it reaches no pages once the node has punched them.
 *
 * A preallocated pool holds its free part as a reserve of pages, so that nobody else on the host
 * can take them. The reserve is a file that nobody maps, so a fill that fails harms no mapping. A
 * grant takes pages from the reserve and populates the lease. A return refills the reserve.
 *
 * Work on many pages is done in slices. A function that does one slice returns 1 while there is
 * more: call it again.
 */
#ifndef FP_POOL_H
#define FP_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "hostmem.h"
#include "worker.h"

/* The memory of one lease. A zero-initialised chunk has no memory yet. */
struct fp_chunk {
	void *base;
	uint64_t size_bytes;
	uint64_t taken_bytes;                   /* of the pool's space, until it is mapped */
	uint64_t mapped_bytes, populated_bytes; /* counted from base on; the worker's */
	uint64_t freed_bytes;                   /* bytes that the reserve gave up for this chunk */
	int fd;                                 /* descriptor of its memfd; -1: anonymous */
	bool shareable;                         /* has a memfd; else it is anonymous */
	/* A client was given a second descriptor of the memfd: see fp_chunk_is_alone. */
	bool passed;
};

struct fp_pool {
	char name[64];
	uint64_t size_bytes;
	uint64_t unit_bytes;  /* page size of the backing; size_bytes is a multiple of it */
	uint64_t least_bytes; /* sizes of leases are multiples of it */
	int backing;
	uint64_t numa_node;
	bool preallocate;
	_Atomic bool ending;
	uint64_t used_bytes; /* leased or kept; only for the loop's thread, like the next three */
	uint64_t kept_bytes; /* no longer leased, but clients still have it */
	uint64_t
	    n_leases; /* pieces of memory that are leased, each counted once however many leases hold it */
	uint64_t leaving_bytes; /* no longer leased, and not given back yet */
	/* the worker's thread alone */
	uint64_t taken_bytes;   /* bytes that all chunks have taken */
	int reserve_fd;         /* file of a preallocated pool's reserve; else -1 */
	uint64_t reserve_bytes; /* length of the reserve, from the file's beginning */
};

/*
 * Makes a pool and makes sure that the host has its memory: preallocates, reserves huge pages,
 * tries the NUMA binding. If the host has too little memory to preallocate, this fails before it
 * touches a page. 0 and *ret_pool; else a negative errno and error->text. Release with
 * fp_pool_close when all chunks are back.
 */
int fp_pool_open(const struct fp_pool_config *config, struct fp_pool **ret_pool, struct fp_conf_error *error);
void fp_pool_close(struct fp_pool *pool);

/*
 * Logs a warning if the pools that take memory on use are together larger than what the host can
 * give. The pools of a private node may be larger than that, but not larger than all memory and
 * swap.
 */
void fp_pools_warn(const struct fp_pool_config *pools, unsigned n, bool is_private);
/*
 * For a check of the configuration: logs a warning if the host can't give the memory that the pools
 * with preallocate take at the start.
 */
void fp_pools_warn_preallocated(const struct fp_pool_config *pools, unsigned n);
/*
 * For a check of the configuration: an error and error->text if no start can succeed. -ENOMEM:
 * preallocated pools are larger than all memory of this machine. -EINVAL: a pool of huge pages has
 * a part of one. Logs a warning if the machine has fewer
 * huge pages than the pools need. What a running node holds counts as there.
 */
int fp_pools_check(const struct fp_pool_config *pools, unsigned n, struct fp_conf_error *error);

/*
 * True if the host has set the pool's memory aside. Then no grant fails for lack of the host's
 * memory while the pool has free bytes.
 */
bool fp_pool_is_reserved(const struct fp_pool *pool);

/* True if its leases can be passed to clients on this machine. */
bool fp_pool_is_shareable(const struct fp_pool *pool);

/* From now on, sizes of leases are multiples of least_bytes, which is a power of two. */
void fp_pool_set_least(struct fp_pool *pool, uint64_t least_bytes);
/* Rounds size_bytes (at most FP_POOL_MAX_BYTES) up to a size that a lease can have. */
uint64_t fp_pool_round(const struct fp_pool *pool, uint64_t size_bytes);

/*
 * Does a slice of making a zeroed chunk of size_bytes, which were rounded and charged before.
 * *chunk is empty at first. Returns 0 when the chunk is made. Returns 1 if there is more to do, or
 * if other chunks that are being given back still take some of the space. On a negative errno
 * *chunk is empty: -ENOMEM if the host has no memory. For the worker's thread.
 */
int fp_pool_take(struct fp_pool *pool, uint64_t size_bytes, bool shareable, struct fp_chunk *chunk);
/*
 * Does a slice of giving a chunk all its pages. Returns 1 if work is left, and 0 if the chunk has
 * all of them. -ENOMEM: the host has no memory for them. For the worker's thread.
 */
int fp_pool_populate(const struct fp_pool *pool, struct fp_chunk *chunk);
/* Called when the node ends: memory that comes back is not preallocated again. Any thread. */
void fp_pool_end(struct fp_pool *pool);

/*
 * Does a slice of freeing a chunk that nobody else has, and then of refilling the reserve. Returns
 * 1 if work is left, and 0 if all is done. -ENOMEM: the chunk is freed, but the host has no memory
 * for the reserve now. A process with an O_PATH descriptor of the memfd loses the pages too. That
 * memfd is never passed to anybody again. For the worker's thread.
 */
int fp_pool_give(struct fp_pool *pool, struct fp_chunk *chunk);
/*
 * Forgets a chunk that a client still has. Its bytes stay, because the client may have no other
 * copy.
 */
void fp_pool_leave(struct fp_pool *pool, struct fp_chunk *chunk);

/*
 * Opens a descriptor of a chunk's memfd for a client, and marks the chunk as passed. 0 and *ret_fd,
 * or a negative errno.
 */
int fp_chunk_pass(struct fp_chunk *chunk, int *ret_fd);
/* How much of a chunk's memfd has pages, swapped ones included. 0 without a memfd. Any thread. */
uint64_t fp_chunk_touched(const struct fp_chunk *chunk);
/* True if no client has the chunk any more. Takes some microseconds; any thread. */
bool fp_chunk_is_alone(const struct fp_chunk *chunk);
/*
 * Does one slice of the work that refills the reserve of a preallocated pool. A full reserve has
 * all bytes that no chunk has. Returns 1 if work is left, and 0 if the reserve is full. -ENOMEM:
 * the host has no memory for it now; each fp_pool_give tries again. For the worker's thread.
 */
int fp_pool_refill(struct fp_pool *pool);

#endif
