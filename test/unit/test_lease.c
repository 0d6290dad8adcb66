/* Leases: accounting, ids and quotas. Memory in use outlives its release. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "cleanup.h"
#include "leasebed.h"
#include "session.h"

static void test_pool_with_most_room(void **state)
{
	struct fp_lease_request any = request(MIB), shareable = request(MIB);
	uint64_t size, left;

	shareable.shareable = true;
	assert_ptr_equal(grant(&any)->memory->pool, t.items[1]);
	assert_ptr_equal(grant(&shareable)->memory->pool, t.items[0]);
	assert_ptr_equal(fp_pools_choose(&t.pools, 15 * MIB, false), t.items[1]);
	assert_null(fp_pools_choose(&t.pools, 15 * MIB, true));
	assert_null(fp_pools_choose(&t.pools, 16 * MIB, false));
	fp_pools_sum(&t.pools, false, &size, &left);
	assert_int_equal(size, 24 * MIB);
	assert_int_equal(left, 22 * MIB);
	fp_pools_sum(&t.pools, true, &size, &left);
	assert_int_equal(size, 8 * MIB);
	assert_int_equal(left, 7 * MIB);
}

static void test_ids_are_the_lowest_free(void **state)
{
	struct fp_lease_request r = request(4096);

	for (uint32_t i = 1; i <= 40; i++)
		assert_int_equal(grant(&r)->id, i);
	fp_node_lease_release(fp_node_lease_find(&t.leases, 3));
	fp_node_lease_release(fp_node_lease_find(&t.leases, 17));
	assert_null(fp_node_lease_find(&t.leases, 3));
	assert_int_equal(grant(&r)->id, 3);
	assert_int_equal(grant(&r)->id, 17);
	assert_int_equal(grant(&r)->id, 41);
	assert_int_equal(t.leases.n, 41);
	assert_null(fp_node_lease_find(&t.leases, 0));
	assert_null(fp_node_lease_find(&t.leases, 42));
	assert_null(fp_node_lease_find(&t.leases, UINT32_MAX));
}

static void test_limits(void **state)
{
	struct fp_lease_request r = request(3 * MIB);

	r.quota_bytes = 6 * MIB;
	r.max_leases = 2;
	grant(&r);
	r.size_bytes = 3 * MIB + 4096;
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -EDQUOT);
	r.size_bytes = 4096;
	grant(&r);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -EUSERS);
	r = request(16 * MIB);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -ENOSPC);
	r = request(4096);
	r.quota_bytes = 4096; /* the quota is below the bytes that are leased already */
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -EDQUOT);
	assert_int_equal(t.leases.leased_bytes, 3 * MIB + 4096);
}

/* A lease comes from one pool. So what is left is the most that one pool has left. */
static void test_what_is_left_is_of_one_pool(void **state)
{
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_lease_request r = request(20 * MIB);

	r.refusal = &refusal;
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -ENOSPC);
	assert_int_equal(refusal.cause, FP_REFUSAL_POOLS);
	assert_int_equal(refusal.limit, 24 * MIB);
	assert_int_equal(refusal.limit - refusal.used, 16 * MIB);
}

/*
 * The first look at the pools may meet a limit. A second look, after memory has come back, meets
 * none: then no refusal is told.
 */
static void test_what_is_granted_met_no_limit(void **state)
{
	struct fp_refusal refusal = {.cause = FP_REFUSAL_POOLS, .limit = MIB};
	struct fp_lease_request r = request(MIB);

	r.refusal = &refusal;
	assert_int_equal(fp_node_lease_check(&t.leases, &t.pools, &r), 0);
	assert_int_equal(refusal.cause, FP_REFUSAL_NONE);
}

static void test_least_size(void **state)
{
	struct fp_lease_request r = request(4096);

	assert_int_equal(fp_pools_least_bytes(MIB), MIB);
	assert_int_equal(fp_pools_least_bytes(MIB << 15), MIB);
	assert_int_equal(fp_pools_least_bytes((MIB << 15) + 4 * MIB), 2 * MIB);
	assert_int_equal(fp_pools_least_bytes(1ull << 46), 1ull << 31);
	fp_pool_set_least(t.items[1], MIB);
	assert_int_equal(grant(&r)->memory->size_bytes, MIB);
}

/* The bytes of a lease in the making count as used, so no other lease can be promised them. */
static void test_accounted_at_once(void **state)
{
	struct fp_lease_request r = request(16 * MIB);

	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), 0);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -ENOSPC);
	assert_null(fp_node_lease_find(&t.leases, 1));
	await_done(1);
	assert_non_null(fp_node_lease_find(&t.leases, 1));
}

static void test_memory_in_use_outlives_the_release(void **state)
{
	struct fp_lease_request r = request(16 * MIB);
	struct fp_node_lease *lease = grant(&r);
	char *bytes = lease->memory->chunk.base;

	strcpy(bytes, "on its way out");
	fp_node_lease_get(lease);
	fp_node_lease_get(lease);
	fp_node_lease_release(lease);
	assert_int_equal(t.leases.leased_bytes, 0);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), -ENOSPC);
	fp_node_lease_put(lease);
	assert_string_equal(bytes, "on its way out");
	fp_node_lease_put(lease);
	assert_int_equal(*(char *)grant(&r)->memory->chunk.base, 0);
}

/*
 * Memory is released and leased again much faster than the worker works. It must never be leased
 * before it was scrubbed.
 */
static void test_scrubbed_before_it_is_leased_again(void **state)
{
	struct fp_lease_request r = request(16 * MIB);

	for (unsigned i = 0; i < 20; i++) {
		struct fp_node_lease *lease = grant(&r);
		char *bytes = lease->memory->chunk.base;

		for (size_t offset = 0; offset < 16 * MIB; offset += 4096) {
			assert_int_equal(bytes[offset], 0);
			bytes[offset] = 1;
		}
		fp_node_lease_release(lease);
	}
}

static void test_memory_that_is_not_to_be_had(void **state)
{
	struct fp_lease_request r = request(8 * MIB);

	set_available(false);
	r.size_bytes = 4096;
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), 0);
	await_done(1);
	assert_true(t.last_status < 0);
	assert_int_equal(t.leases.n, 0);
	assert_int_equal(t.items[1]->used_bytes, 0);
	set_available(true);
}

/* Pages that the reserve gave up for a lease come back to it if the lease fails. */
static void test_reserve_after_a_failure(void **state)
{
	struct fp_pool_config config = {
	    .name = (char *)"reserved", .size_bytes = 4 * MIB, .numa_node = FP_NUMA_ANY, .preallocate = true};
	struct fp_lease_request r = request(2 * MIB);
	struct rlimit before, none = {0};
	struct fp_conf_error error;

	fp_pool_close(t.items[0]);
	assert_int_equal(fp_pool_open(&config, &t.items[0], &error), 0);
	r.shareable = true;
	getrlimit(RLIMIT_NOFILE, &before);
	none.rlim_max = before.rlim_max;
	setrlimit(RLIMIT_NOFILE, &none); /* its memory can't be made */
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), 0);
	await_done(1);
	setrlimit(RLIMIT_NOFILE, &before);
	assert_int_equal(t.last_status, -EMFILE);
	await_given(t.items[0]);
	assert_int_equal(t.items[0]->reserve_bytes, 4 * MIB);
}

static void test_sessions(void **state)
{
	struct fp_node_sessions sessions = {0};
	struct fp_lease_request r = request(4096);
	struct fp_node_session *a, *b;
	uint8_t wrong[FP_WIRE_TOKEN_BYTES];
	uint64_t leases, bytes;

	assert_int_equal(fp_node_session_open(&sessions, t.client, "a", "here", &a), 0);
	assert_int_equal(fp_node_session_open(&sessions, t.client, "b", "there", &b), 0);
	assert_int_not_equal(a->id, b->id);
	assert_memory_not_equal(a->token, b->token, sizeof(a->token));
	assert_ptr_equal(fp_node_session_find(&sessions, a->id, a->token), a);
	assert_null(fp_node_session_find(&sessions, a->id, b->token));
	assert_null(fp_node_session_find(&sessions, 77, a->token));
	memcpy(wrong, a->token, sizeof(wrong));
	wrong[15] ^= 1;
	assert_null(fp_node_session_find(&sessions, a->id, wrong));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fp_node_lease_grant(&a->leases, &t.pools, &r), 0);
	await_done(3);
	fp_pools_leased(&t.pools, &leases, &bytes);
	assert_int_equal(leases, 3);
	assert_int_equal(bytes, 3 * 4096);
	fp_node_session_end(&sessions, a);
	assert_int_equal(t.items[1]->used_bytes, 0);
	assert_int_equal(sessions.n, 1);
	fp_node_session_end(&sessions, b);
	assert_null(sessions.first);
}

/*
 * The session ends while its leases are being made: each is reported as cancelled, and its memory
 * is freed.
 */
static void test_ended_while_being_made(void **state)
{
	struct fp_node_sessions sessions = {0};
	struct fp_lease_request r = request(MIB), missing = request(8 * MIB);
	struct fp_node_session *session;

	assert_int_equal(fp_node_session_open(&sessions, t.client, "a", "here", &session), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fp_node_lease_grant(&session->leases, &t.pools, &r), 0);
	fp_node_session_end(&sessions, session);
	await_done(3);
	assert_int_equal(t.last_status, -ECANCELED);
	assert_int_equal(t.items[1]->used_bytes, 0);

	/* Repeats this with a lease that can't be made. */
	set_available(false);
	missing.size_bytes = 4096;
	assert_int_equal(fp_node_session_open(&sessions, t.client, "a", "here", &session), 0);
	assert_int_equal(fp_node_lease_grant(&session->leases, &t.pools, &missing), 0);
	fp_node_session_end(&sessions, session);
	await_done(4);
	assert_int_equal(t.last_status, -ECANCELED);
	assert_int_equal(t.items[1]->used_bytes, 0);
	set_available(true);
}

/*
 * The session of a lease in the making ends, and then the worker. All of the lease is freed: see
 * teardown.
 */
static void test_in_the_making_at_the_end(void **state)
{
	struct fp_lease_request r = request(4096);

	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, &r), 0);
}

/* The node does not map what a client touches over shm. It counts all the same. */
static void test_what_clients_touch_is_known(void **state)
{
	const struct fp_hostmem little = {.available_bytes = 10 * MIB}, more = {.available_bytes = 100 * MIB};
	struct fp_lease_request r = request(4 * MIB);
	struct fp_promised promised = {0};
	struct fp_promise promise = {0};
	struct fp_node_lease *lease;

	r.shareable = true;
	lease = grant(&r);
	assert_int_equal(fallocate(lease->memory->chunk.fd, 0, MIB, 3 * MIB), 0);
	t.pools.host_ns = 0;
	fp_pools_free(&t.pools, t.items[0]);
	assert_int_equal(t.pools.touched_bytes, 3 * MIB);
	fp_promise_look(&promise, &little, &promised);
	promised =
	    (struct fp_promised){.on_use_bytes = 4 * MIB, .touched_bytes = 3 * MIB, .pools_bytes = 4 * MIB};
	fp_promise_look(&promise, &more, &promised);
	assert_true(fp_promise_left(&promise, &promised) >= 99 * MIB);
	fp_node_lease_release(lease);
	assert_int_equal(t.pools.touched_bytes, 0);
	assert_int_equal(t.pools.n_mapped, 0);
}

/* Leases memory, and keeps a descriptor of it after the release. Returns the descriptor. */
static int keep(const struct fp_lease_request *r)
{
	struct fp_node_lease *lease = grant(r);
	int fd;

	assert_int_equal(fp_chunk_pass(&lease->memory->chunk, &fd), 0);
	fp_node_lease_release(lease);
	return fd;
}

/* A client that keeps more memory than one look sees delays no look at what others let go of. */
static void test_keepers_take_turns(void **state)
{
	struct fp_lease_request r = request(4096);
	struct fp_client *other = fp_client_get(&t.clients, "other");
	int fds[200];

	r.shareable = true;
	t.pools.max_shared = 1000;
	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
		fds[i] = keep(&r);
	r.client = other;
	close(keep(&r));
	assert_int_equal(other->leased_bytes, 4096);
	t.pools.collected_ns = 0;
	assert_true(fp_pools_collect(&t.pools));
	assert_int_equal(other->leased_bytes, 0);
	assert_int_equal(t.pools.n_kept, FP_ARRAY_LEN(fds));
	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++)
		close(fds[i]);
	while (t.pools.n_kept) {
		t.pools.collected_ns = 0;
		assert_true(fp_pools_collect(&t.pools));
	}
	await_given(t.items[0]);
	fp_client_put(other);
}

static void test_tokens(void **state)
{
	struct fp_node_sessions sessions = {0};
	uint8_t wrong[FP_WIRE_TOKEN_BYTES];
	struct fp_node_session *a;

	assert_int_equal(fp_node_session_open(&sessions, t.client, "a", "here", &a), 0);
	memcpy(wrong, a->token, sizeof(wrong));
	assert_ptr_equal(fp_node_session_find(&sessions, a->id, wrong), a);
	assert_null(fp_node_session_find(&sessions, a->id + 1, wrong));
	wrong[FP_WIRE_TOKEN_BYTES - 1] ^= 1;
	assert_null(fp_node_session_find(&sessions, a->id, wrong));
	fp_node_session_end(&sessions, a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_pool_with_most_room, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_ids_are_the_lowest_free, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_what_is_left_is_of_one_pool, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_what_is_granted_met_no_limit, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_least_size, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_accounted_at_once, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_memory_in_use_outlives_the_release, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_scrubbed_before_it_is_leased_again, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_memory_that_is_not_to_be_had, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_reserve_after_a_failure, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_sessions, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_ended_while_being_made, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_in_the_making_at_the_end, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_what_clients_touch_is_known, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_keepers_take_turns, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_tokens, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
