/*
 * How a connection of the node ends: too slow, silent, broken, closed in order or at once, and with
 * answers or descriptors still on their way.
 */
#include "node_rig.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"

#define N_PINGS        20
#define STATE_OF(peer) ((peer)->conn->state)

static uint64_t after_handshake_timeout(const struct peer *peer)
{
	return peer->conn->since_ns + rig.server.config->limits.handshake_timeout_ns;
}

static void start_over(struct peer *peer, bool over_tcp)
{
	*peer = over_tcp ? peer_connect_tcp() : peer_connect_unix();
	peer_set_hello(peer, FP_WIRE_CONTROL, 0, NULL);
}

/* ---- time limits ---- */

static void test_handshake_too_slow(void **state)
{
	struct peer peer, authenticating;

	start_over(&peer, false);
	start_over(&authenticating, true);
	peer_send_hello(&authenticating);
	peer_expect(&authenticating, FP_WIRE_CHALLENGE, sizeof(struct fp_wire_challenge));
	fp_conn_tick(peer.conn, after_handshake_timeout(&peer));
	fp_conn_tick(authenticating.conn, after_handshake_timeout(&authenticating));
	assert_int_equal(STATE_OF(&peer), FP_CONN_HELLO);
	assert_int_equal(STATE_OF(&authenticating), FP_CONN_AUTH);
	fp_conn_tick(peer.conn, after_handshake_timeout(&peer) + 1);
	fp_conn_tick(authenticating.conn, after_handshake_timeout(&authenticating) + 1);
	AWAIT(rig.server.n_conns == 0);
	peer_expect_end(&peer);
	peer_expect_end(&authenticating);
	peer_close(&peer);
	peer_close(&authenticating);
}

/* An open connection has no such limit. */
static void test_open_has_no_time_limit(void **state)
{
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);

	fp_conn_tick(control.conn, UINT64_MAX);
	fp_conn_tick(link.conn, UINT64_MAX);
	peer_ping(&control);
	peer_ping(&link);
	peer_close(&link);
	peer_close(&control);
}

/* A peer that is told to go, and neither reads nor closes, is cut loose after the time limit. */
static void test_closing_too_slow(void **state)
{
	struct peer peer = peer_open(false, 0);

	peer.conn->since_ns = 0; /* its handshake does not count */
	fp_conn_close(peer.conn);
	assert_in_range(fp_clock_ns() - peer.conn->since_ns, 0, FP_NSEC_PER_SEC);
	fp_conn_settle(peer.conn);
	peer_expect_end(&peer);
	fp_conn_tick(peer.conn, after_handshake_timeout(&peer));
	assert_int_equal(STATE_OF(&peer), FP_CONN_CLOSING);
	fp_conn_tick(peer.conn, after_handshake_timeout(&peer) + 1);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(send(peer.fd, "x", 1, MSG_NOSIGNAL), -1);
	peer_close(&peer);
}

/* A peer that has ended its side, and whose answers do not all fit. */
static struct peer open_full(void)
{
	uint8_t bytes[8 * (FP_WIRE_HEADER_BYTES + 2000)];
	struct peer peer = peer_open(false, 0);

	peer_make_narrow(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 8, 2000, bytes));
	assert_int_equal(shutdown(peer.fd, SHUT_WR), 0);
	AWAIT(STATE_OF(&peer) == FP_CONN_CLOSING && peer.conn->eof);
	assert_true(peer.conn->outbox.n > 0);
	return peer;
}

/* The time limit is not over at once: the peer still reads. */
static void test_closing_while_answers_go_out(void **state)
{
	struct peer peer = open_full();

	fp_conn_tick(peer.conn, after_handshake_timeout(&peer));
	assert_int_equal(STATE_OF(&peer), FP_CONN_CLOSING);
	peer_expect_pongs(&peer, 8, 2000);
	peer_expect_end(&peer);
	AWAIT(rig.server.n_conns == 0);
	peer_close(&peer);
}

/* Whoever takes no answer keeps no connection, though it has ended its side. */
static void test_closing_while_no_answer_is_taken(void **state)
{
	struct peer peer = open_full();

	fp_conn_tick(peer.conn, after_handshake_timeout(&peer) + 1);
	AWAIT(rig.server.n_conns == 0);
	peer_close(&peer);
}

/*
 * A closing connection goes on receiving, even while it still has bytes to send. Otherwise it would
 * miss the peer's end of file.
 */
static void test_closing_receives(void **state)
{
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);
	struct fp_wire_seg seg = {.lease_id = peer_lease(&control, MIB), .len_bytes = FP_WIRE_MAX_SEG_BYTES};

	rig.server.config->limits.max_requests = 1;
	peer_make_narrow(&link);
	peer_send_io(&link, FP_WIRE_READ, &seg, 1, NULL);
	AWAIT(link.conn->sending);
	assert_false(link.conn->receiving);
	fp_conn_close(link.conn);
	fp_conn_settle(link.conn);
	assert_true(link.conn->receiving);
	peer_close(&link);
	peer_close(&control);
}

/* Requests that were kept for later are dropped at the end, and do not delay the end. */
static void test_closing_drops_what_was_kept(void **state)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];
	struct peer peer = peer_open(false, 0);

	AWAIT(peer.conn->receiving);
	rig_use_up(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 1, 0, bytes));
	AWAIT(peer.conn->stash_bytes);
	fp_conn_close(peer.conn);
	fp_conn_settle(peer.conn);
	assert_null(peer.conn->stash);
	rig.hold_turns = false;
	peer_expect_end(&peer);
	peer_close(&peer);
	AWAIT(rig.server.n_conns == 0);
}

/*
 * A closing connection ends when it has read the peer's end of file. If it has read nothing because
 * its turn to receive has not come yet, it does not end.
 */
static void test_closing_waits_for_the_peer(void **state)
{
	struct peer stranger;

	start_over(&stranger, false);
	AWAIT(stranger.conn->receiving);
	rig_use_up(&stranger);
	fp_conn_close(stranger.conn);
	peer_send_bytes(&stranger, "x", 1);
	AWAIT(!stranger.conn->receiving);
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(rig.server.n_conns, 1);
	rig.hold_turns = false;
	peer_expect_end(&stranger);
	peer_close(&stranger);
	AWAIT(rig.server.n_conns == 0);
}

/* An answer that is still being made goes out before the end. */
static void test_closing_while_a_lease_is_made(void **state)
{
	struct peer peer = peer_open(false, 0);

	rig.hold_worker = true;
	peer_send_lease(&peer, MIB);
	AWAIT(peer.conn->leasing);
	fp_conn_close(peer.conn);
	fp_conn_settle(peer.conn);
	assert_false(peer.conn->half_closed);
	rig_release_worker();
	peer_expect(&peer, FP_WIRE_LEASED, sizeof(struct fp_wire_leased));
	peer_expect_end(&peer);
	peer_close(&peer);
}

/* ---- silence ---- */

static void test_silent_control_connection_is_cut(void **state)
{
	struct peer peer;
	uint64_t limit_ns = 3 * FP_NSEC_PER_SEC;

	rig.server.config->limits.idle_timeout_ns = limit_ns;
	peer = peer_open(true, 0);
	AWAIT(!peer.conn->turn.client);
	fp_conn_tick(peer.conn, peer.conn->heard_ns + limit_ns);
	assert_int_equal(STATE_OF(&peer), FP_CONN_OPEN);
	fp_conn_tick(peer.conn, peer.conn->heard_ns + limit_ns + 1);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 1); /* its client may come back */
	assert_true(rig.server.sessions.first->cut_off);
	peer_close(&peer);
}

/* Silence is counted from the last bytes, not from the beginning. */
static void test_bytes_end_silence(void **state)
{
	struct peer peer = peer_open(true, 0);
	uint64_t before_ns = peer.conn->heard_ns = fp_clock_ns() - FP_NSEC_PER_SEC;

	peer_send_bytes(&peer, "F", 1);
	AWAIT(peer.conn->inbox.have_bytes == 1);
	assert_true(peer.conn->heard_ns >= before_ns + FP_NSEC_PER_SEC);
	peer_close(&peer);
}

static void test_who_may_be_silent(void **state)
{
	struct peer near = peer_open(false, 0), control = peer_open(true, 0), free_one;
	struct peer link = peer_open_link(&control, true);

	near.conn->session->idle_timeout_ns = 1;
	fp_conn_tick(near.conn, UINT64_MAX); /* a UNIX socket */
	AWAIT(!link.conn->turn.client && !control.conn->turn.client);
	fp_conn_tick(link.conn, UINT64_MAX);
	rig.server.config->limits.idle_timeout_ns = 0;
	free_one = peer_open(true, 0);
	fp_conn_tick(free_one.conn, UINT64_MAX);
	control.conn->leasing = true; /* the node owes an answer, so the client may be silent */
	fp_conn_tick(control.conn, fp_clock_ns() + 3600 * FP_NSEC_PER_SEC);
	control.conn->leasing = false;
	control.conn->heard_ns = 0;
	rig_use_up(&control);
	peer_send_bytes(&control, "F", 1);
	AWAIT(control.conn->turn.client); /* while it waits for its turn, it may be silent too */
	fp_conn_tick(control.conn, fp_clock_ns() + 7200 * FP_NSEC_PER_SEC);
	rig.hold_turns = false;
	assert_int_equal(STATE_OF(&near), FP_CONN_OPEN);
	assert_int_equal(STATE_OF(&link), FP_CONN_OPEN);
	assert_int_equal(STATE_OF(&free_one), FP_CONN_OPEN);
	assert_int_equal(STATE_OF(&control), FP_CONN_OPEN);
	peer_close(&link);
	peer_close(&control);
	peer_close(&near);
	peer_close(&free_one);
}

/* ---- peers that go away ---- */

/*
 * An end of file ends the session. After a reset the session can be resumed, but not on a UNIX
 * socket.
 */
static void test_end_and_break(void **state)
{
	static const struct {
		bool over_tcp, breaks;
		unsigned sessions_left;
	} ways[] = {{false, false, 0}, {true, false, 0}, {true, true, 1}};

	for (size_t i = 0; i < FP_ARRAY_LEN(ways); i++) {
		struct peer peer = peer_open(ways[i].over_tcp, 0);

		peer_lease(&peer, MIB);
		AWAIT(peer.conn->receiving);
		if (ways[i].breaks)
			peer_break(&peer);
		else
			peer_close(&peer);
		AWAIT(rig.server.n_conns == 0);
		assert_int_equal(rig.server.sessions.n, ways[i].sessions_left);
		assert_int_equal(rig.server.own.counters.cut_off, ways[i].sessions_left);
	}
}

/*
 * The peer ends in the middle of a frame. The node drops the half frame, answers the whole frames
 * before it, and the connection ends in order.
 */
static void test_end_in_a_frame(void **state)
{
	uint8_t bytes[3 * FP_WIRE_HEADER_BYTES];
	struct peer peer = peer_open(true, 0);

	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 3, 0, bytes) - 1);
	assert_int_equal(shutdown(peer.fd, SHUT_WR), 0);
	peer.tag--;
	peer_expect_pongs(&peer, 2, 0);
	peer_expect_end(&peer);
	peer_close(&peer);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 0);
}

/* The peer ends its side, and closes while answers still go to it: that is an end too, no break. */
static void test_end_while_answers_go_out(void **state)
{
	static uint8_t bytes[15 * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)];
	struct peer peer = peer_open(true, 0);

	peer_make_narrow(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 15, FP_WIRE_MAX_PING, bytes));
	assert_int_equal(shutdown(peer.fd, SHUT_WR), 0);
	AWAIT(peer.conn->eof && peer.conn->sending);
	peer_close(&peer);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 0);
}

/* A reset that only a send meets is a break, too. */
static void test_break_while_answers_go_out(void **state)
{
	struct peer peer = peer_open(true, 0);
	uint8_t bytes[3 * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)];

	rig.server.config->limits.max_requests = 1;
	peer_make_narrow(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, 3, FP_WIRE_MAX_PING, bytes));
	AWAIT(peer.conn->sending && !peer.conn->receiving && peer.conn->stash_bytes);
	rig_rounds(N_IDLE_ROUNDS);
	assert_true(peer.conn->sending && !peer.conn->receiving);
	peer_break(&peer);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.own.counters.cut_off, 1);
	assert_int_equal(rig.server.sessions.n, 1);
}

/* After fp_conn_kill the cause does not change: a broken socket is then our own doing. */
static void test_killed_is_not_cut(void **state)
{
	struct peer peer = peer_open(true, 0);

	fp_conn_kill(peer.conn);
	fp_conn_cut(peer.conn);
	assert_false(peer.conn->cut);
	fp_conn_close(peer.conn);
	assert_int_equal(STATE_OF(&peer), FP_CONN_KILLED);
	fp_conn_answer_error(peer.conn, &peer.conn->inbox.header, FP_WIRE_BROKEN, NULL);
	assert_int_equal(peer.conn->outbox.n, 0);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 0);
	peer_expect_end(&peer);
	peer_close(&peer);
}

/* A connection that is killed handles nothing more of what has arrived. */
static void test_killed_handles_nothing(void **state)
{
	uint8_t bytes[N_PINGS * FP_WIRE_HEADER_BYTES];
	struct peer peer = peer_open(false, 0);

	AWAIT(peer.conn->receiving);
	rig_use_up(&peer);
	peer_send_bytes(&peer, bytes, peer_encode_pings(&peer, N_PINGS, 0, bytes));
	AWAIT(peer.conn->stash_bytes);
	fp_conn_kill(peer.conn);
	rig.hold_turns = false;
	AWAIT(rig.server.n_conns == 0);
	peer_expect_end(&peer);
	peer_close(&peer);
}

/* ---- descriptors on their way ---- */

/*
 * At most two descriptors may be on their way. Both count until the peer has received every byte.
 */
static void test_promised_descriptors(void **state)
{
	struct peer peer = peer_open(false, FP_WIRE_FEATURE_MEMFD);

	for (unsigned i = 0; i < 3; i++)
		peer_send_lease(&peer, MIB);
	AWAIT(rig.server.n_conns == 1 && peer.conn->outbox.n == 0 && !peer.conn->leasing &&
	      peer.conn->receiving && peer.conn->session->leases.n == 2);
	peer.tag -= 2;
	for (unsigned i = 0; i < 2; i++, peer.tag++) {
		assert_int_equal(peer.conn->fds_out, 2);
		peer_expect(&peer, FP_WIRE_LEASED, sizeof(struct fp_wire_leased));
		assert_true(peer.passed_fd >= 0);
	}
	peer_expect_refusal(&peer, FP_WIRE_FULL, FP_REFUSAL_UNRECEIVED);
	peer_lease(&peer, MIB);
	assert_int_equal(peer.conn->fds_out, 1);
	peer_close(&peer);
}

/* A promise counts from the request on, before the descriptor is there. */
static void test_promise_of_a_lease_that_is_made(void **state)
{
	struct fp_refusal refusal;
	struct peer peer = peer_open(false, FP_WIRE_FEATURE_MEMFD);

	rig.hold_worker = true;
	peer_send_lease(&peer, MIB);
	AWAIT(peer.conn->leasing && peer.conn->outbox.n == 0);
	assert_int_equal(fp_conn_promise_fd(peer.conn, &refusal), 0);
	assert_int_equal(peer.conn->fds_out, 2);
	assert_int_equal(fp_conn_promise_fd(peer.conn, &refusal), -ENOSPC);
	rig_release_worker();
	peer_expect(&peer, FP_WIRE_LEASED, sizeof(struct fp_wire_leased));
	peer_close(&peer);
}

/* The session ends at once. The connection stays until the peer has taken its descriptor. */
static void test_lingers_for_its_descriptor(void **state)
{
	struct peer peer = peer_open(false, FP_WIRE_FEATURE_MEMFD);

	peer_send_lease(&peer, MIB);
	AWAIT(peer.conn->fds_out && !peer.conn->leasing && peer.conn->outbox.n == 0);
	fp_conn_kill(peer.conn);
	AWAIT(rig.server.sessions.n == 0);
	for (unsigned i = 0; i < N_IDLE_ROUNDS; i++) {
		assert_int_equal(rig.server.n_conns, 1);
		fp_conn_tick(peer.conn, fp_clock_ns());
		rig_round();
	}
	peer_expect(&peer, FP_WIRE_LEASED, sizeof(struct fp_wire_leased));
	fp_conn_tick(peer.conn, fp_clock_ns());
	AWAIT(rig.server.n_conns == 0);
	peer_close(&peer);
}

/* A node that stops does not wait until a peer has taken its descriptor. */
static void test_stopping_does_not_linger(void **state)
{
	struct peer peer = peer_open(false, FP_WIRE_FEATURE_MEMFD);

	peer_send_lease(&peer, MIB);
	AWAIT(peer.conn->fds_out && !peer.conn->leasing && peer.conn->outbox.n == 0);
	rig.server.stopping = true;
	fp_conn_kill(peer.conn);
	AWAIT(rig.server.n_conns == 0);
	peer_close(&peer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, node_rig_setup, node_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_handshake_too_slow),
	    TEST(test_open_has_no_time_limit),
	    TEST(test_closing_too_slow),
	    TEST(test_closing_while_answers_go_out),
	    TEST(test_closing_while_no_answer_is_taken),
	    TEST(test_closing_receives),
	    TEST(test_closing_drops_what_was_kept),
	    TEST(test_closing_waits_for_the_peer),
	    TEST(test_closing_while_a_lease_is_made),
	    TEST(test_silent_control_connection_is_cut),
	    TEST(test_bytes_end_silence),
	    TEST(test_who_may_be_silent),
	    TEST(test_end_and_break),
	    TEST(test_end_in_a_frame),
	    TEST(test_end_while_answers_go_out),
	    TEST(test_break_while_answers_go_out),
	    TEST(test_killed_is_not_cut),
	    TEST(test_killed_handles_nothing),
	    TEST(test_promised_descriptors),
	    TEST(test_promise_of_a_lease_that_is_made),
	    TEST(test_lingers_for_its_descriptor),
	    TEST(test_stopping_does_not_linger),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
