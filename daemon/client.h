/*
 * Clients: who stands behind sessions, whatever number of them and of connections he opens. A
 * client has a name: that of the secret that he proved; without secrets his uid on a UNIX socket,
 * and else the address of his machine; all addresses of loopback are one, as everybody there may
 * use each of them. Room: daemon. It knows no session and no lease: these hold it. The loop's
 * thread.
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
	unsigned n_fds_out;          /* descriptors that he was promised or sent, and has not received */
	unsigned n_shared;           /* memories that he maps, or mapped until they are given back */
	struct fp_turn_client turns; /* of his connections */
	uint64_t
	    leased_bytes; /* until the memory is back: until nobody has it leased and no request uses it */
};

/* Zero-initialised it is empty. */
struct fp_clients {
	struct fp_client *first;
	unsigned n;
	unsigned n_conns; /* of all of them */
	bool alone;       /* the node has one user: he may have all */
};

/* The name of a peer who proved no secret: "uid 1000" behind a UNIX socket fd; "loopback"; else
 * peer ("10.0.0.7:5022", "[fd00::7]:5022") without its port. Returns buf. */
const char *fp_client_peer_name(int unix_fd, const char *peer, char buf[FP_CLIENT_NAME_LEN]);

/* The client of that name, who is new if nobody holds him. The caller holds him now. NULL: no
 * memory. */
struct fp_client *fp_client_get(struct fp_clients *clients, const char *name);
/* Holds him once more. Returns client. */
struct fp_client *fp_client_ref(struct fp_client *client);
/* Holds him no longer; whom nobody holds is forgotten. */
void fp_client_put(struct fp_client *client);

/*
 * How many he may have of what there are max of: three quarters, so that no client can keep all
 * others out.
 */
uint64_t fp_client_share(const struct fp_client *client, uint64_t max);

/* A connection becomes his, and is no longer: it holds him in between. */
void fp_client_join(struct fp_client *client);
void fp_client_leave(struct fp_client *client);

/* Memory is leased to him, and is back: it holds him in between. */
void fp_client_charge(struct fp_client *client, uint64_t bytes);
void fp_client_uncharge(struct fp_client *client, uint64_t bytes);

#endif
