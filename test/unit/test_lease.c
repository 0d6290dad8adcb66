/*
 * Leases: accounting, ids, quotas, and that memory in use outlives its release.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "lease.h"
#include "session.h"
#include "testrng.h"

#define MIB (1ull << 20)

static struct {
	struct fp_keeper *keeper;
	struct fp_pools pools;
	struct fp_pool *items[2];
	struct fp_node_leases leases;
	struct fp_node_lease *last;
	int last_status;
	unsigned n_done, n_barriers;
} t;

static void on_done(struct fp_node_lease *lease, int status, void *user)
{
	assert_ptr_equal(user, &t);
	t.last = status == 0 ? lease : NULL;
	t.last_status = status;
	t.n_done++;
}

static int setup(void **state)
{
	struct fp_pool_config memfd = {
	    .name = (char *)"memfd", .size_bytes = 8 * MIB, .numa_node = FP_NUMA_ANY};
	struct fp_pool_config anonymous = {.name = (char *)"anonymous",
	                                   .size_bytes = 16 * MIB,
	                                   .backing = FP_BACKING_ANONYMOUS,
	                                   .numa_node = FP_NUMA_ANY};
	struct fp_conf_error error;

	memset(&t, 0, sizeof(t));
	assert_int_equal(fp_keeper_start(&t.keeper), 0);
	assert_int_equal(fp_pool_open(&memfd, &t.items[0], &error), 0);
	assert_int_equal(fp_pool_open(&anonymous, &t.items[1], &error), 0);
	t.pools = (struct fp_pools){t.items, 2};
	return 0;
}

static int teardown(void **state)
{
	fp_node_leases_done(&t.leases);
	fp_keeper_stop(t.keeper);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(t.items[i]->used_bytes, 0);
		fp_pool_close(t.items[i]);
	}
	return 0;
}

static struct fp_lease_request request(uint64_t size_bytes)
{
	return (struct fp_lease_request){
	    .size_bytes = size_bytes,
	    .quota_bytes = FP_QUOTA_NONE,
	    .max_leases = 100,
	    .done = on_done,
	    .user = &t,
	};
}

static void await_done(unsigned n)
{
	eventfd_t events;

	while (t.n_done < n) {
		eventfd_read(fp_keeper_fd(t.keeper), &events);
		fp_keeper_reap(t.keeper);
	}
}

static void no_run(struct fp_job *job)
{
}

static void barrier_done(struct fp_job *job)
{
	t.n_barriers++;
}

/* The keeper reads it: it changes when all jobs so far are over. */
static void set_backing(enum fp_backing backing)
{
	struct fp_job barrier = {.run = no_run, .done = barrier_done};
	unsigned n = t.n_barriers;
	eventfd_t events;

	fp_keeper_post(t.keeper, &barrier);
	while (t.n_barriers == n) {
		eventfd_read(fp_keeper_fd(t.keeper), &events);
		fp_keeper_reap(t.keeper);
	}
	t.items[1]->backing = backing;
}

static struct fp_node_lease *grant(const struct fp_lease_request *r)
{
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, r), 0);
	await_done(t.n_done + 1);
	assert_int_equal(t.last_status, 0);
	return t.last;
}

static void test_pool_with_most_room(void **state)
{
	struct fp_lease_request any = request(MIB), shareable = request(MIB);
	uint64_t size, used;

	shareable.shareable = true;
	assert_ptr_equal(grant(&any)->memory->pool, t.items[1]);
	assert_ptr_equal(grant(&shareable)->memory->pool, t.items[0]);
	assert_ptr_equal(fp_pools_choose(&t.pools, 15 * MIB, false), t.items[1]);
	assert_null(fp_pools_choose(&t.pools, 15 * MIB, true));
	assert_null(fp_pools_choose(&t.pools, 16 * MIB, false));
	fp_pools_sum(&t.pools, false, &size, &used);
	assert_int_equal(size, 24 * MIB);
	assert_int_equal(used, 2 * MIB);
	fp_pools_sum(&t.pools, true, &size, &used);
	assert_int_equal(size, 8 * MIB);
	assert_int_equal(used, MIB);
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
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), -EDQUOT);
	r.size_bytes = 4096;
	grant(&r);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), -EUSERS);
	r = request(16 * MIB);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), -ENOSPC);
	r = request(4096);
	r.quota_bytes = 4096; /* lowered below what is out */
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), -EDQUOT);
	assert_int_equal(t.leases.leased_bytes, 3 * MIB + 4096);
}

/* The bytes of a lease in the making are taken: two can't both be promised the same. */
static void test_accounted_at_once(void **state)
{
	struct fp_lease_request r = request(16 * MIB);

	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), 0);
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), -ENOSPC);
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
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), -ENOSPC);
	fp_node_lease_put(lease);
	assert_string_equal(bytes, "on its way out");
	fp_node_lease_put(lease);
	assert_int_equal(*(char *)grant(&r)->memory->chunk.base, 0);
}

/* Released and granted again many times faster than the keeper works: it never gives what is not scrubbed. */
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

	set_backing(FP_BACKING_HUGETLB); /* of which the machine has none, or not of an odd size */
	r.size_bytes = 4096;
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, t.keeper, &r), 0);
	await_done(1);
	assert_true(t.last_status < 0);
	assert_int_equal(t.leases.n, 0);
	assert_int_equal(t.items[1]->used_bytes, 0);
	set_backing(FP_BACKING_ANONYMOUS);
}

static void test_sessions(void **state)
{
	struct fp_node_sessions sessions = {0};
	struct fp_lease_request r = request(4096);
	struct fp_node_session *a, *b;
	uint8_t wrong[FP_WIRE_TOKEN_BYTES];
	uint64_t leases, bytes;

	assert_int_equal(fp_node_session_open(&sessions, "a", "here", &a), 0);
	assert_int_equal(fp_node_session_open(&sessions, "b", "there", &b), 0);
	assert_int_not_equal(a->id, b->id);
	assert_memory_not_equal(a->token, b->token, sizeof(a->token));
	assert_ptr_equal(fp_node_session_find(&sessions, a->id, a->token), a);
	assert_null(fp_node_session_find(&sessions, a->id, b->token));
	assert_null(fp_node_session_find(&sessions, 77, a->token));
	memcpy(wrong, a->token, sizeof(wrong));
	wrong[15] ^= 1;
	assert_null(fp_node_session_find(&sessions, a->id, wrong));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fp_node_lease_grant(&a->leases, &t.pools, t.keeper, &r), 0);
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

/* The session ends while its leases are being made: they are told as cancelled, and go back. */
static void test_ended_while_being_made(void **state)
{
	struct fp_node_sessions sessions = {0};
	struct fp_lease_request r = request(MIB), missing = request(8 * MIB);
	struct fp_node_session *session;

	assert_int_equal(fp_node_session_open(&sessions, "a", "here", &session), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fp_node_lease_grant(&session->leases, &t.pools, t.keeper, &r), 0);
	fp_node_session_end(&sessions, session);
	await_done(3);
	assert_int_equal(t.last_status, -ECANCELED);
	assert_int_equal(t.items[1]->used_bytes, 0);

	/* also one that could not be made */
	set_backing(FP_BACKING_HUGETLB);
	missing.size_bytes = 4096;
	assert_int_equal(fp_node_session_open(&sessions, "a", "here", &session), 0);
	assert_int_equal(fp_node_lease_grant(&session->leases, &t.pools, t.keeper, &missing), 0);
	fp_node_session_end(&sessions, session);
	await_done(4);
	assert_int_equal(t.last_status, -ECANCELED);
	assert_int_equal(t.items[1]->used_bytes, 0);
	set_backing(FP_BACKING_ANONYMOUS);
}

static void test_tokens(void **state)
{
	struct fp_node_sessions sessions = {0};
	struct fp_node_session *a;
	uint8_t first[FP_WIRE_TOKEN_BYTES], second[FP_WIRE_TOKEN_BYTES];

	assert_int_equal(fp_node_session_open(&sessions, "a", "here", &a), 0);
	memcpy(first, a->token, sizeof(first));
	assert_int_equal(fp_node_session_renew(a), 0);
	memcpy(second, a->token, sizeof(second));
	assert_memory_not_equal(first, second, sizeof(first));
	assert_null(fp_node_session_find(&sessions, a->id, first));
	assert_ptr_equal(fp_node_session_find(&sessions, a->id, second), a);
	assert_ptr_equal(fp_node_session_find_resumable(&sessions, a->id, first), a);
	assert_ptr_equal(fp_node_session_find_resumable(&sessions, a->id, second), a);
	assert_int_equal(fp_node_session_renew(a), 0); /* nobody has used the last one */
	assert_memory_equal(a->token, second, sizeof(second));
	fp_node_session_confirm(a);
	assert_null(fp_node_session_find_resumable(&sessions, a->id, first));
	memset(first, 0, sizeof(first)); /* what is left of it is no token */
	assert_null(fp_node_session_find_resumable(&sessions, a->id, first));
	assert_int_equal(fp_node_session_renew(a), 0);
	assert_memory_not_equal(a->token, second, sizeof(second));
	fp_node_session_end(&sessions, a);
}

static void test_next_to_expire(void **state)
{
	struct fp_node_sessions sessions = {0};
	struct fp_node_session *all[4];
	unsigned n;

	assert_null(fp_node_sessions_next_to_expire(&sessions, &n));
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(fp_node_session_open(&sessions, "a", "here", &all[i]), 0);
		all[i]->expires_ns = 10 - i;
		all[i]->cut_off = i < 3;
	}
	assert_ptr_equal(fp_node_sessions_next_to_expire(&sessions, &n), all[2]);
	assert_int_equal(n, 3);
	for (unsigned i = 0; i < 4; i++)
		fp_node_session_end(&sessions, all[i]);
}

/* --- adoption ------------------------------------------------------------------------------------------- */

/* Two sessions, of which the first has three leases of a MiB each, filled with their ids. */
static struct family {
	struct fp_node_sessions sessions;
	struct fp_node_session *parent, *child, *grandchild;
} family;

static void begin_family(void)
{
	struct fp_lease_request r = request(MIB);

	family = (struct family){0};
	assert_int_equal(fp_node_session_open(&family.sessions, "parent", "here", &family.parent), 0);
	assert_int_equal(fp_node_session_open(&family.sessions, "child", "here", &family.child), 0);
	assert_int_equal(fp_node_session_open(&family.sessions, "grandchild", "here", &family.grandchild), 0);
	for (unsigned i = 1; i <= 3; i++) {
		assert_int_equal(fp_node_lease_grant(&family.parent->leases, &t.pools, t.keeper, &r), 0);
		await_done(t.n_done + 1);
		memset(t.last->memory->chunk.base, (int)i, MIB);
	}
}

static void end_family(void)
{
	while (family.sessions.first)
		fp_node_session_end(&family.sessions, family.sessions.first);
}

/* All its leases are there, hold what they held, and are counted. */
static void assert_has(const struct fp_node_session *session, bool read_only)
{
	for (uint32_t id = 1; id <= 3; id++) {
		const struct fp_node_lease *lease = fp_node_lease_find(&session->leases, id);
		const uint8_t *bytes;

		assert_non_null(lease);
		assert_int_equal(lease->read_only, read_only);
		bytes = lease->memory->chunk.base;
		assert_int_equal(bytes[0], id);
		assert_int_equal(bytes[MIB - 1], id);
	}
	assert_int_equal(session->leases.n, 3);
	assert_int_equal(session->leases.n_adopted, read_only ? 3 : 0);
	assert_int_equal(session->leases.leased_bytes, 3 * MIB);
}

static void assert_leased(uint64_t wanted_leases)
{
	uint64_t leases, bytes;

	fp_pools_leased(&t.pools, &leases, &bytes);
	assert_int_equal(leases, wanted_leases);
	assert_int_equal(bytes, wanted_leases * MIB);
}

/* All of the pool is free and zero: nothing that was leased is left. */
static void assert_scrubbed(void)
{
	struct fp_lease_request r = request(16 * MIB);
	const uint8_t *bytes;

	assert_leased(0);
	bytes = grant(&r)->memory->chunk.base;
	for (size_t at = 0; at < 16 * MIB; at += 4096)
		assert_int_equal(bytes[at], 0);
}

static void test_adopted(void **state)
{
	begin_family();
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	assert_has(family.parent, false);
	assert_has(family.child, true);
	assert_ptr_equal(fp_node_lease_find(&family.parent->leases, 2)->memory,
	                 fp_node_lease_find(&family.child->leases, 2)->memory);
	assert_leased(3);
	fp_node_session_end(&family.sessions, family.parent);
	assert_has(family.child, true);
	assert_leased(3);
	/* what the child hands on is all that it has */
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.child), 0);
	fp_node_session_end(&family.sessions, family.child);
	assert_has(family.grandchild, true);
	assert_leased(3);
	fp_node_session_end(&family.sessions, family.grandchild);
	assert_scrubbed();
}

static void test_adopter_ends_first(void **state)
{
	begin_family();
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.parent), 0);
	fp_node_session_end(&family.sessions, family.child);
	assert_has(family.parent, false);
	assert_has(family.grandchild, true);
	fp_node_session_end(&family.sessions, family.grandchild);
	assert_has(family.parent, false);
	assert_leased(3);
	fp_node_session_end(&family.sessions, family.parent);
	assert_scrubbed();
}

static void test_adopted_and_released(void **state)
{
	begin_family();
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	for (uint32_t id = 1; id <= 3; id++) {
		fp_node_lease_release(fp_node_lease_find(&family.parent->leases, id));
		assert_null(fp_node_lease_find(&family.parent->leases, id));
	}
	assert_int_equal(family.parent->leases.leased_bytes, 0);
	assert_has(family.child, true);
	for (uint32_t id = 1; id <= 3; id++) {
		assert_leased(4 - id);
		fp_node_lease_release(fp_node_lease_find(&family.child->leases, id));
	}
	assert_int_equal(family.child->leases.leased_bytes, 0);
	assert_int_equal(family.child->leases.n_adopted, 0);
	assert_scrubbed();
	end_family();
}

/* Whoever still uses it holds it, also if it was released on both sides. */
static void test_adopted_and_in_use(void **state)
{
	struct fp_node_lease *used[2];

	begin_family();
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	used[0] = fp_node_lease_find(&family.parent->leases, 1);
	used[1] = fp_node_lease_find(&family.child->leases, 1);
	for (unsigned i = 0; i < 2; i++)
		fp_node_lease_get(used[i]);
	fp_node_session_end(&family.sessions, family.parent);
	fp_node_session_end(&family.sessions, family.child);
	assert_leased(1);
	fp_node_lease_put(used[0]);
	assert_leased(1);
	assert_int_equal(*(uint8_t *)used[1]->memory->chunk.base, 1);
	fp_node_lease_put(used[1]);
	assert_scrubbed();
	end_family();
}

static void test_adoptions_refused(void **state)
{
	struct fp_lease_request r = request(MIB);

	begin_family();
	assert_int_equal(fp_node_session_adopt(family.parent, family.parent), -EINVAL);
	assert_int_equal(fp_node_session_adopt(family.child, family.child), -EINVAL);
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, t.keeper, &r), 0);
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), -EINVAL); /* one is being made */
	await_done(t.n_done + 1);
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), -EINVAL);
	fp_node_lease_release(fp_node_lease_find(&family.child->leases, 1));
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0); /* it has none any more */
	assert_has(family.child, true);
	assert_int_equal(fp_node_session_adopt(family.child, family.grandchild), -EINVAL);
	/* there was nothing to adopt, and yet it has adopted */
	fp_node_lease_release(fp_node_lease_find(&family.child->leases, 1));
	for (uint32_t id = 2; id <= 3; id++)
		fp_node_lease_release(fp_node_lease_find(&family.child->leases, id));
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.child), 0);
	assert_int_equal(family.grandchild->leases.n, 0);
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.parent), -EINVAL);
	end_family();
	assert_scrubbed();
}

/* A lease that is being made is nobody's to adopt, also if it can't be made. */
static void test_adopted_while_being_made(void **state)
{
	struct fp_lease_request r = request(MIB), missing = request(8 * MIB);

	begin_family();
	assert_int_equal(fp_node_lease_grant(&family.parent->leases, &t.pools, t.keeper, &r), 0);
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	await_done(t.n_done + 1);
	assert_non_null(fp_node_lease_find(&family.parent->leases, 4));
	assert_null(fp_node_lease_find(&family.child->leases, 4));
	assert_has(family.child, true);
	set_backing(FP_BACKING_HUGETLB);
	missing.size_bytes = 4096;
	assert_int_equal(fp_node_lease_grant(&family.parent->leases, &t.pools, t.keeper, &missing), 0);
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.parent), 0);
	await_done(t.n_done + 1);
	set_backing(FP_BACKING_ANONYMOUS);
	assert_true(t.last_status < 0);
	assert_int_equal(family.grandchild->leases.n, 4);
	end_family();
	assert_scrubbed();
}

/* Adopted leases count, but are had whatever the limits say; what is leased later has other ids. */
static void test_adopted_and_leased(void **state)
{
	struct fp_lease_request r = request(MIB);

	begin_family();
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	r.quota_bytes = 2 * MIB;
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, t.keeper, &r), -EDQUOT);
	r.quota_bytes = 4 * MIB;
	r.max_leases = 3;
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, t.keeper, &r), -EUSERS);
	r.max_leases = 4;
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, t.keeper, &r), 0);
	await_done(t.n_done + 1);
	assert_int_equal(t.last->id, 4);
	assert_false(t.last->read_only);
	assert_int_equal(family.child->leases.n_adopted, 3);
	assert_leased(4);
	fp_node_lease_release(fp_node_lease_find(&family.child->leases, 2));
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, t.keeper, &r), 0);
	await_done(t.n_done + 1);
	assert_int_equal(t.last->id, 2); /* the parent's 2 is another lease now */
	assert_ptr_not_equal(t.last->memory, fp_node_lease_find(&family.parent->leases, 2)->memory);
	end_family();
	assert_scrubbed();
}

#ifndef __SANITIZE_ADDRESS__ /* which has a calloc of its own */
#ifndef __SANITIZE_THREAD__
#define CAN_FAIL 1
#endif
#endif

#ifdef CAN_FAIL
static _Thread_local unsigned n_until_failure; /* 0: none fails */

void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
	return n_until_failure && --n_until_failure == 0 ? NULL : __libc_calloc(n, size);
}

/* Whichever allocation fails, nothing is adopted, and nothing is held that would not go back. */
static void test_adopted_without_memory(void **state)
{
	unsigned nth = 1;
	int r;

	begin_family();
	do {
		n_until_failure = nth++;
		r = fp_node_session_adopt(family.child, family.parent);
		if (r < 0) {
			assert_int_equal(r, -ENOMEM);
			assert_int_equal(n_until_failure, 0);
			assert_int_equal(family.child->leases.n, 0);
			assert_int_equal(family.child->leases.leased_bytes, 0);
			assert_null(fp_node_lease_find(&family.child->leases, 1));
		}
	} while (r < 0);
	n_until_failure = 0;
	assert_int_equal(nth, 1 + 1 + 3 + 1); /* a table, three leases, and none */
	assert_has(family.child, true);
	end_family();
	assert_scrubbed();
}
#else
static void test_adopted_without_memory(void **state)
{
	skip();
}
#endif

#define N_SESSIONS 12
#define N_STEPS    5000

/* Sessions that are opened, adopt, lease, read, release and end at random. */
struct crowd {
	struct fp_node_sessions sessions;
	struct fp_node_session *live[N_SESSIONS];
	struct fp_node_lease *used;
	uint64_t rng;
};

static uint64_t stamp_of(const struct fp_node_lease *lease)
{
	return *(uint64_t *)lease->memory->chunk.base;
}

/* What its maker wrote into it is there for as long as anybody holds it. */
static void assert_stamped(const struct fp_node_lease *lease)
{
	assert_int_equal(stamp_of(lease), (uintptr_t)lease->memory);
}

static void crowd_open(struct crowd *crowd, struct fp_node_session **at)
{
	const struct fp_node_session *parent = crowd->live[test_random(&crowd->rng) % N_SESSIONS];

	assert_int_equal(fp_node_session_open(&crowd->sessions, "s", "here", at), 0);
	if (parent && test_random(&crowd->rng) % 2)
		assert_int_equal(fp_node_session_adopt(*at, parent), 0);
}

static void crowd_lease(struct fp_node_leases *leases)
{
	struct fp_lease_request r = request(4096);

	if (fp_node_lease_grant(leases, &t.pools, t.keeper, &r) < 0)
		return;
	await_done(t.n_done + 1);
	assert_int_equal(stamp_of(t.last), 0);
	*(uint64_t *)t.last->memory->chunk.base = (uintptr_t)t.last->memory;
}

static void crowd_use(struct crowd *crowd, struct fp_node_lease *lease)
{
	if (crowd->used) {
		assert_stamped(crowd->used);
		fp_node_lease_put(fp_take_ptr(crowd->used));
	} else if (lease) {
		fp_node_lease_get(lease);
		crowd->used = lease;
	}
}

static void crowd_step(struct crowd *crowd)
{
	struct fp_node_session **at = &crowd->live[test_random(&crowd->rng) % N_SESSIONS];
	struct fp_node_lease *lease;

	if (!*at) {
		crowd_open(crowd, at);
		return;
	}
	lease = fp_node_lease_find(&(*at)->leases, (uint32_t)(test_random(&crowd->rng) % 8 + 1));
	if (lease)
		assert_stamped(lease);
	switch (test_random(&crowd->rng) % 5) {
	case 0:
		fp_node_session_end(&crowd->sessions, fp_take_ptr(*at));
		break;
	case 1:
	case 2:
		crowd_lease(&(*at)->leases);
		break;
	case 3:
		crowd_use(crowd, lease);
		break;
	default:
		if (lease)
			fp_node_lease_release(lease);
	}
}

static void test_random_families(void **state)
{
	struct crowd crowd = {.rng = test_seed(__func__)};

	for (unsigned step = 0; step < N_STEPS; step++)
		crowd_step(&crowd);
	crowd_use(&crowd, NULL);
	while (crowd.sessions.first)
		fp_node_session_end(&crowd.sessions, crowd.sessions.first);
	assert_scrubbed();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_pool_with_most_room, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_ids_are_the_lowest_free, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_accounted_at_once, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_memory_in_use_outlives_the_release, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_scrubbed_before_it_is_leased_again, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_memory_that_is_not_to_be_had, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_sessions, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_ended_while_being_made, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_tokens, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_next_to_expire, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopter_ends_first, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_and_released, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_and_in_use, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adoptions_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_while_being_made, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_and_leased, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_without_memory, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_random_families, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
