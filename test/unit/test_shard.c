/*
 * Shards: links that other threads serve. Each case checks a rule of shard.h: who changes what, and
 * when. Under ThreadSanitizer these cases also show that no rule was forgotten.
 */
#include "node_rig.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"

#define N_SHARDS 2
#define N_LINKS  6
#define PAGE     4096u
#define N_PAGES  (MIB / PAGE)
#define N_ROUNDS 20

static struct {
	struct peer control, links[N_LINKS];
	uint32_t id;
} s;

static bool has_moved(const struct peer *link)
{
	bool moved;

	fp_shards_hold(&rig.server.shards);
	moved = link->conn->shard->idx;
	fp_shards_release(&rig.server.shards);
	return moved;
}

static void open_all(bool over_tcp)
{
	rig_start_shards(N_SHARDS);
	s.control = peer_open(over_tcp, 0);
	s.id = peer_lease(&s.control, MIB);
	for (unsigned i = 0; i < N_LINKS; i++) {
		s.links[i] = peer_open_link(&s.control, over_tcp);
		AWAIT(has_moved(&s.links[i]));
	}
}

static void close_all(void)
{
	for (unsigned i = 0; i < N_LINKS; i++)
		peer_close(&s.links[i]);
	peer_close(&s.control);
}

static struct fp_wire_seg page(uint64_t idx)
{
	return (struct fp_wire_seg){.lease_id = s.id, .offset_bytes = idx * PAGE, .len_bytes = PAGE};
}

static void write_page(struct peer *link, uint64_t idx, uint8_t value)
{
	uint8_t bytes[PAGE];

	memset(bytes, value, sizeof(bytes));
	peer_write(link, page(idx), bytes);
}

static uint8_t read_page(struct peer *link, uint64_t idx)
{
	uint8_t bytes[PAGE];

	peer_read(link, page(idx), bytes);
	for (unsigned i = 1; i < PAGE; i++)
		assert_int_equal(bytes[i], bytes[0]);
	return bytes[0];
}

static struct fp_counters counters(void)
{
	struct fp_counters sum = {0};

	fp_shards_hold(&rig.server.shards);
	fp_shards_add_counters(&rig.server.shards, &sum);
	fp_shards_release(&rig.server.shards);
	return sum;
}

/* ---- where links are served ---- */

static void test_links_are_spread(void **state)
{
	struct fp_counters sum;

	open_all(true);
	for (unsigned i = 0; i < N_LINKS; i++)
		write_page(&s.links[i], i, (uint8_t)(i + 1));
	for (unsigned i = 0; i < N_LINKS; i++)
		assert_int_equal(read_page(&s.links[N_LINKS - 1 - i], i), i + 1);
	for (unsigned i = 0; i < N_SHARDS; i++)
		assert_int_equal(rig.server.shards.items[i].n_links, N_LINKS / N_SHARDS);
	sum = counters();
	assert_int_equal(sum.reads, N_LINKS);
	assert_int_equal(sum.writes, N_LINKS);
	assert_int_equal(sum.read_bytes, N_LINKS * PAGE);
	assert_int_equal(rig.server.own.counters.reads, 0);
	close_all();
}

static void test_control_stays(void **state)
{
	open_all(false);
	assert_false(has_moved(&s.control));
	peer_ping(&s.control);
	peer_ping(&s.links[0]);
	close_all();
}

/* Requests that come together with the AUTH are answered, in order, and then the link moves. */
static void test_requests_behind_the_handshake(void **state)
{
	uint8_t bytes[8 * FP_WIRE_HEADER_BYTES];
	struct fp_wire_challenge challenge;
	struct peer link = peer_connect_tcp();

	open_all(true);
	peer_set_hello(&link, FP_WIRE_LINK, 0, &s.control);
	peer_send_hello(&link);
	assert_int_equal(fp_wire_challenge_decode(peer_expect(&link, FP_WIRE_CHALLENGE, sizeof(challenge)),
	                                          sizeof(challenge), &challenge),
	                 0);
	peer_send_auth(&link, &challenge, NULL);
	peer_send_bytes(&link, bytes, peer_encode_pings(&link, 8, 0, bytes));
	link.tag -= 8;
	peer_expect(&link, FP_WIRE_WELCOME, sizeof(link.welcome));
	link.tag += 8;
	peer_expect_pongs(&link, 8, 0);
	AWAIT(has_moved(&link));
	peer_close(&link);
	close_all();
}

/* A link that ends gives back its place, whoever ends it. */
static void test_links_end(void **state)
{
	open_all(true);
	peer_close(&s.links[0]);
	peer_break(&s.links[1]);
	peer_send(&s.links[2], FP_WIRE_BYE, NULL, 0); /* not on a link */
	peer_expect_error(&s.links[2], FP_WIRE_MALFORMED);
	peer_expect_end(&s.links[2]);
	peer_close(&s.links[2]);
	AWAIT(rig.server.n_conns == 1 + N_LINKS - 3);
	assert_int_equal(rig.server.sessions.first->n_links, N_LINKS - 3);
	assert_int_equal(rig.server.shards.items[0].n_links + rig.server.shards.items[1].n_links,
	                 N_LINKS - 3);
	assert_int_equal(counters().refused, 1);
	write_page(&s.links[3], 0, 1);
	s.links[0] = peer_open_link(&s.control, true);
	AWAIT(has_moved(&s.links[0]));
	assert_int_equal(read_page(&s.links[0], 0), 1);
	close_all();
}

/* ---- the main loop keeps the shards out of its rounds ---- */

/* While the main loop is in a round, no shard touches memory. */
static void test_hold(void **state)
{
	uint8_t bytes[PAGE];
	struct fp_wire_seg seg = page(0);
	struct peer *link = &s.links[0];
	const uint8_t *memory;

	open_all(true);
	memset(bytes, 0x5a, sizeof(bytes));
	fp_shards_hold(&rig.server.shards);
	memory = fp_node_lease_find(&rig.server.sessions.first->leases, s.id)->memory->chunk.base;
	peer_send_io(link, FP_WIRE_WRITE, &seg, 1, bytes);
	for (uint64_t until_ns = fp_clock_ns() + 20 * FP_NSEC_PER_MSEC; fp_clock_ns() < until_ns;)
		assert_int_equal(*(const volatile uint8_t *)memory, 0);
	fp_shards_release(&rig.server.shards);
	peer_expect(link, FP_WIRE_WRITTEN, 0);
	fp_shards_hold(&rig.server.shards);
	assert_int_equal(memory[0], 0x5a);
	fp_shards_release(&rig.server.shards);
	close_all();
}

/* Sends WRITEs of pages that are the link's alone, as far as the kernel takes them at once. */
static void flood(unsigned idx, uint8_t value)
{
	struct peer *link = &s.links[idx];
	uint8_t bytes[PAGE];

	memset(bytes, value, sizeof(bytes));
	for (uint64_t i = idx; i < N_PAGES; i += N_LINKS) {
		struct pollfd out = {.fd = link->fd, .events = POLLOUT};
		struct fp_wire_seg seg = page(i);

		if (poll(&out, 1, 0) != 1 || out.revents != POLLOUT)
			return;
		peer_send_io(link, FP_WIRE_WRITE, &seg, 1, bytes);
	}
}

/*
 * After a RESUME was answered, no link of before writes, though the shards are in the middle of its
 * WRITEs.
 */
static void test_fence(void **state)
{
	open_all(true);
	for (unsigned round = 0; round < N_ROUNDS; round++) {
		struct peer again = peer_connect_tcp();
		struct peer link;

		peer_set_hello(&again, FP_WIRE_RESUME, 0, &s.control);
		for (unsigned i = 0; i < N_LINKS; i++)
			flood(i, 0x11);
		peer_shake_hands(&again, NULL);
		link = peer_open_link(&again, true);
		for (unsigned i = 0; i < 4; i++)
			write_page(&link, i * 7, 0x22);
		for (unsigned i = 0; i < 40; i++)
			assert_int_equal(read_page(&link, i % 4 * 7), 0x22);
		peer_close(&link);
		close_all();
		s.control = again;
		for (unsigned i = 0; i < N_LINKS; i++)
			s.links[i] = peer_open_link(&s.control, true);
	}
	close_all();
}

/* A session ends under WRITEs. Its memory comes back when the shards have let go of it. */
static void test_end_under_writes(void **state)
{
	open_all(true);
	for (unsigned i = 0; i < N_LINKS; i++)
		flood(i, 0x33);
	peer_send(&s.control, FP_WIRE_BYE, NULL, 0);
	peer_expect(&s.control, FP_WIRE_FAREWELL, 0);
	AWAIT(rig.server.n_conns == 1);
	assert_int_equal(rig.server.sessions.n, 0);
	close_all();
}

/* ---- memory that requests of several shards hold ---- */

/*
 * READs of every link hold a lease that is released meanwhile. It is given back once, when the last
 * of them lets go: node_rig_teardown looks at the counts.
 */
static void test_release_under_reads(void **state)
{
	struct fp_wire_seg segs[16];

	open_all(true);
	for (unsigned i = 0; i < FP_ARRAY_LEN(segs); i++)
		segs[i] = page(i);
	for (unsigned round = 0; round < N_ROUNDS; round++) {
		for (unsigned i = 0; i < N_LINKS; i++) {
			for (unsigned j = 0; j < FP_ARRAY_LEN(segs); j++)
				segs[j].lease_id = s.id;
			peer_send_io(&s.links[i], FP_WIRE_READ, segs, FP_ARRAY_LEN(segs), NULL);
		}
		peer_send_id(&s.control, FP_WIRE_RELEASE, s.id);
		peer_expect(&s.control, FP_WIRE_RELEASED, 0);
		for (unsigned i = 0; i < N_LINKS; i++) {
			struct fp_wire_header header;
			const uint8_t *payload;

			assert_true(peer_receive(&s.links[i], &header, &payload)); /* DATA, or denied */
		}
		s.id = peer_lease(&s.control, MIB);
	}
	close_all();
}

#define N_UNREAD 16

/* Asks for more than the kernel holds on the way, and reads nothing. */
static void leave_unread(struct peer *link, uint32_t lease_id)
{
	struct fp_wire_seg segs[FP_WIRE_MAX_SEGS];

	peer_make_narrow(link);
	for (unsigned i = 0; i < FP_WIRE_MAX_SEGS; i++) {
		segs[i] = page(i);
		segs[i].lease_id = lease_id;
	}
	for (unsigned i = 0; i < N_UNREAD; i++)
		peer_send_io(link, FP_WIRE_READ, segs, FP_WIRE_MAX_SEGS, NULL);
}

/* Reads what has come of these answers, without a round of the main loop. Returns the bytes. */
static size_t read_some(const struct peer *link)
{
	static uint8_t bytes[MIB];
	ssize_t n = recv(link->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

	return n > 0 ? (size_t)n : 0;
}

static void release(uint32_t id)
{
	peer_send_id(&s.control, FP_WIRE_RELEASE, id);
	peer_expect(&s.control, FP_WIRE_RELEASED, 0);
}

static uint64_t used_bytes(void)
{
	uint64_t bytes;

	fp_shards_hold(&rig.server.shards);
	bytes = rig.pool->used_bytes;
	fp_shards_release(&rig.server.shards);
	return bytes;
}

/*
 * Unsent answers keep the memory of released leases. Two shards give back a lease each, at the same
 * time, when the last answer is sent.
 */
static void test_unsent_answers_keep_memory(void **state)
{
	const size_t all = N_UNREAD * (FP_WIRE_HEADER_BYTES + (size_t)FP_WIRE_MAX_SEGS * PAGE);
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;
	size_t have[2] = {0};
	uint32_t other;

	open_all(false);
	other = peer_lease(&s.control, MIB);
	leave_unread(&s.links[0], s.id);
	leave_unread(&s.links[1], other);
	AWAIT(counters().reads == 2 * N_UNREAD);
	release(s.id);
	release(other);
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(used_bytes(), 2 * MIB);
	while (have[0] < all || have[1] < all) {
		for (unsigned i = 0; i < 2; i++)
			have[i] += read_some(&s.links[i]);
		assert_true(fp_clock_ns() < until_ns);
	}
	AWAIT(used_bytes() == 0);
	close_all();
}

/*
 * A link can't move while the main loop receives on it, and its peer may send nothing more. Until
 * it does, the main loop sends the answers.
 */
static void test_answers_do_not_wait_for_the_move(void **state)
{
	const size_t all = N_UNREAD * (FP_WIRE_HEADER_BYTES + (size_t)FP_WIRE_MAX_SEGS * PAGE);
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;
	struct peer control = peer_open(false, 0), link = peer_open_link(&control, false);
	size_t have = 0;

	leave_unread(&link, peer_lease(&control, MIB));
	AWAIT(rig.server.own.counters.reads == N_UNREAD && link.conn->receiving);
	rig_start_shards(N_SHARDS);
	while (have < all) {
		rig_round();
		have += read_some(&link);
		assert_true(fp_clock_ns() < until_ns);
	}
	assert_false(has_moved(&link));
	peer_ping(&link);
	AWAIT(has_moved(&link));
	peer_close(&link);
	peer_close(&control);
}

/* ---- turns ---- */

/* A client has a share of each loop's time. What a shard does counts there, and nowhere else. */
static void test_shares_are_of_each_loop(void **state)
{
	const struct fp_turn_client *turns;
	uint64_t before;

	open_all(true);
	turns = rig.server.sessions.first->client->turns;
	before = turns[0].round;
	for (unsigned i = 0; i < N_LINKS; i++)
		write_page(&s.links[i], i, 1);
	fp_shards_hold(&rig.server.shards);
	for (unsigned i = 1; i <= N_SHARDS; i++)
		assert_true(turns[i].round > 0 && turns[i].credit_bytes <= FP_TURN_BYTES);
	assert_int_equal(turns[0].round, before);
	fp_shards_release(&rig.server.shards);
	close_all();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, node_rig_setup, node_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_links_are_spread),
	    TEST(test_control_stays),
	    TEST(test_requests_behind_the_handshake),
	    TEST(test_links_end),
	    TEST(test_hold),
	    TEST(test_fence),
	    TEST(test_end_under_writes),
	    TEST(test_release_under_reads),
	    TEST(test_unsent_answers_keep_memory),
	    TEST(test_answers_do_not_wait_for_the_move),
	    TEST(test_shares_are_of_each_loop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
