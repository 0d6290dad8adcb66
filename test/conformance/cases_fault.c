/*
 * Nodes that die or are stopped. Every request ends exactly once, and all that does not need the
 * node goes on.
 */
#include "rig.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define MANY 64

static void submit_many(struct rig *rig, struct job **jobs)
{
	for (unsigned i = 0; i < MANY; i++) {
		jobs[i] = job_new(i % 2 ? FP_IO_READ : FP_IO_WRITE, rig->lease->id, 0, 4, FP_SEG_MAX_BYTES);
		assert_int_equal(fp_link_submit(rig->link, &jobs[i]->io), 0);
	}
}

/* Stops the node, and waits until it has really stopped. */
static void stop_node(struct rig *rig)
{
	siginfo_t info;

	assert_int_equal(kill(rig->node.pid, SIGSTOP), 0);
	assert_int_equal(waitid(P_PID, (id_t)rig->node.pid, &info, WSTOPPED | WNOWAIT), 0);
}

static void continue_node(struct rig *rig)
{
	assert_int_equal(kill(rig->node.pid, SIGCONT), 0);
}

/*
 * Each request that is under way ends, with success or an error. If the node itself answers
 * requests (tcp), all of them fail. If the memory outlives the node (shm), none fails. If a device
 * moves the bytes (rdma), those requests fail whose bytes it had not moved yet.
 */
static void killed_in_mid_flight(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[MANY], *later = job_new(FP_IO_READ, rig->lease->id, 0, 1, 4096);
	struct fp_io *done;
	unsigned n_failed = 0;

	stop_node(rig);
	submit_many(rig, jobs);
	assert_int_equal(kill(rig->node.pid, SIGKILL), 0);
	for (unsigned i = 0; i < MANY; i++)
		n_failed += rig_await(rig->link)->io.status < 0;
	if (rig_load_store() || !rig_one_sided())
		assert_int_equal(n_failed, rig_load_store() ? 0 : MANY);
	assert_int_equal(fp_link_poll(rig->link, &done, 1), 0);
	assert_int_equal(rig_run(rig->link, later) < 0, !rig_load_store());
	for (unsigned i = 0; i < MANY; i++)
		job_free(jobs[i]);
	job_free(later);
}

static void control_calls_after_death(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	struct fp_node_info info;

	test_daemon_stop(&rig->node);
	assert_true(fp_session_info(rig->session, &info) < 0);
	assert_true(fp_session_lease(rig->session, MIB, &lease) < 0);
	assert_true(fp_session_release(rig->session, rig->lease->id) < 0);
}

static void stopped_for_less_than_the_deadline(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[MANY];
	struct fp_io *done;
	struct pollfd p;

	stop_node(rig);
	submit_many(rig, jobs);
	if (!rig_one_sided() && fp_link_pollfd(rig->link, &p))
		for (unsigned i = 0; i < 10; i++) {
			poll(&p, 1, 5);
			assert_int_equal(fp_link_poll(rig->link, &done, 1), 0);
		}
	if (!rig_one_sided())
		continue_node(rig);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(rig_await(rig->link)->io.status, 0);
	continue_node(rig);
	for (unsigned i = 0; i < MANY; i++)
		job_free(jobs[i]);
}

/*
 * If the node itself answers requests, they end at their deadline, and the link ends too. Late
 * answers do not change the buffers of these requests. When the node goes on, the session goes on
 * over another link. If the node has no part in requests, they succeed as always.
 */
static void stopped_for_longer_than_the_deadline(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[MANY], *read = job_new(FP_IO_READ, rig->lease->id, 4096, 1, 64);
	uint64_t deadline_ns;

	assert_int_equal(rig_write(rig->link, rig->lease->id, 512 << 10, "kept", 4), 0);
	stop_node(rig);
	deadline_ns = fp_clock_ns() + (rig_one_sided() ? PATIENCE_NS : 50 * FP_NSEC_PER_MSEC);
	for (unsigned i = 0; i < MANY; i++) {
		jobs[i] = job_new(i % 2 ? FP_IO_READ : FP_IO_WRITE, rig->lease->id, 0, 4, FP_SEG_MAX_BYTES);
		jobs[i]->io.deadline_ns = deadline_ns;
		assert_int_equal(fp_link_submit(rig->link, &jobs[i]->io), 0);
	}
	for (unsigned i = 0; i < MANY; i++) {
		struct job *job = rig_await(rig->link);

		assert_int_equal(job->io.status, rig_one_sided() ? 0 : -ETIMEDOUT);
		memset(job->buf, 0xee, job->len);
		memset(job->segs, 0xee, sizeof(job->segs));
	}
	assert_true(rig_one_sided() || fp_clock_ns() >= deadline_ns);
	continue_node(rig);
	if (!rig_one_sided()) {
		fp_link_close(rig->link);
		assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	}
	read->segs[0].offset_bytes = 512 << 10;
	assert_int_equal(rig_run(rig->link, read), 0);
	assert_memory_equal(read->buf, "kept", 4);
	for (unsigned i = 0; i < MANY; i++) {
		assert_filled(jobs[i]->buf, 0xee, jobs[i]->len);
		job_free(jobs[i]);
	}
	job_free(read);
}

/*
 * The answer to a control call comes after the call's deadline. Later answers still match their
 * calls. If the late answer grants a lease, that lease is given back.
 */
static void stopped_during_a_control_call(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	struct fp_node_info info;
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;
	int r;

	/* Within this time the node must populate and register the last lease of the pool. */
	assert_int_equal(
	    rig_open(&rig->url, NULL, (rig_keyed() ? 3000 : 200) * FP_NSEC_PER_MSEC, &rig->session), 0);
	stop_node(rig);
	assert_int_equal(fp_session_lease(rig->session, MIB, &lease), -ETIMEDOUT);
	assert_int_equal(fp_session_info(rig->session, &info), -ETIMEDOUT);
	continue_node(rig);
	do
		r = fp_session_info(rig->session, &info);
	while (fp_clock_ns() < end_ns && (r == -ETIMEDOUT || (r == 0 && info.free_bytes != POOL_BYTES)));
	assert_int_equal(r, 0);
	assert_true(info.free_bytes == POOL_BYTES);
	assert_int_equal(fp_session_lease(rig->session, POOL_BYTES, &lease), 0);
}

static void connecting_to_a_stopped_node(void **state)
{
	struct rig *rig = *state;

	stop_node(rig);
	assert_int_equal(rig_open(&rig->url, NULL, 50 * FP_NSEC_PER_MSEC, &rig->session), -ETIMEDOUT);
	continue_node(rig);
	assert_int_equal(rig_open(&rig->url, NULL, 0, &rig->session), 0);
}

#define on(fixture, test) cmocka_unit_test_setup_teardown(test, fixture, rig_teardown)

int run_fault_cases(void)
{
	const struct CMUnitTest fault[] = {
	    on(rig_setup, killed_in_mid_flight),
	    on(rig_setup, control_calls_after_death),
	    on(rig_setup, stopped_for_less_than_the_deadline),
	    on(rig_setup, stopped_for_longer_than_the_deadline),
	    on(rig_setup_node, stopped_during_a_control_call),
	    on(rig_setup_node, connecting_to_a_stopped_node),
	};

	return cmocka_run_group_tests(fault, NULL, NULL);
}
