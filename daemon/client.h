/*
 * A client is the user behind any number of sessions and connections. Limits and shares are counted
 * per client. The name of a client is the name of the secret that it proved. On a node without
 * secrets, the name is a user id (UNIX sockets) or the address of a machine. All who reach a
 * loopback address are one client: any local user may do that, from each address of the machine.
 * Room: daemon. It knows no session and no lease: these hold a client. Only the main loop uses it,
 * except that a shard changes its own turns, what a lease that it gives back had charged, and
 * what it keeps then (fp_node_lease_put).
 */
#ifndef FP_CLIENT_H
#define FP_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "turns.h"
#include "worker.h"

#define FP_CLIENT_NAME_LEN   64
#define FP_CLIENT_BUCKETS    1024u
#define FP_CLIENT_HELD_BYTES (16ull << 20)

struct fp_clients;
struct fp_node_memory;

/*
 * The limit that a connection counts against, from its handshake until it is freed. The end of its
 * session changes nothing, because the connection may stay open after it.
 */
enum fp_conn_place {
	FP_CONN_PLACE_CONNECTION, /* max_connections */
	FP_CONN_PLACE_OPERATOR,   /* FP_MAX_OPERATORS */
	FP_CONN_PLACE_NONE,       /* none: an operator who owns the node */
};

struct fp_client {
	struct fp_client *next, **at;               /* at: the pointer that points here */
	struct fp_client *bucket_next, **bucket_at; /* of those with the same hash */
	struct fp_clients *clients;
	char name[FP_CLIENT_NAME_LEN];
	unsigned refs;
	unsigned n_sessions; /* without those of operators */
	unsigned n_conns;    /* those with FP_CONN_PLACE_CONNECTION */
	unsigned n_operators;
	unsigned n_waiting_fds; /* see struct fp_clients */
	/*
	 * The number of the client's shareable pieces of memory. A piece counts until the pool has
	 * it back.
	 */
	unsigned n_shared;
	/* Memory that it keeps, see lease.h. A client with such memory is in the pools' keepers. */
	TAILQ_HEAD(, fp_node_memory) kept;
	TAILQ_ENTRY(fp_client) keeper;
	/*
	 * Memory of input and answers that its connections hold in each loop. The index is that of
	 * the shard. Above FP_CLIENT_HELD_BYTES each of them holds one answer only.
	 */
	uint64_t held_bytes[1 + FP_MAX_SHARDS];
	/* With it, answers that its peers have not received yet: see holding.h. */
	uint64_t kept_bytes[1 + FP_MAX_SHARDS];
	/* Places in the lease tables of sessions that have adopted: see struct fp_adoption. */
	uint64_t adopted_places;
	/* Turns of its connections in each loop. The index is that of the shard. */
	struct fp_turn_client turns[1 + FP_MAX_SHARDS];
	struct fp_worker_share work; /* the worker's: jobs for the memory that is charged to it */
	/* Bytes of texts that were made for its STATUSes in that period: see fp_status_recent. */
	uint64_t status_period, status_bytes;
	/*
	 * Bytes of the client's leases. They count until the pool has the memory back. That is when
	 * no lease, no request and no client's descriptor uses it any more.
	 */
	uint64_t leased_bytes;
};

/* Zero-initialised, it is empty. */
struct fp_clients {
	struct fp_client *first;
	/* By the hash of the name: an attacker with many addresses is many clients. */
	struct fp_client *buckets[FP_CLIENT_BUCKETS];
	unsigned n;
	unsigned n_conns, n_operators; /* of all clients */
	/* Descriptors that are open, or will be, for answers that have not been sent yet. */
	unsigned n_waiting_fds;
	uint64_t kept_bytes[1 + FP_MAX_SHARDS]; /* of all clients */
	/* How much they may keep in each loop, beside what belongs to a place. 0: any amount. */
	uint64_t max_kept_bytes;
	bool alone; /* the node has only one user, who may use all of it */
};

/*
 * Writes the name of a peer that proved no secret, by its socket fd. Over a UNIX socket it is
 * "uid 1000", for example. If either end has a loopback address, it is "loopback". Otherwise it is
 * the string `peer` without the port: "10.0.0.7" for "10.0.0.7:5022". Returns buf.
 */
const char *fp_client_peer_name(int fd, bool is_unix, const char *peer, char buf[FP_CLIENT_NAME_LEN]);

/* Returns the client of that name; makes one if there is none. The caller holds it from now on.
 * NULL: no memory. */
struct fp_client *fp_client_get(struct fp_clients *clients, const char *name);
/* Holds the client once more. Returns client. */
struct fp_client *fp_client_ref(struct fp_client *client);
/* Releases the client. A client that nobody holds is forgotten. */
void fp_client_put(struct fp_client *client);

/*
 * Returns how many of a node's `max` places one client may take: three quarters, so that no client
 * keeps out all others. On a node with only one user: all.
 */
uint64_t fp_client_share(const struct fp_client *client, uint64_t max);

#endif
