/*
 * A connection. Room: daemon; see conn.h.
 */
#include "conn.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "admission.h"
#include "cleanup.h"
#include "clock.h"
#include "handshake.h"
#include "holding.h"
#include "listen.h"
#include "log.h"
#include "request.h"
#include "node_server.h"
#include "cm_server.h"

#define CONTROL_REQUESTS 16 /* unanswered requests on a control connection, whose answers can be long */
/* How much a quiet connection receives at once: enough for a WRITE of one page. */
#define IDLE_BYTES      8192u
#define MIN_WAITING_FDS 8u
#define HELD_BYTES      (128u << 10) /* memory that the answers of one connection may hold, roughly */
/* What a connection receives at once while its client holds too much: the longest request. */
#define SCANTY_BYTES (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)

/*
 * Each piece of work has a fixed cost, in addition to the bytes that it copies. The cost is given
 * as a number of bytes: copying them would take the same time. Measured on loopback.
 */
#define REQUEST_COST 2048u
#define SEND_COST    16384u
#define END_COST     32768u

bool fp_conn_is_control(const struct fp_conn *conn)
{
	return conn->hello.purpose == FP_WIRE_CONTROL || conn->hello.purpose == FP_WIRE_RESUME;
}

static bool wants_input(const struct fp_conn *conn)
{
	return conn->state != FP_CONN_CLOSING && conn->state != FP_CONN_KILLED;
}

/*
 * True if input has to wait: too many requests are unanswered, their answers hold too much memory,
 * or a lease is being made.
 */
static bool is_paused(const struct fp_conn *conn)
{
	uint64_t limit = conn->server->config->limits.max_requests;

	if (conn->hello.purpose != FP_WIRE_LINK && limit > CONTROL_REQUESTS)
		limit = CONTROL_REQUESTS;
	return conn->leasing || conn->outbox.n >= limit ||
	       conn->outbox.held_bytes >= (fp_holding_is_scanty(conn) ? 1 : HELD_BYTES);
}

/*
 * The work of a connection is charged to the client of its session. Without a session, it is
 * charged to all strangers together.
 */
static struct fp_turn_client *client_of(const struct fp_conn *conn)
{
	struct fp_shard *shard = conn->shard;

	return conn->session ? &conn->session->client->turns[shard->idx] : &shard->nobody;
}

/*
 * True if the connection may do a piece of work now. If not, the loop calls fp_conn_settle when the
 * turn of the connection comes.
 */
static bool take_turn(struct fp_conn *conn)
{
	return fp_turn_take(&conn->shard->turns, &conn->turn, client_of(conn));
}

void fp_conn_charge(const struct fp_conn *conn, uint64_t bytes)
{
	fp_turn_charge(&conn->shard->turns, client_of(conn), bytes);
}

static void refuse_frame(struct fp_conn *conn, int r)
{
	const struct fp_refusal refusal = {.cause = FP_REFUSAL_PROTOCOL};

	conn->inbox.header = (struct fp_wire_header){0};
	if (r == -EPROTONOSUPPORT)
		fp_conn_refuse(conn, FP_WIRE_VERSION_GAP, &refusal,
		               "it speaks another version of the protocol");
	else
		fp_conn_refuse(conn, FP_WIRE_MALFORMED, &refusal,
		               "it sent a frame that is not of the protocol");
}

/* Consumes up to len bytes: the head of one frame, or data of one WRITE. */
static size_t feed_some(struct fp_conn *conn, const uint8_t *bytes, size_t len)
{
	size_t used;
	int r;

	if (conn->write.active)
		return fp_request_write_data(conn, bytes, len);
	r = fp_inbox_feed(&conn->inbox, bytes, len, &used);
	if (r < 0)
		refuse_frame(conn, r);
	else if (r == 1) {
		fp_conn_charge(conn, REQUEST_COST);
		fp_request_handle(conn);
		fp_inbox_next(&conn->inbox);
	}
	return used;
}

/* Returns the bytes consumed: all of them, unless the connection pauses or its turn ends. */
static size_t feed(struct fp_conn *conn, const uint8_t *bytes, size_t len)
{
	size_t used = 0;

	while (used < len && wants_input(conn) && (conn->write.active || !is_paused(conn)) && take_turn(conn))
		used += feed_some(conn, bytes + used, len - used);
	return wants_input(conn) ? used : len;
}

static void stash(struct fp_conn *conn, const uint8_t *bytes, size_t len)
{
	if (!len)
		return;
	conn->stash = malloc(len);
	if (!conn->stash) {
		fp_conn_kill(conn);
		return;
	}
	memcpy(conn->stash, bytes, len);
	conn->stash_bytes = len;
}

static void input(struct fp_conn *conn, const uint8_t *bytes, size_t len)
{
	size_t used;

	fp_conn_charge(conn, len);
	used = feed(conn, bytes, len);
	stash(conn, bytes + used, len - used);
}

static void drop_stash(struct fp_conn *conn)
{
	free(conn->stash);
	conn->stash = NULL;
	conn->stash_bytes = conn->stash_off = 0;
}

static void feed_stash(struct fp_conn *conn)
{
	conn->stash_off += feed(conn, conn->stash + conn->stash_off, conn->stash_bytes - conn->stash_off);
	if (conn->stash_off == conn->stash_bytes)
		drop_stash(conn);
}

/*
 * Kills a connection that its peer did not close: the network broke it, the peer fell silent, or
 * the rdma device went away. It is not meant for the end of a client's process: the kernel then
 * closes the sockets, and we see an end of file.
 */
void fp_conn_cut(struct fp_conn *conn)
{
	if (conn->state != FP_CONN_KILLED)
		conn->cut = true;
	fp_conn_kill(conn);
}

static void on_recv(struct fp_op *op, int res, unsigned flags)
{
	struct fp_conn *conn = fp_container_of(op, struct fp_conn, recv_op);
	struct fp_loop *loop = &conn->shard->loop;

	conn->receiving = false;
	conn->recv_bytes = res == (int)conn->recv_bytes ? FP_LOOP_BUF_BYTES : IDLE_BYTES;
	if (res > 0) {
		conn->heard_ns = fp_clock_ns();
		fp_holding_received(conn, (size_t)res);
		input(conn, fp_loop_buf(loop, flags), (size_t)res);
	} else if (res != -ENOBUFS && res != -EINTR) {
		conn->eof = true;
		if (res < 0)
			fp_conn_cut(conn);
	}
	if (flags & IORING_CQE_F_BUFFER)
		fp_loop_buf_put(loop, flags);
	fp_conn_settle(conn);
}

/*
 * Receives at most one buffer at a time. If a peer sends more than we serve, the rest waits in the
 * kernel. Thousands of quiet connections may send at once, and we hold the received bytes of each
 * until its turn comes. So a quiet connection receives less than a whole buffer.
 */
static void start_recv(struct fp_conn *conn)
{
	struct io_uring_sqe *sqe = fp_loop_sqe(&conn->shard->loop);

	if (fp_holding_is_scanty(conn))
		conn->recv_bytes = FP_MIN(conn->recv_bytes, SCANTY_BYTES);
	io_uring_prep_recv(sqe, conn->fd, NULL, conn->recv_bytes, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = 0;
	fp_loop_sqe_set(sqe, &conn->recv_op);
	conn->receiving = true;
}

/* ---- descriptors on their way ---- */

/* Once the peer has received all our bytes, it has received the descriptors too. */
static bool owes_fds(struct fp_conn *conn)
{
	int unread_bytes = 0;

	if (conn->fds_out && !conn->outbox.n && !conn->leasing &&
	    ioctl(conn->fd, SIOCOUTQ, &unread_bytes) == 0 && !unread_bytes)
		conn->fds_out = 0;
	return conn->fds_out;
}

int fp_conn_promise_fd(struct fp_conn *conn, struct fp_refusal *refusal)
{
	const struct fp_client *client = conn->client;
	uint64_t max = FP_MAX(conn->server->max_fds / 4, MIN_WAITING_FDS);
	uint64_t share = fp_client_share(client, max);

	*refusal =
	    (struct fp_refusal){.cause = FP_REFUSAL_UNRECEIVED, .limit = FP_CONN_FDS, .used = FP_CONN_FDS};
	if (owes_fds(conn) && conn->fds_out == FP_CONN_FDS)
		return -ENOSPC;
	*refusal = (struct fp_refusal){.cause = FP_REFUSAL_UNRECEIVED,
	                               .by_files = true,
	                               .limit = max,
	                               .used = client->clients->n_waiting_fds};
	if (client->clients->n_waiting_fds >= max)
		return -ENOSPC;
	refusal->is_share = true;
	refusal->limit = share;
	refusal->used = client->n_waiting_fds;
	if (client->n_waiting_fds >= share)
		return -ENOSPC;
	refusal->cause = FP_REFUSAL_NONE;
	conn->fds_out++;
	return 0;
}

/* ---- sending ---- */

static void free_iov(struct fp_conn *conn)
{
	if (conn->iov != conn->few)
		free(conn->iov);
	conn->iov = conn->few;
}

/* Makes room for what the outbox has, unless there is no memory. Returns for how many vectors. */
static unsigned make_iov(struct fp_conn *conn)
{
	struct iovec *many = NULL;

	if (conn->outbox.n > FP_CONN_FEW_IOVS || conn->outbox.first->n_parts > FP_CONN_FEW_IOVS ||
	    conn->outbox.last->n_parts > FP_CONN_FEW_IOVS / 2)
		many = malloc(FP_CONN_IOVS * sizeof(*many));
	conn->iov = many ? many : conn->few;
	return many ? FP_CONN_IOVS : FP_CONN_FEW_IOVS;
}

static void on_sent(struct fp_op *op, int res, unsigned flags)
{
	struct fp_conn *conn = fp_container_of(op, struct fp_conn, send_op);

	conn->sending = false;
	free_iov(conn);
	if (conn->passing && res == -ETOOMANYREFS)
		fp_node_server_log_peer(conn->server, conn,
		                        "no descriptor can be passed to it, as processes of this user have "
		                        "too many on their way (LimitNOFILE=)");
	if (res >= 0) {
		fp_holding_sent(conn, (size_t)res);
		fp_outbox_advance(&conn->outbox, (size_t)res);
		if (conn->state == FP_CONN_CLOSING)
			conn->since_ns = fp_clock_ns(); /* a slow reader is none that reads nothing */
	} else if (res == -EPIPE && conn->eof) /* the peer has closed the connection: this is no break */
		fp_conn_kill(conn);
	else if (res != -EINTR && res != -EAGAIN)
		fp_conn_cut(conn);
	fp_conn_settle(conn);
}

static void pass_fd(struct fp_conn *conn, int fd)
{
	struct cmsghdr *cmsg;

	conn->msg.msg_control = conn->control.buf;
	conn->msg.msg_controllen = sizeof(conn->control.buf);
	cmsg = CMSG_FIRSTHDR(&conn->msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
}

static void start_send(struct fp_conn *conn)
{
	struct io_uring_sqe *sqe = fp_loop_sqe(&conn->shard->loop);
	unsigned max = make_iov(conn);
	int fd;

	fp_holding_fit_socket(conn);
	conn->msg = (struct msghdr){.msg_iov = conn->iov};
	conn->msg.msg_iovlen = fp_outbox_gather(&conn->outbox, conn->iov, max, FP_TURN_BYTES, &fd);
	conn->passing = fd >= 0;
	if (conn->passing)
		pass_fd(conn, fd);
	for (size_t i = 0; i < conn->msg.msg_iovlen; i++)
		fp_conn_charge(conn, conn->iov[i].iov_len);
	fp_conn_charge(conn, SEND_COST);
	io_uring_prep_sendmsg(sqe, conn->fd, &conn->msg, MSG_NOSIGNAL);
	fp_loop_sqe_set(sqe, &conn->send_op);
	conn->sending = true;
}

static bool is_unix_socket(int fd)
{
	int domain = 0;
	socklen_t len = sizeof(domain);

	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX;
}

static void know_peer(struct fp_conn *conn)
{
	conn->is_unix = is_unix_socket(conn->fd);
	fp_listen_peer_name(conn->fd, conn->peer, sizeof(conn->peer));
	if (!conn->is_unix)
		fp_handshake_keep_alive(conn->fd);
}

static struct fp_conn *conn_new(struct fp_node_server *server, int fd)
{
	fp_autofree struct fp_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->server = server;
	conn->shard = &server->own;
	conn->fd = fd;
	conn->recv_bytes = IDLE_BYTES;
	conn->iov = conn->few;
	conn->recv_op.done = on_recv;
	conn->send_op.done = on_sent;
	conn->since_ns = conn->heard_ns = fp_clock_ns();
	know_peer(conn);
	if (fp_stranger_add(conn) < 0)
		return NULL;
	return fp_take_ptr(conn);
}

int fp_conn_start(struct fp_node_server *server, int fd)
{
	struct fp_conn *conn = conn_new(server, fd);

	if (!conn) {
		close(fd);
		return -ENOMEM;
	}
	LIST_INSERT_HEAD(&server->conns, conn, in_server);
	server->n_conns++;
	fp_conn_settle(conn);
	return 0;
}

void fp_conn_enter(struct fp_conn *conn, struct fp_node_session *session)
{
	if (conn->session)
		LIST_REMOVE(conn, in_session);
	conn->session = session;
	if (session)
		LIST_INSERT_HEAD(&session->conns, conn, in_session);
}

void fp_conn_answer(struct fp_conn *conn, struct fp_reply *reply)
{
	if (!reply)
		fp_conn_kill(conn);
	else if (conn->state == FP_CONN_KILLED)
		fp_reply_free(reply);
	else
		fp_outbox_push(&conn->outbox, reply);
}

void fp_conn_answer_error(struct fp_conn *conn, const struct fp_wire_header *request,
                          enum fp_wire_status status, const struct fp_refusal *refusal)
{
	fp_conn_answer(conn, fp_reply_new_error(request, status, refusal));
}

/*
 * Returns the refusal that goes into the answer. A peer that could not read one gets none: it does
 * not speak the protocol, or only versions in which an ERROR is empty.
 */
static const struct fp_refusal *sendable(const struct fp_conn *conn, const struct fp_refusal *refusal)
{
	if (refusal->cause == FP_REFUSAL_PROTOCOL ||
	    (refusal->cause == FP_REFUSAL_VERSION && conn->hello.max_version < FP_WIRE_REFUSES))
		return NULL;
	return refusal;
}

static const char *name_wish(const struct fp_conn *conn)
{
	return conn->hello.purpose == FP_WIRE_LINK ? "a link" : "a session";
}

void fp_conn_refuse(struct fp_conn *conn, enum fp_wire_status status, const struct fp_refusal *refusal,
                    const char *reason)
{
	conn->shard->counters.refused++;
	fp_node_server_refused(conn->server, conn, refusal, reason ? NULL : name_wish(conn));
	if (reason)
		fp_node_server_log_peer(conn->server, conn, reason);
	fp_conn_answer_error(conn, &conn->inbox.header, status, sendable(conn, refusal));
	fp_conn_close(conn);
}

void fp_conn_close(struct fp_conn *conn)
{
	if (conn->state == FP_CONN_KILLED)
		return;
	conn->state = FP_CONN_CLOSING;
	conn->since_ns = fp_clock_ns();
}

void fp_conn_kill(struct fp_conn *conn)
{
	struct fp_shard *shard = conn->shard;

	if (conn->state == FP_CONN_KILLED)
		return;
	conn->state = FP_CONN_KILLED;
	shutdown(conn->fd, SHUT_RDWR);
	/*
	 * A killed connection waits for its turn among the strangers, because its session may end
	 * before that turn.
	 */
	fp_turn_leave(&shard->turns, &conn->turn);
	fp_turn_wait(&shard->turns, &conn->turn, &shard->nobody);
}

static void conn_free(struct fp_conn *conn)
{
	fp_turn_leave(&conn->shard->turns, &conn->turn);
	fp_request_write_abandon(conn);
	fp_outbox_clear(&conn->outbox);
	free_iov(conn);
	fp_admission_end_trust(conn);
	fp_conn_give(conn, NULL, FP_CONN_PLACE_NONE);
	LIST_REMOVE(conn, in_server);
	fp_holding_end(conn);
	close(conn->fd);
	drop_stash(conn);
	fp_cm_server_link_close(conn->cm_link);
	fp_node_server_conn_ended(conn->server, conn);
	free(conn);
}

static bool is_finished(const struct fp_conn *conn)
{
	if (conn->receiving || conn->sending || conn->leasing)
		return false;
	return conn->state == FP_CONN_KILLED ||
	       (conn->state == FP_CONN_CLOSING && conn->eof && !conn->outbox.n);
}

/*
 * True if the connection must stay for now, because descriptors or answers are in flight. Over a
 * UNIX socket the kernel counts them as ours until the peer receives them or closes. Over tcp they
 * would be lost, and a peer that has half-closed still reads. Meanwhile the connection keeps its
 * place, and gives back everything else. A stopping node does not wait.
 */
static bool lingers(struct fp_conn *conn)
{
	if (conn->server->stopping || (!owes_fds(conn) && !fp_holding_outlives(conn)))
		return false;
	if (conn->is_unix)
		fp_conn_kill(conn);
	fp_request_write_abandon(conn);
	fp_outbox_clear(&conn->outbox);
	fp_node_server_session_left(conn->server, conn);
	return true;
}

static void settle_input(struct fp_conn *conn)
{
	if (conn->stash_bytes && wants_input(conn))
		feed_stash(conn);
	if (!wants_input(conn))
		drop_stash(conn);
	if (conn->eof && wants_input(conn) && !conn->stash_bytes) {
		if (conn->inbox.have_bytes || conn->write.active)
			fp_node_server_log_peer(conn->server, conn, "it went away in the middle of a frame");
		fp_conn_close(conn);
	}
}

static void settle_recv(struct fp_conn *conn)
{
	bool wanted = !conn->eof && conn->state != FP_CONN_KILLED && !conn->stash_bytes &&
	              (!wants_input(conn) || !is_paused(conn));

	if (wanted && !conn->receiving && take_turn(conn))
		start_recv(conn);
}

static void settle_send(struct fp_conn *conn)
{
	if (conn->sending || conn->state == FP_CONN_KILLED)
		return;
	if (conn->outbox.n) {
		if (take_turn(conn))
			start_send(conn);
	} else if (conn->state == FP_CONN_CLOSING && !conn->leasing && !conn->half_closed) {
		conn->half_closed = true;
		shutdown(conn->fd, SHUT_WR);
	}
}

/*
 * True if the connection may end now. Thousands of sessions may end at once, so each waits for its
 * turn. A stranger never waits, and nor does a link whose session has ended.
 */
static bool may_end(struct fp_conn *conn)
{
	if (!conn->session)
		return true;
	if (!take_turn(conn))
		return false;
	fp_conn_charge(conn, END_COST);
	if (fp_conn_is_control(conn)) /* the session ends too */
		fp_conn_charge(conn, FP_LEASE_COST * conn->session->leases.capacity);
	return true;
}

/*
 * Frees a connection that has ended, if nothing of it is in flight. A shard may do neither, because
 * the lists and counts of connections belong to the main loop.
 */
static void end(struct fp_conn *conn)
{
	if (conn->shard != &conn->server->own) {
		fp_turn_leave(&conn->shard->turns, &conn->turn);
		fp_shard_give_back(conn);
	} else if (!lingers(conn)) {
		conn_free(conn);
	}
}

void fp_conn_return(struct fp_conn *conn)
{
	fp_holding_drop(conn);
	conn->shard = &conn->server->own;
	fp_holding_count(conn);
	end(conn);
}

/*
 * True if the connection has become a link that a shard's thread will serve. A receive of the main
 * loop ends only when the peer sends something, so until then the main loop goes on to serve it.
 */
static bool moves(const struct fp_conn *conn)
{
	return conn->shard == &conn->server->own && conn->server->shards.n && conn->state == FP_CONN_OPEN &&
	       conn->hello.purpose == FP_WIRE_LINK && conn->session && !conn->session->cm_peer &&
	       !conn->receiving;
}

/* Moves once the send of the main loop has ended. Until then nothing new begins. */
static void move(struct fp_conn *conn)
{
	if (conn->sending)
		return;
	fp_turn_leave(&conn->shard->turns, &conn->turn);
	fp_holding_drop(conn);
	fp_shards_move(&conn->server->shards, conn);
}

void fp_conn_settle(struct fp_conn *conn)
{
	if (moves(conn)) {
		move(conn);
		return;
	}
	settle_input(conn);
	fp_holding_count(conn);
	settle_recv(conn);
	settle_send(conn);
	if (is_finished(conn) && may_end(conn))
		end(conn);
}

void fp_conn_go_on(struct fp_turn *turn)
{
	fp_conn_settle(fp_container_of(turn, struct fp_conn, turn));
}

/* True if the peer was silent for too long. Silence does not count while the connection waits for a
 * lease or its turn. */
static bool is_silent(struct fp_conn *conn, uint64_t now_ns)
{
	uint64_t limit_ns = conn->session->idle_timeout_ns;

	if (!fp_conn_is_control(conn) || conn->is_unix || !limit_ns)
		return false;
	if (conn->leasing || conn->turn.client)
		conn->heard_ns = now_ns;
	return now_ns - conn->heard_ns > limit_ns;
}

void fp_conn_forgive(struct fp_conn *conn, uint64_t now_ns, uint64_t stalled_ns)
{
	conn->heard_ns = FP_MIN(conn->heard_ns + stalled_ns, now_ns);
	conn->since_ns = FP_MIN(conn->since_ns + stalled_ns, now_ns);
}

void fp_conn_tick(struct fp_conn *conn, uint64_t now_ns)
{
	bool late = now_ns - conn->since_ns > conn->server->config->limits.handshake_timeout_ns;
	size_t before_bytes = conn->queued_bytes;

	fp_holding_tick(conn);
	if (conn->state == FP_CONN_CLOSING && conn->queued_bytes < before_bytes) {
		conn->since_ns = now_ns; /* it reads */
		late = false;
	}
	if (conn->state == FP_CONN_KILLED || (conn->state == FP_CONN_CLOSING && conn->eof && !late)) {
		if (!conn->turn.client) /* it lingers */
			fp_turn_wait(&conn->shard->turns, &conn->turn, &conn->shard->nobody);
	} else if (conn->state == FP_CONN_OPEN) {
		if (!is_silent(conn, now_ns))
			return;
		fp_node_server_log_peer(conn->server, conn, "it was silent for longer than idle_timeout");
		fp_conn_cut(conn);
	} else if (late && conn->state == FP_CONN_CLOSING) {
		fp_conn_kill(conn); /* the peer closes nothing, or reads nothing */
	} else if (late) {
		fp_node_server_log_peer(conn->server, conn, "it did not finish the handshake in time");
		fp_conn_kill(conn);
	}
}
