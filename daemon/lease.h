/*
 * Leases as the node holds them: granted to a session out of a pool, used by its requests, given
 * back and scrubbed. Room: daemon. It knows pools and the worker, never connections. All functions
 * are for the loop's thread; the worker does the memory work itself.
 *
 *            grant              the worker made it        release, or the session ends
 *   (none) ────────► being made ──────────────────► granted ───────────────────────────► released
 *                                           no request uses it any more: scrubbed ◄──────────┘
 *
 * If the session ends while its lease is being made, the lease is given back as soon as it is made.
 *
 * A session may adopt the leases of another one. Each session then has a lease of its own, with its
 * own id, key and uses. Both leases hold the same memory. The memory is scrubbed when its last
 * holder has left. Only the session to which it was granted may write it.
 */
#ifndef FP_NODE_LEASE_H
#define FP_NODE_LEASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client.h"
#include "refusal.h"
#include "worker.h"
#include "pool.h"
#include "promise.h"
#include "cm_server.h"

/*
 * What one ADOPT took of the limit of its client. It is given back when the session has ended and
 * each lease that it adopted is freed: the worker may still hold some of them then.
 */
struct fp_adoption {
	struct fp_client *client; /* holds a reference */
	uint32_t places;
	unsigned holders; /* the table, and each adopted lease */
};

/* All leases of a session. Zero-initialised, it is empty. */
struct fp_node_leases {
	struct fp_node_lease **by_id; /* index id - 1 */
	struct fp_adoption *adoption; /* NULL: the session has not adopted */
	uint32_t capacity;
	uint32_t n, n_adopted; /* number of all leases, and of the read-only ones among them */
	uint64_t leased_bytes;
};

/*
 * The key of a lease lets the links of one peer of the rdma_cm server READ and WRITE its memory.
 * For that, the memory is registered in the domain of the peer. The worker makes the key, and
 * revokes it before it scrubs the memory. A revoked key belongs to the worker's job and no longer
 * to the lease.
 */
struct fp_lease_key {
	struct fp_cm_server_peer *peer; /* holds a reference */
	struct fp_node_lease *lease;
	/* Belongs to the worker until the key is made, and again after the revocation. */
	struct fp_verbs_region region;
	bool made, revoked;
	bool populated; /* the memory has its pages: what fails after that is the registration */
	int status;
	struct fp_worker_job make, revoke;
	void (*done)(struct fp_node_lease *lease, int status, void *user);
	void *user;
};

/*
 * The memory of a lease. It is given back when its last holder has left. Exception: memory that was
 * passed to a client is kept, and still charged, until that client has released it.
 */
struct fp_node_memory {
	struct fp_pools *pools;
	struct fp_pool *pool;
	TAILQ_ENTRY(fp_node_memory) kept;   /* in the list of its client */
	TAILQ_ENTRY(fp_node_memory) mapped; /* of those that clients touch without this process */
	bool is_mapped;                     /* it is in that list */
	uint64_t touched_bytes;             /* of it, when it was looked at last */
	struct fp_worker_job give;
	int status;     /* result of the worker's job that gives it back */
	bool shareable; /* a client may get its memfd; pools->max_shared limits how many there are */
	/* Holds a reference. This client is charged for the memory until it is given back. */
	struct fp_client *client;
	uint64_t size_bytes;
	/*
	 * Belongs to the worker until the lease is granted, and again once the memory is being
	 * given back.
	 */
	struct fp_chunk chunk;
	/* Jobs in their order: make the memory, make and revoke its keys, give it back. */
	struct fp_worker_line line;
	/*
	 * The number of leases that hold this memory. A released lease counts while requests use
	 * it.
	 */
	unsigned n_holders;
};

struct fp_node_lease {
	uint32_t id; /* 1.. */
	bool granted;
	bool read_only;                /* adopted */
	bool had_key;                  /* the worker may still have jobs that point at it */
	struct fp_adoption *adoption;  /* of an adopted lease */
	atomic_uint uses;              /* requests that read or write the memory at present */
	struct fp_node_leases *leases; /* NULL: released */
	struct fp_node_memory *memory; /* holds a reference */
	struct fp_lease_key *key;      /* NULL: no link of the rdma_cm server reaches the memory */
	int status;                    /* result of the worker's work */
	struct fp_worker_job job;
	void (*done)(struct fp_node_lease *lease, int status, void *user);
	void *user;
};

struct fp_lease_request {
	uint64_t size_bytes;
	bool shareable;           /* the memory will be passed to the client, as a memfd */
	struct fp_client *client; /* it is charged to this client */
	uint64_t quota_bytes;     /* quota of this client, for all its sessions together */
	uint64_t max_leases;
	struct fp_refusal *refusal; /* NULL, or where to write which limit refused it; cause NONE: no limit */
	/*
	 * Called once for each grant that began. status is 0 if the lease is granted, and
	 * -ECANCELED if the session has ended meanwhile. Any other error, such as -ENOMEM, says why
	 * there is no memory. Unless status is 0, the lease is freed after done has returned.
	 */
	void (*done)(struct fp_node_lease *lease, int status, void *user);
	void *user;
};

/* The pools of a node. */
struct fp_pools {
	pthread_mutex_t leaving; /* held by a shard while it returns a lease: see fp_node_lease_put */
	struct fp_pool **items;
	unsigned n;
	struct fp_worker *worker;
	unsigned n_shared, max_shared;   /* shareable pieces of memory; each takes a descriptor */
	TAILQ_HEAD(, fp_client) keepers; /* clients that keep memory; the next one to look at is first */
	unsigned n_kept;                 /* pieces of memory that all of them keep */
	uint64_t collected_ns;
	TAILQ_HEAD(, fp_node_memory) mapped; /* the one that was looked at longest ago is first */
	unsigned n_mapped;
	uint64_t touched_bytes; /* of all of these */
	/*
	 * A private node ignores the memory of the host, because its program may map more than it
	 * touches.
	 */
	bool unlimited;
	struct fp_hostmem host; /* the state of the host as read at host_ns */
	uint64_t host_ns;
	struct fp_promise promise; /* updated with each look at the host */
};

void fp_pools_init(struct fp_pools *pools, unsigned max_shared);
/*
 * Forgets the kept memory, which belongs to the clients from then on. Call it after the worker has
 * stopped. The caller still owns the pools.
 */
void fp_pools_done(struct fp_pools *pools);

/*
 * The smallest size of a lease from pools that have size_bytes together. Each lease is a mapping,
 * and the kernel allows a process 65530 mappings (vm.max_map_count). So this size is large enough
 * that the pools are full before the mappings run out.
 */
uint64_t fp_pools_least_bytes(uint64_t size_bytes);

/*
 * Looks which kept pieces of memory the clients have released, and begins to give these back. One
 * call looks at no more than some hundred: at one of each client in turn. So a client that keeps
 * thousands of pieces delays no look at those of others. A call that follows too soon does nothing.
 * True if any is being given back.
 */
bool fp_pools_collect(struct fp_pools *pools);

/*
 * How much a pool can still lease: its free part. If the host has not reserved that part, the
 * result is at most what the host can still give. That can be less, for example while clients of an
 * earlier node still have some of the host's memory.
 */
uint64_t fp_pools_free(struct fp_pools *pools, const struct fp_pool *pool);

/*
 * Returns the pool with the most free memory among those that can serve the request, or NULL. A
 * pool can also serve it with memory that is being given back, but then the lease waits for that.
 */
struct fp_pool *fp_pools_choose(struct fp_pools *pools, uint64_t size_bytes, bool shareable);
/*
 * Sums over the pools that can serve a client. If `shareable` is true, these are only the pools
 * whose leases can be passed to clients.
 */
void fp_pools_sum(struct fp_pools *pools, bool shareable, uint64_t *ret_size_bytes, uint64_t *ret_free_bytes);

/* Sums over all pools: leases and their bytes. A lease counts once, however many sessions hold it.
 * Memory that is kept is excluded. */
void fp_pools_leased(const struct fp_pools *pools, uint64_t *ret_leases, uint64_t *ret_bytes);

/*
 * Says whether a grant would begin now. 0: yes. -EDQUOT: the quota is used up. -ENOSPC: no pool can
 * back the lease. -EUSERS: there are too many leases. After an error, *request->refusal names the
 * limit.
 */
int fp_node_lease_check(const struct fp_node_leases *leases, struct fp_pools *pools,
                        const struct fp_lease_request *request);

/*
 * Begins a grant: charges the client and lets the worker make the memory. 0: request->done will be
 * called. After an error it will not be called. Errors: as of fp_node_lease_check, or -ENOMEM.
 */
int fp_node_lease_grant(struct fp_node_leases *leases, struct fp_pools *pools,
                        const struct fp_lease_request *request);

/*
 * Fills the empty table `leases` with all granted leases of the table `from`. They are read-only
 * and keep their ids. Each stays charged to its first client. The places of the table are charged
 * to `client`. 0: all of them are adopted; -ENOMEM: none is.
 */
int fp_node_leases_adopt(struct fp_node_leases *leases, const struct fp_node_leases *from,
                         struct fp_client *client);

/* The granted lease with that id, or NULL. */
struct fp_node_lease *fp_node_lease_find(const struct fp_node_leases *leases, uint32_t id);

/*
 * fp_node_lease_get marks the beginning of a request that uses the memory, fp_node_lease_put its
 * end. In between the memory stays mapped, even if the lease is released.
 */
void fp_node_lease_get(struct fp_node_lease *lease);
void fp_node_lease_put(struct fp_node_lease *lease);

/*
 * Takes a lease away from its session. If the worker still makes the memory, that is completed
 * first. The memory is scrubbed and given back once nobody has it: no request, no other session,
 * and no client with a descriptor of its memfd.
 */
void fp_node_lease_release(struct fp_node_lease *lease);

/*
 * Begins to register the memory of a granted lease in the domain of peer: for READ and WRITE, or
 * for READ alone if the lease is read-only. Revokes the key that the lease already has.
 *
 * 0: done will be called once. Its status is 0 (lease->key is made), -ECANCELED (the key was
 * revoked meanwhile), or the error of the registration (-ENOMEM: the limit of locked memory). An
 * error does not end the lease: the caller keeps or releases it.
 *
 * -ENOMEM: done will not be called.
 */
int fp_node_lease_key_make(struct fp_node_lease *lease, struct fp_cm_server_peer *peer,
                           void (*done)(struct fp_node_lease *lease, int status, void *user), void *user);
/*
 * Keeps new connections from using the lease's key, and lets the worker deregister the memory. A
 * lease without a key is fine.
 */
void fp_node_lease_key_revoke(struct fp_node_lease *lease);
/* Revokes the keys of all leases. */
void fp_node_leases_revoke(struct fp_node_leases *leases);

/* Releases all. */
void fp_node_leases_done(struct fp_node_leases *leases);

#endif
