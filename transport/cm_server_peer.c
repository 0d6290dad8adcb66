/*
 * Peers: their list, their ends, and what other threads ask of them. Room: transport; see
 * cm_server.h.
 */
#include "cm_server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

/* ---- the list of peers ---- */

#define PEER_POLLS 2 /* descriptors: its stream's and its socket's */

void fp_cm_server_peer_count_queue_pair(struct fp_cm_server_peer *peer, int change)
{
	atomic_fetch_add(&peer->n_queue_pairs, (unsigned)change);
	atomic_fetch_add(&peer->server->n_queue_pairs, (unsigned)change);
}

uint64_t fp_cm_server_peer_session(struct fp_cm_server_peer *peer)
{
	uint64_t id;

	pthread_mutex_lock(&peer->lock);
	id = peer->session_id;
	pthread_mutex_unlock(&peer->lock);
	return id;
}

static void free_peer(struct fp_cm_server_peer *peer)
{
	free(peer->in);
	free(peer->out);
	fp_verbs_domain_unref(peer->domain);
	pthread_mutex_destroy(&peer->lock);
	free(peer);
}

/* In the list, with the list's reference. */
int fp_cm_server_peer_add(struct fp_cm_server *server, const char *name, struct fp_cm_server_peer **ret_peer)
{
	struct fp_cm_server_peer *peer;
	int r = fp_cm_server_reserve_polls(server, PEER_POLLS);

	if (r < 0)
		return r;
	peer = calloc(1, sizeof(*peer));
	if (!peer) {
		server->n_reserved -= PEER_POLLS;
		return -ENOMEM;
	}
	peer->server = server;
	peer->end.peer = peer;
	peer->n_refs = 1;
	peer->sock = -1;
	peer->stream_poll.fd = -1;
	pthread_mutex_init(&peer->lock, NULL);
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	peer->next = server->peers;
	peer->at = &server->peers;
	if (peer->next)
		peer->next->at = &peer->next;
	server->peers = peer;
	*ret_peer = peer;
	return 0;
}

struct fp_cm_server_peer *fp_cm_server_peer_ref(struct fp_cm_server_peer *peer)
{
	atomic_fetch_add(&peer->n_refs, 1);
	return peer;
}

void fp_cm_server_peer_unref(struct fp_cm_server_peer *peer)
{
	if (peer && atomic_fetch_sub(&peer->n_refs, 1) == 1)
		free_peer(peer);
}

static void fence(struct fp_cm_server_peer *peer)
{
	peer->open = false;
	while (peer->links)
		fp_cm_server_link_destroy(peer->links);
}

/*
 * Its connection has come to an end: nothing is reached through it any more. What had arrived is in
 * the socket, which ends now for the daemon too; the peer stays until it is ended.
 */
void fp_cm_server_peer_cut_off(struct fp_cm_server_peer *peer)
{
	bool counted = peer->conn || peer->stream;

	fence(peer);
	fp_verbs_conn_close(fp_take_ptr(peer->conn));
	fp_verbs_stream_close(fp_take_ptr(peer->stream));
	fp_cm_server_listener_release(&peer->end);
	peer->stream_poll.fd = -1;
	peer->again = false;
	if (peer->sock >= 0)
		close(fp_take_fd(peer->sock));
	if (counted) {
		fp_cm_server_peer_count_queue_pair(peer, -1);
		atomic_fetch_sub(&peer->server->n_peers, 1);
	}
}

void fp_cm_server_peer_remove(struct fp_cm_server_peer *peer)
{
	if (atomic_load(&peer->ended))
		return;
	fp_cm_server_peer_cut_off(peer);
	fp_verbs_deregister(&peer->scratch);
	*peer->at = peer->next;
	if (peer->next)
		peer->next->at = peer->at;
	peer->server->n_reserved -= PEER_POLLS;
	atomic_store(&peer->ended, true);
	fp_cm_server_peer_unref(peer);
}

/* Nobody else will end a peer that was never handed over. */
void fp_cm_server_peer_give_up(struct fp_cm_server_peer *peer)
{
	if (peer->handed)
		fp_cm_server_peer_cut_off(peer);
	else
		fp_cm_server_peer_remove(peer);
}

/* ---- what is ordered of the thread ---- */

static void run_fence(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	fence(call->peer);
}

static void run_end(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	fp_cm_server_peer_remove(call->peer);
}

static void shut(struct fp_cm_server_peer *peer,
                 void (*run)(struct fp_cm_server *server, struct fp_cm_server_call *call))
{
	struct fp_cm_server_call call = {.run = run, .peer = peer};

	pthread_mutex_lock(&peer->lock);
	peer->session_id = 0;
	pthread_mutex_unlock(&peer->lock);
	if (!atomic_load(&peer->ended))
		fp_cm_server_run_call(peer->server, &call);
}

void fp_cm_server_peer_fence(struct fp_cm_server_peer *peer)
{
	shut(peer, run_fence);
}

void fp_cm_server_peer_end(struct fp_cm_server_peer *peer)
{
	shut(peer, run_end);
}

static void run_new(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	struct fp_cm_server_peer *peer;

	call->result = fp_cm_server_peer_add(server, call->name, &peer);
	if (call->result < 0)
		return;
	peer->handed = peer->open = true;
	call->result = fp_cm_server_domain_open(server, &peer->domain);
	if (call->result < 0)
		fp_cm_server_peer_remove(peer);
	else
		call->peer = fp_cm_server_peer_ref(peer);
}

int fp_cm_server_peer_new(struct fp_cm_server *server, const char *name, struct fp_cm_server_peer **ret_peer)
{
	struct fp_cm_server_call call = {.run = run_new, .name = name};

	if (!server->by_hand)
		return -EOPNOTSUPP;
	fp_cm_server_run_call(server, &call);
	if (call.result == 0)
		*ret_peer = call.peer;
	return call.result;
}

static int connect_by_hand(struct fp_cm_server_peer *peer, struct fp_cm_server_call *call)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct fp_verbs_conn_options how = fp_cm_server_link_options(peer->server);
	int r = fp_verbs_manual_open(peer->domain, &how, &conn, &call->own);

	if (r == 0)
		r = fp_verbs_manual_connect(conn, call->client);
	if (r == 0)
		r = fp_cm_server_link_add(peer, conn, &call->link);
	if (r < 0)
		return r;
	fp_verbs_conn_set_user(fp_take_ptr(conn), &call->link->end);
	call->link->held = true;
	fp_cm_server_peer_ref(peer);
	return 0;
}

static void run_connect(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	struct fp_cm_server_peer *peer = call->peer;

	if (atomic_load(&peer->ended) || !peer->open)
		call->result = -ECONNRESET;
	else if (peer->n_links >= FP_CM_SERVER_MAX_LINKS)
		call->result = -EUSERS;
	else
		call->result = connect_by_hand(peer, call);
}

int fp_cm_server_peer_connect(struct fp_cm_server_peer *peer, const struct fp_verbs_address *client,
                              struct fp_verbs_address *ret_own, struct fp_cm_server_link **ret_link)
{
	struct fp_cm_server_call call = {.run = run_connect, .peer = peer, .client = client};

	if (atomic_load(&peer->ended))
		return -ECONNRESET;
	fp_cm_server_run_call(peer->server, &call);
	if (call.result == 0) {
		*ret_own = call.own;
		*ret_link = call.link;
	}
	return call.result;
}

static void run_link_close(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	fp_cm_server_link_destroy(call->link);
}

void fp_cm_server_link_close(struct fp_cm_server_link *link)
{
	struct fp_cm_server_call call = {.run = run_link_close, .link = link};

	if (!link)
		return;
	if (!atomic_load(&link->end.peer->ended))
		fp_cm_server_run_call(link->end.peer->server, &call);
	fp_cm_server_peer_unref(link->end.peer);
	free(link);
}

/* ---- what needs no order ---- */

void fp_cm_server_peer_admit(struct fp_cm_server_peer *peer, uint64_t session_id,
                             const uint8_t token[FP_WIRE_TOKEN_BYTES])
{
	pthread_mutex_lock(&peer->lock);
	peer->session_id = session_id;
	memcpy(peer->token, token, sizeof(peer->token));
	pthread_mutex_unlock(&peer->lock);
}

const char *fp_cm_server_peer_name(const struct fp_cm_server_peer *peer)
{
	return peer->name;
}

const char *fp_cm_server_peer_device(const struct fp_cm_server_peer *peer)
{
	return peer->domain ? fp_verbs_domain_limits(peer->domain)->device : "";
}

unsigned fp_cm_server_peer_queue_pairs(const struct fp_cm_server_peer *peer)
{
	return atomic_load(&peer->n_queue_pairs);
}

unsigned fp_cm_server_peer_regions(const struct fp_cm_server_peer *peer)
{
	return atomic_load(&peer->n_regions);
}

int fp_cm_server_peer_register(struct fp_cm_server_peer *peer, void *base, size_t len_bytes,
                               enum fp_verbs_access access, struct fp_verbs_region *ret_region)
{
	int r = fp_verbs_register(peer->domain, base, len_bytes, access, ret_region);

	if (r == 0)
		atomic_fetch_add(&peer->n_regions, 1);
	return r;
}

void fp_cm_server_peer_deregister(struct fp_cm_server_peer *peer, struct fp_verbs_region *region)
{
	if (region->mr)
		atomic_fetch_sub(&peer->n_regions, 1);
	fp_verbs_deregister(region);
}
