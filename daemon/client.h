/*
 * A client is the user behind any number of sessions and connections. Limits and shares are a
 * client's. Its name is that of the secret that it proved. On a node without secrets the name is a
 * user id (UNIX sockets) or the address of a machine. All loopback addresses are one client,
 * because any local user may use each of them. Room: daemon. It knows no session and no lease:
 * these hold it. The loop's thread.
 */
#ifndef FP_CLIENT_H
#define FP_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "turns.h"

#define FP_CLIENT_NAME_LEN 64

struct fp_clients;

struct fp_client {
	struct fp_client *next;
	struct fp_clients *clients;
	char name[FP_CLIENT_NAME_LEN];
	unsigned refs;
	unsigned n_sessions;
	unsigned n_conns;
	unsigned n_fds_out;          /* descriptors that it was promised or sent, and has not received */
	unsigned n_shared;           /* memories that it maps, or mapped until they are given back */
	struct fp_turn_client turns; /* of its connections */
	uint64_t
	    leased_bytes; /* until the memory is back: until nobody has it leased and no request uses it */
};

/* Zero-initialised it is empty. */
struct fp_clients {
	struct fp_client *first;
	unsigned n;
	unsigned n_conns; /* of all of them */
	bool alone;       /* the node has one user: it may have all */
};

/* The name of a peer that proved no secret: "uid 1000" behind a UNIX socket fd; "loopback"; else
 * peer ("10.0.0.7:5022", "[fd00::7]:5022") without its port. Returns buf. */
const char *fp_client_peer_name(int unix_fd, const char *peer, char buf[FP_CLIENT_NAME_LEN]);

/* The client of that name, a new one if nobody holds it. The caller holds it now. NULL: no
 * memory. */
struct fp_client *fp_client_get(struct fp_clients *clients, const char *name);
/* Holds it once more. Returns client. */
struct fp_client *fp_client_ref(struct fp_client *client);
/* Lets go of it. A client that nobody holds is forgotten. */
void fp_client_put(struct fp_client *client);

/*
 * How many it may have where there are max: three quarters, so that no client can keep all others
 * out.
 */
uint64_t fp_client_share(const struct fp_client *client, uint64_t max);

/* A connection begins, and ends, to be the client's: it holds the client in between. */
void fp_client_join(struct fp_client *client);
void fp_client_leave(struct fp_client *client);

/* Memory is leased to it, and is back: the memory holds the client in between. */
void fp_client_charge(struct fp_client *client, uint64_t bytes);
void fp_client_uncharge(struct fp_client *client, uint64_t bytes);

#endif
