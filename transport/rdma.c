/*
 * The rdma transports: sessions whose data is READ and WRITTEN by a device. Room: transport. The
 * control side is control.c's, the data path rdma_link.c's, the device verbs.h's; here they are put
 * together.
 *
 *   rdma       control frames over SEND and RECEIVE of one queue pair, each link another one in the same
 * domain; both connected through rdma_cm, whose private data says what for and proves the right to
 * ask
 *   rdma+tcp   control frames over a socket; a link is a queue pair that the two ends connect by hand, having
 * told each other of it over a LINK connection, which must live as long. For fabrics without IP
 * addresses
 */
#include "transport.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "auth.h"
#include "clock.h"
#include "control.h"
#include "fdutil.h"
#include "names.h"
#include "rdma_link.h"
#include "verbs.h"
#include "verbs_stream.h"

#define LOOK_NS  (50 * FP_NSEC_PER_MSEC) /* a control stream asks as often whether its peer has gone */
#define NUDGE_NS (50 * FP_NSEC_PER_MSEC) /* without an answer, the first time; then twice as long each */
#define QP_TAG   1u                      /* of the one request of a LINK connection */

/* A session's own, in *fp_control_private. */
struct rdma {
	struct fp_verbs_domain *domain; /* of all its queue pairs */
	enum fp_protocol protocol;
};

static struct rdma *rdma_of(struct fp_session *session)
{
	return *fp_control_private(session);
}

/* A forked child has the descriptors of its parent's device: what it destroyed would be gone
 * there. */
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

static struct rdma *rdma_new(struct fp_session *session)
{
	struct rdma *rdma = calloc(1, sizeof(*rdma));

	*fp_control_private(session) = rdma;
	return rdma;
}

/* ---- connecting through rdma_cm ---- */

/* A connection request: what for, and the key that proves the right to it. */
struct cm_request {
	enum fp_wire_purpose purpose;
	uint64_t session_id;  /* LINK */
	const uint8_t *token; /* LINK */
	const char *secret;   /* CONTROL, RESUME; NULL: none */
};

static int encode_request(const struct cm_request *request, uint8_t ret_bytes[sizeof(struct fp_wire_cm)])
{
	struct fp_wire_cm cm = {
	    .min_version = FP_WIRE_VERSION,
	    .max_version = FP_WIRE_VERSION,
	    .purpose = (uint8_t)request->purpose,
	    .session_id = request->session_id,
	};
	int r = fp_auth_random(cm.nonce, sizeof(cm.nonce));

	if (r == 0)
		r = fp_auth_prove_cm(request->secret, request->token, &cm, cm.proof);
	if (r == 0)
		fp_wire_cm_encode(&cm, ret_bytes);
	return r;
}

/* What a node's answer to a request says; r is what fp_verbs_connect made of it. */
static int judge_reply(int r, const void *bytes, size_t len)
{
	struct fp_wire_cm_reply reply;

	if (r < 0 && r != -ECONNREFUSED)
		return r;
	if (len < sizeof(reply) || fp_wire_cm_reply_decode(bytes, len, &reply) < 0)
		return r < 0 ? r : -EPROTO; /* rejected by somebody else, or accepted */
	if (r < 0)
		return reply.status != FP_WIRE_OK ? fp_wire_status_to_errno(reply.status) : r;
	if (reply.status != FP_WIRE_OK)
		return -EPROTO;
	return reply.version == FP_WIRE_VERSION ? 0 : -EPROTONOSUPPORT;
}

static int connect_cm(const struct fp_url *url, const struct cm_request *request,
                      const struct fp_verbs_conn_options *options, uint64_t deadline_ns,
                      struct fp_verbs_domain **domain, struct fp_verbs_conn **ret_conn)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	uint8_t bytes[sizeof(struct fp_wire_cm)], reply[256];
	size_t reply_len = sizeof(reply);
	int r = encode_request(request, bytes);

	if (r < 0)
		return r;
	r = fp_verbs_connect(url->host, url->port, options, bytes, sizeof(bytes), deadline_ns, domain, &conn,
	                     reply, &reply_len);
	r = judge_reply(r, reply, reply_len);
	if (r == 0)
		*ret_conn = fp_take_ptr(conn);
	return r;
}

/* ---- the control stream ---- */

static ssize_t control_send(void *context, const void *bytes, size_t len)
{
	return fp_verbs_stream_send(context, bytes, len);
}

static ssize_t control_receive(void *context, void *ret_bytes, size_t len, int *fd)
{
	return fp_verbs_stream_receive(context, ret_bytes, len);
}

static int sleep_on(struct pollfd *p, uint64_t now_ns, uint64_t deadline_ns)
{
	uint64_t left = FP_MIN(deadline_ns - now_ns, LOOK_NS);
	struct timespec ts = {.tv_nsec = (long)left};

	return ppoll(p, 1, &ts, NULL) < 0 && errno != EINTR ? -errno : 0;
}

/*
 * Soft iWARP (siw_accept of Linux 6.12) answers a connection request before it listens to the
 * connection: what comes in between stays where it is until more comes. A client speaks first, so
 * it says nothing once more, and again, until it is heard. A link has nobody who could do so: see
 * await_acceptance.
 */
struct nudging {
	uint64_t next_ns, step_ns; /* 0: not this device */
};

static struct nudging nudging_begin(struct fp_verbs_conn *conn, uint64_t now_ns)
{
	bool needed = fp_verbs_domain_limits(fp_verbs_conn_domain(conn))->iwarp;

	return (struct nudging){now_ns + NUDGE_NS, needed ? NUDGE_NS : 0};
}

static void nudge(struct fp_verbs_stream *stream, struct nudging *nudging, uint64_t now_ns)
{
	if (!nudging->step_ns || now_ns < nudging->next_ns)
		return;
	nudging->step_ns = fp_verbs_stream_nudge(stream) ? nudging->step_ns * 2 : 0;
	nudging->next_ns = now_ns + nudging->step_ns;
}

/*
 * The peer's end may be gone without a word on the queue pair: rdma_cm is asked, but only when it
 * has something to say, as that allocates, and the reclaim thread takes leases while a fork that
 * waits for it holds the allocator's locks. Whatever completes is a reason to try again, be it for
 * the other direction.
 */
static int control_wait(void *context, short events, uint64_t deadline_ns)
{
	struct fp_verbs_conn *conn = fp_verbs_stream_conn(context);
	struct nudging nudging = nudging_begin(conn, fp_clock_ns());
	uint64_t now_ns;
	struct pollfd p;
	int r;

	for (;;) {
		bool gone = fp_verbs_conn_stirs(conn) && fp_verbs_conn_check(conn) < 0;

		r = fp_verbs_stream_wait(context, &p); /* first what came before the end */
		if (r != 0)
			return r < 0 ? r : 0;
		if (gone)
			return -ECONNRESET;
		now_ns = fp_clock_ns();
		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		nudge(context, &nudging, now_ns);
		r = sleep_on(&p, now_ns, deadline_ns);
		if (r < 0)
			return r;
	}
}

static const char *control_why(void *context)
{
	return fp_verbs_stream_why(context);
}

/* Leaving in order has been said by a frame; the connection's end says the same to either. */
static void control_close(void *context, enum fp_handshake_end end)
{
	if (end != FP_HANDSHAKE_FORGET)
		fp_verbs_stream_close(context);
}

static const struct fp_handshake_stream_ops control_stream = {
    .send = control_send,
    .receive = control_receive,
    .wait = control_wait,
    .why = control_why,
    .close = control_close,
};

static int rdma_dial(const struct fp_url *url, const struct fp_handshake_options *options,
                     uint64_t deadline_ns, struct fp_session *session, struct fp_handshake_stream *ret_stream)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct cm_request request = {.purpose = options->purpose, .secret = options->secret};
	struct fp_verbs_conn_options how = fp_verbs_stream_conn_options(fp_control_rdma(session));
	struct rdma *rdma = rdma_new(session);
	struct fp_verbs_stream *stream;
	int r;

	if (!rdma)
		return -ENOMEM;
	r = connect_cm(url, &request, &how, deadline_ns, &rdma->domain, &conn);
	if (r < 0)
		return r;
	r = fp_verbs_stream_new(conn, &stream);
	if (r < 0)
		return r;
	(void)fp_take_ptr(conn);
	*ret_stream = (struct fp_handshake_stream){&control_stream, stream};
	return 0;
}

/* ---- sessions and links ---- */

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

/*
 * The node's thread that accepts links is the one that carries control streams, so once a call is
 * answered that was made after the acceptance came, soft iWARP listens to the link.
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
	const struct fp_wire_welcome *welcome = fp_control_welcome(session);
	struct cm_request request = {
	    .purpose = FP_WIRE_LINK, .session_id = welcome->session_id, .token = welcome->token};
	struct fp_verbs_conn_options how = fp_rdma_link_conn_options(fp_control_rdma(session));
	uint64_t deadline_ns = fp_clock_ns() + fp_control_deadline_ns(session);
	int r = connect_cm(fp_control_url(session), &request, &how, deadline_ns, &rdma_of(session)->domain,
	                   &conn);

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
    .features = FP_WIRE_FEATURE_KEYS,
    .dial = rdma_dial,
    .done = rdma_done,
};

static int rdma_session_open(const struct fp_url *url, const struct fp_session_options *options,
                             struct fp_session **ret_session)
{
	struct fp_session *session;
	int r = fp_control_open(&rdma_control, url, options, &session);

	if (r < 0)
		return r;
	rdma_of(session)->protocol = options->protocol;
	*ret_session = session;
	return 0;
}

/* ---- queue pairs connected by hand ---- */

/* Tells the node of our queue pair and hears of its. */
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

/* The device first: without one there is no reason to trouble the node. */
static int by_hand_session_open(const struct fp_url *url, const struct fp_session_options *options,
                                struct fp_session **ret_session)
{
	FP_CLEANUP(fp_cleanup_verbs_domain) struct fp_verbs_domain *domain = NULL;
	struct fp_session *session;
	const struct fp_rdma_options *how = options->rdma ? options->rdma : &fp_rdma_defaults;
	struct rdma *rdma;
	int r = fp_verbs_domain_open(how->device, (uint8_t)how->device_port, &domain);

	if (r == 0)
		r = fp_control_open(&by_hand_control, url, options, &session);
	if (r < 0)
		return r;
	rdma = rdma_new(session);
	if (!rdma) {
		fp_control_close(session);
		return -ENOMEM;
	}
	rdma->domain = fp_take_ptr(domain);
	rdma->protocol = options->protocol;
	*ret_session = session;
	return 0;
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
