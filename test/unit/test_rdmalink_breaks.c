/*
 * A link of rdma that breaks or is closed. Each request comes out once, with its status. The caller
 * gets no buffer back before the device is done with it. rdmalink_rig.h has the device.
 */
#include "rdmalink_rig.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "clock.h"

/* ---- errors ---- */

static void submit_some(struct job *jobs[6], uint32_t seg_bytes)
{
	for (unsigned i = 0; i < 6; i++) {
		jobs[i] = job_new(i % 2 ? FP_IO_WRITE : FP_IO_READ, 4, seg_bytes, POISON);
		submit(jobs[i]);
	}
}

/*
 * Checks that each job comes out once: job `guilty` (-1: none) with this status, the others with
 * -ECONNRESET.
 */
static void assert_broken(struct job *jobs[6], int guilty, int status)
{
	struct job *later = job_new(FP_IO_READ, 1, 1, 0);
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;
	struct pollfd p;

	for (unsigned n = 0; n < 6;) {
		assert_true(fp_clock_ns() < end_ns);
		n += take() != NULL;
	}
	for (int i = 0; i < 6; i++)
		assert_int_equal(jobs[i]->io.status, i == guilty ? status : -ECONNRESET);
	assert_null(take());
	assert_int_equal(fp_link_pollfd(link_, &p), 0);
	submit(later);
	assert_next(later, -ECONNRESET);
	job_free(later);
	for (unsigned i = 0; i < 6; i++)
		job_free(jobs[i]);
}

/* The first job succeeds and is freed. */
static void run_first(struct job *jobs[6])
{
	for (unsigned i = 0; i < 4; i++)
		work_one(0, 0);
	assert_next(jobs[0], 0);
	job_free(jobs[0]);
}

static void refused_by_the_peer(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	work_one(0, -EACCES);
	assert_broken(jobs, 0, -EACCES);
	assert_string_equal(fp_link_why(link_), "the device says why");
}

static void nobody_acknowledges(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	run_first(jobs);
	jobs[0] = job_new(FP_IO_READ, 1, 100, 0);
	submit(jobs[0]);
	work_one(0, -ETIMEDOUT);
	assert_broken(jobs, 1, -ETIMEDOUT);
	assert_string_equal(fp_link_why(link_), "the device says why");
}

/*
 * The device reports requests as done without their bytes, as soft RoCE does before it breaks the
 * connection.
 */
static void said_to_be_answered(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	for (unsigned i = 0; i < 3; i++)
		work_one(0, 0);
	work_one(0, CUT);
	assert_broken(jobs, -1, 0);
}

static void flushed_from_without(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.flushed = true;
	assert_broken(jobs, -1, 0);
}

/* The node is cut off, and the owner breaks the link to send the requests over another one. */
static void broken_by_its_owner(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	fp_link_break(link_);
	assert_true(conn.flushed);
	fp_link_break(link_);
	assert_broken(jobs, -1, 0);
}

/* An overdue io, and its link, end only when the device is done with the buffers. */
static void overdue(void **state)
{
	struct job *jobs[6];
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	submit_some(jobs, 4096);
	run_first(jobs);
	jobs[0] = job_new(FP_IO_READ, FP_IO_MAX_SEGS, 4096, POISON); /* more requests than the queue takes */
	jobs[0]->io.deadline_ns = fp_clock_ns() + 5 * FP_NSEC_PER_MSEC;
	submit(jobs[0]);
	conn.swallows = true;
	while (!conn.flushed) {
		assert_true(fp_clock_ns() < end_ns);
		assert_null(take());
	}
	assert_true(fp_clock_ns() >= jobs[0]->io.deadline_ns);
	assert_null(take());
	assert_true(conn.n_queue > 0);
	conn.swallows = false;
	for (unsigned i = 0; i < 6; i++)
		memset(jobs[i]->buf, POISON, jobs[i]->len);
	assert_broken(jobs, 0, -ETIMEDOUT);
	assert_null(fp_link_why(link_)); /* no reason: the device reported nothing */
}

static void device_gone(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.gone = true;
	conn.stirs = true;
	assert_broken(jobs, -1, 0);
}

/*
 * No buffer comes back while the device could still use it. In this test the device could use
 * buffers until the queue pair is destroyed.
 */
static void flush_fails(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.flush_fails = true;
	conn.stirs = true;
	assert_broken(jobs, -1, 0);
	assert_true(conn.closed);
}

static void peer_gone(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.stirs = true;
	assert_broken(jobs, -1, 0);
}

static void completion_queue_dead(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.cq_fails = true;
	assert_broken(jobs, -1, 0);
	assert_true(conn.closed);
}

/*
 * A failed post may have posted part of the chain. That part comes back flushed, or the queue pair
 * is destroyed.
 */
static void post_fails(void **state)
{
	struct job *jobs[6];

	conn.post_fails = true;
	submit_some(jobs, 4096);
	assert_broken(jobs, -1, 0);
	assert_true(conn.closed);
}

static void nothing_comes_back(void **state)
{
	struct job *jobs[6];

	conn.swallows = true;
	submit_some(jobs, 4096);
	work_one(0, -EACCES);
	assert_null(take());
	assert_false(conn.closed);
	assert_broken(jobs, 0, -EACCES);
	assert_string_equal(fp_link_why(link_), "the device says why");
	assert_true(conn.closed);
}

static void strange_completions(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.done[conn.n_done++] = (struct fp_verbs_completion){.id = 1u << 30};
	assert_broken(jobs, -1, 0);
}

static void closed_with_requests_outstanding(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 40000);
	fp_link_register(link_, jobs[0]->buf, jobs[0]->len);
	fp_rdma_link_close(fp_take_ptr(link_));
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(jobs[i]->io.status, 1);
		job_free(jobs[i]);
	}
}

#define with_link(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_link(refused_by_the_peer), with_link(nobody_acknowledges),
	    with_link(said_to_be_answered), with_link(flushed_from_without),
	    with_link(broken_by_its_owner), with_link(overdue),
	    with_link(device_gone),         with_link(flush_fails),
	    with_link(peer_gone),           with_link(completion_queue_dead),
	    with_link(post_fails),          with_link(nothing_comes_back),
	    with_link(strange_completions), with_link(closed_with_requests_outstanding),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
