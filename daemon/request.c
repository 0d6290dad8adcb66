/*
 * Handles requests. Room: daemon; see request.h. Each handler answers once, or leaves the answer to
 * a later call (a lease), or ends the connection.
 */
#include "request.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "admission.h"
#include "clock.h"
#include "holding.h"
#include "node_server.h"
#include "status.h"
#include "units.h"

/* The cost of one byte of a STATUS_REPLY: printing it takes as long as copying so many bytes. */
#define STATUS_COST 12u

void fp_request_answer(struct fp_conn *conn, enum fp_wire_type type, const void *payload, size_t len)
{
	fp_conn_answer(conn, fp_reply_new(&conn->inbox.header, type, payload, len));
}

static void answer_status(struct fp_conn *conn, enum fp_wire_status status)
{
	fp_conn_answer_error(conn, &conn->inbox.header, status, NULL);
}

/*
 * Answers a request that failed: counts it by the limit that it met, and tells that limit. An error
 * without a limit is only counted, unless the node is out of memory. READs and WRITEs have a count
 * of their own (denied).
 */
static void answer_refusal(struct fp_conn *conn, const struct fp_wire_header *request, int r,
                           const char *what)
{
	bool is_io = request->type == FP_WIRE_READ || request->type == FP_WIRE_WRITE;

	conn->shard->counters.leases_refused += request->type == FP_WIRE_LEASE;
	if (conn->refusal.cause == FP_REFUSAL_NONE && r != -ENOMEM)
		what = NULL;
	if (!is_io)
		fp_node_server_refused(conn->server, conn, &conn->refusal, what);
	fp_conn_answer_error(conn, request, fp_wire_status_from_errno(r), &conn->refusal);
}

static int refuse(struct fp_conn *conn, int r, struct fp_refusal refusal)
{
	conn->refusal = refusal;
	return r;
}

/*
 * True if the connection's client has this right. A client has no rights once its secret was
 * removed, but it may still use its leases.
 */
static bool may(const struct fp_conn *conn, enum fp_right right)
{
	const struct fp_config *config = conn->server->config;
	const struct fp_node_secret *secret;

	if (config->auth.given) {
		secret = fp_secrets_find(&config->auth.secrets, conn->session->client->name);
		return secret && secret->rights & right;
	}
	return right != FP_RIGHT_ADMIN || fp_listen_peer_is_owner(conn->fd);
}

static void answer_leased(struct fp_conn *conn, struct fp_node_lease *lease,
                          const struct fp_wire_header *request, enum fp_wire_type type)
{
	fp_autoclose int fd = -1;
	struct fp_wire_leased leased = {.size_bytes = lease->memory->size_bytes, .lease_id = lease->id};
	uint8_t payload[sizeof(leased)];
	struct fp_reply *reply;

	if (conn->session->memfd && fp_chunk_pass(&lease->memory->chunk, &fd) < 0) {
		fp_node_lease_release(lease);
		conn->refusal = (struct fp_refusal){.cause = FP_REFUSAL_MAPPED_LEASES, .by_files = true};
		answer_refusal(conn, request, -ENOSPC, "a lease");
		return;
	}
	if (conn->session->memfd)
		leased.flags = FP_WIRE_LEASED_MEMFD;
	if (lease->read_only)
		leased.flags |= FP_WIRE_LEASED_READ_ONLY;
	if (lease->key && lease->key->made) {
		leased.flags |= FP_WIRE_LEASED_KEY;
		leased.address = (uintptr_t)lease->memory->chunk.base;
		leased.key = lease->key->region.rkey;
	}
	fp_wire_leased_encode(&leased, payload);
	reply = fp_reply_new(request, type, payload, sizeof(payload));
	if (reply && conn->session->memfd)
		reply->fd = fp_take_fd(fd);
	fp_conn_answer(conn, reply);
}

/* True if an answer on this connection still reaches the client of a session. */
static bool is_heard(const struct fp_conn *conn)
{
	return conn->session && conn->state != FP_CONN_KILLED;
}

static void lease_done(struct fp_node_lease *lease, int status, void *user);

/*
 * Begins to make the key of the lease. When it is made, lease_done answers the LEASE or ATTACH.
 * False: the lease needs no key, or there is no memory.
 */
static bool answer_with_key(struct fp_conn *conn, struct fp_node_lease *lease)
{
	if (!conn->session->cm_peer ||
	    fp_node_lease_key_make(lease, conn->session->cm_peer, lease_done, conn) < 0)
		return false;
	conn->leasing = true;
	return true;
}

/*
 * Called when the worker has made a lease or its key: answers the LEASE or ATTACH. Until now the
 * connection handled no other request, so answers keep their order.
 */
static void lease_done(struct fp_node_lease *lease, int status, void *user)
{
	struct fp_conn *conn = user;
	const struct fp_wire_header *request = &conn->lease_request;
	bool pins = lease->key && lease->key->populated; /* else the memory itself was missing */
	char reason[64];

	conn->leasing = false;
	if (status == 0 && is_heard(conn)) {
		if (lease->key || !answer_with_key(conn, lease))
			answer_leased(conn, lease, request, (enum fp_wire_type)(request->type + 1));
	} else {
		/* the client never learns of this lease, not even after a RESUME */
		if (request->type == FP_WIRE_LEASE && lease->leases)
			fp_node_lease_release(lease);
		if (status < 0 && status != -ECANCELED) {
			fp_log(FP_LOG_ERROR, "pool",
			       pins ? "%s: %llu MiB could not be registered for %s: %s (LimitMEMLOCK=, "
			              "ulimit -l)"
			            : "%s: the host could not give %llu MiB to %s: %s",
			       lease->memory->pool->name, (unsigned long long)lease->memory->size_bytes >> 20,
			       conn->peer, fp_strerror(status, reason, sizeof(reason)));
			conn->refusal = (struct fp_refusal){.cause = pins ? FP_REFUSAL_LOCKED_MEMORY
			                                                  : FP_REFUSAL_HOST_MEMORY};
			answer_refusal(conn, request, -ENOSPC, NULL);
		}
	}
	if (!conn->leasing)
		fp_conn_settle(conn);
}

static struct fp_lease_request lease_request(struct fp_conn *conn, uint64_t size_bytes)
{
	struct fp_node_server *server = conn->server;

	return (struct fp_lease_request){
	    .size_bytes = size_bytes,
	    .shareable = conn->session->memfd,
	    .client = conn->session->client,
	    .quota_bytes = fp_config_quota(server->config, conn->session->client->name),
	    .max_leases = server->config->limits.max_leases,
	    .refusal = &conn->refusal,
	    .done = lease_done,
	    .user = conn,
	};
}

static bool grants_leases(const struct fp_node_server *server)
{
	return !server->draining && !server->stopping;
}

static int handle_lease(struct fp_conn *conn)
{
	struct fp_lease_request request;
	struct fp_wire_lease lease;
	int r;

	if (fp_wire_lease_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &lease) < 0)
		return -EPROTO;
	request = lease_request(conn, lease.size_bytes);
	if (!grants_leases(conn->server))
		return refuse(conn, -ESHUTDOWN, (struct fp_refusal){.cause = FP_REFUSAL_DRAINING});
	r = request.shareable ? fp_conn_promise_fd(conn, &conn->refusal) : 0;
	if (r < 0)
		return r;
	r = fp_node_lease_grant(&conn->session->leases, &conn->server->pools, &request);
	if (r < 0)
		return r;
	conn->lease_request = conn->inbox.header;
	conn->leasing = true;
	return 0;
}

static int handle_release(struct fp_conn *conn)
{
	struct fp_wire_release release;
	struct fp_node_lease *lease;

	if (fp_wire_release_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &release) < 0)
		return -EPROTO;
	lease = fp_node_lease_find(&conn->session->leases, release.lease_id);
	if (!lease)
		return -EACCES;
	fp_node_lease_release(lease);
	fp_request_answer(conn, FP_WIRE_RELEASED, NULL, 0);
	return 0;
}

static int handle_attach(struct fp_conn *conn)
{
	struct fp_wire_attach attach;
	struct fp_node_lease *lease;

	if (fp_wire_attach_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &attach) < 0)
		return -EPROTO;
	lease = fp_node_lease_find(&conn->session->leases, attach.lease_id);
	if (!lease)
		return -EACCES;
	if (conn->session->memfd)
		return -EPERM; /* a memfd is passed only once, with LEASED */
	conn->lease_request = conn->inbox.header;
	if (!answer_with_key(conn, lease))
		answer_leased(conn, lease, &conn->lease_request, FP_WIRE_ATTACHED);
	return 0;
}

/*
 * An unknown parent session and a wrong session token get the same answer. Adopted memory stays
 * until no session holds a lease on it.
 */
static int handle_adopt(struct fp_conn *conn)
{
	const struct fp_node_session *parent;
	struct fp_wire_adopted adopted = {0};
	uint8_t payload[sizeof(adopted)];
	struct fp_wire_adopt adopt;
	int r = -ESTALE;

	if (fp_wire_adopt_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &adopt) < 0)
		return -EPROTO;
	parent = fp_node_session_find(&conn->server->sessions, adopt.session_id, adopt.token);
	if (parent && (!conn->server->config->auth.given || parent->client == conn->session->client))
		r = fp_node_session_adopt(conn->session, parent);
	if (r == -ENOSPC)
		conn->refusal = (struct fp_refusal){
		    .cause = FP_REFUSAL_ADOPTED_LEASES, .limit = FP_MAX_ADOPTED, .used = FP_MAX_ADOPTED};
	else if (r == -ESTALE)
		conn->refusal.cause = FP_REFUSAL_SESSION;
	if (r < 0)
		return r;
	adopted.n_leases = conn->session->leases.n;
	fp_conn_charge(conn, FP_LEASE_COST * conn->session->leases.capacity);
	fp_log(FP_LOG_INFO, "session", "%llu: %s at %s adopts the %u lease%s of %llu",
	       (unsigned long long)conn->session->id, conn->session->name, conn->peer, adopted.n_leases,
	       fp_plural(adopted.n_leases), (unsigned long long)parent->id);
	fp_wire_adopted_encode(&adopted, payload);
	fp_request_answer(conn, FP_WIRE_ADOPTED, payload, sizeof(payload));
	return 0;
}

/*
 * Connects a queue pair of the client to one of ours: each end tells the other the address of its
 * queue pair. Ours lives as long as this connection.
 */
static int handle_qp(struct fp_conn *conn)
{
	struct fp_verbs_address client, own;
	struct fp_wire_qp qp, reply;
	uint8_t payload[sizeof(reply)];
	int r = -EPERM;

	if (fp_wire_qp_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &qp) < 0)
		return -EPROTO;
	client = (struct fp_verbs_address){
	    .qpn = qp.qpn, .psn = qp.psn, .lid = qp.lid, .mtu = qp.mtu, .n_reads = qp.n_reads};
	memcpy(client.gid, qp.gid, sizeof(client.gid));
	if (conn->session->cm_peer && !conn->cm_link)
		r = fp_cm_server_peer_connect(conn->session->cm_peer, &client, &own, &conn->cm_link);
	if (r < 0)
		return r;
	reply = (struct fp_wire_qp){
	    .qpn = own.qpn, .psn = own.psn, .lid = own.lid, .mtu = own.mtu, .n_reads = own.n_reads};
	memcpy(reply.gid, own.gid, sizeof(reply.gid));
	fp_wire_qp_encode(&reply, payload);
	fp_request_answer(conn, FP_WIRE_QP_REPLY, payload, sizeof(payload));
	return 0;
}

/*
 * The refusal that a LEASE of the smallest size would get now. Cause NONE: it would not be refused.
 */
static struct fp_refusal what_would_refuse(struct fp_conn *conn)
{
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_lease_request request = lease_request(conn, FP_WIRE_LEASE_ALIGN);

	request.refusal = &refusal;
	if (!may(conn, FP_RIGHT_LEASE))
		return (struct fp_refusal){.cause = FP_REFUSAL_RIGHT, .limit = FP_RIGHT_LEASE};
	if (!grants_leases(conn->server))
		return (struct fp_refusal){.cause = FP_REFUSAL_DRAINING};
	(void)fp_node_lease_check(&conn->session->leases, &conn->server->pools, &request);
	return refusal;
}

static int handle_info(struct fp_conn *conn)
{
	uint64_t quota_bytes = fp_config_quota(conn->server->config, conn->session->client->name);
	struct fp_wire_info info = {
	    .leased_bytes = conn->session->leases.leased_bytes,
	    .quota_bytes = quota_bytes == FP_QUOTA_NONE ? 0 : quota_bytes,
	    .charged_bytes = conn->session->client->leased_bytes,
	};
	uint8_t payload[sizeof(info)];
	struct fp_refusal refusal;

	fp_pools_collect(&conn->server->pools); /* memory comes back a moment after a program's end */
	fp_pools_sum(&conn->server->pools, conn->session->memfd, &info.capacity_bytes, &info.free_bytes);
	refusal = what_would_refuse(conn);
	fp_refusal_to_wire(&refusal, &info.refusal);
	fp_wire_info_encode(&info, payload);
	fp_request_answer(conn, FP_WIRE_INFO_REPLY, payload, sizeof(payload));
	return 0;
}

static int handle_status(struct fp_conn *conn)
{
	const char *text;
	size_t len;
	int made;

	/* each of thousands of connections could hold a long text. An operator's are few */
	if (fp_holding_is_scanty(conn) && !conn->session->is_operator)
		return -EUSERS;
	if (fp_status_recent(conn->server, conn->session->client, &text, &len, &made) < 0)
		return -EREMOTEIO;
	fp_conn_charge(conn, (made ? STATUS_COST : 1) * len);
	fp_request_answer(conn, FP_WIRE_STATUS_REPLY, text, len);
	return 0;
}

static void set_draining(struct fp_conn *conn, bool draining)
{
	if (conn->server->draining != draining)
		fp_log(FP_LOG_NOTICE, "node",
		       draining ? "drained by %s at %s: no lease is granted until UNDRAIN"
		                : "undrained by %s at %s: leases are granted again",
		       conn->session->client->name, conn->peer);
	conn->server->draining = draining;
	conn->server->n_told = UINT_MAX; /* the next tick tells systemd */
}

static int handle_drain(struct fp_conn *conn)
{
	struct fp_wire_drained drained = {.sessions = conn->server->sessions.n};
	uint8_t payload[sizeof(drained)];
	uint64_t leases;

	set_draining(conn, true);
	fp_pools_leased(&conn->server->pools, &leases, &drained.leased_bytes);
	fp_wire_drained_encode(&drained, payload);
	fp_request_answer(conn, FP_WIRE_DRAINED, payload, sizeof(payload));
	return 0;
}

static int handle_undrain(struct fp_conn *conn)
{
	set_draining(conn, false);
	fp_request_answer(conn, FP_WIRE_UNDRAINED, NULL, 0);
	return 0;
}

/*
 * Finds the leases of all segments. False: a segment lies in no lease of the session, or a WRITE
 * goes to a read-only lease. Then the whole request is denied.
 */
static bool table_allowed(const struct fp_conn *conn, struct fp_node_lease **ret_leases)
{
	const struct fp_wire_table *table = &conn->inbox.table;
	bool writes = conn->inbox.header.type == FP_WIRE_WRITE;

	for (unsigned i = 0; i < table->n_segs; i++) {
		const struct fp_wire_seg *seg = &table->segs[i];

		ret_leases[i] = fp_node_lease_find(&conn->session->leases, seg->lease_id);
		if (!ret_leases[i] || !fp_wire_seg_fits(seg, ret_leases[i]->memory->size_bytes) ||
		    (writes && ret_leases[i]->read_only))
			return false;
	}
	return true;
}

static void *seg_address(const struct fp_node_lease *lease, const struct fp_wire_seg *seg)
{
	return (char *)lease->memory->chunk.base + seg->offset_bytes;
}

/* Stands for a longer wire, in measurements. */
static void spin(uint64_t ns)
{
	uint64_t until_ns = fp_clock_ns() + ns;

	while (fp_clock_ns() < until_ns)
		;
}

static int handle_read(struct fp_conn *conn)
{
	const struct fp_wire_table *table = &conn->inbox.table;
	struct fp_node_lease *leases[FP_WIRE_MAX_SEGS];
	struct fp_reply *reply;

	if (!table_allowed(conn, leases)) {
		conn->shard->counters.denied++;
		return -EACCES;
	}
	if (conn->server->config->link_delay_ns)
		spin(conn->server->config->link_delay_ns);
	reply = fp_reply_new_data(&conn->inbox.header, table->data_bytes, table->n_segs);
	for (unsigned i = 0; reply && i < table->n_segs; i++)
		fp_reply_add(reply, seg_address(leases[i], &table->segs[i]), table->segs[i].len_bytes,
		             leases[i]);
	fp_conn_answer(conn, reply);
	atomic_fetch_add_explicit(&conn->session->read_bytes, table->data_bytes, memory_order_relaxed);
	conn->shard->counters.reads++;
	conn->shard->counters.read_bytes += table->data_bytes;
	return 0;
}

static int handle_write(struct fp_conn *conn)
{
	struct fp_conn_write *write = &conn->write;

	write->active = true;
	write->seg = 0;
	write->seg_bytes = 0;
	write->denied = !table_allowed(conn, write->leases);
	for (unsigned i = 0; !write->denied && i < conn->inbox.table.n_segs; i++)
		fp_node_lease_get(write->leases[i]);
	return 0;
}

void fp_request_write_abandon(struct fp_conn *conn)
{
	if (conn->write.active && !conn->write.denied)
		for (unsigned i = 0; i < conn->inbox.table.n_segs; i++)
			fp_node_lease_put(conn->write.leases[i]);
	conn->write.active = false;
}

static void write_complete(struct fp_conn *conn)
{
	bool denied = conn->write.denied;

	fp_request_write_abandon(conn);
	if (denied) {
		conn->shard->counters.denied++;
		answer_status(conn, FP_WIRE_DENIED);
		return;
	}
	fp_request_answer(conn, FP_WIRE_WRITTEN, NULL, 0);
	conn->shard->counters.writes++;
	conn->shard->counters.written_bytes += conn->inbox.table.data_bytes;
	atomic_fetch_add_explicit(&conn->session->written_bytes, conn->inbox.table.data_bytes,
	                          memory_order_relaxed);
}

size_t fp_request_write_data(struct fp_conn *conn, const uint8_t *bytes, size_t len)
{
	const struct fp_wire_table *table = &conn->inbox.table;
	struct fp_conn_write *write = &conn->write;
	size_t used = 0;

	while (used < len && write->seg < table->n_segs) {
		const struct fp_wire_seg *seg = &table->segs[write->seg];
		size_t n = FP_MIN(len - used, seg->len_bytes - write->seg_bytes);

		if (!write->denied)
			memcpy((char *)seg_address(write->leases[write->seg], seg) + write->seg_bytes,
			       bytes + used, n);
		used += n;
		write->seg_bytes += (uint32_t)n;
		if (write->seg_bytes == seg->len_bytes) {
			write->seg++;
			write->seg_bytes = 0;
		}
	}
	if (write->seg == table->n_segs)
		write_complete(conn);
	return used;
}

/*
 * Gives the leases back before it answers. So their memory can be granted again as soon as the
 * client has the answer.
 */
static int handle_bye(struct fp_conn *conn)
{
	fp_conn_charge(conn, FP_LEASE_COST * conn->session->leases.capacity);
	fp_node_server_end_session(conn->server, conn);
	fp_request_answer(conn, FP_WIRE_FAREWELL, NULL, 0);
	fp_conn_close(conn);
	return 0;
}

static int handle_ping(struct fp_conn *conn)
{
	fp_request_answer(conn, FP_WIRE_PONG, fp_inbox_payload(&conn->inbox), conn->inbox.header.length);
	return 0;
}

/* One row for each message: the state, purpose and right that it requires. */
static const struct {
	const char *name;
	enum fp_conn_state state;
	/* One bit for each purpose that may send the message. Before HELLO the purpose is 0. */
	unsigned purposes;
	enum fp_right right; /* a client without it gets NOT_PERMITTED; 0: no right is needed */
	/*
	 * Handles the message. 0: it has answered, or will. -EPROTO: the message is malformed. Any
	 * other error becomes the answer, with conn->refusal.
	 */
	int (*handle)(struct fp_conn *conn);
	bool of_operators; /* true: an operator's session may send it, too */
} handlers[] = {
#define CONTROL (1u << FP_WIRE_CONTROL | 1u << FP_WIRE_RESUME)
#define LINK    (1u << FP_WIRE_LINK)
    [FP_WIRE_HELLO] = {"HELLO", FP_CONN_HELLO, 1u << 0, 0, fp_admission_hello, false},
    [FP_WIRE_AUTH] = {"AUTH", FP_CONN_AUTH, CONTROL | LINK, 0, fp_admission_auth, false},
    [FP_WIRE_PING] = {"PING", FP_CONN_OPEN, CONTROL | LINK, 0, handle_ping, true},
    [FP_WIRE_BYE] = {"BYE", FP_CONN_OPEN, CONTROL, 0, handle_bye, true},
    [FP_WIRE_LEASE] = {"LEASE", FP_CONN_OPEN, CONTROL, FP_RIGHT_LEASE, handle_lease, false},
    [FP_WIRE_RELEASE] = {"RELEASE", FP_CONN_OPEN, CONTROL, 0, handle_release, false},
    [FP_WIRE_ATTACH] = {"ATTACH", FP_CONN_OPEN, CONTROL, 0, handle_attach, false},
    [FP_WIRE_ADOPT] = {"ADOPT", FP_CONN_OPEN, CONTROL, FP_RIGHT_LEASE, handle_adopt, false},
    [FP_WIRE_INFO] = {"INFO", FP_CONN_OPEN, CONTROL, 0, handle_info, true},
    [FP_WIRE_STATUS] = {"STATUS", FP_CONN_OPEN, CONTROL, FP_RIGHT_STATUS, handle_status, true},
    [FP_WIRE_DRAIN] = {"DRAIN", FP_CONN_OPEN, CONTROL, FP_RIGHT_ADMIN, handle_drain, true},
    [FP_WIRE_UNDRAIN] = {"UNDRAIN", FP_CONN_OPEN, CONTROL, FP_RIGHT_ADMIN, handle_undrain, true},
    [FP_WIRE_QP] = {"QP", FP_CONN_OPEN, LINK, 0, handle_qp, false},
    [FP_WIRE_READ] = {"READ", FP_CONN_OPEN, LINK, 0, handle_read, false},
    [FP_WIRE_WRITE] = {"WRITE", FP_CONN_OPEN, LINK, 0, handle_write, false},
};

static void refuse_malformed(struct fp_conn *conn, const char *reason)
{
	const struct fp_refusal refusal = {.cause = FP_REFUSAL_PROTOCOL};

	fp_conn_refuse(conn, FP_WIRE_MALFORMED, &refusal, reason);
}

/* Links are another matter: a shard may serve them. */
static bool may_change_state(const struct fp_conn *conn, uint8_t type)
{
	return fp_conn_is_control(conn) && type != FP_WIRE_STATUS && type != FP_WIRE_INFO &&
	       type != FP_WIRE_PING;
}

/* The handler's result, or -EPERM if the client may not ask that. */
static int handle(struct fp_conn *conn, uint8_t type)
{
	enum fp_right right = handlers[type].right;

	conn->refusal = (struct fp_refusal){.cause = FP_REFUSAL_NONE};
	if (may_change_state(conn, type))
		conn->server->status.n_acts++;
	if (right && !may(conn, right))
		return refuse(conn, -EPERM, (struct fp_refusal){.cause = FP_REFUSAL_RIGHT, .limit = right});
	if (conn->session && conn->session->is_operator && !handlers[type].of_operators)
		return -EPERM; /* counted as "other": it met no limit */
	return handlers[type].handle(conn);
}

/* Names what was refused: "a lease of 64.0 MiB", "DRAIN". */
static const char *name_request(const struct fp_conn *conn, char *buf, size_t len)
{
	struct fp_wire_lease lease;
	char size[16];

	if (conn->inbox.header.type != FP_WIRE_LEASE ||
	    fp_wire_lease_decode(fp_inbox_payload(&conn->inbox), conn->inbox.header.length, &lease) < 0)
		return handlers[conn->inbox.header.type].name;
	snprintf(buf, len, "a lease of %s", fp_size_format(lease.size_bytes, size, sizeof(size)));
	return buf;
}

void fp_request_handle(struct fp_conn *conn)
{
	uint8_t type = conn->inbox.header.type;
	char text[48];
	int r;

	if (conn->session && fp_conn_is_control(conn)) /* a link confirmed it when it was attached */
		conn->session->unconfirmed = false;
	if (type >= FP_ARRAY_LEN(handlers) || !handlers[type].handle || handlers[type].state != conn->state ||
	    !(handlers[type].purposes & 1u << conn->hello.purpose)) {
		refuse_malformed(conn, "it sent a message out of turn");
		return;
	}
	r = handle(conn, type);
	if (r == -EPROTO) {
		snprintf(text, sizeof(text), "its %s is malformed", handlers[type].name);
		refuse_malformed(conn, text);
	} else if (r < 0) {
		answer_refusal(conn, &conn->inbox.header, r, name_request(conn, text, sizeof(text)));
	}
}
