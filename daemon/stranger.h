/*
 * Strangers: connections that belong to no client yet, because their handshake is not finished.
 * Room: daemon. Only the loop's thread uses it.
 *
 *   accept ──► stranger ─── AUTH, or HELLO with a session's token ───► a client's connection
 *                 │
 *                 └── evicted: there are too many, and its origin has the most
 *
 * They do not count for max_connections, so they can't keep clients out. An origin is an address
 * without its port, or a user id on a UNIX socket. A newcomer never waits: if there are too many
 * strangers, the oldest one of the origin with the most strangers is evicted. So a flood evicts its
 * own connections.
 */
#ifndef FP_STRANGER_H
#define FP_STRANGER_H

#include <stdbool.h>
#include <sys/queue.h>

#include "client.h"
#include "log.h"

struct fp_conn;
struct fp_node_server;

/* Zero-initialised, except list, which needs TAILQ_INIT. */
struct fp_strangers {
	TAILQ_HEAD(, fp_conn) list; /* the oldest first */
	struct fp_clients origins;  /* the clients of strangers, one for each origin */
	struct fp_log_limit evictions;
};

/*
 * How many strangers there may be: a quarter of max_connections, or an eighth of the limit of open
 * files if that is less. The result is at least 8 and at most 1024.
 */
unsigned fp_strangers_max(const struct fp_node_server *server);

/* Makes a new connection a stranger, and may evict another one for it. 0 or -ENOMEM. */
int fp_stranger_add(struct fp_conn *conn);

/*
 * Gives the connection to client, and removes it from the strangers if it is one. The connection
 * holds a reference to client from now on, and counts against the limit of `place`. NULL: the
 * connection ends.
 */
void fp_conn_give(struct fp_conn *conn, struct fp_client *client, enum fp_conn_place place);

#endif
