/* Leases are granted, limited, zeroed and taken back. */
#include "rig.h"

#include <errno.h>

static void sizes(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;

	assert_int_equal(fp_session_lease(rig->session, 0, &lease), -EINVAL);
	assert_int_equal(fp_session_lease(rig->session, 4095, &lease), -EINVAL);
	assert_int_equal(fp_session_lease(rig->session, UINT64_MAX - 4095, &lease), -EINVAL);
	assert_int_equal(fp_session_lease(rig->session, 4096, &lease), 0);
	assert_true(lease->size_bytes >= 4096);
	assert_true(lease->id != rig->lease->id);
	assert_int_equal(lease->base != NULL, rig_load_store());
}

static uint64_t free_bytes(struct fp_session *session)
{
	struct fp_node_info info;

	assert_int_equal(fp_session_info(session, &info), 0);
	return info.free_bytes;
}

/*
 * Waits until the memory of an ended session is free. Before that, the node has to notice the end,
 * and to scrub the memory.
 */
static void await_free(struct fp_session *session, uint64_t wanted_bytes)
{
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	while (free_bytes(session) != wanted_bytes)
		assert_true(fp_clock_ns() < end_ns);
}

/* The last call was refused for this limit, of which so much is in use. */
static void assert_refusal(struct fp_session *session, enum fp_refusal_cause cause, uint64_t limit,
                           uint64_t used)
{
	struct fp_refusal refusal;

	fp_session_refusal(session, &refusal);
	assert_int_equal(refusal.cause, cause);
	assert_true(refusal.limit == limit);
	assert_true(refusal.used == used);
}

/* What would refuse even the smallest lease now. */
static enum fp_refusal_cause would_refuse(struct fp_session *session)
{
	struct fp_node_info info;

	assert_int_equal(fp_session_info(session, &info), 0);
	return info.refusal.cause;
}

static void release(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	uint32_t id;
	char byte;

	assert_int_equal(fp_session_lease(rig->session, 2 * MIB, &lease), 0);
	assert_true(free_bytes(rig->session) == POOL_BYTES - 3 * MIB);
	id = lease->id;
	assert_int_equal(rig_read(rig->link, id, 0, &byte, 1), 0);
	assert_int_equal(fp_session_release(rig->session, id), 0);
	await_free(rig->session, POOL_BYTES - MIB);
	assert_int_equal(rig_read(rig->link, id, 0, &byte, 1), -EACCES);
	assert_int_equal(fp_session_release(rig->session, id), -EACCES);
	assert_int_equal(fp_session_release(rig->session, 0), -EACCES);
	assert_int_equal(fp_session_release(rig->session, UINT32_MAX), -EACCES);
}

static void pool_full(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;

	assert_refusal(rig->session, FP_REFUSAL_NONE, 0, 0);
	assert_int_equal(fp_session_lease(rig->session, POOL_BYTES, &lease), -ENOSPC);
	assert_refusal(rig->session, FP_REFUSAL_POOLS, POOL_BYTES, MIB);
	assert_int_equal(would_refuse(rig->session), FP_REFUSAL_NONE);
	assert_int_equal(fp_session_lease(rig->session, POOL_BYTES - MIB, &lease), 0);
	assert_int_equal(would_refuse(rig->session), FP_REFUSAL_POOLS);
	assert_int_equal(fp_session_lease(rig->session, 4096, &lease), -ENOSPC);
	assert_int_equal(fp_session_release(rig->session, rig->lease->id), 0);
	await_free(rig->session, MIB);
	assert_int_equal(fp_session_lease(rig->session, MIB, &lease), 0);
}

static void quota(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	struct fp_node_info info;
	struct fp_session *other;

	assert_int_equal(rig_open(&rig->url, NULL, 0, &rig->session), 0);
	assert_int_equal(fp_session_lease(rig->session, 9 * MIB, &lease), -EDQUOT);
	assert_int_equal(fp_session_lease(rig->session, 8 * MIB, &lease), 0);
	assert_int_equal(fp_session_lease(rig->session, 4096, &lease), -EDQUOT);
	assert_refusal(rig->session, FP_REFUSAL_QUOTA, 8 * MIB, 8 * MIB);
	assert_int_equal(would_refuse(rig->session), FP_REFUSAL_QUOTA);
	/* one quota for all sessions of a client */
	assert_int_equal(rig_open(&rig->url, NULL, 0, &other), 0);
	assert_int_equal(fp_session_lease(other, 4096, &lease), -EDQUOT);
	assert_int_equal(fp_session_info(other, &info), 0);
	assert_true(info.quota_bytes == 8 * MIB && info.charged_bytes == 8 * MIB);
	fp_session_close(other);
}

/* Writes or checks every byte of a lease. */
static void each_chunk(struct rig *rig, const struct fp_lease *lease, enum fp_io_op op, uint8_t value)
{
	struct job *job = job_new(op, lease->id, 0, FP_IO_MAX_SEGS, 16384);

	for (uint64_t at = 0; at < lease->size_bytes; at += job->len) {
		for (unsigned i = 0; i < FP_IO_MAX_SEGS; i++)
			job->segs[i].offset_bytes = at + i * 16384;
		memset(job->buf, op == FP_IO_WRITE ? value : ~value, job->len);
		assert_int_equal(rig_run(rig->link, job), 0);
		assert_filled(job->buf, value, job->len);
	}
	job_free(job);
}

/*
 * One session writes the whole pool. The next session must find only zeros. A new lease after a
 * release must have only zeros too.
 */
static void scrubbed(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;

	each_chunk(rig, rig->lease, FP_IO_READ, 0);
	assert_int_equal(fp_session_lease(rig->session, POOL_BYTES - MIB, &lease), 0);
	each_chunk(rig, lease, FP_IO_READ, 0);
	each_chunk(rig, lease, FP_IO_WRITE, 0x5a);
	assert_int_equal(fp_session_release(rig->session, lease->id), 0);
	await_free(rig->session, POOL_BYTES - MIB);
	assert_int_equal(fp_session_lease(rig->session, POOL_BYTES - MIB, &lease), 0);
	each_chunk(rig, lease, FP_IO_READ, 0);
	each_chunk(rig, lease, FP_IO_WRITE, 0xa5);
	fp_link_close(fp_take_ptr(rig->link));
	fp_session_close(fp_take_ptr(rig->session));
	assert_int_equal(rig_open(&rig->url, NULL, 0, &rig->session), 0);
	await_free(rig->session, POOL_BYTES);
	assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	assert_int_equal(fp_session_lease(rig->session, POOL_BYTES, &lease), 0);
	each_chunk(rig, lease, FP_IO_READ, 0);
}

static void foreign_leases(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	struct fp_session *other;
	struct fp_link *link;
	uint32_t ids[4];
	char byte = 'x';

	/* tries ids that the other session does not have */
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(fp_session_lease(rig->session, MIB, &lease), 0);
		ids[i] = lease->id;
	}
	assert_int_equal(rig_open(&rig->url, NULL, 0, &other), 0);
	assert_int_equal(fp_link_open(other, &link), 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(rig_read(link, ids[i], 0, &byte, 1), -EACCES);
		assert_int_equal(rig_write(link, ids[i], 0, &byte, 1), -EACCES);
		assert_int_equal(fp_session_release(other, ids[i]), -EACCES);
	}
	/* two sessions may use the same id: each has its own bytes */
	assert_int_equal(fp_session_lease(other, MIB, &lease), 0);
	assert_int_equal(lease->id, rig->lease->id);
	assert_int_equal(rig_write(link, lease->id, 0, "other", 5), 0);
	each_chunk(rig, rig->lease, FP_IO_READ, 0);
	fp_link_close(link);
	fp_session_close(other);
}

static void many_leases(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *leases[40];
	char text[32], back[32];

	for (unsigned i = 0; i < FP_ARRAY_LEN(leases); i++) {
		assert_int_equal(fp_session_lease(rig->session, 64 << 10, &leases[i]), 0);
		memset(text, (int)i, sizeof(text));
		assert_int_equal(rig_write(rig->link, leases[i]->id, 4096, text, sizeof(text)), 0);
	}
	for (unsigned i = 0; i < FP_ARRAY_LEN(leases); i++) {
		assert_int_equal(rig_read(rig->link, leases[i]->id, 4096, back, sizeof(back)), 0);
		assert_filled((uint8_t *)back, (uint8_t)i, sizeof(back));
		assert_int_equal(fp_session_release(rig->session, leases[i]->id), 0);
	}
	await_free(rig->session, POOL_BYTES - MIB);
}

static void status_and_drain(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	struct fp_drain_info info;
	char *json;

	assert_int_equal(rig_open(&rig->url, RIG_SECRET, 0, &rig->session), 0);
	assert_int_equal(fp_session_lease(rig->session, MIB, &rig->lease), 0);
	assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	assert_int_equal(fp_session_status(rig->session, &json), 0);
	assert_int_equal(json[0], '{');
	free(json);
	assert_int_equal(fp_session_drain(rig->session, &info), 0);
	assert_true(info.leased_bytes == MIB);
	assert_int_equal(info.sessions, 1);
	assert_int_equal(fp_session_lease(rig->session, MIB, &lease), -ENOSPC);
	assert_refusal(rig->session, FP_REFUSAL_DRAINING, 0, 0);
	assert_int_equal(would_refuse(rig->session), FP_REFUSAL_DRAINING);
	assert_int_equal(rig_write(rig->link, rig->lease->id, 0, "still", 5), 0);
}

/* An operator's session may ask for the node's status and drain the node. It gets no lease. */
static void operators(void **state)
{
	struct rig *rig = *state;
	const struct fp_session_options options = {
	    .secret = RIG_SECRET, .deadline_ns = PATIENCE_NS, .is_operator = true};
	struct fp_session_options wrong = options;
	const struct fp_lease *lease;
	struct fp_drain_info info;
	struct fp_refusal refusal;
	char *json;

	assert_int_equal(fp_session_open(&rig->url, &options, &rig->session), 0);
	assert_int_equal(fp_session_lease(rig->session, MIB, &lease), -EPERM);
	assert_int_equal(fp_session_status(rig->session, &json), 0);
	free(json);
	assert_int_equal(fp_session_drain(rig->session, &info), 0);
	assert_int_equal(info.sessions, 0);
	assert_int_equal(fp_session_undrain(rig->session), 0);
	wrong.secret = "none of its secrets";
	wrong.refusal = &refusal;
	assert_int_equal(fp_session_open(&rig->url, &wrong, &rig->session), -EACCES);
	assert_int_equal(refusal.cause, FP_REFUSAL_SECRET);
}

#define on(fixture, test) cmocka_unit_test_setup_teardown(test, fixture, rig_teardown)

int run_lease_cases(void)
{
	const struct CMUnitTest lease[] = {
	    on(rig_setup, sizes),
	    on(rig_setup, release),
	    on(rig_setup, pool_full),
	    on(rig_setup_quota, quota),
	    on(rig_setup, scrubbed),
	    on(rig_setup, foreign_leases),
	    on(rig_setup, many_leases),
	    on(rig_setup_secret, status_and_drain),
	    on(rig_setup_secret, operators),
	};

	return cmocka_run_group_tests(lease, NULL, NULL);
}
