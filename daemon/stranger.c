/*
 * Strangers. Room: daemon; see stranger.h.
 */
#include "stranger.h"

#include <errno.h>

#include "cleanup.h"
#include "holding.h"
#include "node_server.h"

#define MIN_STRANGERS 8u
#define MAX_STRANGERS 1024u

#define EVICTIONS_A_SECOND 10 /* in the log */

unsigned fp_strangers_max(const struct fp_node_server *server)
{
	uint64_t max = FP_MIN(server->config->limits.max_connections, fp_holding_places(server));
	uint64_t quarter = FP_MIN(max / 4, server->max_fds / 2);

	return (unsigned)FP_MIN(FP_MAX(quarter, MIN_STRANGERS), MAX_STRANGERS);
}

static bool is_stranger(const struct fp_conn *conn)
{
	return conn->client && conn->client->clients == &conn->server->strangers.origins;
}

/* The oldest stranger of the origin that has the most strangers. */
static struct fp_conn *choose(const struct fp_strangers *strangers)
{
	struct fp_conn *conn, *chosen = TAILQ_FIRST(&strangers->list);

	TAILQ_FOREACH (conn, &strangers->list, stranger)
		if (conn->client->n_conns > chosen->client->n_conns)
			chosen = conn;
	return chosen;
}

/*
 * During a flood, most of these log lines are skipped before they are formatted, because formatting
 * takes longer than an eviction.
 */
static void evict(struct fp_conn *conn)
{
	if (fp_log_allowed(&conn->server->strangers.evictions, EVICTIONS_A_SECOND))
		fp_log(
		    FP_LOG_WARNING, "stranger",
		    "%s: evicted with its handshake unfinished: there are %u, as many as there may be, and "
		    "%u came from there",
		    conn->peer, conn->server->strangers.origins.n_conns, conn->client->n_conns);
	conn->server->own.counters.evicted++;
	fp_conn_give(conn, NULL, FP_CONN_PLACE_NONE);
	fp_conn_kill(conn);
	/* Settle it now: with so many strangers its turn may be far away. */
	fp_conn_settle(conn);
}

int fp_stranger_add(struct fp_conn *conn)
{
	struct fp_node_server *server = conn->server;
	struct fp_strangers *strangers = &server->strangers;
	char name[FP_CLIENT_NAME_LEN];
	struct fp_client *origin = fp_client_get(
	    &strangers->origins, fp_client_peer_name(conn->fd, conn->is_unix, conn->peer, name));

	if (!origin)
		return -ENOMEM;
	fp_conn_give(conn, origin, FP_CONN_PLACE_CONNECTION);
	fp_client_put(origin);
	TAILQ_INSERT_TAIL(&strangers->list, conn, stranger);
	if (strangers->origins.n_conns > fp_strangers_max(server) && !server->options.private_node)
		evict(choose(strangers));
	return 0;
}

static void count(struct fp_client *client, enum fp_conn_place place, int by)
{
	if (place == FP_CONN_PLACE_CONNECTION) {
		client->n_conns += (unsigned)by;
		client->clients->n_conns += (unsigned)by;
	} else if (place == FP_CONN_PLACE_OPERATOR) {
		client->n_operators += (unsigned)by;
		client->clients->n_operators += (unsigned)by;
	}
}

void fp_conn_give(struct fp_conn *conn, struct fp_client *client, enum fp_conn_place place)
{
	struct fp_client *before = conn->client;

	if (is_stranger(conn))
		TAILQ_REMOVE(&conn->server->strangers.list, conn, stranger);
	fp_holding_drop(conn);
	if (client)
		count(fp_client_ref(client), place, 1);
	if (before) {
		count(before, conn->place, -1);
		fp_client_put(before);
	}
	conn->client = client;
	conn->place = place;
}
