/*
 * A link of rdma over a device that is played by hand: struct fp_verbs_* as far as a link uses it,
 * on memory of this process. What was posted waits until a test lets the device work, one request
 * at a time, with the answers it wants: late, out of order as soft iWARP gives them, as errors,
 * flushed, or never.
 */
#include "rdma_link.h"

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

#define LEASE_ID    5u
#define LEASE_BYTES (8u << 20)
#define LEASE_AT    0x700000000000ull
#define LEASE_KEY   0xabcdu
#define QUEUE       1024u
#define SLOTS       256u
#define PATIENCE_NS (20 * FP_NSEC_PER_SEC) /* of the test: only a failure waits so long */
#define POISON      0xee

/* ---- the device ---- */

struct fp_verbs_domain {
	struct fp_verbs_limits limits;
	int refs, regions;
	uint32_t last_key;
	struct fp_verbs_region region[8];
};

struct fp_verbs_conn {
	struct fp_verbs_work queue[QUEUE]; /* posted, not done; oldest first */
	uint8_t inlined[QUEUE][256];
	unsigned n_queue;
	struct fp_verbs_completion done[QUEUE];
	unsigned n_done;
	unsigned n_posts, n_works, n_signals, most_reads;
	unsigned depth; /* posts of more are refused */
	bool closed, flushed, flush_fails, swallows, gone, post_fails, cq_fails, stirs;
	void (*on_arm)(struct fp_verbs_conn *conn);
};

static struct fp_verbs_domain domain;
static struct fp_verbs_conn conn;
static uint8_t *remote;
static struct fp_lease lease = {
    .id = LEASE_ID, .size_bytes = LEASE_BYTES, .remote_address = LEASE_AT, .remote_key = LEASE_KEY};

struct fp_verbs_domain *fp_verbs_domain_ref(struct fp_verbs_domain *d)
{
	d->refs++;
	return d;
}

void fp_verbs_domain_unref(struct fp_verbs_domain *d)
{
	d->refs--;
	assert_true(d->refs > 0 || d->regions == 0);
}

const struct fp_verbs_limits *fp_verbs_domain_limits(const struct fp_verbs_domain *d)
{
	return &d->limits;
}

int fp_verbs_register(struct fp_verbs_domain *d, void *base, size_t len_bytes, enum fp_verbs_access access,
                      struct fp_verbs_region *ret_region)
{
	assert_int_equal(access, FP_VERBS_LOCAL);
	for (unsigned i = 0; i < FP_ARRAY_LEN(d->region); i++) {
		if (d->region[i].mr)
			continue;
		d->regions++;
		d->last_key++;
		d->region[i] = *ret_region =
		    (struct fp_verbs_region){&d->region[i], base, len_bytes, d->last_key, 0};
		return 0;
	}
	return -ENOMEM;
}

void fp_verbs_deregister(struct fp_verbs_region *region)
{
	if (!region->mr)
		return;
	/* a device that still works on it would write to memory of somebody else */
	assert_true(conn.closed || conn.n_queue == 0);
	*(struct fp_verbs_region *)region->mr = (struct fp_verbs_region){0};
	region->mr = NULL;
	domain.regions--;
}

void fp_verbs_conn_close(struct fp_verbs_conn *c)
{
	if (!c)
		return;
	assert_false(c->closed);
	c->closed = true;
	c->n_queue = 0;
}

struct fp_verbs_domain *fp_verbs_conn_domain(const struct fp_verbs_conn *c)
{
	return &domain;
}

unsigned fp_verbs_conn_max_reads(const struct fp_verbs_conn *c)
{
	return domain.limits.max_reads;
}

unsigned fp_verbs_conn_max_inline(const struct fp_verbs_conn *c)
{
	return 80;
}

bool fp_verbs_conn_stirs(const struct fp_verbs_conn *c)
{
	return c->stirs;
}

static bool key_opens(uint32_t lkey, const void *local, size_t len)
{
	for (unsigned i = 0; i < FP_ARRAY_LEN(domain.region); i++) {
		const struct fp_verbs_region *r = &domain.region[i];

		if (r->mr && r->lkey == lkey && (uintptr_t)local >= (uintptr_t)r->base &&
		    (uintptr_t)local + len <= (uintptr_t)r->base + r->len_bytes)
			return true;
	}
	return false;
}

static unsigned reads_queued(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < conn.n_queue; i++)
		n += conn.queue[i].op == FP_VERBS_READ;
	return n;
}

static void check_work(const struct fp_verbs_work *work)
{
	assert_true(work->op == FP_VERBS_READ || work->op == FP_VERBS_WRITE);
	assert_int_equal(work->rkey, LEASE_KEY);
	assert_true(work->remote >= LEASE_AT && work->remote + work->len_bytes <= LEASE_AT + LEASE_BYTES);
	assert_true(work->len_bytes > 0);
	if (work->inline_data)
		assert_true(work->op == FP_VERBS_WRITE && work->len_bytes <= fp_verbs_conn_max_inline(&conn));
	else
		assert_true(key_opens(work->lkey, work->local, work->len_bytes));
}

int fp_verbs_post(struct fp_verbs_conn *c, const struct fp_verbs_work *work, unsigned n)
{
	assert_false(c->closed || c->flushed);
	assert_in_range(n, 1, FP_VERBS_CHAIN_MAX);
	if (c->n_queue + n > c->depth)
		return -EAGAIN;
	c->n_posts++;
	for (unsigned i = 0; i < n; i++) {
		check_work(&work[i]);
		if (c->post_fails && i == n / 2)
			return -ENOMEM;
		if (work[i].inline_data)
			memcpy(c->inlined[c->n_works % QUEUE], work[i].local, work[i].len_bytes);
		c->queue[c->n_queue] = work[i];
		if (work[i].inline_data)
			c->queue[c->n_queue].local = c->inlined[c->n_works % QUEUE];
		c->n_queue++;
		c->n_works++;
		c->n_signals += work[i].signalled;
	}
	c->most_reads = FP_MAX(c->most_reads, reads_queued());
	return 0;
}

#define WC_SAID 77 /* wc_status of what fails first; what is flushed has another */

static void complete(const struct fp_verbs_work *work, int status)
{
	if (work->signalled || status < 0)
		conn.done[conn.n_done++] =
		    (struct fp_verbs_completion){.id = work->id,
		                                 .op = FP_VERBS_SEND,
		                                 .status = status,
		                                 .wc_status = status == -ECANCELED ? 5 : WC_SAID};
}

/* Takes one out of the queue and carries it out, or fails it. A READ that is CUT misses its last
 * packet, and is said to be done. */
#define CUT          1
#define PACKET_BYTES 1024

static void work_one(unsigned at, int status)
{
	struct fp_verbs_work work = conn.queue[at];
	uint8_t *there = remote + (work.remote - LEASE_AT);

	assert_true(at < conn.n_queue);
	conn.n_queue--;
	memmove(&conn.queue[at], &conn.queue[at + 1], (conn.n_queue - at) * sizeof(conn.queue[0]));
	if (status == 0 && work.op == FP_VERBS_READ)
		memcpy(work.local, there, work.len_bytes);
	else if (status == 0)
		memcpy(there, work.local, work.len_bytes);
	else if (status == CUT)
		memcpy(work.local, there, work.len_bytes - PACKET_BYTES);
	complete(&work, FP_MIN(status, 0));
}

static void work_all(void)
{
	while (conn.n_queue > 0)
		work_one(0, 0);
}

const char *fp_verbs_status_text(int wc_status)
{
	return wc_status == WC_SAID ? "the device says why" : "some other status";
}

int fp_verbs_conn_flush(struct fp_verbs_conn *c)
{
	if (c->flush_fails)
		return -EIO; /* and the device works on */
	c->flushed = true;
	if (c->gone)
		c->n_queue = 0;
	return c->gone ? -ENODEV : 0;
}

int fp_verbs_poll(struct fp_verbs_conn *c, struct fp_verbs_completion *ret, unsigned max)
{
	unsigned n;

	assert_false(c->closed);
	if (c->cq_fails)
		return -EIO;
	while (c->flushed && c->n_queue > 0 && !c->swallows)
		work_one(0, -ECANCELED);
	n = FP_MIN(max, c->n_done);
	memcpy(ret, c->done, n * sizeof(*ret));
	c->n_done -= n;
	memmove(c->done, c->done + n, c->n_done * sizeof(*ret));
	return (int)n;
}

int fp_verbs_arm(struct fp_verbs_conn *c, struct pollfd *ret_pollfd)
{
	assert_false(c->closed);
	if (c->on_arm)
		c->on_arm(c);
	*ret_pollfd = (struct pollfd){.fd = 99, .events = POLLIN};
	return 0;
}

/* ---- the rig ---- */

static struct fp_link *link_;
static unsigned n_slots = SLOTS;

static const struct fp_lease *find_lease(const struct fp_session *session, uint32_t lease_id)
{
	return lease_id == LEASE_ID ? &lease : NULL;
}

static const struct fp_transport transport = {
    .scheme = "played",
    .link_close = fp_rdma_link_close,
    .link_register = fp_rdma_link_register,
    .submit = fp_rdma_link_submit,
    .poll = fp_rdma_link_poll,
    .pollfd = fp_rdma_link_pollfd,
};

static void open_link(enum fp_protocol protocol, bool iwarp, unsigned max_reads)
{
	struct fp_rdma_link_options options = {
	    .transport = &transport,
	    .find_lease = find_lease,
	    .protocol = protocol,
	    .patience_ns = PATIENCE_NS,
	    .n_slots = n_slots,
	    .fd = -1,
	};

	memset(&domain, 0, sizeof(domain));
	memset(&conn, 0, sizeof(conn));
	domain.limits = (struct fp_verbs_limits){.iwarp = iwarp, .max_reads = max_reads};
	conn.depth = SLOTS;
	remote = calloc(1, LEASE_BYTES);
	assert_non_null(remote);
	assert_int_equal(fp_rdma_link_new(&conn, &options, &link_), 0);
}

static int setup(void **state)
{
	open_link(FP_PROTOCOL_AUTO, false, 16);
	return 0;
}

static int teardown(void **state)
{
	if (link_)
		fp_rdma_link_close(link_);
	assert_true(conn.closed);
	assert_int_equal(domain.refs, 0);
	assert_int_equal(domain.regions, 0);
	free(remote);
	return 0;
}

/* A request with its segments and buffer: n_segs segments of seg_bytes each. */
struct job {
	struct fp_io io;
	struct fp_seg segs[FP_IO_MAX_SEGS];
	uint8_t *buf;
	size_t len;
	bool done;
};

static struct job *job_new(enum fp_io_op op, unsigned n_segs, uint32_t seg_bytes, uint8_t fill)
{
	struct job *job = calloc(1, sizeof(*job));

	job->len = (size_t)n_segs * seg_bytes;
	job->buf = malloc(job->len);
	memset(job->buf, fill, job->len);
	for (unsigned i = 0; i < n_segs; i++)
		job->segs[i] = (struct fp_seg){.lease_id = LEASE_ID,
		                               .len_bytes = seg_bytes,
		                               .offset_bytes = (uint64_t)i * seg_bytes,
		                               .buf = job->buf + (size_t)i * seg_bytes};
	job->io = (struct fp_io){.op = op, .n_segs = n_segs, .segs = job->segs, .status = 1, .user = job};
	return job;
}

static void job_free(struct job *job)
{
	free(job->buf);
	free(job);
}

static void assert_filled(const uint8_t *buf, uint8_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != value)
			fail_msg("byte %zu is %02x, not %02x", i, buf[i], value);
}

static void submit(struct job *job)
{
	assert_int_equal(fp_link_submit(link_, &job->io), 0);
}

/* The next io that is done, or NULL. */
static struct job *take(void)
{
	struct fp_io *done;
	struct job *job;

	if (fp_link_poll(link_, &done, 1) == 0)
		return NULL;
	job = done->user;
	assert_false(job->done);
	job->done = true;
	return job;
}

static void assert_next(struct job *job, int status)
{
	assert_ptr_equal(take(), job);
	assert_int_equal(job->io.status, status);
}

/* Lets the device work until the link has nothing for it. */
static void run(struct job *job)
{
	struct job *done;

	submit(job);
	while (!(done = take()))
		work_all();
	assert_ptr_equal(done, job);
	assert_int_equal(job->io.status, 0);
	job->done = false;
}

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
	                2); /* READs are not silent for longer than half of what may be out */
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

	fp_link_register(link_, read->buf, 2 * FP_SEG_MAX_BYTES); /* not the third */
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
	/* more regions than a link keeps: they are copied */
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

/* A long request refills what may be outstanding before all of it is back. */
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
	assert_filled(remote, 0, 8192); /* (uint8_t)256 */
	for (unsigned i = 0; i < FP_ARRAY_LEN(jobs); i++)
		job_free(jobs[i]);
}

/* The queue has room for less than the link thinks, for a while. */
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

/* A lease that was adopted is read; a WRITE of it would cost the link, so it is not posted. */
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

/* ---- errors ---- */

static void submit_some(struct job *jobs[6], uint32_t seg_bytes)
{
	for (unsigned i = 0; i < 6; i++) {
		jobs[i] = job_new(i % 2 ? FP_IO_WRITE : FP_IO_READ, 4, seg_bytes, POISON);
		submit(jobs[i]);
	}
}

/* Each of the jobs comes out once; the one at `guilty` (-1: none) with its status, the others with
 * -ECONNRESET. */
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

/* The first ends well, and is thrown away. */
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

/* As soft RoCE does before it breaks the connection. */
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

/* An overdue io, and with it the link, ends only when the device has let go of the buffers. */
static void overdue(void **state)
{
	struct job *jobs[6];
	uint64_t end_ns = fp_clock_ns() + PATIENCE_NS;

	submit_some(jobs, 4096);
	run_first(jobs);
	jobs[0] = job_new(FP_IO_READ, FP_IO_MAX_SEGS, 4096, POISON); /* most of it waits */
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
	assert_null(fp_link_why(link_)); /* overdue: the device said nothing */
}

static void device_gone(void **state)
{
	struct job *jobs[6];

	submit_some(jobs, 4096);
	conn.gone = true;
	conn.stirs = true;
	assert_broken(jobs, -1, 0);
}

/* No buffer comes back before the device has lost it: here, by the end of its queue pair. */
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

/* Part of the chain may have been posted: it comes back by the flush, or the queue pair is
 * destroyed. */
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

/* Unless it is answered nobody knows that the bytes arrived. */
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

/* A WRITE may be reported before a READ that was posted before it, and says nothing of it. */
static void write_overtakes_read(void **state)
{
	struct job *read = job_new(FP_IO_READ, 1, 4096, 0),
	           *write = job_new(FP_IO_WRITE, FP_IO_MAX_SEGS, 4096, 8);

	open_link(FP_PROTOCOL_AUTO, true, 16);
	memset(remote, 5, 4096);
	submit(read);
	submit(write);
	while (conn.queue[1].op == FP_VERBS_WRITE) /* the last of the chain is signalled */
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

/* What soft iWARP answers wrongly is not asked: a few bytes across the end of a page. */
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

/* Requests of random sizes on a device that works in random bursts: all end well, with the bytes of
 * a shadow.
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
	    with_link(refused_by_the_peer),
	    with_link(nobody_acknowledges),
	    with_link(said_to_be_answered),
	    with_link(flushed_from_without),
	    with_link(overdue),
	    with_link(device_gone),
	    with_link(flush_fails),
	    with_link(peer_gone),
	    with_link(completion_queue_dead),
	    with_link(post_fails),
	    with_link(nothing_comes_back),
	    with_link(strange_completions),
	    opens(writes_are_confirmed),
	    opens(write_without_confirmation),
	    opens(write_overtakes_read),
	    opens(small_reads_stop_at_pages),
	    with_link(waiting),
	    with_link(closed_with_requests_outstanding),
	    cmocka_unit_test(random_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
