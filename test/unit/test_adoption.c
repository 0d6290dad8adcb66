/*
 * Leases that sessions adopt from each other: their holders, and who may write. Memory is freed
 * when its last holder has left.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "leasebed.h"
#include "session.h"
#include "testrng.h"

/* Two sessions. The first has three leases of a MiB each, filled with their ids. */
static struct family {
	struct fp_node_sessions sessions;
	struct fp_node_session *parent, *child, *grandchild;
} family;

static void begin_family(void)
{
	struct fp_lease_request r = request(MIB);

	family = (struct family){0};
	assert_int_equal(fp_node_session_open(&family.sessions, t.client, "parent", "here", &family.parent),
	                 0);
	assert_int_equal(fp_node_session_open(&family.sessions, t.client, "child", "here", &family.child), 0);
	assert_int_equal(
	    fp_node_session_open(&family.sessions, t.client, "grandchild", "here", &family.grandchild), 0);
	for (unsigned i = 1; i <= 3; i++) {
		assert_int_equal(fp_node_lease_grant(&family.parent->leases, &t.pools, &r), 0);
		await_done(t.n_done + 1);
		memset(t.last->memory->chunk.base, (int)i, MIB);
	}
}

static void end_family(void)
{
	while (family.sessions.first)
		fp_node_session_end(&family.sessions, family.sessions.first);
}

/* Checks that all leases of a session exist, have their bytes, and are counted. */
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

/* Checks that the whole pool is free and zero: no byte of a lease is left. */
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
	/* the grandchild adopts all leases from the child */
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

/* A lease in use keeps its memory, also after both sides have released it. */
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
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, &r), 0);
	assert_int_equal(fp_node_session_adopt(family.child, family.parent),
	                 -EINVAL); /* its lease is still being made */
	await_done(t.n_done + 1);
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), -EINVAL);
	fp_node_lease_release(fp_node_lease_find(&family.child->leases, 1));
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0); /* it has no lease left */
	assert_has(family.child, true);
	assert_int_equal(fp_node_session_adopt(family.child, family.grandchild), -EINVAL);
	/* adopting from a session without leases counts as adopting too */
	fp_node_lease_release(fp_node_lease_find(&family.child->leases, 1));
	for (uint32_t id = 2; id <= 3; id++)
		fp_node_lease_release(fp_node_lease_find(&family.child->leases, id));
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.child), 0);
	assert_int_equal(family.grandchild->leases.n, 0);
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.parent), -EINVAL);
	end_family();
	assert_scrubbed();
}

/* A lease that is being made can't be adopted, whether making it succeeds or fails. */
static void test_adopted_while_being_made(void **state)
{
	struct fp_lease_request r = request(MIB), missing = request(8 * MIB);

	begin_family();
	assert_int_equal(fp_node_lease_grant(&family.parent->leases, &t.pools, &r), 0);
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	await_done(t.n_done + 1);
	assert_non_null(fp_node_lease_find(&family.parent->leases, 4));
	assert_null(fp_node_lease_find(&family.child->leases, 4));
	assert_has(family.child, true);
	set_available(false);
	missing.size_bytes = 4096;
	assert_int_equal(fp_node_lease_grant(&family.parent->leases, &t.pools, &missing), 0);
	assert_int_equal(fp_node_session_adopt(family.grandchild, family.parent), 0);
	await_done(t.n_done + 1);
	set_available(true);
	assert_true(t.last_status < 0);
	assert_int_equal(family.grandchild->leases.n, 4);
	end_family();
	assert_scrubbed();
}

/* Adopted leases count as leases, but their memory counts once. Later leases get other ids. */
static void test_adopted_and_leased(void **state)
{
	struct fp_lease_request r = request(MIB);

	begin_family();
	assert_int_equal(fp_node_session_adopt(family.child, family.parent), 0);
	r.quota_bytes = 3 * MIB;
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, &r), -EDQUOT);
	r.quota_bytes = 4 * MIB;
	r.max_leases = 3;
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, &r), -EUSERS);
	r.max_leases = 4;
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, &r), 0);
	await_done(t.n_done + 1);
	assert_int_equal(t.last->id, 4);
	assert_false(t.last->read_only);
	assert_int_equal(family.child->leases.n_adopted, 3);
	assert_leased(4);
	fp_node_lease_release(fp_node_lease_find(&family.child->leases, 2));
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, &r), -EDQUOT);
	r.quota_bytes = 5 * MIB; /* the parent still holds the memory of lease 2 */
	assert_int_equal(fp_node_lease_grant(&family.child->leases, &t.pools, &r), 0);
	await_done(t.n_done + 1);
	assert_int_equal(t.last->id, 2); /* an id of this session: not the parent's lease 2 */
	assert_ptr_not_equal(t.last->memory, fp_node_lease_find(&family.parent->leases, 2)->memory);
	end_family();
	assert_scrubbed();
}

#ifndef __SANITIZE_ADDRESS__ /* ASan has its own calloc */
#ifndef __SANITIZE_THREAD__
#define CAN_FAIL 1
#endif
#endif

#ifdef CAN_FAIL
static _Thread_local unsigned n_until_failure; /* which allocation fails, counted from now; 0: none */

void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
	return n_until_failure && --n_until_failure == 0 ? NULL : __libc_calloc(n, size);
}

/* Whichever allocation fails, nothing is adopted. No holder is left that would keep memory. */
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
	/* nth is 1 at the start. Six calls raised it: one failed at the table, one at what it is
	 * charged with, three failed at the leases, and one succeeded. */
	assert_int_equal(nth, 1 + 2 + 3 + 1);
	assert_int_equal(t.client->adopted_places, family.parent->leases.capacity);
	assert_has(family.child, true);
	end_family();
	assert_int_equal(t.client->adopted_places, 0); /* all is freed, and nothing waits for the worker */
	assert_scrubbed();
}
#else
static void test_adopted_without_memory(void **state)
{
	skip();
}
#endif

/* More clients and sessions than there are buckets are found, and forgotten in any order. */
static void test_many_clients(void **state)
{
	enum { N = 3000 };
	static struct fp_clients clients;
	static struct fp_node_sessions sessions;
	static struct fp_client *client[N];
	static struct fp_node_session *session[N];
	char name[FP_CLIENT_NAME_LEN];

	for (unsigned i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "10.0.%u.%u", i / 256, i % 256);
		client[i] = fp_client_get(&clients, name);
		assert_int_equal(fp_node_session_open(&sessions, client[i], "s", "here", &session[i]), 0);
	}
	assert_int_equal(clients.n, N);
	for (unsigned step = 0; step < N; step++) {
		unsigned i = step * 1009 % N; /* each once: 1009 is prime */
		uint64_t id = session[i]->id;

		assert_ptr_equal(fp_client_get(&clients, client[i]->name), client[i]);
		assert_ptr_equal(fp_node_session_by_id(&sessions, id), session[i]);
		fp_node_session_end(&sessions, session[i]);
		assert_null(fp_node_session_by_id(&sessions, id));
		fp_client_put(client[i]);
		fp_client_put(client[i]);
	}
	assert_int_equal(clients.n, 0);
	assert_null(clients.first);
	assert_null(sessions.first);
}

#define N_SESSIONS 12
#define N_STEPS    5000

/* Sessions open, adopt, lease, read, release and end at random. */
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

/* A lease keeps the bytes that its maker wrote, as long as any session holds it. */
static void assert_stamped(const struct fp_node_lease *lease)
{
	assert_int_equal(stamp_of(lease), (uintptr_t)lease->memory);
}

static void crowd_open(struct crowd *crowd, struct fp_node_session **at)
{
	const struct fp_node_session *parent = crowd->live[test_random(&crowd->rng) % N_SESSIONS];

	assert_int_equal(fp_node_session_open(&crowd->sessions, t.client, "s", "here", at), 0);
	if (parent && test_random(&crowd->rng) % 2)
		assert_int_equal(fp_node_session_adopt(*at, parent), 0);
}

static void crowd_lease(struct fp_node_leases *leases)
{
	struct fp_lease_request r = request(4096);

	if (fp_node_lease_grant(leases, &t.pools, &r) < 0)
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
	    cmocka_unit_test_setup_teardown(test_adopted, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopter_ends_first, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_and_released, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_and_in_use, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adoptions_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_while_being_made, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_and_leased, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_adopted_without_memory, setup, teardown),
	    cmocka_unit_test(test_many_clients),
	    cmocka_unit_test_setup_teardown(test_random_families, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
