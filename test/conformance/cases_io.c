/*
 * Reads and writes: every byte goes to its place, and requests that are not allowed have no effect.
 */
#include "rig.h"

#include <errno.h>
#include <pthread.h>

#include "testrng.h"

/* A request with random segments. They do not overlap, so a write has only one possible result. */
static struct job *random_job(uint64_t *rng, uint32_t lease_id, uint64_t lease_bytes)
{
	enum fp_io_op op = test_random(rng) % 2 ? FP_IO_READ : FP_IO_WRITE;
	unsigned n_segs = 1 + (unsigned)(test_random(rng) % FP_IO_MAX_SEGS);
	uint64_t share_bytes = lease_bytes / n_segs;
	struct job *job = job_new(op, lease_id, 0, n_segs, FP_SEG_MAX_BYTES);

	for (unsigned i = 0; i < n_segs; i++) {
		struct fp_seg *seg = &job->segs[i];
		uint64_t most = FP_MIN(share_bytes, FP_SEG_MAX_BYTES);

		seg->len_bytes = test_random(rng) % 4 ? 4096 : 1 + (uint32_t)(test_random(rng) % most);
		seg->offset_bytes = i * share_bytes + test_random(rng) % (share_bytes - seg->len_bytes + 1);
		for (unsigned b = 0; b < seg->len_bytes; b++)
			((uint8_t *)seg->buf)[b] = (uint8_t)test_random(rng);
	}
	return job;
}

static void compare(const struct job *job, uint8_t *shadow)
{
	for (unsigned i = 0; i < job->io.n_segs; i++) {
		const struct fp_seg *seg = &job->segs[i];

		if (job->io.op == FP_IO_WRITE)
			memcpy(shadow + seg->offset_bytes, seg->buf, seg->len_bytes);
		else
			assert_memory_equal(seg->buf, shadow + seg->offset_bytes, seg->len_bytes);
	}
}

static void random_against_shadow(void **state)
{
	struct rig *rig = *state;
	uint64_t rng = test_seed("conformance");
	uint8_t *shadow = calloc(1, rig->lease->size_bytes);

	for (unsigned round = 0; round < 400; round++) {
		struct job *job = random_job(&rng, rig->lease->id, rig->lease->size_bytes);

		assert_int_equal(rig_run(rig->link, job), 0);
		compare(job, shadow);
		job_free(job);
	}
	free(shadow);
}

static void every_number_of_segments(void **state)
{
	struct rig *rig = *state;

	for (unsigned n = 1; n <= FP_IO_MAX_SEGS; n++) {
		struct job *write = job_new(FP_IO_WRITE, rig->lease->id, n, n, 4096);
		struct job *read = job_new(FP_IO_READ, rig->lease->id, n, n, 4096);

		memset(write->buf, (int)n, write->len);
		assert_int_equal(rig_run(rig->link, write), 0);
		assert_int_equal(rig_run(rig->link, read), 0);
		assert_filled(read->buf, (uint8_t)n, read->len);
		job_free(write);
		job_free(read);
	}
}

static void largest_request(void **state)
{
	struct rig *rig = *state;
	const struct fp_lease *lease;
	struct job *write, *read;

	assert_int_equal(fp_session_lease(rig->session, 4 * MIB, &lease), 0);
	write = job_new(FP_IO_WRITE, lease->id, 0, FP_IO_MAX_SEGS, FP_SEG_MAX_BYTES);
	read = job_new(FP_IO_READ, lease->id, 0, FP_IO_MAX_SEGS, FP_SEG_MAX_BYTES);
	for (size_t i = 0; i < write->len; i++)
		write->buf[i] = (uint8_t)(i * 2654435761u >> 24);
	assert_int_equal(rig_run(rig->link, write), 0);
	assert_int_equal(rig_run(rig->link, read), 0);
	assert_memory_equal(read->buf, write->buf, read->len);
	job_free(write);
	job_free(read);
}

/* If one segment is not allowed, the whole request is refused, and the link goes on. */
static void assert_denied(struct rig *rig, struct fp_seg bad)
{
	struct job *write = job_new(FP_IO_WRITE, rig->lease->id, 0, 3, 4096);
	struct job *read = job_new(FP_IO_READ, rig->lease->id, 0, 3, 4096);

	memset(write->buf, 0xee, write->len);
	bad.buf = write->segs[2].buf;
	write->segs[2] = bad;
	assert_int_equal(rig_run(rig->link, write), -EACCES);
	assert_int_equal(rig_run(rig->link, read), 0);
	assert_filled(read->buf, 0, read->len);
	bad.buf = read->segs[1].buf;
	read->segs[1] = bad;
	assert_int_equal(rig_run(rig->link, read), -EACCES);
	job_free(write);
	job_free(read);
}

static void out_of_bounds(void **state)
{
	struct rig *rig = *state;
	uint32_t id = rig->lease->id, len = 4096;
	uint64_t end = rig->lease->size_bytes;
	uint8_t byte = 7;

	assert_denied(rig, (struct fp_seg){id, len, end, NULL});
	assert_denied(rig, (struct fp_seg){id, len, end - len + 1, NULL});
	assert_denied(rig, (struct fp_seg){id, len, end + (1ull << 40), NULL});
	assert_denied(rig, (struct fp_seg){id + 1, len, 0, NULL});
	assert_denied(rig, (struct fp_seg){FP_WIRE_MAX_LEASE_ID, len, 0, NULL});
	assert_int_equal(rig_write(rig->link, id, end - 1, &byte, 1), 0);
	assert_int_equal(rig_read(rig->link, id, end - 1, &byte, 1), 0);
	assert_int_equal(byte, 7);
}

static void bad_requests(void **state)
{
	struct rig *rig = *state;
	struct job *job = job_new(FP_IO_READ, rig->lease->id, 0, 2, 64);

	job->io.n_segs = 0;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->io.n_segs = FP_IO_MAX_SEGS + 1;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->io.n_segs = 2;
	job->segs[1].len_bytes = 0;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->segs[1].len_bytes = FP_SEG_MAX_BYTES + 1;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->segs[1].len_bytes = 64;
	assert_int_equal(rig_run(rig->link, job), 0);
	job_free(job);
}

/*
 * Submits as many requests as the link takes, and one more. Each comes out once, with its own
 * bytes.
 */
static void many_outstanding(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[4096];
	unsigned n = 0, n_pages = (unsigned)(rig->lease->size_bytes / 4096);
	int r;

	for (unsigned i = 0; i < n_pages; i++) {
		uint8_t page[4096];

		memset(page, (int)(i % 251), sizeof(page));
		assert_int_equal(rig_write(rig->link, rig->lease->id, i * 4096, page, sizeof(page)), 0);
	}
	do {
		assert_true(n < FP_ARRAY_LEN(jobs));
		jobs[n] = job_new(FP_IO_READ, rig->lease->id, (n % n_pages) * 4096, 1, 4096);
		r = fp_link_submit(rig->link, &jobs[n++]->io);
	} while (r == 0);
	assert_int_equal(r, -EAGAIN);
	assert_true(n > 16);
	job_free(jobs[--n]);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(rig_await(rig->link)->io.status, 0);
	for (unsigned i = 0; i < n; i++) {
		assert_filled(jobs[i]->buf, (uint8_t)(i % n_pages % 251), 4096);
		job_free(jobs[i]);
	}
}

static void links_of_one_session(void **state)
{
	struct rig *rig = *state;
	struct fp_link *other;
	uint64_t back;

	assert_int_equal(fp_link_open(rig->session, &other), 0);
	for (uint64_t i = 1; i < 200; i++) {
		struct fp_link *writer = i % 2 ? rig->link : other, *reader = i % 2 ? other : rig->link;

		assert_int_equal(rig_write(writer, rig->lease->id, 512, &i, sizeof(i)), 0);
		assert_int_equal(rig_read(reader, rig->lease->id, 512, &back, sizeof(back)), 0);
		assert_true(back == i);
	}
	fp_link_close(other);
}

/*
 * A read sees a write that was submitted before it on the same link, even if the write has not
 * completed.
 */
static void order_on_a_link(void **state)
{
	struct rig *rig = *state;

	for (unsigned i = 1; i < 100; i++) {
		struct job *write = job_new(FP_IO_WRITE, rig->lease->id, 0, 16, 4096);
		struct job *read = job_new(FP_IO_READ, rig->lease->id, 0, 16, 4096);

		memset(write->buf, (int)i, write->len);
		assert_int_equal(fp_link_submit(rig->link, &write->io), 0);
		assert_int_equal(fp_link_submit(rig->link, &read->io), 0);
		assert_int_equal(rig_await(rig->link)->io.status, 0);
		assert_int_equal(rig_await(rig->link)->io.status, 0);
		assert_filled(read->buf, (uint8_t)i, read->len);
		job_free(write);
		job_free(read);
	}
}

struct worker {
	struct rig *rig;
	uint64_t offset_bytes, rng;
	unsigned n_wrong;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct fp_link *link;

	if (fp_link_open(w->rig->session, &link) < 0)
		return NULL;
	w->n_wrong = 0;
	for (unsigned i = 0; i < 200; i++) {
		uint64_t at = w->offset_bytes + test_random(&w->rng) % 1000 * 64,
		         value = test_random(&w->rng), back;

		if (rig_write(link, w->rig->lease->id, at, &value, sizeof(value)) ||
		    rig_read(link, w->rig->lease->id, at, &back, sizeof(back)) || back != value)
			w->n_wrong++;
	}
	fp_link_close(link);
	return NULL;
}

/* Each thread has its own link, while the session's control calls go on. */
static void links_of_many_threads(void **state)
{
	struct rig *rig = *state;
	struct worker workers[4];
	pthread_t threads[4];
	struct fp_node_info info;

	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (struct worker){rig, i * (rig->lease->size_bytes / 4), i, 1};
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 50; i++) {
		const struct fp_lease *lease;

		assert_int_equal(fp_session_info(rig->session, &info), 0);
		assert_int_equal(fp_session_lease(rig->session, 4096, &lease), 0);
		assert_int_equal(fp_session_release(rig->session, lease->id), 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].n_wrong, 0);
	}
}

static void closed_with_requests_outstanding(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[32];

	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++) {
		jobs[i] = job_new(i % 2 ? FP_IO_READ : FP_IO_WRITE, rig->lease->id, 0, 16, FP_SEG_MAX_BYTES);
		assert_int_equal(fp_link_submit(rig->link, &jobs[i]->io), 0);
	}
	fp_link_close(fp_take_ptr(rig->link));
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++)
		job_free(jobs[i]);
	assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	assert_int_equal(rig_write(rig->link, rig->lease->id, 0, "again", 5), 0);
}

#define on(fixture, test) cmocka_unit_test_setup_teardown(test, fixture, rig_teardown)

int run_io_cases(void)
{
	const struct CMUnitTest io[] = {
	    on(rig_setup, random_against_shadow), on(rig_setup, every_number_of_segments),
	    on(rig_setup, largest_request),       on(rig_setup, out_of_bounds),
	    on(rig_setup, bad_requests),          on(rig_setup, many_outstanding),
	    on(rig_setup, links_of_one_session),  on(rig_setup, order_on_a_link),
	    on(rig_setup, links_of_many_threads), on(rig_setup, closed_with_requests_outstanding),
	};

	return cmocka_run_group_tests(io, NULL, NULL);
}
