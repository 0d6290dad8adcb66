/*
 * Requests on a control connection: when each is allowed, leases, adoption, and the end of a
 * session. Rights: test_request_rights.c. Reads and writes: test_request_io.c.
 */
#include "node_rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "cleanup.h"

/* ---- helpers ---- */

/* Sends a request of a type with any content, of a length that the type allows. */
static void send_any(struct peer *peer, enum fp_wire_type type)
{
	static const uint8_t lengths[] = {
	    [FP_WIRE_HELLO] = sizeof(struct fp_wire_hello),
	    [FP_WIRE_AUTH] = sizeof(struct fp_wire_auth),
	    [FP_WIRE_LEASE] = sizeof(struct fp_wire_lease),
	    [FP_WIRE_RELEASE] = sizeof(struct fp_wire_release),
	    [FP_WIRE_ATTACH] = sizeof(struct fp_wire_attach),
	    [FP_WIRE_ADOPT] = sizeof(struct fp_wire_adopt),
	    [FP_WIRE_QP] = sizeof(struct fp_wire_qp),
	};
	static const uint8_t zeros[FP_WIRE_MAX_PING];
	const struct fp_wire_seg seg = {.lease_id = 1, .len_bytes = 8};

	if (type == FP_WIRE_READ || type == FP_WIRE_WRITE)
		peer_send_io(peer, type, &seg, 1, type == FP_WIRE_WRITE ? zeros : NULL);
	else
		peer_send(peer, type, zeros, type < sizeof(lengths) ? lengths[type] : 0);
}

static struct fp_wire_info info_of(struct peer *control)
{
	struct fp_wire_info info;

	peer_send(control, FP_WIRE_INFO, NULL, 0);
	assert_int_equal(
	    fp_wire_info_decode(peer_expect(control, FP_WIRE_INFO_REPLY, sizeof(info)), sizeof(info), &info),
	    0);
	return info;
}

/* ---- when which request is allowed ---- */

enum { AT_HELLO, AT_AUTH, AT_CONTROL, AT_LINK, N_STAGES };

static struct peer reach(unsigned stage, const struct peer *control)
{
	struct peer peer;

	if (stage == AT_CONTROL)
		return peer_open(false, 0);
	if (stage == AT_LINK)
		return peer_open_link(control, false);
	peer = peer_connect_unix();
	peer_set_hello(&peer, FP_WIRE_CONTROL, 0, NULL);
	if (stage == AT_AUTH) {
		peer_send_hello(&peer);
		peer_expect(&peer, FP_WIRE_CHALLENGE, sizeof(struct fp_wire_challenge));
	}
	return peer;
}

static bool is_allowed(enum fp_wire_type type, unsigned stage)
{
	switch (type) {
	case FP_WIRE_HELLO:
		return stage == AT_HELLO;
	case FP_WIRE_AUTH:
		return stage == AT_AUTH;
	case FP_WIRE_PING:
		return stage == AT_CONTROL || stage == AT_LINK;
	case FP_WIRE_READ:
	case FP_WIRE_WRITE:
	case FP_WIRE_QP:
		return stage == AT_LINK;
	default:
		return stage == AT_CONTROL;
	}
}

/*
 * A request at the wrong stage ends the connection. The answer has the request's own tag. Other
 * connections go on.
 */
static void test_out_of_turn(void **state)
{
	static const uint8_t types[] = {FP_WIRE_HELLO,   FP_WIRE_AUTH,  FP_WIRE_PING,   FP_WIRE_BYE,
	                                FP_WIRE_LEASE,   FP_WIRE_INFO,  FP_WIRE_STATUS, FP_WIRE_DRAIN,
	                                FP_WIRE_RELEASE, FP_WIRE_ADOPT, FP_WIRE_ATTACH, FP_WIRE_UNDRAIN,
	                                FP_WIRE_READ,    FP_WIRE_WRITE, FP_WIRE_QP};
	struct peer control = peer_open(false, 0);
	unsigned n_refused = 0;

	for (unsigned i = 0; i < sizeof(types) * N_STAGES; i++) {
		enum fp_wire_type type = types[i / N_STAGES];
		struct peer peer;

		if (is_allowed(type, i % N_STAGES))
			continue;
		peer = reach(i % N_STAGES, &control);
		send_any(&peer, type);
		peer_expect_error(&peer, FP_WIRE_MALFORMED);
		peer_expect_end(&peer);
		peer_close(&peer);
		n_refused++;
	}
	peer_send(&control, FP_WIRE_PING, NULL, 0);
	peer_expect(&control, FP_WIRE_PONG, 0);
	AWAIT(rig.server.n_conns == 1);
	assert_int_equal(rig.server.own.counters.refused, n_refused);
	peer_close(&control);
}

/* A request of the right length whose values are impossible. */
static void test_malformed(void **state)
{
	static const uint8_t types[] = {FP_WIRE_LEASE, FP_WIRE_RELEASE, FP_WIRE_ATTACH, FP_WIRE_ADOPT,
	                                FP_WIRE_QP};
	struct peer control = peer_open(false, 0);

	for (size_t i = 0; i < sizeof(types); i++) {
		struct peer peer =
		    types[i] == FP_WIRE_QP ? peer_open_link(&control, false) : peer_open(false, 0);

		send_any(&peer, types[i]);
		peer_expect_error(&peer, FP_WIRE_MALFORMED);
		peer_expect_end(&peer);
		peer_close(&peer);
	}
	peer_close(&control);
}

/* ---- leases ---- */

/* A request behind a LEASE waits for it, so that answers keep their order. */
static void test_lease_keeps_the_order(void **state)
{
	uint8_t bytes[2 * FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_lease)],
	    lease_bytes[sizeof(struct fp_wire_lease)];
	const struct fp_wire_lease lease = {.size_bytes = 2 * MIB};
	struct peer control = peer_open(false, 0);
	struct fp_wire_leased leased;
	size_t len;

	fp_wire_lease_encode(&lease, lease_bytes);
	len = peer_encode(&control, FP_WIRE_LEASE, lease_bytes, sizeof(lease_bytes), bytes);
	len += peer_encode(&control, FP_WIRE_PING, NULL, 0, bytes + len);
	peer_send_bytes(&control, bytes, len);
	control.tag--;
	leased = peer_expect_leased(&control, FP_WIRE_LEASED);
	assert_int_equal(leased.size_bytes, 2 * MIB);
	assert_int_equal(leased.flags, 0);
	assert_int_equal(leased.address, 0);
	control.tag++;
	peer_expect(&control, FP_WIRE_PONG, 0);
	assert_null(fp_node_lease_find(&control.conn->session->leases, leased.lease_id + 1));
	assert_non_null(fp_node_lease_find(&control.conn->session->leases, leased.lease_id));
	peer_close(&control);
}

/* Each limit refuses a LEASE with its own status, and a smaller one is granted afterwards. */
static void test_lease_limits(void **state)
{
	struct peer control = peer_open(false, 0);
	struct fp_limits *limits = &rig.server.config->limits;
	struct fp_wire_refusal refusal;

	peer_send_lease(&control, POOL_BYTES + MIB);
	refusal = peer_expect_refusal(&control, FP_WIRE_FULL, FP_REFUSAL_POOLS);
	assert_int_equal(refusal.limit, POOL_BYTES);
	assert_int_equal(refusal.used, 0);
	limits->client_quota_bytes = 2 * MIB;
	peer_send_lease(&control, 2 * MIB + 4096);
	refusal = peer_expect_refusal(&control, FP_WIRE_OVER_QUOTA, FP_REFUSAL_QUOTA);
	assert_int_equal(refusal.limit, 2 * MIB);
	rig.server.draining = true;
	peer_send_lease(&control, MIB);
	peer_expect_refusal(&control, FP_WIRE_DRAINING, FP_REFUSAL_DRAINING);
	rig.server.draining = false;
	rig.server.stopping = true;
	peer_send_lease(&control, MIB);
	peer_expect_refusal(&control, FP_WIRE_DRAINING, FP_REFUSAL_DRAINING);
	rig.server.stopping = false;
	peer_lease(&control, MIB);
	limits->max_leases = 1;
	peer_send_lease(&control, MIB);
	refusal = peer_expect_refusal(&control, FP_WIRE_BUSY, FP_REFUSAL_LEASES);
	assert_int_equal(refusal.limit, 1);
	assert_int_equal(refusal.used, 1);
	limits->max_leases = 2;
	peer_lease(&control, MIB);
	assert_int_equal(rig.server.own.counters.leases_refused, 5);
	assert_int_equal(rig.server.refusals.causes[FP_REFUSAL_DRAINING].n, 2);
	peer_close(&control);
}

/* The worker gets no memory. The client is told, and nothing is charged. */
static void test_host_has_no_memory(void **state)
{
	struct peer control = peer_open(false, 0);

	rig.pool->numa_node = 1000; /* no machine has it */
	rig.hold_worker = true;
	peer_send_lease(&control, MIB);
	AWAIT(control.conn->leasing);
	control.conn->refusal = (struct fp_refusal){.limit = 7}; /* of another cause: it must not be told */
	rig_release_worker();
	peer_expect_refusal(&control, FP_WIRE_FULL, FP_REFUSAL_HOST_MEMORY);
	assert_int_equal(control.conn->refusal.limit, 0);
	AWAIT(rig.pool->used_bytes == 0 && rig.pool->leaving_bytes == 0);
	assert_int_equal(control.conn->session->leases.n, 0);
	rig.pool->numa_node = FP_NUMA_ANY;
	peer_lease(&control, MIB);
	peer_close(&control);
}

/*
 * The connection breaks while its lease is made. The client never learns of the lease, so the lease
 * is freed.
 */
static void test_break_while_a_lease_is_made(void **state)
{
	struct peer control = peer_open(true, 0);

	rig.hold_worker = true;
	peer_send_lease(&control, MIB);
	AWAIT(control.conn->leasing);
	fp_conn_cut(control.conn);
	rig_rounds(N_IDLE_ROUNDS);
	assert_int_equal(rig.server.n_conns, 1); /* it stays for the worker's answer */
	rig_release_worker();
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 1);
	assert_true(rig.server.sessions.first->cut_off);
	assert_int_equal(rig.server.sessions.first->leases.n, 0);
	AWAIT(rig.pool->used_bytes == 0);
	peer_close(&control);
}

/* The session ends while its lease is made. */
static void test_end_while_a_lease_is_made(void **state)
{
	struct peer control = peer_open(false, FP_WIRE_FEATURE_MEMFD);

	peer_send_lease(&control, MIB);
	AWAIT(control.conn->leasing);
	fp_node_server_end_session(&rig.server, control.conn);
	fp_conn_kill(control.conn);
	AWAIT(rig.server.n_conns == 0);
	AWAIT(rig.pool->used_bytes == 0);
	peer_close(&control);
}

static void test_memfd_is_passed(void **state)
{
	struct peer control = peer_open(false, FP_WIRE_FEATURE_MEMFD);
	struct fp_wire_leased leased;
	struct stat st;
	char *memory;

	assert_int_equal(control.welcome.features, FP_WIRE_FEATURE_MEMFD);
	peer_send_lease(&control, MIB);
	leased = peer_expect_leased(&control, FP_WIRE_LEASED);
	assert_int_equal(leased.flags, FP_WIRE_LEASED_MEMFD);
	assert_true(control.passed_fd >= 0);
	assert_int_equal(fstat(control.passed_fd, &st), 0);
	assert_true((uint64_t)st.st_size >= leased.size_bytes);
	memory = mmap(NULL, leased.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, control.passed_fd, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	assert_int_equal(memory[leased.size_bytes - 1], 0);
	peer_send_id(&control, FP_WIRE_ATTACH, leased.lease_id); /* a memfd is passed only once */
	peer_expect_error(&control, FP_WIRE_NOT_PERMITTED);
	assert_int_equal(munmap(memory, leased.size_bytes), 0);
	peer_close(&control);
}

/* No descriptor is left to pass. The client is told, and has no lease. */
static void test_memfd_cannot_be_passed(void **state)
{
	struct peer control = peer_open(false, FP_WIRE_FEATURE_MEMFD);
	struct rlimit limit, none;

	rig.hold_worker = true;
	rig.worker_is_done = false;
	peer_send_lease(&control, MIB);
	AWAIT(control.conn->leasing && rig.worker_is_done);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	rig_release_worker();
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	peer_expect_refusal(&control, FP_WIRE_FULL, FP_REFUSAL_MAPPED_LEASES);
	assert_int_equal(control.conn->session->leases.n, 0);
	AWAIT(rig.pool->used_bytes == 0);
	peer_close(&control);
}

static void test_release(void **state)
{
	struct peer control = peer_open(false, 0), other = peer_open(false, 0);
	uint32_t id = peer_lease(&control, MIB);

	peer_send_id(&other, FP_WIRE_RELEASE, id); /* this session has no lease with that id */
	peer_expect_error(&other, FP_WIRE_DENIED);
	peer_send_id(&control, FP_WIRE_RELEASE, id + 1);
	peer_expect_error(&control, FP_WIRE_DENIED);
	peer_send_id(&control, FP_WIRE_RELEASE, id);
	peer_expect(&control, FP_WIRE_RELEASED, 0);
	AWAIT(rig.pool->used_bytes == 0);
	peer_send_id(&control, FP_WIRE_RELEASE, id);
	peer_expect_error(&control, FP_WIRE_DENIED);
	peer_close(&other);
	peer_close(&control);
}

static void test_attach(void **state)
{
	struct peer control = peer_open(true, 0);
	uint32_t id = peer_lease(&control, MIB);
	struct fp_wire_leased leased;

	peer_send_id(&control, FP_WIRE_ATTACH, id);
	leased = peer_expect_leased(&control, FP_WIRE_ATTACHED);
	assert_int_equal(leased.lease_id, id);
	assert_int_equal(leased.size_bytes, MIB);
	assert_int_equal(leased.flags, 0); /* no rdma: it has no key */
	peer_send_id(&control, FP_WIRE_ATTACH, id + 1);
	peer_expect_error(&control, FP_WIRE_DENIED);
	assert_int_equal(control.conn->session->leases.n, 1); /* a refused ATTACH takes no lease away */
	peer_close(&control);
}

/* ---- STATUS without a pause ---- */

static int is_made_for(struct fp_client *client, const char **ret_text)
{
	size_t len;
	int made;

	/* the period does not end during the test */
	rig.server.status.period = client->status_period = UINT64_MAX;
	assert_int_equal(fp_status_recent(&rig.server, client, ret_text, &len, &made), 0);
	return made;
}

static unsigned flood_status(struct fp_client *client, bool acts)
{
	const char *text, *last = NULL;
	unsigned n = 0;

	while (is_made_for(client, &text)) {
		last = text;
		n++;
		rig.server.status.n_acts += acts;
		assert_in_range(n, 1, 100000);
	}
	assert_ptr_equal(text, last);
	return n;
}

/*
 * Whoever asks without a pause gets the newest text again, but others hear what they have done. Who
 * does things without a pause, too, has an end.
 */
static void test_status_flood(void **state)
{
	struct fp_client flooder = {0}, other = {0};
	struct peer peer = peer_open(false, 0);
	const char *text;

	assert_in_range(flood_status(&flooder, false), 10, 30);
	assert_false(is_made_for(&other, &text));
	peer_lease(&peer, MIB);
	assert_true(is_made_for(&other, &text));
	assert_non_null(strstr(text, "\"used_bytes\":1048576"));
	rig.server.draining = true;
	assert_true(is_made_for(&other, &text));
	assert_non_null(strstr(text, "\"state\":\"draining\""));
	rig.server.draining = false;
	rig.server.status.n_acts++;
	assert_true(flood_status(&flooder, true) > 100);
	assert_true(flooder.status_bytes < 4 * MIB);
	assert_true(is_made_for(&other, &text));
	rig.server.status.n = 0;
	assert_true(is_made_for(&other, &text));
	peer_close(&peer);
	AWAIT(rig.pool->used_bytes == 0);
}

/* ---- adoption ---- */

static void test_adopt(void **state)
{
	struct peer parent = peer_open(false, 0), child = peer_open(true, 0);
	struct fp_wire_welcome wrong = parent.welcome;
	struct fp_wire_adopted adopted;
	uint32_t id = peer_lease(&parent, MIB);

	wrong.token[FP_WIRE_TOKEN_BYTES - 1] ^= 1;
	peer_send_adopt(&child, &wrong);
	peer_expect_refusal(&child, FP_WIRE_GONE, FP_REFUSAL_SESSION);
	wrong = parent.welcome;
	wrong.session_id += 100;
	peer_send_adopt(&child, &wrong);
	peer_expect_refusal(&child, FP_WIRE_GONE, FP_REFUSAL_SESSION);
	peer_send_adopt(&child, &child.welcome);
	peer_expect_error(&child, FP_WIRE_BAD_VALUE);
	peer_send_adopt(&child, &parent.welcome);
	assert_int_equal(fp_wire_adopted_decode(peer_expect(&child, FP_WIRE_ADOPTED, sizeof(adopted)),
	                                        sizeof(adopted), &adopted),
	                 0);
	assert_int_equal(adopted.n_leases, 1);
	peer_send_adopt(&child, &parent.welcome);
	peer_expect_error(&child, FP_WIRE_BAD_VALUE);
	peer_send_id(&child, FP_WIRE_ATTACH, id);
	assert_int_equal(peer_expect_leased(&child, FP_WIRE_ATTACHED).flags, FP_WIRE_LEASED_READ_ONLY);
	peer_close(&parent);
	AWAIT(rig.server.n_conns == 1);
	assert_int_equal(rig.pool->used_bytes, MIB); /* until the child has left, too */
	peer_close(&child);
	AWAIT(rig.pool->used_bytes == 0);
}

/* ---- the node's numbers ---- */

static void test_info(void **state)
{
	struct peer control = peer_open(false, 0), other = peer_open(false, 0);
	struct fp_wire_info info;

	peer_lease(&control, 2 * MIB);
	peer_lease(&other, MIB);
	info = info_of(&control);
	assert_int_equal(info.capacity_bytes, POOL_BYTES);
	assert_int_equal(info.free_bytes, POOL_BYTES - 3 * MIB);
	assert_int_equal(info.leased_bytes, 2 * MIB);
	assert_int_equal(info.quota_bytes, 0);
	rig.server.config->limits.client_quota_bytes = 5 * MIB;
	info = info_of(&control);
	assert_int_equal(info.quota_bytes, 5 * MIB);
	peer_close(&control);
	peer_close(&other);
}

static void test_status(void **state)
{
	struct peer control = peer_open(false, 0);
	struct fp_wire_header header;
	const uint8_t *payload;
	int64_t before;

	AWAIT(control.conn->receiving && !control.conn->sending);
	rig.hold_turns = true;
	rig_round();
	before = rig_credit(&control);
	peer_send(&control, FP_WIRE_STATUS, NULL, 0);
	assert_true(peer_receive(&control, &header, &payload));
	AWAIT(!control.conn->sending);
	/* the cost of receiving and handling the request, of printing each byte, and of sending */
	assert_int_equal(before - rig_credit(&control), FP_WIRE_HEADER_BYTES + 2048 + 12 * header.length +
	                                                    16384 + FP_WIRE_HEADER_BYTES + header.length);
	assert_int_equal(header.type, FP_WIRE_STATUS_REPLY);
	assert_int_equal(header.tag, control.tag);
	assert_int_equal(payload[0], '{');
	assert_int_equal(payload[header.length - 1], '}');
	assert_non_null(memmem(payload, header.length, "\"name\":\"peer\"", 13));
	peer_close(&control);
}

/* ---- the end of a session ---- */

/* When the client hears FAREWELL, its leases are free for others and its links are ended. */
static void test_bye(void **state)
{
	struct peer control = peer_open(true, 0), link = peer_open_link(&control, true),
	            next = peer_open(true, 0);

	peer_lease(&control, POOL_BYTES);
	peer_send(&control, FP_WIRE_BYE, NULL, 0);
	peer_expect(&control, FP_WIRE_FAREWELL, 0);
	assert_int_equal(rig.server.sessions.n, 1);
	peer_lease(&next, POOL_BYTES);
	peer_expect_end(&control);
	peer_expect_end(&link);
	peer_break(&control); /* it has no session to keep any more */
	AWAIT(rig.server.n_conns == 1);
	assert_int_equal(rig.server.sessions.n, 1);
	peer_close(&link);
	peer_close(&next);
}

static struct peer resume(const struct peer *old)
{
	struct peer peer = peer_connect_tcp();

	peer_set_hello(&peer, FP_WIRE_RESUME, 0, old);
	peer_shake_hands(&peer, NULL);
	return peer;
}

/*
 * A client that has not used its new connection yet may know nothing of it. Such a client may
 * resume once more.
 */
static void test_first_request_confirms_a_resume(void **state)
{
	struct peer control = peer_open(true, 0), again;
	uint32_t id = peer_lease(&control, MIB);

	again = resume(&control);
	peer_expect_end(&control);
	assert_true(again.conn->session->unconfirmed);
	peer_close(&again); /* an end of file, but the session stays */
	AWAIT(rig.server.n_conns == 0 && rig.server.sessions.n == 1);
	assert_true(rig.server.sessions.first->cut_off);
	again = resume(&control);
	peer_send_id(&again, FP_WIRE_ATTACH, id);
	peer_expect_leased(&again, FP_WIRE_ATTACHED);
	assert_false(again.conn->session->unconfirmed);
	peer_close(&again);
	AWAIT(rig.server.n_conns == 0);
	assert_int_equal(rig.server.sessions.n, 0);
	peer_close(&control);
}

/* ---- allocations that fail ---- */

static unsigned hear_all(struct peer *peer, unsigned n)
{
	struct fp_wire_header header;
	const uint8_t *payload;
	unsigned heard = 0;

	while (heard < n && peer_receive(peer, &header, &payload))
		heard++;
	return heard;
}

/* Whichever allocation fails, the connection ends or its answer is an error. Nothing is left. */
static void test_without_memory(void **state)
{
	unsigned nth = 0;
	bool failed;

	do {
		struct peer parent = peer_open(false, 0), control = peer_open(true, 0);

		peer_lease(&parent, MIB);
		rig_fail_allocation(++nth);
		peer_send_adopt(&control, &parent.welcome);
		if (hear_all(&control, 1) == 1) {
			peer_send_lease(&control, MIB);
			peer_send(&control, FP_WIRE_INFO, NULL, 0);
			peer_send(&control, FP_WIRE_STATUS, NULL, 0);
			hear_all(&control, 3);
		}
		failed = rig_failed();
		rig_fail_allocation(0);
		peer_close(&control);
		peer_close(&parent);
		AWAIT(rig.server.n_conns == 0 && rig.server.sessions.n == 0);
		AWAIT(rig.pool->used_bytes == 0);
		assert_true(nth < 100);
	} while (failed);
	assert_true(nth > 8);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, node_rig_setup, node_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_out_of_turn),
	    TEST(test_malformed),
	    TEST(test_lease_keeps_the_order),
	    TEST(test_lease_limits),
	    TEST(test_host_has_no_memory),
	    TEST(test_break_while_a_lease_is_made),
	    TEST(test_end_while_a_lease_is_made),
	    TEST(test_memfd_is_passed),
	    TEST(test_memfd_cannot_be_passed),
	    TEST(test_release),
	    TEST(test_attach),
	    TEST(test_status_flood),
	    TEST(test_adopt),
	    TEST(test_info),
	    TEST(test_status),
	    TEST(test_bye),
	    TEST(test_first_request_confirms_a_resume),
	    TEST(test_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
