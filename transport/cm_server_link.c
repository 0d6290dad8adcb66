/*
 * Links: queue pairs of a peer that READ and WRITE and say nothing, and what their devices say of
 * them. Room: transport; see cm_server.h.
 */
#include "cm_server_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

#define LINK_RECEIVE_ID 1

/* ---- links ---- */

#define BROKE "its queue pair broke"

static bool is_iwarp(const struct fp_cm_server_peer *peer)
{
	return fp_verbs_domain_limits(peer->domain)->iwarp;
}

struct fp_verbs_conn_options fp_cm_server_link_options(const struct fp_cm_server *server)
{
	struct fp_verbs_conn_options options = fp_rdma_conn_options(server->rdma);

	options.send_depth = options.recv_depth = 1;
	options.responder = true;
	return options;
}

void fp_cm_server_link_destroy(struct fp_cm_server_link *link)
{
	struct fp_cm_server_peer *peer = link->end.peer;

	if (!link->conn)
		return;
	fp_verbs_conn_close(fp_take_ptr(link->conn));
	fp_cm_server_listener_release(&link->end);
	fp_cm_server_peer_count_queue_pair(peer, -1);
	*link->at = link->next;
	if (link->next)
		link->next->at = link->at;
	peer->n_links--;
	peer->server->n_reserved--;
	if (!link->held)
		free(link);
}

static void deny(struct fp_cm_server_link *link, const char *why)
{
	struct fp_cm_server_peer *peer = link->end.peer;

	atomic_fetch_add(&peer->server->n_denied, 1);
	fp_cm_server_tell_why(peer->server, FP_CM_SERVER_EVENT_DENIED, peer->name,
	                      fp_cm_server_peer_session(peer), why);
	fp_cm_server_link_destroy(link);
}

/*
 * Waits for the only thing that can happen on a link: that its receive comes back. Returns 0, 1 if
 * it has (the queue pair is broken), or a negative errno: so is its completion queue.
 */
static int watch_link(struct fp_cm_server_link *link)
{
	struct fp_verbs_completion completion;
	struct pollfd wait;
	int r = fp_verbs_poll(link->conn, &completion, 1);

	if (r == 0)
		r = fp_verbs_arm(link->conn, &wait);
	if (r < 0)
		return r;
	if (fp_verbs_poll(link->conn, &completion, 1) != 0)
		return 1;
	link->fd = wait.fd;
	link->events = wait.events;
	return 0;
}

void fp_cm_server_link_check(struct fp_cm_server_link *link)
{
	struct fp_verbs_completion completion;
	int r = fp_verbs_poll(link->conn, &completion, 1);

	link->revents = 0;
	if (r == 1 && completion.status == 0) {
		deny(link, "it sent a message on a link, which carries READs and WRITEs only");
		return;
	}
	if (r == 0 && watch_link(link) == 0)
		return;
	/*
	 * Where the peer's good-bye leaves our queue pair alone (InfiniBand, RoCE), only an error
	 * of ours breaks it, and the only one here is a request that was refused. Over iWARP it
	 * breaks whenever the connection ends: which it was the device says, and that it ended
	 * connection management.
	 */
	if (is_iwarp(link->end.peer) || fp_verbs_domain_dead(link->end.peer->domain))
		link->fd = -1;
	else
		deny(link, BROKE);
}

static int start_link(struct fp_cm_server_link *link)
{
	struct fp_cm_server_peer *peer = link->end.peer;
	struct fp_verbs_work receive = {.op = FP_VERBS_RECV,
	                                .id = LINK_RECEIVE_ID,
	                                .local = &peer->byte,
	                                .len_bytes = sizeof(peer->byte)};
	int r = 0;

	if (!peer->scratch.mr)
		r = fp_verbs_register(peer->domain, &peer->byte, sizeof(peer->byte), FP_VERBS_LOCAL,
		                      &peer->scratch);
	receive.lkey = peer->scratch.lkey;
	if (r == 0)
		r = fp_verbs_post_recv(link->conn, &receive, 1);
	if (r == 0)
		r = watch_link(link);
	return r > 0 ? -EIO : r;
}

int fp_cm_server_link_add(struct fp_cm_server_peer *peer, struct fp_verbs_conn *conn,
                          struct fp_cm_server_link **ret_link)
{
	fp_autofree struct fp_cm_server_link *link = calloc(1, sizeof(*link));
	int r;

	if (!link)
		return -ENOMEM;
	link->end = (struct fp_cm_server_endpoint){.peer = peer, .link = link};
	link->conn = conn;
	link->fd = -1;
	r = start_link(link);
	if (r == 0)
		r = fp_cm_server_reserve_polls(peer->server, 1);
	if (r < 0)
		return r;
	link->next = peer->links;
	link->at = &peer->links;
	if (link->next)
		link->next->at = &link->next;
	peer->links = link;
	peer->n_links++;
	fp_cm_server_peer_count_queue_pair(peer, 1);
	*ret_link = fp_take_ptr(link);
	return 0;
}

/* ---- device events ---- */

static struct fp_cm_server_link *find_link(const struct fp_cm_server *server, const char *device,
                                           uint32_t qpn)
{
	for (struct fp_cm_server_peer *peer = server->peers; peer; peer = peer->next) {
		if (strcmp(fp_cm_server_peer_device(peer), device) != 0)
			continue;
		for (struct fp_cm_server_link *link = peer->links; link; link = link->next)
			if (fp_verbs_conn_qpn(link->conn) == qpn)
				return link;
	}
	return NULL;
}

static void end_peers_of(struct fp_cm_server *server, const char *device)
{
	for (struct fp_cm_server_peer *peer = server->peers, *next; peer; peer = next) {
		next = peer->next;
		if (strcmp(fp_cm_server_peer_device(peer), device) == 0)
			fp_cm_server_peer_give_up(peer);
	}
}

/* What a device says of a queue pair whose peer did what it may not: "QP access error", "QP request
 * error".
 */
static bool is_trespass(const char *text)
{
	return strncmp(text, "QP ", 3) == 0 && strstr(text, "error");
}

static void serve_device(struct fp_cm_server *server, struct fp_verbs_domain *domain)
{
	const char *device = fp_verbs_domain_limits(domain)->device, *text;
	struct fp_cm_server_link *link;
	uint32_t qpn;

	while (fp_verbs_domain_event(domain, &qpn, &text) == 1) {
		link = is_trespass(text) ? find_link(server, device, qpn) : NULL;
		if (link)
			deny(link, text);
	}
	if (fp_verbs_domain_dead(domain)) {
		fp_cm_server_tell_why(server, FP_CM_SERVER_EVENT_DEVICE, device, 0,
		                      "it failed or was removed: its peers are cut off");
		end_peers_of(server, device);
	}
}

/* One domain of each device that has peers: their events come by the same descriptor. */
void fp_cm_server_devices_watch(struct fp_cm_server *server)
{
	for (const struct fp_cm_server_peer *peer = server->peers; peer; peer = peer->next) {
		unsigned i = 0;

		if (!peer->domain || fp_verbs_domain_dead(peer->domain))
			continue;
		while (i < server->n_watched &&
		       fp_verbs_domain_event_fd(server->watched[i]) != fp_verbs_domain_event_fd(peer->domain))
			i++;
		if (i == server->n_watched && i < FP_CM_SERVER_MAX_DEVICES)
			server->watched[server->n_watched++] = fp_verbs_domain_ref(peer->domain);
	}
}

void fp_cm_server_devices_serve(struct fp_cm_server *server)
{
	for (unsigned i = 0; i < server->n_watched; i++) {
		serve_device(server, server->watched[i]);
		fp_verbs_domain_unref(server->watched[i]);
	}
	server->n_watched = 0;
}

/* Its client has gone, perhaps because it was refused: that is to be known first. */
void fp_cm_server_link_gone(struct fp_cm_server *server, struct fp_cm_server_link *link)
{
	struct fp_cm_server_peer *peer = link->end.peer;
	uint32_t qpn = fp_verbs_conn_qpn(link->conn);
	struct fp_verbs_completion completion;

	if (is_iwarp(peer))
		serve_device(server, peer->domain);
	else if (fp_verbs_poll(link->conn, &completion, 1) == 1)
		deny(link, BROKE);
	link = find_link(server, fp_cm_server_peer_device(peer), qpn);
	if (link)
		fp_cm_server_link_destroy(link);
}
