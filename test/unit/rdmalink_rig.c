/* See rdmalink_rig.h. */
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

/* ---- the played device ---- */

struct fp_verbs_domain domain;
struct fp_verbs_conn conn;
uint8_t *remote;
struct fp_lease lease = {
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
	/*
	 * This fails if requests are still queued. A working device would then write to memory that
	 * is no longer registered.
	 */
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

static void complete(const struct fp_verbs_work *work, int status)
{
	if (work->signalled || status < 0)
		conn.done[conn.n_done++] = (struct fp_verbs_completion){
		    .id = work->id, .status = status, .wc_status = status == -ECANCELED ? 5 : WC_SAID};
}

#define PACKET_BYTES 1024

void work_one(unsigned at, int status)
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

void work_all(void)
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
		return -EIO; /* the device goes on working */
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

/* ---- the link under test ---- */

struct fp_link *link_;
unsigned n_slots = SLOTS;

const struct fp_lease *find_lease(const struct fp_session *session, uint32_t lease_id)
{
	return lease_id == LEASE_ID ? &lease : NULL;
}

static const struct fp_transport transport = {
    .scheme = "played",
    .link_close = fp_rdma_link_close,
    .link_break = fp_rdma_link_break,
    .link_register = fp_rdma_link_register,
    .submit = fp_rdma_link_submit,
    .poll = fp_rdma_link_poll,
    .pollfd = fp_rdma_link_pollfd,
};

void open_link(enum fp_protocol protocol, bool iwarp, unsigned max_reads)
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

int setup(void **state)
{
	open_link(FP_PROTOCOL_AUTO, false, 16);
	return 0;
}

int teardown(void **state)
{
	if (link_)
		fp_rdma_link_close(link_);
	assert_true(conn.closed);
	assert_int_equal(domain.refs, 0);
	assert_int_equal(domain.regions, 0);
	free(remote);
	return 0;
}

struct job *job_new(enum fp_io_op op, unsigned n_segs, uint32_t seg_bytes, uint8_t fill)
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

void job_free(struct job *job)
{
	free(job->buf);
	free(job);
}

void assert_filled(const uint8_t *buf, uint8_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != value)
			fail_msg("byte %zu is %02x, not %02x", i, buf[i], value);
}

void submit(struct job *job)
{
	assert_int_equal(fp_link_submit(link_, &job->io), 0);
}

struct job *take(void)
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

void assert_next(struct job *job, int status)
{
	assert_ptr_equal(take(), job);
	assert_int_equal(job->io.status, status);
}

void run(struct job *job)
{
	struct job *done;

	submit(job);
	while (!(done = take()))
		work_all();
	assert_ptr_equal(done, job);
	assert_int_equal(job->io.status, 0);
	job->done = false;
}
