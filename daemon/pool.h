/*
 * Pools: the memory that a node exports. Every lease gets memory of its own from a pool: a mapping
 * and, except in anonymous pools, a sealed memfd. So a client that holds the memfd reaches nothing
 * else. Memory that was passed to a client comes back only when the client has released it. The
 * next owner of the pages gets zeros from the kernel. Room: daemon. It knows sizes and mappings,
 * never sessions.
 *
 * How a node sees that no client has a memfd any more: it opens the file once for itself and once
 * for the client. It closes the descriptor of memfd_create, which the kernel does not count. The
 * kernel then grants a write lease (fcntl(2), F_SETLEASE) only if nobody else has the file open. A
 * descriptor counts, also in flight in a socket, and so does any mapping. Nobody else can open it
 * again: its mode is 0600. The kernel does not see a name for it (O_PATH), but a name reaches no
 * pages once these were punched.
 *
 * A preallocated pool holds its free part as a reserve of pages, so that nobody else on the host
 * can take them. The reserve is a file that nobody maps, so a failed fill changes no address. A
 * grant takes pages from it and populates the lease; a return refills it.
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

/* The memory of one lease. Zero-initialised, it has none yet. */
struct fp_chunk {
	void *base;
	uint64_t size_bytes;
	uint64_t mapped_bytes, populated_bytes; /* from base on; the worker's */
	uint64_t freed_bytes;                   /* given up by the reserve for it, before it is mapped */
	int fd;                                 /* a memfd's; -1: anonymous */
	bool shareable;                         /* has a memfd; else it is anonymous */
	bool passed; /* a client was given another descriptor of the memfd: see fp_chunk_is_alone */
};

struct fp_pool {
	char name[64];
	uint64_t size_bytes;
	uint64_t unit_bytes;  /* of one page; size_bytes is a multiple of it */
	uint64_t least_bytes; /* sizes of leases are multiples of it */
	int backing;
	uint64_t numa_node;
	bool preallocate;
	_Atomic bool ending;
	uint64_t used_bytes;    /* leased or kept; the loop's thread alone */
	uint64_t kept_bytes;    /* no longer leased, but clients still have it; as above */
	uint64_t n_leases;      /* leases, each counted once however many sessions have it; as above */
	uint64_t leaving_bytes; /* no longer leased, and not given back yet; as above */
	/* the worker's thread alone */
	uint64_t taken_bytes;   /* of all chunks */
	int reserve_fd;         /* of a preallocated pool; else -1 */
	uint64_t reserve_bytes; /* the pages of the reserve, from its beginning */
};

/*
 * Makes a pool and proves that the host has its memory: preallocates, reserves huge pages, tries
 * the NUMA binding. Refuses to preallocate more than the host has, before it touches a page. 0 and
 * *ret_pool; else a negative errno and error->text. Release with fp_pool_close when all chunks are
 * back.
 */
int fp_pool_open(const struct fp_pool_config *config, struct fp_pool **ret_pool, struct fp_conf_error *error);
void fp_pool_close(struct fp_pool *pool);

/* True if the host has set its memory aside, so that a grant always finds its free part. */
bool fp_pool_is_reserved(const struct fp_pool *pool);

/* True if its leases can be passed to clients on this machine. */
bool fp_pool_is_shareable(const struct fp_pool *pool);

/* From now on, sizes of leases are multiples of least_bytes, a power of two. */
void fp_pool_set_least(struct fp_pool *pool, uint64_t least_bytes);
/* size_bytes, at most FP_POOL_MAX_BYTES, rounded up to the size of a lease. */
uint64_t fp_pool_round(const struct fp_pool *pool, uint64_t size_bytes);

/*
 * Does a slice of making a zeroed chunk of size_bytes (rounded and charged before). *chunk is empty
 * at first. Returns 1 with nothing done while chunks that are being given back still have the
 * charged bytes. 1, 0, or a negative errno, and *chunk is empty: -ENOMEM if the host has no memory.
 * The worker's thread.
 */
int fp_pool_take(struct fp_pool *pool, uint64_t size_bytes, bool shareable, struct fp_chunk *chunk);
/* Does a slice of giving a chunk all its pages. 1, 0 or -ENOMEM. The worker's thread. */
int fp_pool_populate(const struct fp_pool *pool, struct fp_chunk *chunk);
/* The node ends: returned memory is not preallocated again. Any thread. */
void fp_pool_end(struct fp_pool *pool);

/*
 * Does a slice of freeing a chunk that nobody else has, and of the reserve's refill. 1, 0, or
 * -ENOMEM of the refill. A process with a name for the memfd loses the pages too. That memfd is
 * never passed to anybody again. The worker's thread.
 */
int fp_pool_give(struct fp_pool *pool, struct fp_chunk *chunk);
/* Forgets a chunk that a client still has. Its bytes stay: the client may have no other copy. */
void fp_pool_leave(struct fp_pool *pool, struct fp_chunk *chunk);

/* Opens a descriptor of a chunk's memfd for a client. From then on it counts as passed. 0 and
 * *ret_fd, or a negative errno. */
int fp_chunk_pass(struct fp_chunk *chunk, int *ret_fd);
/* True if no client has it any more. Takes some microseconds; any thread. */
bool fp_chunk_is_alone(const struct fp_chunk *chunk);
/* Does a slice of refilling the reserve of a preallocated pool with all that no chunk has. 1, 0, or
 * -ENOMEM: every fp_pool_give tries again. The worker's thread. */
int fp_pool_refill(struct fp_pool *pool);

#endif
