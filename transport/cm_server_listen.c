/*
 * Who comes in: listeners, connection requests and their proofs, and what connection management
 * says afterwards. Room: transport; see cm_server.h.
 */
#include "cm_server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth.h"
#include "cleanup.h"
#include "clock.h"

/* ---- requests and proofs ---- */

static void encode_reply(enum fp_wire_status status, uint8_t ret_bytes[sizeof(struct fp_wire_cm_reply)])
{
	const struct fp_wire_cm_reply reply = {.version = FP_WIRE_VERSION, .status = (int32_t)status};

	fp_wire_cm_reply_encode(&reply, ret_bytes);
}

static int admit(struct fp_verbs_conn *conn)
{
	uint8_t reply[sizeof(struct fp_wire_cm_reply)];

	encode_reply(FP_WIRE_OK, reply);
	return fp_verbs_admit(conn, reply, sizeof(reply));
}

static bool proves_token(const uint8_t *token, const struct fp_wire_cm *cm)
{
	uint8_t proof[FP_WIRE_CM_PROOF_BYTES];

	return fp_auth_prove_cm(NULL, token, cm, proof) == 0 &&
	       fp_auth_equal(proof, cm->proof, sizeof(proof));
}

static bool is_peer_of(struct fp_cm_server_peer *peer, const struct fp_wire_cm *cm)
{
	bool right;

	pthread_mutex_lock(&peer->lock);
	right = peer->open && peer->session_id && peer->session_id == cm->session_id &&
	        proves_token(peer->token, cm);
	pthread_mutex_unlock(&peer->lock);
	return right;
}

/* The peer that a LINK may attach to: the same answer for an unknown session as for a wrong
 * token. */
static struct fp_cm_server_peer *find_peer(const struct fp_cm_server *server, const struct fp_wire_cm *cm)
{
	struct fp_cm_server_peer *peer = server->peers;

	while (peer && !is_peer_of(peer, cm))
		peer = peer->next;
	return peer;
}

/* What a request is told: FP_WIRE_OK to go on, with *ret_peer where it is a link. */
static enum fp_wire_status judge_request(const struct fp_cm_server *server,
                                         const struct fp_verbs_event *event, struct fp_wire_cm *ret_cm,
                                         struct fp_cm_server_peer **ret_peer)
{
	uint8_t version;

	if (fp_wire_cm_decode(event->private_data, event->private_len, ret_cm) < 0)
		return FP_WIRE_MALFORMED;
	if (fp_wire_cm_version_choose(ret_cm, &version) < 0)
		return FP_WIRE_VERSION_GAP;
	if (ret_cm->purpose == FP_WIRE_LINK) {
		*ret_peer = find_peer(server, ret_cm);
		if (!*ret_peer)
			return FP_WIRE_DENIED;
		return (*ret_peer)->n_links < FP_CM_SERVER_MAX_LINKS ? FP_WIRE_OK : FP_WIRE_BUSY;
	}
	if (!server->admits(server->user, ret_cm))
		return FP_WIRE_DENIED;
	return atomic_load(&server->n_peers) < server->max_peers ? FP_WIRE_OK : FP_WIRE_BUSY;
}

static int make_stream(struct fp_cm_server_peer *peer, struct fp_cm_server_listener *listener,
                       struct fp_verbs_request *request)
{
	struct fp_verbs_conn_options how = fp_verbs_stream_conn_options(peer->server->rdma);
	int r = fp_verbs_prepare(request, &how, &peer->domain, &peer->conn);

	if (r < 0)
		return r;
	fp_cm_server_peer_count_queue_pair(peer, 1);
	atomic_fetch_add(&peer->server->n_peers, 1);
	fp_verbs_conn_set_user(peer->conn, &peer->end);
	fp_cm_server_listener_hold(&peer->end, listener);
	peer->in = calloc(1, sizeof(*peer->in));
	peer->out = calloc(1, sizeof(*peer->out));
	if (!peer->in || !peer->out)
		return -ENOMEM;
	r = fp_verbs_stream_new(peer->conn, &peer->stream);
	if (r < 0)
		return r;
	return admit(fp_take_ptr(peer->conn));
}

/* Whoever asks and does not go on makes room for those who come. */
static void limit_unfinished(struct fp_cm_server *server)
{
	struct fp_cm_server_peer *oldest = NULL;
	unsigned n = 0;

	for (struct fp_cm_server_peer *peer = server->peers; peer; peer = peer->next)
		if (!peer->handed) {
			oldest = peer;
			n++;
		}
	if (oldest && n >= server->max_unfinished)
		fp_cm_server_peer_remove(oldest);
}

static int let_peer_in(struct fp_cm_server *server, struct fp_cm_server_listener *listener,
                       const struct fp_verbs_event *event)
{
	struct fp_cm_server_peer *peer;
	int r;

	limit_unfinished(server);
	r = fp_cm_server_peer_add(server, event->peer, &peer);
	if (r < 0) {
		fp_verbs_reject(event->request, NULL, 0);
		return r;
	}
	r = make_stream(peer, listener, event->request);
	if (r < 0)
		fp_cm_server_peer_remove(peer);
	return r;
}

static int let_link_in(struct fp_cm_server_peer *peer, struct fp_cm_server_listener *listener,
                       struct fp_verbs_request *request)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct fp_cm_server_link *link;
	struct fp_verbs_conn_options how = fp_cm_server_link_options(peer->server);
	int r = fp_verbs_prepare(request, &how, &peer->domain, &conn);

	if (r == 0)
		r = fp_cm_server_link_add(peer, conn, &link);
	if (r < 0)
		return r;
	fp_verbs_conn_set_user(fp_take_ptr(conn), &link->end);
	fp_cm_server_listener_hold(&link->end, listener);
	r = admit(link->conn);
	if (r < 0)
		fp_cm_server_link_destroy(link);
	return r;
}

static const char *const refusals[] = {
    [FP_WIRE_MALFORMED] = "its connection request is not of the protocol",
    [FP_WIRE_VERSION_GAP] = "it speaks no version of the protocol that we do",
    [FP_WIRE_DENIED] = "its connection request proves neither a secret nor a session's token",
    [FP_WIRE_BUSY] = "as many connections or links as the limits allow are open (max_connections)",
    [FP_WIRE_BROKEN] = "no queue pair could be made for it",
};

static void on_request(struct fp_cm_server *server, struct fp_cm_server_listener *listener,
                       const struct fp_verbs_event *event)
{
	uint8_t reply[sizeof(struct fp_wire_cm_reply)];
	struct fp_cm_server_peer *peer = NULL;
	struct fp_wire_cm cm;
	enum fp_wire_status status = judge_request(server, event, &cm, &peer);
	const char *why = refusals[status];
	int r = 0;

	if (status != FP_WIRE_OK) {
		encode_reply(status, reply);
		fp_verbs_reject(event->request, reply, sizeof(reply));
	} else {
		r = peer ? let_link_in(peer, listener, event->request) : let_peer_in(server, listener, event);
	}
	if (r == 0 && status == FP_WIRE_OK)
		return;
	if (r == -EXDEV)
		why = "its link came in by another device than its session";
	else if (r < 0)
		why = refusals[FP_WIRE_BROKEN];
	atomic_fetch_add(&server->n_rejected, 1);
	fp_cm_server_tell_why(server, FP_CM_SERVER_EVENT_REJECTED, event->peer, 0, why);
}

/* ---- what becomes of connections ---- */

static int hand_over(struct fp_cm_server_peer *peer)
{
	struct fp_cm_server_event event = {.type = FP_CM_SERVER_EVENT_PEER, .peer = peer};
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	peer->sock = fds[0];
	event.fd = fds[1];
	snprintf(event.who, sizeof(event.who), "%s", peer->name);
	fp_cm_server_peer_ref(peer);
	if (fp_cm_server_tell(peer->server, &event)) {
		peer->handed = peer->open = true;
		return 0;
	}
	fp_cm_server_peer_unref(peer);
	close(fds[1]);
	return -EBUSY;
}

static void on_established(struct fp_cm_server *server, struct fp_cm_server_endpoint *end)
{
	struct fp_cm_server_peer *peer = end->peer;

	if (end->link || peer->handed)
		return;
	if (hand_over(peer) == 0) {
		peer->again = true;
		return;
	}
	atomic_fetch_add(&server->n_rejected, 1);
	fp_cm_server_tell_why(server, FP_CM_SERVER_EVENT_REJECTED, peer->name, 0,
	                      "no descriptors are left for it, or the node does not keep up");
	fp_cm_server_peer_give_up(peer);
}

static void on_gone(struct fp_cm_server *server, struct fp_cm_server_endpoint *end)
{
	struct fp_cm_server_peer *peer = end->peer;

	if (end->link) {
		fp_cm_server_link_gone(server, end->link);
		return;
	}
	if (peer->stream && peer->sock >= 0)
		fp_cm_server_pump_until_still(peer); /* what came before the end counts */
	fp_cm_server_peer_give_up(peer);
}

/* ---- listeners ---- */

void fp_cm_server_listener_hold(struct fp_cm_server_endpoint *end, struct fp_cm_server_listener *listener)
{
	end->listener = listener;
	listener->n_conns++;
}

void fp_cm_server_listener_release(struct fp_cm_server_endpoint *end)
{
	if (end->listener)
		end->listener->n_conns--;
	end->listener = NULL;
}

static const char *listener_name(const struct fp_cm_server_listener *listener)
{
	return listener->host ? listener->host : "all addresses";
}

static void listener_lost(struct fp_cm_server *server, struct fp_cm_server_listener *listener,
                          const char *why)
{
	if (listener->failed)
		return;
	listener->failed = true;
	server->retry_ns = fp_clock_ns() + FP_CM_SERVER_RETRY_MS * FP_NSEC_PER_MSEC;
	atomic_fetch_add(&server->n_down, 1);
	fp_cm_server_tell_why(server, FP_CM_SERVER_EVENT_DEVICE, listener_name(listener), 0, why);
}

/* Nobody would tell us any more what becomes of them. */
static void end_conns_of(struct fp_cm_server *server, const struct fp_cm_server_listener *listener)
{
	for (struct fp_cm_server_peer *peer = server->peers, *next; peer; peer = next) {
		next = peer->next;
		for (struct fp_cm_server_link *link = peer->links, *next_link; link; link = next_link) {
			next_link = link->next;
			if (link->end.listener == listener)
				fp_cm_server_link_destroy(link);
		}
		if (peer->end.listener == listener)
			fp_cm_server_peer_give_up(peer);
	}
}

static void on_device_gone(struct fp_cm_server *server, struct fp_cm_server_listener *listener,
                           const struct fp_verbs_event *event)
{
	struct fp_cm_server_endpoint *end = event->conn ? fp_verbs_conn_user(event->conn) : NULL;

	if (!event->conn)
		listener_lost(server, listener,
		              "its rdma device was removed: nobody can connect there until it is back");
	else if (!end)
		fp_verbs_conn_close(event->conn);
	else if (end->link)
		fp_cm_server_link_destroy(end->link);
	else
		on_gone(server, end);
}

/* Returns whether there may be more. */
static bool one_event(struct fp_cm_server *server, struct fp_cm_server_listener *listener)
{
	struct fp_verbs_event event;
	struct fp_cm_server_endpoint *end;

	if (fp_verbs_listener_next(listener->verbs, &event) < 0) {
		listener_lost(server, listener,
		              "its listener failed: nobody can connect there until it is back");
		end_conns_of(server, listener);
		return false;
	}
	end = event.conn ? fp_verbs_conn_user(event.conn) : NULL;
	switch (event.type) {
	case FP_VERBS_EV_NONE:
		return false;
	case FP_VERBS_EV_REQUEST:
		on_request(server, listener, &event);
		break;
	case FP_VERBS_EV_ESTABLISHED:
		if (end)
			on_established(server, end);
		break;
	case FP_VERBS_EV_DISCONNECTED:
		if (end)
			on_gone(server, end);
		break;
	case FP_VERBS_EV_DEVICE_GONE:
		on_device_gone(server, listener, &event);
		break;
	}
	return true;
}

void fp_cm_server_listener_serve(struct fp_cm_server *server, struct fp_cm_server_listener *listener)
{
	listener->revents = 0;
	while (one_event(server, listener))
		continue;
}

static void reopen_listener(struct fp_cm_server *server, struct fp_cm_server_listener *listener)
{
	if (fp_verbs_listen(listener->host, listener->port, &listener->verbs) < 0)
		return;
	listener->failed = false;
	atomic_fetch_sub(&server->n_down, 1);
	fp_cm_server_tell_why(server, FP_CM_SERVER_EVENT_DEVICE, listener_name(listener), 0,
	                      "its rdma device is back");
}

/* A device that is to go waits until nothing of it is open: a listener is closed as soon as it can
 * be. */
void fp_cm_server_listeners_retry(struct fp_cm_server *server)
{
	uint64_t now_ns = atomic_load(&server->n_down) ? fp_clock_ns() : 0;
	bool due = now_ns > server->retry_ns;

	if (!now_ns)
		return;
	for (unsigned i = 0; i < server->n_listeners; i++) {
		struct fp_cm_server_listener *listener = &server->listeners[i];

		if (!listener->failed)
			continue;
		if (due && listener->verbs)
			end_conns_of(server, listener);
		if (listener->n_conns == 0)
			fp_verbs_listener_close(fp_take_ptr(listener->verbs));
		if (due && !listener->verbs)
			reopen_listener(server, listener);
	}
	if (due)
		server->retry_ns = now_ns + FP_CM_SERVER_RETRY_MS * FP_NSEC_PER_MSEC;
}

static int open_listener(struct fp_cm_server_listener *listener, const struct fp_cm_server_address *address)
{
	int r;

	listener->host = address->host ? strdup(address->host) : NULL;
	if (address->host && !listener->host)
		return -ENOMEM;
	r = fp_verbs_listen(listener->host, address->port, &listener->verbs);
	if (r == 0)
		listener->port = fp_verbs_listener_port(listener->verbs);
	return r;
}

int fp_cm_server_listeners_open(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                                unsigned *ret_failed)
{
	if (options->n_listen > FP_CM_SERVER_MAX_LISTENERS)
		return -E2BIG;
	for (unsigned i = 0; i < options->n_listen; i++) {
		int r = open_listener(&server->listeners[i], &options->listen[i]);

		server->n_listeners++;
		if (r < 0) {
			*ret_failed = i;
			return r;
		}
	}
	return 0;
}
