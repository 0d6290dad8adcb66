/* Peers and their links, and the devices' events about them. Room: transport; see cm_server.h. */
#include "cm_server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth.h"
#include "cleanup.h"

#define LINK_RECEIVE_ID 1
#define BROKE           "its queue pair broke"

static const char *device_of(const struct fp_cm_server_peer *peer)
{
	return fp_verbs_domain_limits(peer->domain)->device;
}

static bool is_iwarp(const struct fp_cm_server_peer *peer)
{
	return fp_verbs_domain_limits(peer->domain)->iwarp;
}

/* ---- links ---- */

struct fp_verbs_conn_options fp_cm_server_link_options(const struct fp_cm_server *server)
{
	struct fp_verbs_conn_options options = fp_rdma_conn_options(server->rdma);

	options.send_depth = options.recv_depth = 1;
	options.responder = true;
	return options;
}

static void unwatch_link(struct fp_cm_server_link *link)
{
	if (link->fd >= 0)
		fp_cm_server_unwatch(link->peer->server, fp_take_fd(link->fd));
}

void fp_cm_server_link_destroy(struct fp_cm_server_link *link)
{
	if (!link->conn)
		return;
	unwatch_link(link);
	fp_verbs_conn_close(fp_take_ptr(link->conn));
	LIST_REMOVE(link, entry);
	link->peer->n_links--;
	if (!link->held)
		free(link);
}

static void deny(struct fp_cm_server_link *link, const char *why)
{
	struct fp_cm_server_peer *peer = link->peer;

	peer->server->n_denied++;
	fp_cm_server_tell(peer->server, FP_CM_SERVER_EVENT_DENIED, peer->name, peer->session_id, why);
	fp_cm_server_link_destroy(link);
}

/*
 * Watches for the only event of a link: its receive comes back. Returns 0 if the receive has not
 * come back yet; 1 if it has (the queue pair is broken); a negative errno if the completion queue
 * is broken too, or the link can't be watched.
 */
static int watch_link(struct fp_cm_server_link *link)
{
	struct fp_verbs_completion completion;
	struct pollfd wait;
	int r = fp_verbs_arm(link->conn, &wait);

	if (r == 0)
		r = fp_verbs_poll(link->conn, &completion, 1);
	if (r != 0)
		return r;
	link->fd = wait.fd;
	return fp_cm_server_watch(link->peer->server, link->fd, link);
}

void fp_cm_server_link_check(struct fp_cm_server_link *link)
{
	struct fp_verbs_completion completion;
	int r = fp_verbs_poll(link->conn, &completion, 1);

	if (r == 1 && completion.status == 0) {
		deny(link, "it sent a message on a link, which carries READs and WRITEs only");
		return;
	}
	if (r == 0 && watch_link(link) == 0)
		return;
	/*
	 * The queue pair is broken. On InfiniBand and RoCE only a request that we refused breaks
	 * it; closing the connection does not. On iWARP closing the connection breaks it, too. So
	 * there the link stays until the device reports a refused request, or rdma_cm reports that
	 * the connection is closed.
	 */
	if (is_iwarp(link->peer) || fp_verbs_domain_dead(link->peer->domain))
		unwatch_link(link);
	else
		deny(link, BROKE);
}

static int start_link(struct fp_cm_server_link *link)
{
	struct fp_cm_server_peer *peer = link->peer;
	struct fp_verbs_work receive = {
	    .id = LINK_RECEIVE_ID, .local = &peer->byte, .len_bytes = sizeof(peer->byte)};
	int r = 0;

	if (!peer->scratch.mr)
		r = fp_verbs_register(peer->domain, &peer->byte, sizeof(peer->byte), FP_VERBS_LOCAL,
		                      &peer->scratch);
	receive.lkey = peer->scratch.lkey;
	if (r == 0)
		r = fp_verbs_post_recv(link->conn, &receive);
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
	link->peer = peer;
	link->conn = conn;
	link->fd = -1;
	r = start_link(link);
	if (r < 0) {
		unwatch_link(link);
		return r;
	}
	LIST_INSERT_HEAD(&peer->links, link, entry);
	peer->n_links++;
	*ret_link = fp_take_ptr(link);
	return 0;
}

int fp_cm_server_peer_connect(struct fp_cm_server_peer *peer, const struct fp_verbs_address *client,
                              struct fp_verbs_address *ret_own, struct fp_cm_server_link **ret_link)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct fp_verbs_conn_options how = fp_cm_server_link_options(peer->server);
	struct fp_cm_server_link *link;
	int r;

	if (!peer->by_hand)
		return -EPERM;
	if (peer->ended)
		return -ECONNRESET;
	if (peer->n_links >= FP_WIRE_MAX_LINKS)
		return -EUSERS;
	r = fp_verbs_manual_open(peer->domain, &how, &conn, ret_own);
	if (r == 0)
		r = fp_verbs_manual_connect(conn, client);
	if (r == 0)
		r = fp_cm_server_link_add(peer, conn, &link);
	if (r < 0)
		return r;
	(void)fp_take_ptr(conn);
	link->held = true;
	fp_cm_server_peer_ref(peer);
	*ret_link = link;
	return 0;
}

void fp_cm_server_link_close(struct fp_cm_server_link *link)
{
	if (!link)
		return;
	fp_cm_server_link_destroy(link);
	fp_cm_server_peer_unref(link->peer);
	free(link);
}

/* ---- peers ---- */

struct fp_cm_server_peer *fp_cm_server_find_peer(const struct fp_cm_server *server,
                                                 const struct fp_wire_cm *cm)
{
	uint8_t proof[FP_WIRE_CM_PROOF_BYTES];
	struct fp_cm_server_peer *peer;

	LIST_FOREACH (peer, &server->peers, entry)
		if (!peer->by_hand && peer->session_id && peer->session_id == cm->session_id &&
		    fp_auth_prove_cm(peer->token, cm, proof) == 0 &&
		    fp_auth_equal(proof, cm->proof, sizeof(proof)))
			return peer;
	return NULL;
}

static int open_domain(const struct fp_cm_server *server, const struct sockaddr *own,
                       struct fp_verbs_domain **ret_domain)
{
	if (own)
		return fp_cm_server_listens_at(server, own) ? fp_verbs_domain_at(own, ret_domain)
		                                            : -EOPNOTSUPP;
	if (!server->by_hand)
		return -EOPNOTSUPP;
	return fp_verbs_domain_open(server->rdma->device, (uint8_t)server->rdma->device_port, ret_domain);
}

int fp_cm_server_peer_new(struct fp_cm_server *server, const struct sockaddr *own, const char *name,
                          struct fp_cm_server_peer **ret_peer)
{
	FP_CLEANUP(fp_cleanup_verbs_domain) struct fp_verbs_domain *domain = NULL;
	struct fp_cm_server_peer *peer;
	int r = open_domain(server, own, &domain);

	if (r == 0)
		r = fp_cm_server_watch(server, fp_verbs_domain_event_fd(domain), NULL);
	if (r < 0)
		return r;
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return -ENOMEM;
	peer->server = server;
	peer->n_refs = 1;
	peer->by_hand = !own;
	peer->domain = fp_take_ptr(domain);
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	LIST_INSERT_HEAD(&server->peers, peer, entry);
	*ret_peer = peer;
	return 0;
}

void fp_cm_server_peer_admit(struct fp_cm_server_peer *peer, uint64_t session_id,
                             const uint8_t token[FP_WIRE_TOKEN_BYTES])
{
	peer->session_id = session_id;
	memcpy(peer->token, token, sizeof(peer->token));
}

static void destroy_links(struct fp_cm_server_peer *peer)
{
	while (!LIST_EMPTY(&peer->links))
		fp_cm_server_link_destroy(LIST_FIRST(&peer->links));
}

void fp_cm_server_peer_end(struct fp_cm_server_peer *peer)
{
	if (peer->ended)
		return;
	peer->ended = true;
	destroy_links(peer);
	fp_verbs_deregister(&peer->scratch);
	LIST_REMOVE(peer, entry);
}

struct fp_cm_server_peer *fp_cm_server_peer_ref(struct fp_cm_server_peer *peer)
{
	atomic_fetch_add(&peer->n_refs, 1);
	return peer;
}

void fp_cm_server_peer_unref(struct fp_cm_server_peer *peer)
{
	if (!peer || atomic_fetch_sub(&peer->n_refs, 1) > 1)
		return;
	fp_verbs_domain_unref(peer->domain);
	explicit_bzero(peer->token, sizeof(peer->token));
	free(peer);
}

unsigned fp_cm_server_peer_queue_pairs(const struct fp_cm_server_peer *peer)
{
	return peer->n_links;
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

/* ---- devices ---- */

static struct fp_cm_server_link *find_link(const struct fp_cm_server *server, const char *device,
                                           uint32_t qpn)
{
	struct fp_cm_server_peer *peer;
	struct fp_cm_server_link *link;

	LIST_FOREACH (peer, &server->peers, entry) {
		if (strcmp(device_of(peer), device) != 0)
			continue;
		LIST_FOREACH (link, &peer->links, entry)
			if (fp_verbs_conn_qpn(link->conn) == qpn)
				return link;
	}
	return NULL;
}

/*
 * Whether the device reports that a peer did something forbidden: "QP access error", "QP request
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
}

static void lose(struct fp_cm_server_peer *peer)
{
	peer->lost = true;
	fp_cm_server_unwatch(peer->server, fp_verbs_domain_event_fd(peer->domain));
	destroy_links(peer);
	fp_cm_server_tell(peer->server, FP_CM_SERVER_EVENT_LOST, peer->name, peer->session_id,
	                  "its rdma device failed or was removed");
}

/* All domains of a device share its event descriptor; mostly there is one device. */
void fp_cm_server_devices_serve(struct fp_cm_server *server)
{
	struct fp_cm_server_peer *peer;
	int served = -1;

	LIST_FOREACH (peer, &server->peers, entry) {
		if (!peer->lost && fp_verbs_domain_event_fd(peer->domain) != served) {
			serve_device(server, peer->domain);
			served = fp_verbs_domain_event_fd(peer->domain);
		}
		if (!peer->lost && fp_verbs_domain_dead(peer->domain))
			lose(peer);
	}
}

/* The link's client has gone, perhaps because we refused its request: find that out first. */
void fp_cm_server_link_gone(struct fp_cm_server_link *link)
{
	struct fp_cm_server_peer *peer = link->peer;
	uint32_t qpn = fp_verbs_conn_qpn(link->conn);
	struct fp_verbs_completion completion;

	if (is_iwarp(peer))
		serve_device(peer->server, peer->domain);
	else if (fp_verbs_poll(link->conn, &completion, 1) == 1) {
		deny(link, BROKE);
		return;
	}
	link = find_link(peer->server, device_of(peer), qpn);
	if (link)
		fp_cm_server_link_destroy(link);
}
