/*
 * Leases as the node holds them: granted to a session out of a pool, used by its requests, given
 * back and scrubbed. Room: daemon. It knows pools and the worker, never connections. Everything
 * here is the loop's thread; the memory work itself is done by the worker.
 *
 *            grant              the worker made it        release, or the session ends
 *   (none) ────────► being made ──────────────────► granted ───────────────────────────► released
 *                                           no request uses it any more: scrubbed ◄──────────┘
 *
 * A lease that is being made when its session ends is given back as soon as it is made.
 *
 * A session may adopt the leases of another one: each then has a lease of its own (its id, key and
 * uses), and both are holders of one memory. It is scrubbed when its last holder has left. Only the
 * one that it was granted to may write it.
 */
#ifndef FP_NODE_LEASE_H
#define FP_NODE_LEASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client.h"
#include "worker.h"
#include "pool.h"
#include "cm_server.h"

/* All leases of a session. Zero-initialised it is empty. */
struct fp_node_leases {
	struct fp_node_lease **by_id; /* index id - 1 */
	uint32_t capacity;
	uint32_t n, n_adopted; /* all; those among them that are read-only */
	uint64_t leased_bytes;
};

/*
 * A lease's key: its memory, registered in the domain of a peer of the rdma_cm server, so that this
 * peer's links READ and WRITE it. Made and revoked by the worker, in that order and before the
 * memory is scrubbed. From its revocation on it belongs to the worker's job, and no longer to the
 * lease.
 */
struct fp_lease_key {
	struct fp_cm_server_peer *peer; /* held */
	struct fp_node_lease *lease;
	struct fp_verbs_region region; /* the worker's until made and after the revocation */
	bool made, revoked;
	int status;
	struct fp_worker_job make, revoke;
	void (*done)(struct fp_node_lease *lease, int status, void *user);
	void *user;
};

/*
 * What a lease is about. When its last holder has left it is given back, or kept until the client
 * to which it was passed has let go of it: then it is still charged.
 */
struct fp_node_memory {
	struct fp_pools *pools;
	struct fp_pool *pool;
	struct fp_worker *worker;
	TAILQ_ENTRY(fp_node_memory) kept;
	struct fp_worker_job give;
	bool shareable;           /* it counts for pools->max_shared */
	struct fp_client *client; /* held: whom it is charged to, until the last holder has left */
	uint64_t size_bytes;
	struct fp_chunk chunk;      /* the worker's until granted and after the last holder left */
	struct fp_worker_line line; /* made, then its keys made and revoked, then given back */
	unsigned n_holders;         /* leases, those released that are still used included */
};

struct fp_node_lease {
	uint32_t id; /* 1.. */
	bool granted;
	bool read_only;                /* adopted */
	unsigned uses;                 /* requests that read or write the memory now */
	struct fp_node_leases *leases; /* NULL: released */
	struct fp_worker *worker;
	struct fp_node_memory *memory; /* held */
	struct fp_lease_key *key;      /* NULL: reached by no link of the rdma_cm server's */
	int status;                    /* of the worker's work */
	struct fp_worker_job job;
	void (*done)(struct fp_node_lease *lease, int status, void *user);
	void *user;
};

struct fp_lease_request {
	uint64_t size_bytes;
	bool shareable;           /* it will be passed to the client */
	struct fp_client *client; /* it is charged to him */
	uint64_t quota_bytes;     /* his, of all his sessions */
	uint64_t max_leases;
	/* Called once after a grant that was begun: 0, or -ENOMEM and the like, or -ECANCELED where
	 * the session has ended meanwhile (the lease is gone when it returns). */
	void (*done)(struct fp_node_lease *lease, int status, void *user);
	void *user;
};

/* The pools of a node. */
struct fp_pools {
	struct fp_pool **items;
	unsigned n;
	unsigned n_shared, max_shared; /* memories that clients map: each takes a descriptor here */
	TAILQ_HEAD(, fp_node_memory) kept;
	unsigned n_kept;
	uint64_t collected_ns;
	bool unlimited;         /* by what the host has: a program may map more than it touches */
	struct fp_hostmem host; /* as it was at host_ns */
	uint64_t host_ns, host_took_ns, refused_ns;
};

void fp_pools_init(struct fp_pools *pools, unsigned max_shared);
/* Forgets what is kept: it is the clients' from then on. After the worker; the pools stay the
 * caller's. */
void fp_pools_done(struct fp_pools *pools);

/*
 * The least size of a lease from pools of size_bytes together. Each lease is a mapping, of which
 * the kernel allows a process 65530 (vm.max_map_count): the pools are to be full before these are
 * used up.
 */
uint64_t fp_pools_least_bytes(uint64_t size_bytes);

/*
 * Looks at what is kept, some hundred memories at a time and not too often, and gives back what
 * clients have let go of. True if there was any.
 */
bool fp_pools_collect(struct fp_pools *pools);

/*
 * What a pool can still lease: what is free of it; where the host has not set it aside, at most
 * what the host can give. Clients of a node before this one may still have that memory.
 */
uint64_t fp_pools_free(struct fp_pools *pools, const struct fp_pool *pool);

/*
 * The pool that can back the request and has the most room, or NULL. What is being given back is
 * free, but the lease waits for it.
 */
struct fp_pool *fp_pools_choose(struct fp_pools *pools, uint64_t size_bytes, bool shareable);
/* Sums over the pools that can serve such a client. */
void fp_pools_sum(struct fp_pools *pools, bool shareable, uint64_t *ret_size_bytes, uint64_t *ret_free_bytes);
/* Logs it if pools that take memory as it is used are larger than what the host can give now. */
void fp_pools_warn(struct fp_pools *pools);

/* Sums over all of them: leases, and the bytes that they take, both once however many sessions hold
 * them. Without what is kept. */
void fp_pools_leased(const struct fp_pools *pools, uint64_t *ret_leases, uint64_t *ret_bytes);

/*
 * Begins a grant: accounts for it and lets the worker make the memory. 0: request->done will be
 * called; -EDQUOT, -ENOSPC, -EMFILE (the client maps as many as one may), -EUSERS (too many
 * leases), -ENOMEM: it will not.
 */
int fp_node_lease_grant(struct fp_node_leases *leases, struct fp_pools *pools, struct fp_worker *worker,
                        const struct fp_lease_request *request);

/*
 * Gives leases, of which there is none, every granted one of from: read-only, by the same ids. They
 * stay charged to whom they were granted. 0; -ENOMEM: none is adopted.
 */
int fp_node_leases_adopt(struct fp_node_leases *leases, const struct fp_node_leases *from);

/* The granted lease with that id, or NULL. */
struct fp_node_lease *fp_node_lease_find(const struct fp_node_leases *leases, uint32_t id);

/* A request begins, and ends, to use the memory: it stays mapped in between, also if the lease is
 * released.
 */
void fp_node_lease_get(struct fp_node_lease *lease);
void fp_node_lease_put(struct fp_node_lease *lease);

/*
 * Takes a lease away from its session; the memory is scrubbed and returned once it is made, nobody
 * uses it, no other session has it and no client still has the memfd.
 */
void fp_node_lease_release(struct fp_node_lease *lease);

/*
 * Begins to register a granted lease with peer, a read-only one for READ alone; a key that it has
 * is revoked. 0: done will be called once, with 0 and lease->key made, -ECANCELED if it was revoked
 * meanwhile, or what registration says (-ENOMEM: the limit of locked memory): the lease is the
 * caller's to keep or release. Else -ENOMEM, and it will not.
 */
int fp_node_lease_key_make(struct fp_node_lease *lease, struct fp_cm_server_peer *peer,
                           void (*done)(struct fp_node_lease *lease, int status, void *user), void *user);
/* No new connection gets in by it; the memory is deregistered by the worker. None is fine. */
void fp_node_lease_key_revoke(struct fp_node_lease *lease);
/* Those of all leases. */
void fp_node_leases_revoke(struct fp_node_leases *leases);

/* Releases all. */
void fp_node_leases_done(struct fp_node_leases *leases);

#endif
