/*
 * A link of rdma carries bytes: sizes, limits, waiting, and the peculiarities of iWARP.
 * rdmalink_rig.h has the simulated device, test_rdmalink_breaks.c tests the failures.
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
#include "testrng.h"

/* ---- bytes ---- */

static void each_size(void **state)
{
	static const uint32_t sizes[] = {1, 79, 80, 81, 4095, 4096, 4097, 20000, FP_SEG_MAX_BYTES};
	static const unsigned counts[] = {1, 2, 17, FP_IO_MAX_SEGS};

	for (unsigned s = 0; s < FP_ARRAY_LEN(sizes); s++)
		for (unsigned c = 0; c < FP_ARRAY_LEN(counts); c++) {
			struct job *write = job_new(FP_IO_WRITE, counts[c], sizes[s], 0);
			struct job *read = job_new(FP_IO_READ, counts[c], sizes[s], POISON);

			for (size_t i = 0; i < write->len; i++)
				write->buf[i] = (uint8_t)(i * 2654435761u >> 24);
			run(write);
			assert_memory_equal(remote, write->buf, write->len);
			run(read);
			assert_memory_equal(read->buf, write->buf, read->len);
			job_free(write);
			job_free(read);
		}
}

static void one_doorbell_one_completion(void **state)
{
	struct job *read = job_new(FP_IO_READ, 8, 4096, 0), *write = job_new(FP_IO_WRITE, 60, 4096, 7);

	submit(write);
	assert_int_equal(conn.n_posts, 1);
	assert_int_equal(conn.n_works, 60);
	assert_int_equal(conn.n_signals, 1);
	assert_true(conn.queue[59].signalled);
	work_all();
	assert_next(write, 0);
	conn.n_signals = 0;
	submit(read);
	assert_int_equal(conn.n_posts, 2);
	assert_int_equal(conn.n_works, 68);
	assert_in_range(conn.n_signals, 1,
	                2); /* at most half of the READs that may be outstanding stay unsignalled */
	work_all();
	assert_next(read, 0);
	assert_filled(read->buf, 7, read->len);
	job_free(read);
	job_free(write);
}

static void straight_into_regions(void **state)
{
	struct job *read = job_new(FP_IO_READ, 3, FP_SEG_MAX_BYTES, 0),
	           *write = job_new(FP_IO_WRITE, 1, 50000, 3);

	fp_link_register(link_, read->buf, 2 * FP_SEG_MAX_BYTES); /* covers only two of the three segments */
	fp_link_register(link_, write->buf, write->len);
	submit(write);
	assert_int_equal(conn.n_queue, 1);
	assert_ptr_equal(conn.queue[0].local, write->buf);
	work_all();
	assert_next(write, 0);
	submit(read);
	assert_ptr_equal(conn.queue[0].local, read->segs[0].buf);
	assert_ptr_equal(conn.queue[1].local, read->segs[1].buf);
	assert_ptr_not_equal(conn.queue[2].local, read->segs[2].buf);
	assert_int_equal(conn.queue[2].len_bytes, FP_RDMA_BOUNCE_BYTES);
	while (!read->done) {
		work_all();
		take();
	}
	assert_memory_equal(read->buf, remote, read->len);
	/* more regions than a link keeps: their bytes are copied */
	for (unsigned i = 0; i < 2 * FP_RDMA_MAX_REGIONS; i++)
		fp_link_register(link_, write->buf + i, 1);
	assert_int_equal(domain.regions, FP_RDMA_MAX_REGIONS + 1);
	job_free(read);
	job_free(write);
}

static void small_writes_inline(void **state)
{
	struct job *write = job_new(FP_IO_WRITE, 2, 80, 9);

	submit(write);
	assert_true(conn.queue[0].inline_data && conn.queue[1].inline_data);
	work_all();
	assert_next(write, 0);
	assert_filled(remote, 9, 160);
	job_free(write);
}

static void protocols(void **state)
{
	static const struct {
		const char *name;
		bool is_inline, is_straight;
	} ways[] = {{"auto", true, false},
	            {"inline", true, false},
	            {"eager", false, false},
	            {"registered", false, true}};
	enum fp_protocol protocol;

	assert_int_equal(fp_protocol_parse("", &protocol), -EINVAL);
	assert_int_equal(fp_protocol_parse("eagerly", &protocol), -EINVAL);
	for (unsigned i = 0; i < FP_ARRAY_LEN(ways); i++) {
		struct job *write = job_new(FP_IO_WRITE, 1, 64, 9);

		assert_int_equal(fp_protocol_parse(ways[i].name, &protocol), 0);
		open_link(protocol, false, 16);
		fp_link_register(link_, write->buf, write->len);
		submit(write);
		assert_int_equal(conn.queue[0].inline_data, ways[i].is_inline);
		if (!ways[i].is_inline)
			assert_int_equal(conn.queue[0].local == write->buf, ways[i].is_straight);
		work_all();
		assert_next(write, 0);
		assert_filled(remote, 9, 64);
		teardown(NULL);
		job_free(write);
	}
}

/* ---- limits ---- */

static void no_more_reads_than_answered(void **state)
{
	struct job *jobs[40];

	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++) {
		memset(remote + i * 4096, (int)i + 1, 4096);
		jobs[i] = job_new(FP_IO_READ, 1, 4096, 0);
		jobs[i]->segs[0].offset_bytes = i * 4096;
		submit(jobs[i]);
	}
	assert_int_equal(conn.n_queue, 16);
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++) {
		work_one(0, 0);
		assert_next(jobs[i], 0);
		assert_filled(jobs[i]->buf, (uint8_t)(i + 1), 4096);
		job_free(jobs[i]);
	}
	assert_int_equal(conn.most_reads, 16);
}

/* A long request posts further parts before all its earlier parts have completed. */
static void reads_stay_in_flight(void **state)
{
	struct job *read = job_new(FP_IO_READ, FP_IO_MAX_SEGS, 4096, 0);

	submit(read);
	assert_int_equal(conn.n_queue, 16);
	for (unsigned i = 0; i < 8; i++)
		work_one(0, 0);
	assert_null(take());
	assert_int_equal(conn.n_queue, 16);
	for (unsigned i = 0; i < 56; i++) {
		work_one(0, 0);
		if (take()) {
			assert_int_equal(i, 55);
			assert_int_equal(read->io.status, 0);
		}
	}
	assert_true(read->done);
	assert_int_equal(conn.most_reads, 16);
	job_free(read);
}

static void one_read_at_a_time(void **state)
{
	struct job *read = job_new(FP_IO_READ, 5, 6000, 0);

	open_link(FP_PROTOCOL_AUTO, true, 1);
	memset(remote, 4, read->len);
	run(read);
	assert_filled(read->buf, 4, read->len);
	assert_int_equal(conn.most_reads, 1);
	job_free(read);
}

static void no_node_without_reads(void **state)
{
	struct fp_rdma_link_options options = {.find_lease = find_lease, .n_slots = SLOTS, .fd = -1};
	struct fp_link *other;

	domain.limits.max_reads = 0;
	assert_int_equal(fp_rdma_link_new(&conn, &options, &other), -EPROTO);
	assert_int_equal(domain.refs, 1);
	assert_false(conn.closed);
}

static void as_many_as_the_link_takes(void **state)
{
	struct job *jobs[257];
	unsigned n = 0;

	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++)
		jobs[i] = job_new(FP_IO_WRITE, 2, 4096, (uint8_t)i);
	while (n < FP_ARRAY_LEN(jobs) && fp_link_submit(link_, &jobs[n]->io) == 0)
		n++;
	assert_int_equal(n, 256);
	assert_int_equal(conn.n_queue, SLOTS);
	for (unsigned i = 0; i < n; i++) {
		struct job *done;

		while (!(done = take()))
			work_all();
		assert_ptr_equal(done, jobs[i]);
		assert_int_equal(done->io.status, 0);
	}
	run(jobs[256]);
	assert_filled(remote, 0, 8192); /* job 256 wrote (uint8_t)256 */
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++)
		job_free(jobs[i]);
}

/* For a while the queue takes fewer requests than the link expects. */
static void queue_without_room(void **state)
{
	struct job *first = job_new(FP_IO_WRITE, 40, 4096, 1), *second = job_new(FP_IO_WRITE, 40, 4096, 2);
	struct pollfd p;

	conn.depth = 64;
	submit(first);
	submit(second);
	assert_int_equal(conn.n_queue, 40);
	assert_int_equal(fp_link_pollfd(link_, &p), 0);
	work_all();
	assert_next(first, 0);
	assert_null(take());
	assert_int_equal(conn.n_queue, 40);
	assert_int_equal(fp_link_pollfd(link_, &p), 1);
	work_all();
	assert_next(second, 0);
	assert_filled(remote, 2, second->len);
	job_free(first);
	job_free(second);
}

static void out_of_bounds(void **state)
{
	struct fp_seg bad[] = {
	    {LEASE_ID, 4096, LEASE_BYTES - 4095, NULL},
	    {LEASE_ID, 4096, UINT64_MAX - 100, NULL},
	    {LEASE_ID + 1, 4096, 0, NULL},
	};

	for (unsigned i = 0; i < FP_ARRAY_LEN(bad); i++) {
		struct job *job = job_new(FP_IO_WRITE, 3, 4096, 1);

		bad[i].buf = job->segs[2].buf;
		job->segs[2] = bad[i];
		submit(job);
		assert_next(job, -EACCES);
		assert_int_equal(conn.n_works, 0);
		job->segs[2] = job->segs[1];
		job->done = false;
		run(job);
		conn.n_works = 0;
		job_free(job);
	}
}

/* An adopted lease can be read. A WRITE to it would break the link, so it is not posted. */
static void adopted_lease(void **state)
{
	struct job *job = job_new(FP_IO_WRITE, 3, 4096, 1), *reading = job_new(FP_IO_READ, 3, 4096, 1);

	lease.read_only = true;
	submit(job);
	assert_next(job, -EACCES);
	assert_int_equal(conn.n_works, 0);
	run(reading);
	lease.read_only = false;
	job_free(job);
	job_free(reading);
}

/* ---- iWARP ---- */

static void writes_are_confirmed(void **state)
{
	struct job *write = job_new(FP_IO_WRITE, 3, 5000, 6);

	open_link(FP_PROTOCOL_AUTO, true, 16);
	submit(write);
	assert_int_equal(conn.n_queue, 7);
	assert_int_equal(conn.queue[6].op, FP_VERBS_READ);
	assert_true(conn.queue[6].signalled);
	assert_true(conn.queue[6].remote == LEASE_AT + write->len - 1);
	for (unsigned i = 0; i < 6; i++)
		work_one(0, 0);
	assert_null(take());
	work_one(0, 0);
	assert_next(write, 0);
	assert_filled(remote, 6, write->len);
	job_free(write);
}

/* Only an answer proves that the bytes have arrived. */
static void write_without_confirmation(void **state)
{
	struct job *write = job_new(FP_IO_WRITE, 1, 4096, 6);

	open_link(FP_PROTOCOL_AUTO, true, 16);
	submit(write);
	work_one(0, 0);
	work_one(0, -ECANCELED);
	assert_next(write, -ECONNRESET);
	job_free(write);
}

/* A WRITE may complete before an earlier READ. Its completion proves nothing about that READ. */
static void write_overtakes_read(void **state)
{
	struct job *read = job_new(FP_IO_READ, 1, 4096, 0),
	           *write = job_new(FP_IO_WRITE, FP_IO_MAX_SEGS, 4096, 8);

	open_link(FP_PROTOCOL_AUTO, true, 16);
	memset(remote, 5, 4096);
	submit(read);
	submit(write);
	while (conn.queue[1].op == FP_VERBS_WRITE) /* only the last request of the chain is signalled */
		work_one(1, 0);
	assert_null(take());
	memset(remote, 5, 4096);
	work_one(0, 0);
	assert_next(read, 0);
	assert_filled(read->buf, 5, 4096);
	work_all();
	assert_next(write, 0);
	job_free(read);
	job_free(write);
}

/*
 * Soft iWARP answers a read of a few bytes wrongly if it crosses the end of a page. So the link
 * never asks for one.
 */
static void small_reads_stop_at_pages(void **state)
{
	struct job *read = job_new(FP_IO_READ, 1, 18, 0);

	open_link(FP_PROTOCOL_AUTO, true, 16);
	read->segs[0].offset_bytes = 4096 - 3;
	memset(remote + 4096 - 3, 5, 18);
	submit(read);
	assert_int_equal(conn.n_queue, 2);
	assert_int_equal(conn.queue[0].len_bytes, 3);
	assert_int_equal(conn.queue[1].len_bytes, 15);
	work_all();
	assert_next(read, 0);
	assert_filled(read->buf, 5, 18);
	job_free(read);
}

/* ---- waiting and closing ---- */

static void completion_at_the_last_moment(struct fp_verbs_conn *c)
{
	work_all();
}

static void waiting(void **state)
{
	struct job *read = job_new(FP_IO_READ, 1, 4096, 0);
	struct pollfd p;

	submit(read);
	assert_int_equal(fp_link_pollfd(link_, &p), 1);
	assert_int_equal(p.fd, 99);
	assert_int_equal(p.events, POLLIN);
	conn.on_arm = completion_at_the_last_moment;
	assert_int_equal(fp_link_pollfd(link_, &p), 0);
	assert_next(read, 0);
	job_free(read);
}

/*
 * Requests of random sizes, on a device that works in random bursts. All succeed, and their bytes
 * match a shadow.
 */
static void random_work(void **state)
{
	uint64_t rng = test_seed("rdmalink");
	uint8_t *shadow = calloc(1, LEASE_BYTES);

	for (unsigned round = 0; round < 50; round++) {
		unsigned n = 1 + (unsigned)(test_random(&rng) % 40), n_done = 0, chain;
		struct job *jobs[40];

		n_slots = 1 + (unsigned)(test_random(&rng) % (round % 2 ? SLOTS : 4));
		chain = FP_MIN(n_slots, (unsigned)FP_VERBS_CHAIN_MAX);
		open_link(FP_PROTOCOL_AUTO, test_random(&rng) % 2, 1 + (unsigned)(test_random(&rng) % 20));
		conn.depth = chain + (unsigned)(test_random(&rng) % (n_slots - chain + 1));
		for (unsigned i = 0; i < n; i++) {
			uint64_t share = LEASE_BYTES / 40, at = i * share;

			jobs[i] = job_new(test_random(&rng) % 2 ? FP_IO_READ : FP_IO_WRITE,
			                  1 + (unsigned)(test_random(&rng) % 8),
			                  1 + (uint32_t)(test_random(&rng) % 20000), (uint8_t)(1 + i));
			for (unsigned s = 0; s < jobs[i]->io.n_segs; s++)
				jobs[i]->segs[s].offset_bytes += at;
			memset(remote + at, (int)(100 + i), share);
			memset(shadow + at, (int)(100 + i), share);
			if (test_random(&rng) % 2)
				fp_link_register(link_, jobs[i]->buf, jobs[i]->len);
			if (jobs[i]->io.op == FP_IO_WRITE)
				memset(shadow + at, (int)(1 + i), jobs[i]->len);
		}
		for (unsigned i = 0; i < n; i++)
			submit(jobs[i]);
		while (n_done < n) {
			for (uint64_t k = test_random(&rng) % 30; k > 0 && conn.n_queue > 0; k--)
				work_one(0, 0);
			n_done += take() != NULL;
		}
		assert_memory_equal(remote, shadow, n * (LEASE_BYTES / 40));
		for (unsigned i = 0; i < n; i++) {
			assert_int_equal(jobs[i]->io.status, 0);
			if (jobs[i]->io.op == FP_IO_READ)
				assert_filled(jobs[i]->buf, (uint8_t)(100 + i), jobs[i]->len);
		}
		teardown(NULL);
		for (unsigned i = 0; i < n; i++)
			job_free(jobs[i]);
	}
	free(shadow);
	n_slots = SLOTS;
}

#define with_link(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define opens(test)     cmocka_unit_test_teardown(test, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_link(each_size),
	    with_link(one_doorbell_one_completion),
	    with_link(straight_into_regions),
	    with_link(small_writes_inline),
	    cmocka_unit_test(protocols),
	    with_link(no_more_reads_than_answered),
	    with_link(reads_stay_in_flight),
	    opens(one_read_at_a_time),
	    with_link(no_node_without_reads),
	    with_link(as_many_as_the_link_takes),
	    with_link(queue_without_room),
	    with_link(out_of_bounds),
	    with_link(adopted_lease),
	    opens(writes_are_confirmed),
	    opens(write_without_confirmation),
	    opens(write_overtakes_read),
	    opens(small_reads_stop_at_pages),
	    with_link(waiting),
	    cmocka_unit_test(random_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
