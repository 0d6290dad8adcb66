/*
 * Reads and writes of leases: only inside of them, however the bytes arrive, and while a lease is
 * released or a peer goes away.
 */
#include "node_rig.h"

#include <string.h>
#include <sys/socket.h>

/* A session with a lease and a link. */
static struct {
	struct peer control, link;
	uint32_t id;
} s;

static void open_lease(uint64_t size_bytes)
{
	s.control = peer_open(false, 0);
	s.link = peer_open_link(&s.control, false);
	s.id = peer_lease(&s.control, size_bytes);
}

static void close_all(void)
{
	peer_close(&s.link);
	peer_close(&s.control);
}

static struct fp_wire_seg seg_of(uint64_t offset_bytes, uint32_t len_bytes)
{
	return (struct fp_wire_seg){.lease_id = s.id, .offset_bytes = offset_bytes, .len_bytes = len_bytes};
}

static void fill(uint8_t *bytes, size_t len, unsigned first)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(first + i * 7 + i / 251);
}

static void release(void)
{
	peer_send_id(&s.control, FP_WIRE_RELEASE, s.id);
	peer_expect(&s.control, FP_WIRE_RELEASED, 0);
}

/* ---- bounds ---- */

static void expect_denied(struct fp_wire_seg seg)
{
	uint64_t denied = rig.server.own.counters.denied;
	uint8_t data[FP_WIRE_MAX_SEG_BYTES];

	memset(data, 0xee, sizeof(data));
	peer_send_io(&s.link, FP_WIRE_READ, &seg, 1, NULL);
	peer_expect_error(&s.link, FP_WIRE_DENIED);
	peer_send_io(&s.link, FP_WIRE_WRITE, &seg, 1, data); /* its data is taken, and dropped */
	peer_expect_error(&s.link, FP_WIRE_DENIED);
	assert_int_equal(rig.server.own.counters.denied, denied + 2);
}

static void test_bounds(void **state)
{
	uint8_t data[8] = "12345678", back[8];
	struct fp_wire_seg other;

	open_lease(MIB);
	peer_write(&s.link, seg_of(MIB - 8, 8), data);
	peer_read(&s.link, seg_of(MIB - 8, 8), back);
	assert_memory_equal(back, data, sizeof(data));
	expect_denied(seg_of(MIB - 7, 8));
	expect_denied(seg_of(MIB, 1));
	expect_denied(seg_of(MIB - 8, FP_WIRE_MAX_SEG_BYTES));
	expect_denied(seg_of(FP_WIRE_MAX_LEASE - 8, 8));
	other = seg_of(0, 8);
	other.lease_id = s.id + 1;
	expect_denied(other);
	peer_read(&s.link, seg_of(MIB - 8, 8), back);
	assert_memory_equal(back, data, sizeof(data));
	close_all();
}

/* One segment out of bounds denies the whole request: nothing of the others is written or read. */
static void test_one_bad_segment(void **state)
{
	uint8_t data[24], back[8];
	struct fp_wire_seg segs[3];

	open_lease(MIB);
	memset(data, 0x77, sizeof(data));
	for (unsigned bad = 0; bad < 3; bad++) {
		for (unsigned i = 0; i < 3; i++)
			segs[i] = seg_of(i == bad ? MIB : 4096ull * i, 8);
		peer_send_io(&s.link, FP_WIRE_WRITE, segs, 3, data);
		peer_expect_error(&s.link, FP_WIRE_DENIED);
		peer_send_io(&s.link, FP_WIRE_READ, segs, 3, NULL);
		peer_expect_error(&s.link, FP_WIRE_DENIED);
	}
	for (unsigned i = 0; i < 3; i++) {
		peer_read(&s.link, seg_of(4096ull * i, 8), back);
		assert_memory_equal(back, (uint8_t[8]){0}, 8);
	}
	assert_int_equal(rig.server.own.counters.writes, 0);
	assert_int_equal(rig.server.own.counters.reads, 3);
	close_all();
}

/* Ids are a session's own: another session's lease with the same id is another lease. */
static void test_sessions_do_not_meet(void **state)
{
	struct peer control = peer_open(true, 0), link = peer_open_link(&control, true);
	struct fp_wire_seg seg;
	uint8_t data[8] = "private", back[8];

	open_lease(MIB);
	peer_write(&s.link, seg_of(0, 8), data);
	seg = seg_of(0, 8);
	peer_send_io(&link, FP_WIRE_READ, &seg, 1, NULL);
	peer_expect_error(&link, FP_WIRE_DENIED);
	assert_int_equal(peer_lease(&control, MIB), s.id);
	peer_read(&link, seg, back);
	assert_memory_equal(back, (uint8_t[8]){0}, 8);
	peer_close(&link);
	peer_close(&control);
	close_all();
}

/* An adopted lease is read, and never written. */
static void test_adopted_is_read_only(void **state)
{
	struct peer child = peer_open(false, 0), link = peer_open_link(&child, false);
	struct fp_wire_seg seg;
	uint8_t data[8] = "parents", back[8];

	open_lease(MIB);
	peer_write(&s.link, seg_of(4096, 8), data);
	assert_int_equal(fp_node_session_adopt(child.conn->session, s.control.conn->session), 0);
	seg = seg_of(4096, 8);
	peer_read(&link, seg, back);
	assert_memory_equal(back, data, 8);
	peer_send_io(&link, FP_WIRE_WRITE, &seg, 1, (uint8_t[8]){0});
	peer_expect_error(&link, FP_WIRE_DENIED);
	peer_read(&link, seg, back);
	assert_memory_equal(back, data, 8);
	peer_close(&link);
	peer_close(&child);
	close_all();
}

/* ---- bytes however they arrive ---- */

/* A WRITE of three segments, in two parts cut at each place of head, table and data. */
static void test_write_in_two_parts(void **state)
{
	static const uint32_t lens[] = {5, 1, 7};
	uint8_t payload[FP_WIRE_MAX_TABLE + 13], bytes[FP_WIRE_HEADER_BYTES + sizeof(payload)], back[13];
	struct fp_wire_seg segs[3];
	size_t table, len = sizeof(bytes);

	open_lease(MIB);
	for (unsigned i = 0; i < 3; i++)
		segs[i] = seg_of(i * 1000, lens[i]);
	for (size_t cut = 1; cut < len; cut++) {
		table = fp_wire_table_encode(segs, 3, payload);
		fill(payload + table, 13, (unsigned)cut);
		len = peer_encode(&s.link, FP_WIRE_WRITE, payload, table + 13, bytes);
		peer_send_bytes(&s.link, bytes, cut);
		AWAIT(s.link.conn->inbox.have_bytes || s.link.conn->write.active);
		peer_send_bytes(&s.link, bytes + cut, len - cut);
		peer_expect(&s.link, FP_WIRE_WRITTEN, 0);
		peer_send_io(&s.link, FP_WIRE_READ, segs, 3, NULL);
		memcpy(back, peer_expect(&s.link, FP_WIRE_DATA, 13), 13);
		assert_memory_equal(back, payload + table, 13);
	}
	close_all();
}

/* Single bytes reach each segment in order, and the bytes around them stay. */
static void test_write_in_single_bytes(void **state)
{
	uint8_t payload[FP_WIRE_MAX_TABLE + 6] = {0}, bytes[FP_WIRE_HEADER_BYTES + sizeof(payload)], back[5];
	const struct fp_wire_seg segs[] = {{.lease_id = 1, .offset_bytes = 1, .len_bytes = 3},
	                                   {.lease_id = 1, .offset_bytes = 101, .len_bytes = 3}};
	size_t table, len;

	open_lease(MIB);
	table = fp_wire_table_encode(segs, 2, payload);
	memcpy(payload + table, "abcdef", 6);
	len = peer_encode(&s.link, FP_WIRE_WRITE, payload, table + 6, bytes);
	for (size_t i = 0; i < len; i++) {
		peer_send_bytes(&s.link, bytes + i, 1);
		rig_round();
	}
	peer_expect(&s.link, FP_WIRE_WRITTEN, 0);
	peer_read(&s.link, seg_of(0, 5), back);
	assert_memory_equal(back, "\0abc", 5);
	peer_read(&s.link, seg_of(100, 5), back);
	assert_memory_equal(back, "\0def", 5);
	close_all();
}

/* The longest requests: 64 segments of 64 KiB, over sockets that hold few bytes. */
static void test_longest(void **state)
{
	static uint8_t data[FP_WIRE_MAX_DATA];
	struct fp_wire_seg segs[FP_WIRE_MAX_SEGS];

	open_lease(8 * MIB);
	fill(data, sizeof(data), 3);
	for (unsigned i = 0; i < FP_WIRE_MAX_SEGS; i++)
		segs[i] =
		    seg_of((FP_WIRE_MAX_SEGS - i) * 2ull * FP_WIRE_MAX_SEG_BYTES - FP_WIRE_MAX_SEG_BYTES,
		           FP_WIRE_MAX_SEG_BYTES);
	peer_send_io(&s.link, FP_WIRE_WRITE, segs, FP_WIRE_MAX_SEGS, data);
	peer_expect(&s.link, FP_WIRE_WRITTEN, 0);
	peer_send_io(&s.link, FP_WIRE_READ, segs, FP_WIRE_MAX_SEGS, NULL);
	assert_memory_equal(peer_expect(&s.link, FP_WIRE_DATA, sizeof(data)), data, sizeof(data));
	assert_int_equal(rig.server.own.counters.written_bytes, sizeof(data));
	assert_int_equal(rig.server.own.counters.read_bytes, sizeof(data));
	assert_int_equal(s.control.conn->session->written_bytes, sizeof(data));
	assert_int_equal(s.control.conn->session->read_bytes, sizeof(data));
	assert_int_equal(rig.server.own.counters.writes, 1);
	assert_int_equal(rig.server.own.counters.reads, 1);
	close_all();
}

/* A WRITE is denied. The next one is served, so the data of the first was skipped to the byte. */
static void test_in_step_after_a_denial(void **state)
{
	uint8_t bytes[2 * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_TABLE + 100)],
	    payload[FP_WIRE_MAX_TABLE + 100] = {0};
	struct fp_wire_seg bad, good;
	size_t table, len;

	open_lease(MIB);
	bad = seg_of(MIB, 100);
	good = seg_of(0, 4);
	table = fp_wire_table_encode(&bad, 1, payload);
	len = peer_encode(&s.link, FP_WIRE_WRITE, payload, table + 100, bytes);
	table = fp_wire_table_encode(&good, 1, payload);
	memcpy(payload + table, "good", 4);
	len += peer_encode(&s.link, FP_WIRE_WRITE, payload, table + 4, bytes + len);
	peer_send_bytes(&s.link, bytes, len);
	s.link.tag--;
	peer_expect_error(&s.link, FP_WIRE_DENIED);
	s.link.tag++;
	peer_expect(&s.link, FP_WIRE_WRITTEN, 0);
	close_all();
}

/* ---- leases that are released meanwhile ---- */

/* Sends a WRITE without its last byte. */
static void begin_write(const uint8_t *data, uint32_t len)
{
	struct fp_wire_seg seg = seg_of(0, len);
	uint8_t payload[FP_WIRE_MAX_TABLE + 100], bytes[FP_WIRE_HEADER_BYTES + sizeof(payload)];
	size_t table = fp_wire_table_encode(&seg, 1, payload);

	memcpy(payload + table, data, len);
	peer_send_bytes(&s.link, bytes, peer_encode(&s.link, FP_WIRE_WRITE, payload, table + len, bytes) - 1);
	AWAIT(s.link.conn->write.active && s.link.conn->write.seg_bytes == len - 1);
}

/* The memory stays until the WRITE is complete, and goes back then. */
static void test_release_while_written(void **state)
{
	uint8_t data[100];

	open_lease(MIB);
	fill(data, sizeof(data), 9);
	begin_write(data, sizeof(data));
	release();
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(rig.pool->used_bytes, MIB);
	peer_send_bytes(&s.link, data + 99, 1);
	peer_expect(&s.link, FP_WIRE_WRITTEN, 0);
	AWAIT(rig.pool->used_bytes == 0);
	expect_denied(seg_of(0, 8));
	close_all();
}

/*
 * A lease is released while an answer has not sent all its bytes. The answer is still sent whole,
 * with the bytes as they were.
 */
static void test_release_while_read(void **state)
{
	static uint8_t data[FP_WIRE_MAX_SEG_BYTES];
	struct fp_wire_seg seg;

	open_lease(MIB);
	fill(data, sizeof(data), 1);
	seg = seg_of(0, sizeof(data));
	peer_write(&s.link, seg, data);
	peer_make_narrow(&s.link);
	peer_send_io(&s.link, FP_WIRE_READ, &seg, 1, NULL);
	AWAIT(s.link.conn->sending);
	release();
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(rig.pool->used_bytes, MIB);
	assert_memory_equal(peer_expect(&s.link, FP_WIRE_DATA, sizeof(data)), data, sizeof(data));
	AWAIT(rig.pool->used_bytes == 0);
	close_all();
}

/* ---- peers that go away ---- */

/* A WRITE that is never completed does not keep its released lease in use, however its link
 * ends. */
static void test_end_in_a_write(void **state)
{
	for (unsigned way = 0; way < 3; way++) {
		uint8_t data[50] = {0};

		open_lease(MIB);
		begin_write(data, sizeof(data));
		release();
		if (way == 0)
			peer_close(&s.link);
		else if (way == 1)
			fp_conn_kill(s.link.conn);
		else
			peer_close(&s.control); /* the session ends, and its links with it */
		AWAIT(rig.pool->used_bytes == 0);
		close_all();
		AWAIT(rig.server.n_conns == 0);
	}
}

/* An answer that was never sent gives its lease back, too. */
static void test_end_in_a_read(void **state)
{
	struct fp_wire_seg seg;

	open_lease(MIB);
	peer_make_narrow(&s.link);
	seg = seg_of(0, FP_WIRE_MAX_SEG_BYTES);
	peer_send_io(&s.link, FP_WIRE_READ, &seg, 1, NULL);
	AWAIT(s.link.conn->sending);
	release();
	peer_close(&s.link);
	AWAIT(rig.pool->used_bytes == 0);
	close_all();
}

/*
 * After a resume no byte of an old WRITE reaches the lease any more. The old link is dead before
 * the client gets its answer.
 */
static void test_resume_fences_writes(void **state)
{
	struct peer control = peer_open(true, 0), link = peer_open_link(&control, true), again, new_link;
	uint8_t data[50], back[50];

	s.control = control;
	s.link = link;
	s.id = peer_lease(&s.control, MIB);
	memset(data, 0x11, sizeof(data));
	begin_write(data, sizeof(data));
	again = peer_connect_tcp();
	peer_set_hello(&again, FP_WIRE_RESUME, 0, &control);
	peer_shake_hands(&again, NULL);
	(void)send(s.link.fd, data, 1, MSG_NOSIGNAL); /* the last byte */
	rig_rounds(N_IDLE_ROUNDS);
	new_link = peer_open_link(&control, true);
	peer_read(&new_link, seg_of(0, 50), back);
	assert_int_equal(back[48], 0x11);
	assert_int_equal(back[49], 0);
	assert_int_equal(again.conn->session->n_links, 1);
	peer_close(&new_link);
	peer_close(&again);
	close_all();
}

/* Without rdma there is no queue pair to connect. The link goes on. */
static void test_no_queue_pair(void **state)
{
	const struct fp_wire_qp qp = {.qpn = 1, .mtu = 5, .n_reads = 1};
	uint8_t bytes[sizeof(qp)], back[8];

	open_lease(MIB);
	fp_wire_qp_encode(&qp, bytes);
	peer_send(&s.link, FP_WIRE_QP, bytes, sizeof(bytes));
	peer_expect_error(&s.link, FP_WIRE_NOT_PERMITTED);
	peer_read(&s.link, seg_of(0, 8), back);
	close_all();
}

/* ---- allocations that fail ---- */

/*
 * Whichever allocation fails, the link ends, its session goes on, and nothing uses the lease any
 * more.
 */
static void test_without_memory(void **state)
{
	unsigned nth = 0;
	bool failed;

	open_lease(MIB);
	do {
		struct peer link = peer_open_link(&s.control, false);
		struct fp_wire_seg seg = seg_of(0, 8);
		struct fp_wire_header header;
		const uint8_t *payload;

		rig_fail_allocation(++nth);
		peer_send_io(&link, FP_WIRE_WRITE, &seg, 1, "12345678");
		if (peer_receive(&link, &header, &payload)) {
			peer_send_io(&link, FP_WIRE_READ, &seg, 1, NULL);
			(void)peer_receive(&link, &header, &payload);
		}
		failed = rig_failed();
		rig_fail_allocation(0);
		peer_close(&link);
		AWAIT(rig.server.n_conns == 2);
		assert_int_equal(fp_node_lease_find(&s.control.conn->session->leases, s.id)->uses, 0);
	} while (failed);
	assert_int_equal(nth, 2 + 1); /* one for each answer; then none failed */
	close_all();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, node_rig_setup, node_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_bounds),
	    TEST(test_one_bad_segment),
	    TEST(test_sessions_do_not_meet),
	    TEST(test_adopted_is_read_only),
	    TEST(test_write_in_two_parts),
	    TEST(test_write_in_single_bytes),
	    TEST(test_longest),
	    TEST(test_in_step_after_a_denial),
	    TEST(test_release_while_written),
	    TEST(test_release_while_read),
	    TEST(test_end_in_a_write),
	    TEST(test_end_in_a_read),
	    TEST(test_resume_fences_writes),
	    TEST(test_no_queue_pair),
	    TEST(test_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
