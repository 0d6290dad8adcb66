/* See node_rig.h. */
#include "node_rig.h"

#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth.h"
#include "cleanup.h"
#include "log.h"

struct node_rig rig;

/* ---- allocations that fail: the linker sends our calls here ---- */

static _Thread_local unsigned n_until_failure; /* the worker's allocations never fail */
static bool is_watching;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);

static bool fails(void)
{
	return n_until_failure && --n_until_failure == 0;
}

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void rig_fail_allocation(unsigned nth)
{
	n_until_failure = nth;
	is_watching = nth;
}

bool rig_failed(void)
{
	return is_watching && !n_until_failure;
}

/* It walks all free pieces of the heap: the loop would stand still meanwhile. */
struct mallinfo2 mallinfo2(void)
{
	fail_msg("the node asks the allocator for its size");
	return (struct mallinfo2){0};
}

/* ---- the node ---- */

static void read_worker(void)
{
	fp_loop_read(&rig.server.own.loop, &rig.server.worker_op, fp_worker_fd(rig.server.worker),
	             &rig.server.worker_events, sizeof(rig.server.worker_events));
}

static void on_worker(struct fp_op *op, int res, unsigned flags)
{
	read_worker();
	rig.worker_is_done = true;
	if (!rig.hold_worker)
		fp_worker_reap(rig.server.worker);
}

void rig_release_worker(void)
{
	rig.hold_worker = false;
	fp_worker_reap(rig.server.worker);
}

void rig_use_up(const struct peer *peer)
{
	rig.hold_turns = true;
	fp_conn_charge(peer->conn, 1000 * (uint64_t)FP_TURN_BYTES);
}

int64_t rig_credit(const struct peer *peer)
{
	fp_conn_charge(peer->conn, 0); /* brings the credit up to this round */
	return peer->conn->session->client->turns[0].credit_bytes;
}

static void on_tick(struct fp_op *op, int res, unsigned flags)
{
	rig.server.ticking = false;
}

static void on_wake(struct fp_op *op, int res, unsigned flags)
{
	rig.waker_armed = false;
}

static void begin_round(struct fp_loop *loop)
{
	fp_shards_hold(&rig.server.shards);
}

static bool end_round(struct fp_loop *loop)
{
	if (!rig.hold_turns)
		fp_turns_round(&rig.server.own.turns, fp_conn_go_on);
	fp_shards_release(&rig.server.shards);
	fp_loop_stop(loop);
	return false;
}

void rig_round(void)
{
	static struct __kernel_timespec moment = {.tv_nsec = 200 * FP_NSEC_PER_USEC};

	if (!rig.waker_armed)
		fp_loop_timeout(&rig.server.own.loop, &rig.waker, &moment);
	rig.waker_armed = true;
	rig.server.own.loop.stopped = false;
	assert_int_equal(fp_loop_run(&rig.server.own.loop), 0);
}

void rig_rounds(unsigned n)
{
	while (n--)
		rig_round();
}

static void open_pool(struct fp_node_server *server)
{
	struct fp_pool_config *config = fp_config_add_pool(server->config);
	struct fp_conf_error error;

	config->name = strdup("main");
	config->size_bytes = POOL_BYTES;
	assert_int_equal(fp_pool_open(config, &rig.pool, &error), 0);
	fp_pools_init(&server->pools, 100);
	server->pools.items = &rig.pool;
	server->pools.n = 1;
}

int node_rig_setup(void **state)
{
	struct fp_node_server *server = &rig.server;
	struct fp_conf_error error;

	memset(&rig, 0, sizeof(rig));
	rig.listener = -1;
	rig.waker.done = on_wake;
	fp_log_init("test", FP_LOG_ERROR);
	server->config = fp_config_new();
	assert_non_null(server->config);
	server->options.config = server->config;
	server->notify.fd = -1;
	server->max_fds = 1000;
	server->start_ns = fp_clock_ns();
	server->worker_op.done = on_worker;
	server->tick_op.done = on_tick;
	fp_turns_init(&server->own.turns);
	TAILQ_INIT(&server->strangers.list);
	open_pool(server);
	assert_int_equal(fp_loop_init(&server->own.loop, &error), 0);
	server->own.loop.begin_round = begin_round;
	server->own.loop.between_rounds = end_round;
	assert_int_equal(fp_worker_start(&server->worker), 0);
	server->pools.worker = server->worker;
	read_worker();
	return 0;
}

void rig_start_shards(unsigned n)
{
	struct fp_conf_error error;

	assert_int_equal(fp_shards_start(&rig.server.shards, n, &error), 0);
}

/* Ends all connections and sessions. */
static void end_all(struct fp_node_server *server)
{
	struct fp_conn *conn;

	rig.hold_turns = false;
	if (rig.hold_worker)
		rig_release_worker();
	fp_shards_hold(&server->shards);
	LIST_FOREACH (conn, &server->conns, in_server)
		fp_conn_kill(conn);
	server->stopping = true; /* now no connection waits for its peer */
	fp_shards_release(&server->shards);
	AWAIT(server->n_conns == 0);
	fp_shards_stop(&server->shards);
	while (server->sessions.first)
		fp_node_session_end(&server->sessions, server->sessions.first);
}

static bool is_all_given_back(void)
{
	rig.server.pools.collected_ns = 0; /* as if the last collection was long ago */
	fp_pools_collect(&rig.server.pools);
	return rig.pool->used_bytes == 0 && rig.pool->leaving_bytes == 0;
}

int node_rig_teardown(void **state)
{
	struct fp_node_server *server = &rig.server;

	rig_fail_allocation(0);
	end_all(server);
	AWAIT(is_all_given_back());
	assert_int_equal(server->clients.n, 0);
	assert_int_equal(server->clients.n_conns, 0);
	assert_int_equal(server->strangers.origins.n, 0);
	assert_int_equal(server->strangers.origins.n_conns, 0);
	assert_int_equal(server->pools.n_shared, 0);
	fp_loop_done(&server->own.loop);
	fp_worker_stop(server->worker);
	fp_pools_done(&server->pools);
	fp_pool_close(rig.pool);
	free(server->status.text);
	fp_config_free(server->config);
	fp_cleanup_close(&rig.listener);
	return 0;
}

/* ---- connections ---- */

static struct peer peer_new(int fd, int node_fd)
{
	assert_int_equal(fp_conn_start(&rig.server, node_fd), 0);
	return (struct peer){.fd = fd, .passed_fd = -1, .conn = LIST_FIRST(&rig.server.conns)};
}

struct peer peer_connect_unix(void)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	return peer_new(fds[0], fds[1]);
}

struct peer peer_connect_tcp(void)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (rig.listener < 0) {
		rig.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_int_equal(bind(rig.listener, (struct sockaddr *)&in, sizeof(in)), 0);
		assert_int_equal(listen(rig.listener, 8), 0);
	}
	assert_int_equal(getsockname(rig.listener, (struct sockaddr *)&in, &len), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	return peer_new(fd, accept(rig.listener, NULL, NULL));
}

void peer_close(struct peer *peer)
{
	fp_cleanup_close(&peer->fd);
	fp_cleanup_close(&peer->passed_fd);
	peer->fd = peer->passed_fd = -1;
}

void peer_break(struct peer *peer)
{
	const struct linger reset = {.l_onoff = 1};

	assert_int_equal(setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	peer_close(peer);
}

/* ---- frames ---- */

void peer_send_bytes(const struct peer *peer, const void *bytes, size_t len)
{
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;
	size_t sent = 0;

	while (sent < len) {
		ssize_t n =
		    send(peer->fd, (const char *)bytes + sent, len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		assert_true(n >= 0 || errno == EAGAIN);
		sent += n > 0 ? (size_t)n : 0;
		if (sent < len)
			rig_round();
		assert_true(fp_clock_ns() < until_ns);
	}
}

size_t peer_encode(struct peer *peer, enum fp_wire_type type, const void *payload, size_t len,
                   uint8_t *ret_bytes)
{
	fp_wire_header_encode(type, FP_WIRE_OK, ++peer->tag, len, ret_bytes);
	if (len)
		memcpy(ret_bytes + FP_WIRE_HEADER_BYTES, payload, len);
	return FP_WIRE_HEADER_BYTES + len;
}

void peer_send(struct peer *peer, enum fp_wire_type type, const void *payload, size_t len)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING];

	assert_true(len <= FP_WIRE_MAX_PING);
	peer_send_bytes(peer, bytes, peer_encode(peer, type, payload, len, bytes));
}

static void take_fd(struct peer *peer, struct msghdr *msg)
{
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg);

	if (!cmsg)
		return;
	assert_int_equal(cmsg->cmsg_type, SCM_RIGHTS);
	assert_int_equal(peer->passed_fd, -1);
	memcpy(&peer->passed_fd, CMSG_DATA(cmsg), sizeof(int));
}

/* Receives len bytes. False: the stream ended before the first. */
static bool receive_bytes(struct peer *peer, uint8_t *ret_bytes, size_t len)
{
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;
	size_t have = 0;

	while (have < len) {
		char control[CMSG_SPACE(sizeof(int))];
		struct iovec iov = {ret_bytes + have, len - have};
		struct msghdr msg = {.msg_iov = &iov,
		                     .msg_iovlen = 1,
		                     .msg_control = control,
		                     .msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(peer->fd, &msg, MSG_DONTWAIT);

		if (n == 0) {
			assert_int_equal(have, 0);
			return false;
		}
		assert_true(n > 0 || errno == EAGAIN);
		assert_true(fp_clock_ns() < until_ns);
		if (n > 0) {
			have += (size_t)n;
			take_fd(peer, &msg);
		} else {
			rig_round();
		}
	}
	return true;
}

bool peer_receive(struct peer *peer, struct fp_wire_header *ret_header, const uint8_t **ret_payload)
{
	static uint8_t payload[FP_WIRE_MAX_PAYLOAD];
	uint8_t bytes[FP_WIRE_HEADER_BYTES];

	fp_cleanup_close(&peer->passed_fd);
	peer->passed_fd = -1;
	if (!receive_bytes(peer, bytes, sizeof(bytes)))
		return false;
	assert_int_equal(fp_wire_header_decode(bytes, ret_header), 0);
	if (ret_header->length)
		assert_true(receive_bytes(peer, payload, ret_header->length));
	*ret_payload = payload;
	return true;
}

const uint8_t *peer_expect(struct peer *peer, enum fp_wire_type type, size_t len)
{
	struct fp_wire_header header;
	const uint8_t *payload;

	assert_true(peer_receive(peer, &header, &payload));
	assert_int_equal(header.status, FP_WIRE_OK);
	assert_int_equal(header.type, type);
	assert_int_equal(header.tag, peer->tag);
	assert_int_equal(header.length, len);
	return payload;
}

void peer_expect_error(struct peer *peer, enum fp_wire_status status)
{
	peer_expect_refusal(peer, status, FP_REFUSAL_NONE);
}

struct fp_wire_refusal peer_expect_refusal(struct peer *peer, enum fp_wire_status status,
                                           enum fp_refusal_cause cause)
{
	struct fp_wire_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_wire_header header;
	const uint8_t *payload;

	assert_true(peer_receive(peer, &header, &payload));
	assert_int_equal(header.type, FP_WIRE_ERROR);
	assert_int_equal(header.status, status);
	assert_int_equal(header.tag, peer->tag);
	if (header.length)
		assert_int_equal(fp_wire_refusal_decode(payload, header.length, &refusal), 0);
	assert_int_equal(refusal.cause, cause);
	return refusal;
}

void peer_expect_end(struct peer *peer)
{
	uint8_t byte;

	assert_false(receive_bytes(peer, &byte, 1));
}

/* ---- pings ---- */

size_t peer_encode_pings(struct peer *peer, unsigned n, size_t len, uint8_t *ret_bytes)
{
	uint8_t payload[FP_WIRE_MAX_PING];
	size_t used = 0;

	for (unsigned i = 0; i < n; i++) {
		memset(payload, (int)i, sizeof(payload));
		used += peer_encode(peer, FP_WIRE_PING, payload, len, ret_bytes + used);
	}
	return used;
}

void peer_expect_pongs(struct peer *peer, unsigned n, size_t len)
{
	for (unsigned i = 0; i < n; i++) {
		struct fp_wire_header header;
		const uint8_t *payload;

		assert_true(peer_receive(peer, &header, &payload));
		assert_int_equal(header.type, FP_WIRE_PONG);
		assert_int_equal(header.tag, peer->tag - n + 1 + i);
		assert_int_equal(header.length, len);
		if (len) {
			assert_int_equal(payload[0], i);
			assert_int_equal(payload[len - 1], i);
		}
	}
}

void peer_ping(struct peer *peer)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];

	peer_send_bytes(peer, bytes, peer_encode_pings(peer, 1, 0, bytes));
	peer_expect_pongs(peer, 1, 0);
}

void peer_make_narrow(const struct peer *peer)
{
	int bytes = 1;

	assert_int_equal(setsockopt(peer->conn->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
	assert_int_equal(setsockopt(peer->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
}

/* ---- sessions ---- */

void peer_set_hello(struct peer *peer, enum fp_wire_purpose purpose, uint32_t features,
                    const struct peer *session)
{
	struct fp_wire_hello *hello = &peer->hello;

	*hello = (struct fp_wire_hello){.min_version = FP_WIRE_VERSION,
	                                .max_version = FP_WIRE_VERSION,
	                                .purpose = (uint8_t)purpose,
	                                .features = features};
	if (session) {
		hello->session_id = session->welcome.session_id;
		memcpy(hello->token, session->welcome.token, sizeof(hello->token));
	}
	fp_wire_name_set(hello->client_name, "peer");
}

void peer_send_hello(struct peer *peer)
{
	uint8_t bytes[sizeof(peer->hello)];

	fp_wire_hello_encode(&peer->hello, bytes);
	peer_send(peer, FP_WIRE_HELLO, bytes, sizeof(bytes));
}

void peer_send_auth(struct peer *peer, const struct fp_wire_challenge *challenge, const char *secret)
{
	uint8_t proof[FP_WIRE_PROOF_BYTES];

	assert_int_equal(fp_auth_prove_client(secret, &peer->hello, challenge, proof), 0);
	peer_send(peer, FP_WIRE_AUTH, proof, sizeof(proof));
}

void peer_shake_hands(struct peer *peer, const char *secret)
{
	struct fp_wire_challenge challenge;

	peer_send_hello(peer);
	assert_int_equal(fp_wire_challenge_decode(peer_expect(peer, FP_WIRE_CHALLENGE, sizeof(challenge)),
	                                          sizeof(challenge), &challenge),
	                 0);
	peer_send_auth(peer, &challenge, secret);
	assert_int_equal(fp_wire_welcome_decode(peer_expect(peer, FP_WIRE_WELCOME, sizeof(peer->welcome)),
	                                        sizeof(peer->welcome), &peer->welcome),
	                 0);
}

struct peer peer_open(bool over_tcp, uint32_t features)
{
	struct peer peer = over_tcp ? peer_connect_tcp() : peer_connect_unix();

	peer_set_hello(&peer, FP_WIRE_CONTROL, features, NULL);
	peer_shake_hands(&peer, NULL);
	return peer;
}

struct peer peer_open_link(const struct peer *control, bool over_tcp)
{
	struct peer peer = over_tcp ? peer_connect_tcp() : peer_connect_unix();

	peer_set_hello(&peer, FP_WIRE_LINK, 0, control);
	peer_shake_hands(&peer, NULL);
	return peer;
}

void peer_send_lease(struct peer *control, uint64_t size_bytes)
{
	const struct fp_wire_lease lease = {.size_bytes = size_bytes};
	uint8_t bytes[sizeof(lease)];

	fp_wire_lease_encode(&lease, bytes);
	peer_send(control, FP_WIRE_LEASE, bytes, sizeof(bytes));
}

/* RELEASE and ATTACH have the same payload. */
void peer_send_id(struct peer *control, enum fp_wire_type type, uint32_t lease_id)
{
	const struct fp_wire_release release = {.lease_id = lease_id};
	uint8_t bytes[sizeof(release)];

	fp_wire_release_encode(&release, bytes);
	peer_send(control, type, bytes, sizeof(bytes));
}

void peer_send_adopt(struct peer *child, const struct fp_wire_welcome *parent)
{
	struct fp_wire_adopt adopt = {.session_id = parent->session_id};
	uint8_t bytes[sizeof(adopt)];

	memcpy(adopt.token, parent->token, sizeof(adopt.token));
	fp_wire_adopt_encode(&adopt, bytes);
	peer_send(child, FP_WIRE_ADOPT, bytes, sizeof(bytes));
}

struct fp_wire_leased peer_expect_leased(struct peer *control, enum fp_wire_type type)
{
	struct fp_wire_leased leased;

	assert_int_equal(
	    fp_wire_leased_decode(peer_expect(control, type, sizeof(leased)), sizeof(leased), &leased), 0);
	return leased;
}

uint32_t peer_lease(struct peer *control, uint64_t size_bytes)
{
	struct fp_wire_leased leased;

	peer_send_lease(control, size_bytes);
	leased = peer_expect_leased(control, FP_WIRE_LEASED);
	assert_true(leased.size_bytes >= size_bytes);
	return leased.lease_id;
}

void peer_send_io(struct peer *link, enum fp_wire_type type, const struct fp_wire_seg *segs, unsigned n_segs,
                  const void *data)
{
	static uint8_t payload[FP_WIRE_MAX_PAYLOAD], bytes[MAX_FRAME];
	size_t len = fp_wire_table_encode(segs, n_segs, payload), data_bytes = 0;

	for (unsigned i = 0; data && i < n_segs; i++)
		data_bytes += segs[i].len_bytes;
	if (data)
		memcpy(payload + len, data, data_bytes);
	peer_send_bytes(link, bytes, peer_encode(link, type, payload, len + data_bytes, bytes));
}

void peer_write(struct peer *link, struct fp_wire_seg seg, const void *data)
{
	peer_send_io(link, FP_WIRE_WRITE, &seg, 1, data);
	peer_expect(link, FP_WIRE_WRITTEN, 0);
}

void peer_read(struct peer *link, struct fp_wire_seg seg, void *ret_data)
{
	peer_send_io(link, FP_WIRE_READ, &seg, 1, NULL);
	memcpy(ret_data, peer_expect(link, FP_WIRE_DATA, seg.len_bytes), seg.len_bytes);
}
