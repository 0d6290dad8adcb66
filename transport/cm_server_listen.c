/*
 * How links come in: addresses, connection requests and their proofs, and rdma_cm's later events.
 * Room: transport; see cm_server.h.
 */
#include "cm_server_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "cleanup.h"

/* A limit, so that a flood of requests does not keep the loop from other work. */
#define EVENTS_AT_ONCE 16

/* ---- requests and proofs ---- */

static void encode_reply(enum fp_wire_status status, uint8_t ret_bytes[sizeof(struct fp_wire_cm_reply)])
{
	const struct fp_wire_cm_reply reply = {.version = FP_WIRE_VERSION, .status = (int32_t)status};

	fp_wire_cm_reply_encode(&reply, ret_bytes);
}

/* Checks a request. Returns its status: FP_WIRE_OK means go on, with *ret_peer. */
static enum fp_wire_status judge_request(const struct fp_cm_server *server,
                                         const struct fp_verbs_event *event,
                                         struct fp_cm_server_peer **ret_peer)
{
	struct fp_wire_cm cm;
	uint8_t version;

	if (fp_wire_cm_decode(event->private_data, event->private_len, &cm) < 0)
		return FP_WIRE_MALFORMED;
	if (fp_wire_cm_version_choose(&cm, &version) < 0)
		return FP_WIRE_VERSION_GAP;
	*ret_peer = fp_cm_server_find_peer(server, &cm);
	if (!*ret_peer)
		return FP_WIRE_DENIED;
	return (*ret_peer)->n_links < FP_WIRE_MAX_LINKS ? FP_WIRE_OK : FP_WIRE_BUSY;
}

static int let_in(struct fp_cm_server_peer *peer, struct fp_verbs_request *request)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct fp_verbs_conn_options how = fp_cm_server_link_options(peer->server);
	uint8_t reply[sizeof(struct fp_wire_cm_reply)];
	struct fp_cm_server_link *link;
	int r = fp_verbs_prepare(request, &how, peer->domain, &conn);

	if (r == 0)
		r = fp_cm_server_link_add(peer, conn, &link);
	if (r < 0)
		return r;
	fp_verbs_conn_set_user(fp_take_ptr(conn), link);
	encode_reply(FP_WIRE_OK, reply);
	r = fp_verbs_admit(link->conn, reply, sizeof(reply));
	if (r < 0)
		fp_cm_server_link_destroy(link);
	return r;
}

static const char *const refusals[] = {
    [FP_WIRE_MALFORMED] = "its connection request is not of the protocol",
    [FP_WIRE_VERSION_GAP] = "it speaks no version of the protocol that we do",
    [FP_WIRE_DENIED] = "its connection request does not prove the token of a session",
    [FP_WIRE_BUSY] = "its session has as many links as one may have",
    [FP_WIRE_BROKEN] = "no queue pair could be made for it",
};

static void on_request(struct fp_cm_server *server, struct fp_verbs_event *event)
{
	uint8_t reply[sizeof(struct fp_wire_cm_reply)];
	struct fp_cm_server_peer *peer = NULL;
	enum fp_wire_status status = judge_request(server, event, &peer);
	const char *why = refusals[status];
	int r = 0;

	if (status == FP_WIRE_OK) {
		r = let_in(peer, &event->request);
		why = r == -EXDEV ? "its link came in by another device than its session"
		                  : refusals[FP_WIRE_BROKEN];
	} else {
		encode_reply(status, reply);
		fp_verbs_reject(&event->request, reply, sizeof(reply));
	}
	if (status == FP_WIRE_OK && r == 0)
		return;
	server->n_rejected++;
	fp_cm_server_tell(server, FP_CM_SERVER_EVENT_REJECTED, event->peer, 0, why);
}

/* ---- addresses ---- */

bool fp_cm_server_listens_at(const struct fp_cm_server *server, const struct sockaddr *own)
{
	const struct sockaddr_in *in4 = (const struct sockaddr_in *)own;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)own;

	for (unsigned i = 0; i < server->n_addresses; i++) {
		const struct sockaddr_storage *at = &server->addresses[i].own;
		const struct sockaddr_in *at4 = (const struct sockaddr_in *)at;
		const struct sockaddr_in6 *at6 = (const struct sockaddr_in6 *)at;

		if (at->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&at6->sin6_addr))
			return true; /* it takes IPv4 too */
		if (at->ss_family != own->sa_family)
			continue;
		if (at->ss_family == AF_INET
		        ? at4->sin_addr.s_addr == INADDR_ANY || at4->sin_addr.s_addr == in4->sin_addr.s_addr
		        : IN6_ARE_ADDR_EQUAL(&at6->sin6_addr, &in6->sin6_addr))
			return true;
	}
	return false;
}

static uint16_t *port_of(struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
	                                      : &((struct sockaddr_in *)address)->sin_port;
}

/*
 * The port of links is the first address's port plus one. If the first address has port 0, the port
 * of links is 0 too: any free port.
 */
static int choose_port(struct sockaddr_storage first, uint16_t *ret_port)
{
	uint16_t port = ntohs(*port_of(&first));

	if (port == UINT16_MAX)
		return -EINVAL;
	*ret_port = (uint16_t)(port ? port + 1 : 0);
	return 0;
}

int fp_cm_server_listen(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                        unsigned *ret_failed)
{
	int r = 0;

	if (options->n_listen > FP_VERBS_MAX_ADDRESSES)
		return -E2BIG;
	if (options->n_listen)
		r = choose_port(options->listen[0], &server->port);
	for (unsigned i = 0; i < options->n_listen && r == 0; i++) {
		struct fp_cm_server_address *address = &server->addresses[server->n_addresses++];

		address->own = options->listen[i];
		*port_of(&address->own) = htons(server->port);
		r = fp_verbs_listen(server->listener, i, (struct sockaddr *)&address->own);
		if (r == 0)
			server->port = fp_verbs_listener_port(server->listener, i);
		else
			*ret_failed = i;
	}
	return r;
}

static void address_lost(struct fp_cm_server *server, unsigned idx)
{
	fp_verbs_unlisten(server->listener, idx);
	server->addresses[idx].down = true;
	fp_cm_server_tell(server, FP_CM_SERVER_EVENT_DEVICE, "a listener", 0,
	                  "its rdma device was removed: no link can connect there until it is back");
}

void fp_cm_server_listen_again(struct fp_cm_server *server)
{
	for (unsigned i = 0; i < server->n_addresses; i++) {
		struct fp_cm_server_address *address = &server->addresses[i];

		if (!address->down)
			continue;
		*port_of(&address->own) = htons(server->port);
		address->down = fp_verbs_listen(server->listener, i, (struct sockaddr *)&address->own) < 0;
		if (!address->down)
			fp_cm_server_tell(server, FP_CM_SERVER_EVENT_DEVICE, "a listener", 0,
			                  "its rdma device is back");
	}
}

/* ---- what becomes of connections ---- */

static void on_device_gone(struct fp_cm_server *server, const struct fp_verbs_event *event)
{
	if (event->conn)
		fp_cm_server_link_destroy(fp_verbs_conn_user(event->conn));
	else
		address_lost(server, event->idx);
}

void fp_cm_server_requests_serve(struct fp_cm_server *server)
{
	struct fp_verbs_event event;

	for (unsigned i = 0; i < EVENTS_AT_ONCE; i++) {
		if (fp_verbs_listener_next(server->listener, &event) < 0) {
			if (fp_cm_server_unwatch(server, fp_verbs_listener_fd(server->listener)))
				fp_cm_server_tell(server, FP_CM_SERVER_EVENT_DEVICE, "rdma_cm", 0,
				                  "it failed: no link can connect until the node restarts");
			return;
		}
		switch (event.type) {
		case FP_VERBS_EV_NONE:
			return;
		case FP_VERBS_EV_REQUEST:
			on_request(server, &event);
			break;
		case FP_VERBS_EV_ESTABLISHED:
			break;
		case FP_VERBS_EV_DISCONNECTED:
			fp_cm_server_link_gone(fp_verbs_conn_user(event.conn));
			break;
		case FP_VERBS_EV_DEVICE_GONE:
			on_device_gone(server, &event);
			break;
		}
	}
}
