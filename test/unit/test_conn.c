/*
 * A connection of the node: it takes frames however they are cut, waits while too many answers are
 * unsent, and takes turns with others. How it ends: test_conn_end.c. Peers are real sockets.
 */
#include "node_rig.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"

#define N_PINGS        20
#define STATE_OF(peer) ((peer)->conn->state)

static void start_over(struct peer *peer, bool over_tcp)
{
	*peer = over_tcp ? peer_connect_tcp() : peer_connect_unix();
	peer_set_hello(peer, FP_WIRE_CONTROL, 0, NULL);
}

/* ---- frames ---- */

/* The whole handshake and a PING, each byte in a round of its own. */
static void test_single_bytes(void **state)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_hello)],
	    hello[sizeof(struct fp_wire_hello)];
	struct fp_wire_challenge challenge;
	struct peer peer;
	size_t len;

	start_over(&peer, false);
	fp_wire_hello_encode(&peer.hello, hello);
	len = peer_encode(&peer, FP_WIRE_HELLO, hello, sizeof(hello), bytes);
	for (size_t i = 0; i < len; i++) {
		assert_int_equal(STATE_OF(&peer), FP_CONN_HELLO);
		peer_send_bytes(&peer, bytes + i, 1);
		AWAIT(peer.conn->inbox.have_bytes == (i + 1) % len);
	}
	assert_int_equal(fp_wire_challenge_decode(peer_expect(&peer, FP_WIRE_CHALLENGE, sizeof(challenge)),
	                                          sizeof(challenge), &challenge),
	                 0);
	peer_send_auth(&peer, &challenge, NULL);
	peer_expect(&peer, FP_WIRE_WELCOME, sizeof(struct fp_wire_welcome));
	len = peer_encode_pings(&peer, 1, 3, bytes);
	for (size_t i = 0; i < len; i++) {
		peer_send_bytes(&peer, bytes + i, 1);
		AWAIT(peer.conn->inbox.have_bytes == (i + 1) % len);
	}
	peer_expect_pongs(&peer, 1, 3);
	peer_close(&peer);
}

/* Two frames are cut at each place in turn. */
static void test_every_cut(void **state)
{
	struct peer peer = peer_open(false, 0);
	uint8_t bytes[2 * (FP_WIRE_HEADER_BYTES + 5)];

	for (size_t cut = 1; cut < sizeof(bytes); cut++) {
		assert_int_equal(peer_encode_pings(&peer, 2, 5, bytes), sizeof(bytes));
		peer_send_bytes(&peer, bytes, cut);
		AWAIT(peer.conn->inbox.have_bytes == cut % (sizeof(bytes) / 2));
		peer_send_bytes(&peer, bytes + cut, sizeof(bytes) - cut);
		peer_expect_pongs(&peer, 2, 5);
	}
	peer_close(&peer);
}

/* Frames of the greatest length, one after the other: more than one receive can take. */
static void test_many_long_frames(void **state)
{
	static uint8_t bytes[200 * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)];
	struct peer peer = peer_open(true, 0);
	size_t len = peer_encode_pings(&peer, 200, FP_WIRE_MAX_PING, bytes);

	peer_send_bytes(&peer, bytes, len);
	peer_expect_pongs(&peer, 200, FP_WIRE_MAX_PING);
	peer_close(&peer);
}

static void refuse(const void *bytes, size_t len, enum fp_wire_status status, uint64_t tag)
{
	struct peer peer = peer_open(false, 0);
	uint64_t refused = rig.server.own.counters.refused;

	peer_send_bytes(&peer, bytes, len);
	peer.tag = tag;
	peer_expect_error(&peer, status);
	peer_expect_end(&peer);
	assert_int_equal(rig.server.own.counters.refused, refused + 1);
	assert_int_equal(STATE_OF(&peer), FP_CONN_CLOSING);
	/* what follows is received and dropped, until the peer closes */
	peer_send_bytes(&peer, bytes, len);
	AWAIT(peer.conn->receiving);
	assert_int_equal(rig.server.own.counters.refused, refused + 1);
	peer_close(&peer);
	AWAIT(rig.server.n_conns == 0);
}

/* A PING's header, with one byte changed. */
static void refuse_changed(size_t at, uint8_t byte, enum fp_wire_status status)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];

	fp_wire_header_encode(FP_WIRE_PING, FP_WIRE_OK, 7, FP_WIRE_MAX_PING, bytes);
	bytes[at] = byte;
	refuse(bytes, sizeof(bytes), status, 0);
}

/*
 * A frame that is not understood ends the connection. Its tag means nothing, so the answer's tag is
 * 0.
 */
static void test_refused_frames(void **state)
{
	const size_t length = offsetof(struct fp_wire_header, length);

	refuse_changed(0, 0, FP_WIRE_MALFORMED); /* the magic */
	refuse_changed(offsetof(struct fp_wire_header, version), FP_WIRE_VERSION + 1, FP_WIRE_VERSION_GAP);
	refuse_changed(offsetof(struct fp_wire_header, type), FP_WIRE_PONG, FP_WIRE_MALFORMED);
	refuse_changed(length, 1, FP_WIRE_MALFORMED); /* longer than a PING may be */
	refuse_changed(length + 3, 0x80, FP_WIRE_MALFORMED);
}

/* The frames before a refused one are answered, the frames behind it are not. */
static void test_answers_before_a_refusal(void **state)
{
	uint8_t bytes[5 * FP_WIRE_HEADER_BYTES];
	struct peer peer = peer_open(false, 0);

	peer_encode_pings(&peer, 5, 0, bytes);
	bytes[3 * FP_WIRE_HEADER_BYTES] ^= 1;
	peer_send_bytes(&peer, bytes, sizeof(bytes));
	peer.tag -= 2;
	peer_expect_pongs(&peer, 3, 0);
	peer.tag = 0;
	peer_expect_error(&peer, FP_WIRE_MALFORMED);
	peer_expect_end(&peer);
	peer_close(&peer);
}

/* ---- too many unsent answers ---- */

/*
 * Sends n PINGs and reads no answer at first. Returns the greatest number of answers that were
 * unsent at the same time.
 */
static unsigned flood(struct peer *peer, unsigned n, size_t len, size_t *ret_held_bytes)
{
	static uint8_t bytes[200 * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)];
	size_t total = peer_encode_pings(peer, n, len, bytes), sent = 0;
	unsigned most = 0;

	*ret_held_bytes = 0;
	for (unsigned idle = 0; idle < 3 * N_IDLE_ROUNDS; idle++) {
		ssize_t r = send(peer->fd, bytes + sent, total - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (r > 0) {
			sent += (size_t)r;
			idle = 0;
		}
		rig_round();
		most = FP_MAX(most, peer->conn->outbox.n);
		*ret_held_bytes = FP_MAX(*ret_held_bytes, peer->conn->outbox.held_bytes);
	}
	assert_false(peer->conn->receiving); /* the rest stays in the peer's socket */
	peer_send_bytes(peer, bytes + sent, 0);
	for (unsigned i = 0; sent < total; i++) {
		struct fp_wire_header header;
		const uint8_t *payload;
		ssize_t r;

		assert_true(peer_receive(peer, &header, &payload));
		assert_int_equal(header.tag, peer->tag - n + 1 + i);
		r = send(peer->fd, bytes + sent, total - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		sent += r > 0 ? (size_t)r : 0;
	}
	return most;
}

static void expect_last_pong(struct peer *peer)
{
	struct fp_wire_header header;
	const uint8_t *payload;

	do
		assert_true(peer_receive(peer, &header, &payload));
	while (header.tag != peer->tag);
	peer_ping(peer);
}

/* A control connection has at most 16 unanswered requests, or max_requests if that is less. */
static void test_limit_of_a_control_connection(void **state)
{
	static const unsigned limits[] = {256, 16, 3};

	for (size_t i = 0; i < FP_ARRAY_LEN(limits); i++) {
		struct peer peer = peer_open(false, 0);
		size_t held_bytes;

		rig.server.config->limits.max_requests = limits[i];
		peer_make_narrow(&peer);
		assert_int_equal(flood(&peer, 150, 2000, &held_bytes), FP_MIN(limits[i], 16u));
		expect_last_pong(&peer);
		peer_close(&peer);
	}
}

/*
 * A link has at most max_requests unsent answers. These hold at most 128 KiB, or one answer more.
 */
static void test_limits_of_a_link(void **state)
{
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);
	size_t held_bytes;

	rig.server.config->limits.max_requests = 100;
	peer_make_narrow(&link);
	assert_int_equal(flood(&link, 200, 100, &held_bytes), 100);
	expect_last_pong(&link);
	assert_in_range(flood(&link, 150, FP_WIRE_MAX_PING, &held_bytes), 20, 40);
	assert_in_range(held_bytes, 128u << 10, (128u << 10) + FP_WIRE_MAX_PING + 200);
	expect_last_pong(&link);
	peer_close(&link);
	peer_close(&control);
}

/*
 * At the limit of one unsent answer, nothing more is received, and nothing that has arrived is
 * handled.
 */
static void test_nothing_is_received_at_the_limit(void **state)
{
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);
	struct fp_wire_seg seg = {.lease_id = peer_lease(&control, MIB), .len_bytes = FP_WIRE_MAX_SEG_BYTES};
	uint8_t bytes[FP_WIRE_HEADER_BYTES];

	rig.server.config->limits.max_requests = 1;
	peer_make_narrow(&link);
	peer_send_io(&link, FP_WIRE_READ, &seg, 1, NULL);
	AWAIT(link.conn->sending);
	peer_send_bytes(&link, bytes, peer_encode_pings(&link, 1, 0, bytes));
	rig_rounds(N_IDLE_ROUNDS);
	assert_false(link.conn->receiving);
	assert_int_equal(link.conn->outbox.n, 1);
	link.tag--;
	peer_expect(&link, FP_WIRE_DATA, FP_WIRE_MAX_SEG_BYTES);
	link.tag++;
	peer_expect_pongs(&link, 1, 0);
	peer_close(&link);
	peer_close(&control);
}

/* A quiet connection takes a part of a receive buffer, and a busy one all of it. */
static void test_size_of_a_receive(void **state)
{
	static uint8_t bytes[12 * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)];
	struct peer peer = peer_open(false, 0);
	unsigned most = 0;

	AWAIT(peer.conn->receiving);
	assert_int_equal(peer.conn->recv_bytes, 8192);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 12, FP_WIRE_MAX_PING, bytes));
	for (unsigned i = 0; i < N_IDLE_ROUNDS; i++) {
		most = FP_MAX(most, peer.conn->recv_bytes);
		rig_round();
	}
	peer_expect_pongs(&peer, 12, FP_WIRE_MAX_PING);
	peer_ping(&peer);
	assert_int_equal(most, FP_LOOP_BUF_BYTES);
	assert_int_equal(peer.conn->recv_bytes, 8192);
	peer_close(&peer);
}

/* One send takes as much as a turn allows, however long the answer is. */
static void test_size_of_a_send(void **state)
{
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);
	uint32_t id = peer_lease(&control, 8 * MIB);
	struct fp_wire_seg segs[FP_WIRE_MAX_SEGS];
	size_t sum = 0;

	for (unsigned i = 0; i < FP_WIRE_MAX_SEGS; i++)
		segs[i] = (struct fp_wire_seg){.lease_id = id, .len_bytes = FP_WIRE_MAX_SEG_BYTES};
	peer_make_narrow(&link);
	peer_send_io(&link, FP_WIRE_READ, segs, FP_WIRE_MAX_SEGS, NULL);
	AWAIT(link.conn->sending);
	for (size_t i = 0; i < link.conn->msg.msg_iovlen; i++)
		sum += link.conn->iov[i].iov_len;
	assert_int_equal(sum, FP_TURN_BYTES);
	peer_close(&link);
	peer_close(&control);
}

/*
 * Requests that arrived beyond the limit are kept and answered, also after the peer's end of file.
 */
static void test_kept_requests_are_answered(void **state)
{
	uint8_t bytes[N_PINGS * FP_WIRE_HEADER_BYTES];
	struct peer peer = peer_open(true, 0);

	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, N_PINGS, 0, bytes));
	assert_int_equal(shutdown(peer.fd, SHUT_WR), 0);
	peer_expect_pongs(&peer, N_PINGS, 0);
	peer_expect_end(&peer);
	peer_close(&peer);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 0);
}

/* ---- allocations that fail ---- */

/*
 * Whichever allocation fails, the connection ends or answers all the same, and the node has nothing
 * left of it.
 */
static void test_without_memory(void **state)
{
	uint8_t bytes[N_PINGS * FP_WIRE_HEADER_BYTES];
	unsigned nth = 0;

	do {
		struct peer peer = peer_open(true, 0);

		AWAIT(peer.conn->receiving && !peer.conn->sending);
		peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, N_PINGS, 0, bytes));
		rig_fail_allocation(++nth);
		AWAIT(rig_failed() || peer.conn->outbox.n == 0);
		for (unsigned i = 0; i < N_IDLE_ROUNDS && !rig_failed(); i++)
			rig_round();
		if (rig_failed())
			AWAIT(rig.server.n_conns == 0 || peer.conn->outbox.n == 0);
		peer_break(&peer);
		AWAIT(rig.server.n_conns == 0);
		while (rig.server.sessions.first)
			fp_node_session_end(&rig.server.sessions, rig.server.sessions.first);
	} while (rig_failed());
	assert_int_equal(nth, N_PINGS + 2 + 1); /* each answer, the kept rest, one send, then no failure */
}

/* The descriptor is the node's, also if it has no memory for the connection. */
static void test_start_without_memory(void **state)
{
	unsigned nth = 0;
	int fds[2], r;

	do {
		uint8_t byte;

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
		rig_fail_allocation(++nth);
		r = fp_conn_start(&rig.server, fds[1]);
		rig_fail_allocation(0);
		assert_true(r == 0 || r == -ENOMEM);
		assert_int_equal(rig.server.n_conns, r == 0);
		if (r < 0) {
			assert_int_equal(recv(fds[0], &byte, 1, MSG_DONTWAIT), 0);
			assert_int_equal(rig.server.strangers.origins.n, 0);
		}
		close(fds[0]);
	} while (r < 0);
	assert_int_equal(nth, 2 + 1);
}

/* ---- turns ---- */

/* A client that has used up its share waits for its turn, also with requests that have arrived. */
static void test_waits_for_its_turn(void **state)
{
	uint8_t bytes[2 * FP_WIRE_HEADER_BYTES];
	struct peer peer = peer_open(false, 0);

	AWAIT(peer.conn->receiving);
	rig_use_up(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 2, 0, bytes));
	AWAIT(peer.conn->stash_bytes == sizeof(bytes));
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(peer.conn->outbox.n, 0);
	assert_int_equal(peer.conn->stash_bytes - peer.conn->stash_off, sizeof(bytes));
	assert_false(peer.conn->receiving);
	assert_ptr_equal(peer.conn->turn.client, &peer.conn->session->client->turns[0]);
	rig.hold_turns = false;
	peer_expect_pongs(&peer, 2, 0);
	assert_null(peer.conn->stash);
	peer_close(&peer);
}

/* A client pays for what it receives and sends, for each request, and for each send. */
static void test_work_is_charged(void **state)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES + 4000];
	struct peer peer = peer_open(false, 0);
	int64_t before;

	AWAIT(peer.conn->receiving && !peer.conn->sending);
	rig.hold_turns = true;
	rig_round();
	before = rig_credit(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 1, 4000, bytes));
	peer_expect_pongs(&peer, 1, 4000);
	AWAIT(!peer.conn->sending);
	assert_int_equal(before - rig_credit(&peer), sizeof(bytes) + 2048 + 16384 + sizeof(bytes));
	peer_close(&peer);
}

/*
 * The end of a session's connection is work too, and waits for its turn. The end of a stranger's
 * connection does not wait.
 */
static void test_end_waits_for_its_turn(void **state)
{
	struct peer peer = peer_open(false, 0), stranger;

	start_over(&stranger, false);
	AWAIT(peer.conn->receiving && stranger.conn->receiving);
	rig_use_up(&peer);
	fp_conn_charge(stranger.conn, 1000 * (uint64_t)FP_TURN_BYTES);
	peer_close(&peer);
	peer_close(&stranger);
	AWAIT(rig.server.n_conns == 1 && peer.conn->eof);
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(rig.server.n_conns, 1);
	assert_int_equal(rig.server.sessions.n, 1);
	rig.hold_turns = false;
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 0);
}

/* The end of a connection is charged to its client, whose other connections go on. */
static void test_end_is_charged(void **state)
{
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);
	int64_t before;

	AWAIT(link.conn->receiving && !link.conn->sending && control.conn->receiving &&
	      !control.conn->sending);
	rig.hold_turns = true;
	rig_round();
	before = rig_credit(&control);
	peer_close(&link);
	AWAIT(rig.server.n_conns == 1);
	assert_int_equal(before - rig_credit(&control), 32768);
	peer_close(&control);
}

/* An answer waits for its client's turn. The connection does not end before the answer is sent. */
static void test_answer_waits_for_its_turn(void **state)
{
	struct peer peer;

	start_over(&peer, false); /* a stranger, whose end needs no turn */
	AWAIT(peer.conn->receiving);
	rig_use_up(&peer);
	fp_conn_close(peer.conn);
	peer.conn->inbox.header.tag = peer.tag;
	fp_conn_answer_error(peer.conn, &peer.conn->inbox.header, FP_WIRE_BROKEN, NULL);
	fp_conn_settle(peer.conn);
	assert_false(peer.conn->sending);
	assert_int_equal(shutdown(peer.fd, SHUT_WR), 0);
	AWAIT(peer.conn->eof);
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(rig.server.n_conns, 1);
	rig.hold_turns = false;
	peer_expect_error(&peer, FP_WIRE_BROKEN);
	peer_expect_end(&peer);
	peer_close(&peer);
}

/* ---- sessions ---- */

/* A connection is in one session's list, or in none. */
static void test_enter(void **state)
{
	struct peer one = peer_open(false, 0), other = peer_open(false, 0);
	struct fp_node_session *its = one.conn->session, *others = other.conn->session;

	assert_ptr_equal(LIST_FIRST(&its->conns), one.conn);
	fp_conn_enter(one.conn, others);
	assert_true(LIST_EMPTY(&its->conns));
	assert_ptr_equal(LIST_FIRST(&others->conns), one.conn);
	assert_ptr_equal(LIST_NEXT(one.conn, in_session), other.conn);
	fp_conn_enter(one.conn, NULL);
	assert_ptr_equal(LIST_FIRST(&others->conns), other.conn);
	fp_conn_enter(one.conn, its);
	assert_ptr_equal(LIST_FIRST(&its->conns), one.conn);
	peer_close(&one);
	peer_close(&other);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, node_rig_setup, node_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_single_bytes),
	    TEST(test_every_cut),
	    TEST(test_many_long_frames),
	    TEST(test_refused_frames),
	    TEST(test_answers_before_a_refusal),
	    TEST(test_limit_of_a_control_connection),
	    TEST(test_limits_of_a_link),
	    TEST(test_nothing_is_received_at_the_limit),
	    TEST(test_size_of_a_receive),
	    TEST(test_size_of_a_send),
	    TEST(test_kept_requests_are_answered),
	    TEST(test_without_memory),
	    TEST(test_start_without_memory),
	    TEST(test_waits_for_its_turn),
	    TEST(test_work_is_charged),
	    TEST(test_end_waits_for_its_turn),
	    TEST(test_end_is_charged),
	    TEST(test_answer_waits_for_its_turn),
	    TEST(test_enter),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
