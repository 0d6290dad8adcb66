/*
 * Pools: the memory that a node exports. Every lease gets memory of its own from a pool (a mapping,
 * and but for anonymous pools a sealed memfd, so that a client who holds it reaches nothing else).
 * What was passed to a client comes back when the client has let go of it, and not before. The
 * kernel gives whoever has the pages next zeros. Room: daemon. It knows sizes and mappings, never
 * sessions.
 *
 * How a node sees that it has a memfd alone: it opens the file once for itself and once for the
 * client, and closes what memfd_create gave, which the kernel does not count. A write lease
 * (fcntl(2), F_SETLEASE) is then granted only if nobody else has the file open: in a descriptor,
 * under way in a socket, or in a mapping of any kind. Nobody else opens it anew: its mode is 0600.
 * A name for it (O_PATH) is not seen, but has no pages once these were punched.
 *
 * A preallocated pool holds its free part as a reserve of pages, so that nobody else on the host
 * can take them. The reserve is a file that nobody maps: what fails to fill it changes no address.
 * A grant gives up a piece of it and populates the lease; a return refills it.
 *
 * What is done to many pages is done in slices. Functions that do one return 1 while there is more:
 * call again.
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

/* The memory of one lease. Zero-initialised there is none yet. */
struct fp_chunk {
	void *base;
	uint64_t size_bytes;
	uint64_t mapped_bytes, populated_bytes; /* from base on; the worker's */
	uint64_t freed_bytes;                   /* that the reserve gave up for it, before it is mapped */
	int fd;                                 /* a memfd's; -1: anonymous */
	bool shareable;                         /* has a memfd; else it is anonymous */
	bool passed; /* a client was given another descriptor of the memfd: fp_chunk_is_alone tells */
};

struct fp_pool {
	char name[64];
	uint64_t size_bytes;
	uint64_t unit_bytes;  /* its size is a multiple of it */
	uint64_t least_bytes; /* leases are multiples of it */
	int backing;
	uint64_t numa_node;
	bool preallocate;
	_Atomic bool ending;
	uint64_t used_bytes;    /* leased or kept; the loop's thread alone */
	uint64_t kept_bytes;    /* no longer leased, but clients still have it; as above */
	uint64_t n_leases;      /* that these are, each once however many sessions have it; as above */
	uint64_t leaving_bytes; /* no longer leased, and not given back yet; as above */
	/* the worker's thread alone */
	uint64_t taken_bytes;   /* of all chunks */
	int reserve_fd;         /* of a preallocated pool; else -1 */
	uint64_t reserve_bytes; /* the first so many of it have pages */
};

/*
 * Makes a pool and proves that its memory is to be had: preallocates, reserves huge pages, tries
 * the NUMA binding. What the host cannot give is refused before it is touched. 0 and *ret_pool;
 * else a negative errno and error->text. Release with fp_pool_close when all chunks are back.
 */
int fp_pool_open(const struct fp_pool_config *config, struct fp_pool **ret_pool, struct fp_conf_error *error);
void fp_pool_close(struct fp_pool *pool);

/* True if the host has set its memory aside: what is free of it is to be had. */
bool fp_pool_is_reserved(const struct fp_pool *pool);

/* True if leases of it can be passed to clients on this machine. */
bool fp_pool_is_shareable(const struct fp_pool *pool);

/* Leases are at least so large, and multiples of it: a power of two. */
void fp_pool_set_least(struct fp_pool *pool, uint64_t least_bytes);
/* size_bytes rounded up to what a lease takes; at most FP_POOL_MAX_BYTES may be asked. */
uint64_t fp_pool_round(const struct fp_pool *pool, uint64_t size_bytes);

/*
 * A slice of making a zeroed chunk of size_bytes (rounded and charged before); *chunk is empty at
 * first. Waits (1, with nothing done) for chunks whose bytes are charged again, and which are being
 * given back. 1, 0, or a negative errno, and *chunk is empty: -ENOMEM when the host has no memory.
 * The worker's thread.
 */
int fp_pool_take(struct fp_pool *pool, uint64_t size_bytes, bool shareable, struct fp_chunk *chunk);
/* A slice of giving a chunk all its pages. 1, 0 or -ENOMEM. The worker's thread. */
int fp_pool_populate(const struct fp_pool *pool, struct fp_chunk *chunk);
/* The node ends: what comes back is not preallocated again. Any thread. */
void fp_pool_end(struct fp_pool *pool);

/*
 * A slice of freeing a chunk that nobody else has, and of the reserve's refill. 1, 0, or -ENOMEM of
 * the refill. The pages go also from who holds a name for the memfd. Nobody else is ever given that
 * memfd. The worker's thread.
 */
int fp_pool_give(struct fp_pool *pool, struct fp_chunk *chunk);
/* Lets go of a chunk that a client still has, whose bytes stay: it may have them nowhere else. */
void fp_pool_leave(struct fp_pool *pool, struct fp_chunk *chunk);

/* A descriptor of a memfd for a client, who has it from then on. 0 and *ret_fd, or a negative
 * errno. */
int fp_chunk_pass(struct fp_chunk *chunk, int *ret_fd);
/* Whether no client has it any more. Some microseconds; any thread. */
bool fp_chunk_is_alone(const struct fp_chunk *chunk);
/*
 * A slice of bringing the reserve of a preallocated pool to all that no chunk has. 1, 0, or
 * -ENOMEM: tried again with every chunk that is given. The worker's thread.
 */
int fp_pool_refill(struct fp_pool *pool);

#endif
