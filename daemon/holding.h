/*
 * What clients make the node keep, beside leases: connections, sessions, input, and answers that
 * nobody has received yet. A part of the machine's memory is kept back for it from grants
 * (fp_hostmem_kept_back). So no crowd of clients makes the system kill the node. Room: daemon. It
 * knows connections and their sockets, no requests.
 *
 *   three quarters   places: each connection has FP_HOLDING_PLACE_BYTES of it, used or not
 *   one quarter      what connections keep beyond that. Above half of it, the connections of each
 *                    client with more than an even part of that half go on within their places: one
 *                    answer at a time, through a small socket buffer
 *
 * The kernel counts the memory of our sockets as ours, so it is kept, too: answers that wait for
 * the peer, and of tcp input that waits for us.
 */
#ifndef FP_HOLDING_H
#define FP_HOLDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fp_conn;
struct fp_node_server;

/*
 * The most that one connection takes while it keeps to its place: itself and its session, input
 * that waits, one answer, and a small socket buffer full of small messages.
 */
#define FP_HOLDING_PLACE_BYTES (48u << 10)

/* Divides the memory that is kept back for clients. Called when the number of shards is known. */
void fp_holding_init(struct fp_node_server *server);
/* Returns for how many connections of clients there is memory. Strangers have a quarter more. */
uint64_t fp_holding_places(const struct fp_node_server *server);

/* Counts what the connection holds now, instead of what it held before. */
void fp_holding_count(struct fp_conn *conn);
/* What it holds no longer counts for its client. The next fp_holding_count counts it again. */
void fp_holding_drop(struct fp_conn *conn);
/*
 * True if the client's connections hold too much. Then each goes on with one answer at a time, and
 * receives no more than it needs for that. STATUS is refused: its answer is long.
 */
bool fp_holding_is_scanty(const struct fp_conn *conn);

/* Call it before a send: makes the socket's buffers small, or large again. */
void fp_holding_fit_socket(struct fp_conn *conn);
/* Call it after a send of `bytes`. */
void fp_holding_sent(struct fp_conn *conn, size_t bytes);
/* Call it after a receive of `bytes`. */
void fp_holding_received(struct fp_conn *conn, size_t bytes);
/* Looks again what the kernel keeps for the socket. */
void fp_holding_look(struct fp_conn *conn);
/* Call it now and then: looks again, and makes the buffers small even if nothing is sent. */
void fp_holding_tick(struct fp_conn *conn);
/*
 * True if the socket may not be closed yet, because the peer has not received all answers. Over a
 * UNIX socket they would stay in the kernel, as ours. Over tcp, fp_holding_end would drop them.
 */
bool fp_holding_outlives(const struct fp_conn *conn);
/* Call it before the socket is closed: the kernel drops what the peer has not received. */
void fp_holding_end(const struct fp_conn *conn);

#endif
