/*
 * The rdma transports: a device READs and WRITEs the data of their sessions. Room: transport.
 * control.c has the control side, over TCP; rdma_link.c has the data path, verbs.h the device. This
 * file joins them. The two transports connect the queue pair of a link differently:
 *
 *   rdma       through rdma_cm; its private data proves the session's token
 *   rdma+tcp   without rdma_cm, for fabrics without IP addresses: the ends exchange the addresses of
 *              their queue pairs over a LINK connection, which must live as long as the link
 */
#include "transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "auth.h"
#include "clock.h"
#include "control.h"
#include "fdutil.h"
#include "names.h"
#include "rdma_link.h"
#include "verbs.h"

#define QP_TAG 1u /* tag of the only request on a LINK connection */

/* The rdma part of a session, in *fp_control_private. */
struct rdma {
	struct fp_verbs_domain *domain; /* the domain of all its queue pairs */
	enum fp_protocol protocol;
};

static struct rdma *rdma_of(struct fp_session *session)
{
	return *fp_control_private(session);
}

/*
 * A forked child has copies of the descriptors of its parent's device. If it destroyed its copy, it
 * would destroy the parent's device.
 */
static void rdma_done(struct fp_session *session, bool forked)
{
	struct rdma *rdma = rdma_of(session);

	if (rdma && !forked)
		fp_verbs_domain_unref(rdma->domain);
	free(rdma);
}

void fp_transport_check_devices(void)
{
	fp_verbs_devices_check();
}

void fp_transport_forked(void)
{
	fp_verbs_forget();
	fp_names_forked();
}

/*
 * Takes over domain, also on failure. The caller has found the device before, because without a
 * device there is no reason to trouble the node.
 */
static int session_open(const struct fp_control_ops *ops, struct fp_verbs_domain *domain,
                        const struct fp_url *url, const struct fp_session_options *options,
                        struct fp_session **ret_session)
{
	fp_autofree struct rdma *rdma = calloc(1, sizeof(*rdma));
	int r = rdma ? fp_control_open(ops, url, options, ret_session) : -ENOMEM;

	if (r < 0) {
		fp_verbs_domain_unref(domain);
		return r;
	}
	*rdma = (struct rdma){domain, options->protocol};
	*fp_control_private(*ret_session) = fp_take_ptr(rdma);
	return 0;
}

static int make_link(struct fp_session *session, int fd, struct fp_verbs_conn *conn,
                     struct fp_link **ret_link)
{
	struct fp_rdma_link_options options = {
	    .transport = session->transport,
	    .session = session,
	    .find_lease = fp_control_find_lease,
	    .protocol = rdma_of(session)->protocol,
	    .patience_ns = fp_control_deadline_ns(session),
	    .n_slots = fp_rdma_link_conn_options(fp_control_rdma(session)).send_depth,
	    .fd = fd,
	};

	return fp_rdma_link_new(conn, &options, ret_link);
}

/* ---- queue pairs connected through rdma_cm ---- */

static int encode_request(const struct fp_wire_welcome *welcome, uint8_t ret_bytes[sizeof(struct fp_wire_cm)])
{
	struct fp_wire_cm cm = {
	    .min_version = FP_WIRE_VERSION,
	    .max_version = FP_WIRE_VERSION,
	    .purpose = FP_WIRE_LINK,
	    .session_id = welcome->session_id,
	};
	int r = fp_auth_random(cm.nonce, sizeof(cm.nonce));

	if (r == 0)
		r = fp_auth_prove_cm(welcome->token, &cm, cm.proof);
	if (r == 0)
		fp_wire_cm_encode(&cm, ret_bytes);
	return r;
}

/*
 * The result of a connection attempt, given r (the result of fp_verbs_connect) and the node's
 * reply.
 */
static int judge_reply(int r, const void *bytes, size_t len)
{
	struct fp_wire_cm_reply reply;

	if (r < 0 && r != -ECONNREFUSED)
		return r;
	if (len < sizeof(reply) || fp_wire_cm_reply_decode(bytes, len, &reply) < 0)
		return r < 0 ? r : -EPROTO; /* the peer that accepted or rejected us is no node */
	if (r < 0)
		return reply.status != FP_WIRE_OK ? fp_wire_status_to_errno(reply.status) : r;
	if (reply.status != FP_WIRE_OK)
		return -EPROTO;
	return reply.version == FP_WIRE_VERSION ? 0 : -EPROTONOSUPPORT;
}

/* The node listens for links at the address by which the session reached it. */
static void find_node(const struct fp_session *session, struct sockaddr_storage *ret_node)
{
	const struct sockaddr *address = fp_control_address(session);
	bool v6 = address->sa_family == AF_INET6;
	uint16_t port = htons(fp_control_welcome(session)->cm_port);

	memset(ret_node, 0, sizeof(*ret_node));
	memcpy(ret_node, address, v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	if (v6)
		((struct sockaddr_in6 *)ret_node)->sin6_port = port;
	else
		((struct sockaddr_in *)ret_node)->sin_port = port;
}

static int connect_cm(struct fp_session *session, uint64_t deadline_ns, struct fp_verbs_conn **ret_conn)
{
	/* a reply has no room for a refusal, but BUSY has this cause alone */
	static const struct fp_refusal busy = {.cause = FP_REFUSAL_LINKS,
	                                       .limit = FP_WIRE_MAX_LINKS,
	                                       .used = FP_WIRE_MAX_LINKS},
	                               none = {.cause = FP_REFUSAL_NONE};
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct fp_verbs_conn_options how = fp_rdma_link_conn_options(fp_control_rdma(session));
	uint8_t bytes[sizeof(struct fp_wire_cm)], reply[256];
	size_t reply_len = sizeof(reply);
	struct sockaddr_storage node;
	int r = encode_request(fp_control_welcome(session), bytes);

	if (r < 0)
		return r;
	find_node(session, &node);
	r = fp_verbs_connect((struct sockaddr *)&node, &how, bytes, sizeof(bytes), deadline_ns,
	                     rdma_of(session)->domain, &conn, reply, &reply_len);
	r = judge_reply(r, reply, reply_len);
	if (r == 0)
		*ret_conn = fp_take_ptr(conn);
	else
		fp_control_set_refusal(session, r == -EUSERS ? &busy : &none);
	return r;
}

/*
 * Soft iWARP (siw_accept of Linux 6.12) answers a connection request before it listens to the
 * connection. Bytes that come in between stay unread until more come. One thread of the node
 * accepts links and answers control calls. So if a control call made after the acceptance is
 * answered, the node listens to the link.
 */
static int await_acceptance(struct fp_session *session, uint64_t deadline_ns)
{
	return fp_verbs_domain_limits(rdma_of(session)->domain)->iwarp
	           ? fp_control_ping(session, 0, deadline_ns)
	           : 0;
}

static int rdma_link_open(struct fp_session *session, struct fp_link **ret_link)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	uint64_t deadline_ns = fp_clock_ns() + fp_control_deadline_ns(session);
	int r = connect_cm(session, deadline_ns, &conn);

	if (r == 0)
		r = await_acceptance(session, deadline_ns);
	if (r == 0)
		r = make_link(session, -1, conn, ret_link);
	if (r == 0)
		(void)fp_take_ptr(conn);
	return r;
}

static const struct fp_control_ops rdma_control = {
    .transport = &fp_transport_rdma,
    .features = FP_WIRE_FEATURE_KEYS | FP_WIRE_FEATURE_CM,
    .done = rdma_done,
};

static int rdma_session_open(const struct fp_url *url, const struct fp_session_options *options,
                             struct fp_session **ret_session)
{
	struct fp_verbs_domain *domain;
	int r = fp_verbs_domain_to(url->host, fp_control_open_by_ns(options), &domain);

	return r < 0 ? r : session_open(&rdma_control, domain, url, options, ret_session);
}

/* ---- queue pairs connected without rdma_cm ---- */

/* Exchanges the addresses of the queue pairs with the node. */
static int exchange(struct fp_handshake *handshake, uint64_t deadline_ns, const struct fp_verbs_address *own,
                    struct fp_verbs_address *ret_peer)
{
	struct fp_wire_qp qp = {
	    .qpn = own->qpn, .psn = own->psn, .lid = own->lid, .mtu = own->mtu, .n_reads = own->n_reads};
	uint8_t bytes[sizeof(qp)];
	struct fp_wire_header header;
	const void *payload;
	int r;

	memcpy(qp.gid, own->gid, sizeof(qp.gid));
	fp_wire_qp_encode(&qp, bytes);
	r = fp_handshake_send(handshake, FP_WIRE_QP, QP_TAG, bytes, sizeof(bytes), deadline_ns);
	if (r == 0)
		r = fp_handshake_receive(handshake, deadline_ns, &header, &payload);
	if (r < 0)
		return r;
	if (header.type == FP_WIRE_ERROR)
		return fp_wire_status_to_errno(header.status);
	if (header.type != FP_WIRE_QP_REPLY || header.tag != QP_TAG)
		return -EPROTO;
	r = fp_wire_qp_decode(payload, header.length, &qp);
	if (r < 0)
		return r;
	*ret_peer = (struct fp_verbs_address){qp.qpn, qp.psn, qp.lid, qp.mtu, qp.n_reads, {0}};
	memcpy(ret_peer->gid, qp.gid, sizeof(qp.gid));
	return 0;
}

static int connect_by_hand(struct fp_session *session, struct fp_handshake *handshake,
                           struct fp_verbs_conn **ret_conn)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	uint64_t deadline_ns = fp_clock_ns() + fp_control_deadline_ns(session);
	struct fp_verbs_address own, peer;
	struct fp_verbs_conn_options how = fp_rdma_link_conn_options(fp_control_rdma(session));
	int r = fp_verbs_manual_open(rdma_of(session)->domain, &how, &conn, &own);

	if (r == 0)
		r = exchange(handshake, deadline_ns, &own, &peer);
	if (r == 0)
		r = fp_verbs_manual_connect(conn, &peer);
	if (r == 0)
		*ret_conn = fp_take_ptr(conn);
	return r;
}

static int by_hand_link_open(struct fp_session *session, struct fp_link **ret_link)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	FP_CLEANUP(fp_cleanup_handshake) struct fp_handshake *handshake = NULL;
	struct fp_wire_welcome welcome;
	int fd, r = fp_control_open_link(session, &handshake, &welcome);

	if (r == 0)
		r = connect_by_hand(session, handshake, &conn);
	if (r < 0)
		return r;
	fd = fp_handshake_take_socket(fp_take_ptr(handshake));
	r = make_link(session, fd, conn, ret_link);
	if (r < 0)
		fp_fd_close(fd);
	else
		(void)fp_take_ptr(conn);
	return r;
}

static const struct fp_control_ops by_hand_control = {
    .transport = &fp_transport_rdma_tcp,
    .features = FP_WIRE_FEATURE_KEYS,
    .done = rdma_done,
};

static int by_hand_session_open(const struct fp_url *url, const struct fp_session_options *options,
                                struct fp_session **ret_session)
{
	const struct fp_rdma_options *how = options->rdma ? options->rdma : &fp_rdma_defaults;
	struct fp_verbs_domain *domain;
	int r = fp_verbs_domain_open(how->device, (uint8_t)how->device_port, &domain);

	return r < 0 ? r : session_open(&by_hand_control, domain, url, options, ret_session);
}

#define RDMA_OPERATIONS                                                                                      \
	FP_CONTROL_OPERATIONS, .link_close = fp_rdma_link_close, .link_break = fp_rdma_link_break,           \
	                       .link_register = fp_rdma_link_register, .submit = fp_rdma_link_submit,        \
	                       .poll = fp_rdma_link_poll, .pollfd = fp_rdma_link_pollfd

const struct fp_transport fp_transport_rdma = {
    .scheme = "rdma",
    .default_port = FP_WIRE_RDMA_PORT,
    .session_open = rdma_session_open,
    .link_open = rdma_link_open,
    RDMA_OPERATIONS,
};

const struct fp_transport fp_transport_rdma_tcp = {
    .scheme = "rdma+tcp",
    .default_port = FP_WIRE_DEFAULT_PORT,
    .session_open = by_hand_session_open,
    .link_open = by_hand_link_open,
    RDMA_OPERATIONS,
};
