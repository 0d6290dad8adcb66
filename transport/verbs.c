/*
 * Domains, regions, queue pairs and the work posted to them. Room: transport; see verbs.h. Posting
 * and polling never allocate, lock or log.
 */
#include "verbs.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fdutil.h"
#include "verbs_internal.h"

/*
 * Bits of a wr_id for the caller's id. The bits above count the work requests that this completion
 * ends.
 */
#define ID_BITS 48
#define RECV_MARK                                                                                            \
	(1ull                                                                                                \
	 << 63) /* marks the wr_id of a receive, because the opcode of a failed completion is undefined */
#define MAX_DEPTH  32767u
#define POLL_CHUNK 16
#define MAX_INLINE 256u

static struct fp_verbs_conn *conns;
static pthread_mutex_t conns_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- domains ---- */

static int domain_new(struct ibv_context *context, struct fp_verbs_domain **ret_domain)
{
	fp_autofree struct fp_verbs_domain *domain = calloc(1, sizeof(*domain));
	int r;

	if (!domain)
		return -ENOMEM;
	r = fp_verbs_device_get(context, &domain->device);
	if (r < 0)
		return r;
	domain->pd = fp_verbs_api->ibv.alloc_pd(context);
	if (!domain->pd) {
		r = errno ? -errno : -EIO;
		fp_verbs_device_put(domain->device);
		return r;
	}
	domain->n_refs = 1;
	*ret_domain = fp_take_ptr(domain);
	return 0;
}

int fp_verbs_domain_of(struct ibv_context *context, struct fp_verbs_domain **domain)
{
	if (*domain)
		return (*domain)->device->context == context ? 0 : -EXDEV;
	return domain_new(context, domain);
}

struct fp_verbs_domain *fp_verbs_domain_ref(struct fp_verbs_domain *domain)
{
	atomic_fetch_add(&domain->n_refs, 1);
	return domain;
}

void fp_verbs_domain_unref(struct fp_verbs_domain *domain)
{
	if (!domain || atomic_fetch_sub(&domain->n_refs, 1) > 1)
		return;
	fp_verbs_api->ibv.dealloc_pd(domain->pd);
	fp_verbs_device_put(domain->device);
	free(domain);
}

const struct fp_verbs_limits *fp_verbs_domain_limits(const struct fp_verbs_domain *domain)
{
	return &domain->device->limits;
}

bool fp_verbs_domain_dead(const struct fp_verbs_domain *domain)
{
	return atomic_load_explicit(&domain->device->dead, memory_order_relaxed);
}

int fp_verbs_domain_event_fd(const struct fp_verbs_domain *domain)
{
	return domain->device->context->async_fd;
}

static const char *event_text(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR:
		return "completion queue overrun";
	case IBV_EVENT_QP_FATAL:
		return "queue pair failed";
	case IBV_EVENT_QP_REQ_ERR:
		return "QP request error: the peer sent what was not allowed";
	case IBV_EVENT_QP_ACCESS_ERR:
		return "QP access error: the peer used a key or address that is not its own";
	case IBV_EVENT_COMM_EST:
		return "communication established";
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return "last receive reached";
	case IBV_EVENT_DEVICE_FATAL:
		return "the device failed or was removed";
	case IBV_EVENT_PORT_ACTIVE:
		return "port active";
	case IBV_EVENT_PORT_ERR:
		return "port down";
	case IBV_EVENT_GID_CHANGE:
		return "address table changed";
	default:
		return "device event";
	}
}

int fp_verbs_domain_event(struct fp_verbs_domain *domain, uint32_t *ret_qpn, const char **ret_text)
{
	struct ibv_async_event event;

	if (fp_verbs_api->ibv.get_async_event(domain->device->context, &event))
		return 0;
	*ret_qpn = 0;
	*ret_text = event_text(event.event_type);
	switch (event.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*ret_qpn = event.element.qp->qp_num;
		break;
	case IBV_EVENT_DEVICE_FATAL:
		domain->device->dead = true;
		break;
	default:
		break;
	}
	fp_verbs_api->ibv.ack_async_event(&event);
	return 1;
}

/* ---- regions ---- */

int fp_verbs_register(struct fp_verbs_domain *domain, void *base, size_t len_bytes,
                      enum fp_verbs_access access, struct fp_verbs_region *ret_region)
{
	int flags = IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *mr;

	if (access == FP_VERBS_REMOTE)
		flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	else if (access == FP_VERBS_REMOTE_READ)
		flags = IBV_ACCESS_REMOTE_READ;
	else if (domain->device->limits.iwarp)
		/*
		 * RFC 5040: the peer's answer to a READ writes to the READ's target, so the target
		 * must be writable.
		 */
		flags |= IBV_ACCESS_REMOTE_WRITE;
	errno = 0;
	/* In parentheses: a macro of the same name in the header would bypass the table. */
	mr = (fp_verbs_api->ibv.reg_mr)(domain->pd, base, len_bytes, flags);
	if (!mr)
		return errno ? -errno : -EIO;
	*ret_region = (struct fp_verbs_region){
	    .mr = mr, .base = base, .len_bytes = len_bytes, .lkey = mr->lkey, .rkey = mr->rkey};
	return 0;
}

void fp_verbs_deregister(struct fp_verbs_region *region)
{
	if (region->mr)
		fp_verbs_api->ibv.dereg_mr(region->mr);
	*region = (struct fp_verbs_region){0};
}

/* ---- connections ---- */

static void conn_list(struct fp_verbs_conn *conn)
{
	pthread_mutex_lock(&conns_lock);
	conn->next = conns;
	conn->at = &conns;
	if (conn->next)
		conn->next->at = &conn->next;
	conns = conn;
	pthread_mutex_unlock(&conns_lock);
}

static void conn_unlist(struct fp_verbs_conn *conn)
{
	pthread_mutex_lock(&conns_lock);
	*conn->at = conn->next;
	if (conn->next)
		conn->next->at = conn->at;
	pthread_mutex_unlock(&conns_lock);
}

static struct ibv_comp_channel *channel_new(struct ibv_context *context)
{
	bool locked = fp_fd_lock_exclusive();
	struct ibv_comp_channel *channel = fp_verbs_api->ibv.create_comp_channel(context);

	if (channel)
		channel->fd = fp_fd_move_high(channel->fd);
	fp_fd_unlock(locked);
	return channel;
}

static void channel_free(struct ibv_comp_channel *channel)
{
	bool locked = fp_fd_lock_exclusive();

	fp_fd_forget(channel->fd);
	fp_verbs_api->ibv.destroy_comp_channel(channel);
	fp_fd_unlock(locked);
}

int fp_verbs_conn_new(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                      struct fp_verbs_conn **ret_conn)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = calloc(1, sizeof(*conn));
	struct ibv_context *context = domain->device->context;

	assert(options->send_depth <= MAX_DEPTH);
	if (!conn)
		return -ENOMEM;
	conn->domain = fp_verbs_domain_ref(domain);
	conn->wait_fd = -1;
	conn_list(conn);
	conn->options = *options;
	conn->send_depth = options->send_depth;
	conn->channel = channel_new(context);
	if (!conn->channel)
		return errno ? -errno : -EIO;
	fp_verbs_set_nonblocking(conn->channel->fd);
	conn->cq = fp_verbs_api->ibv.create_cq(context, (int)(options->send_depth + options->recv_depth + 1),
	                                       NULL, conn->channel, 0);
	if (!conn->cq)
		return errno ? -errno : -EIO;
	*ret_conn = fp_take_ptr(conn);
	return 0;
}

int fp_verbs_conn_create_qp(struct fp_verbs_conn *conn,
                            int (*create)(struct fp_verbs_conn *conn, struct ibv_qp_init_attr *attr))
{
	for (unsigned max_inline = MAX_INLINE;; max_inline /= 2) {
		struct ibv_qp_init_attr attr = {
		    .send_cq = conn->cq,
		    .recv_cq = conn->cq,
		    .cap = {.max_send_wr = conn->options.send_depth,
		            .max_recv_wr = FP_MAX(conn->options.recv_depth, 1u),
		            .max_send_sge = 1,
		            .max_recv_sge = 1,
		            .max_inline_data = max_inline},
		    .qp_type = IBV_QPT_RC,
		};
		int r = create(conn, &attr);

		if (r == 0) {
			conn->max_inline = FP_MIN(attr.cap.max_inline_data, MAX_INLINE);
			return 0;
		}
		if (max_inline == 0 || r == -ENOMEM)
			return r;
	}
}

int fp_verbs_conn_modify(struct fp_verbs_conn *conn, struct ibv_qp_attr *attr, int mask)
{
	int r = fp_verbs_api->ibv.modify_qp(conn->qp, attr, mask);

	return r > 0 ? -r : r;
}

/*
 * Acknowledges events, because a queue with an unacknowledged event can't be destroyed. Each event
 * also disarms the queue, so the caller arms it again.
 */
static void take_channel_events(struct fp_verbs_conn *conn)
{
	struct ibv_cq *cq;
	void *user;

	while (fp_verbs_api->ibv.get_cq_event(conn->channel, &cq, &user) == 0) {
		fp_verbs_api->ibv.ack_cq_events(cq, 1);
		conn->armed = false;
	}
}

void fp_verbs_conn_close(struct fp_verbs_conn *conn)
{
	if (!conn)
		return;
	if (conn->id)
		fp_verbs_cm_close(conn);
	else if (conn->qp)
		fp_verbs_api->ibv.destroy_qp(conn->qp);
	if (conn->cq)
		fp_verbs_api->ibv.destroy_cq(conn->cq);
	if (conn->channel)
		channel_free(conn->channel);
	fp_verbs_domain_unref(conn->domain);
	conn_unlist(conn);
	free(conn);
}

void fp_verbs_drop_descriptor(int fd)
{
	if (fd < 0)
		return;
	fp_fd_close(fd);
}

void fp_verbs_drop_descriptors(void)
{
	for (struct fp_verbs_conn *conn = conns; conn; conn = conn->next) {
		fp_verbs_drop_descriptor(conn->channel ? conn->channel->fd : -1);
		fp_verbs_drop_descriptor(conn->events ? conn->events->fd : -1);
		fp_verbs_drop_descriptor(conn->wait_fd);
	}
	conns = NULL;
	pthread_mutex_init(&conns_lock, NULL); /* a thread of the parent may hold it */
	fp_verbs_devices_drop();
}

int fp_verbs_conn_flush(struct fp_verbs_conn *conn)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (!conn->broken)
		conn->broken = -ECONNRESET;
	return fp_verbs_conn_modify(conn, &attr, IBV_QP_STATE);
}

struct fp_verbs_domain *fp_verbs_conn_domain(const struct fp_verbs_conn *conn)
{
	return conn->domain;
}

uint32_t fp_verbs_conn_qpn(const struct fp_verbs_conn *conn)
{
	return conn->qp->qp_num;
}

unsigned fp_verbs_conn_max_reads(const struct fp_verbs_conn *conn)
{
	return conn->max_reads;
}

unsigned fp_verbs_conn_max_inline(const struct fp_verbs_conn *conn)
{
	return conn->max_inline;
}

void fp_verbs_conn_set_user(struct fp_verbs_conn *conn, void *user)
{
	conn->user = user;
}

void *fp_verbs_conn_user(const struct fp_verbs_conn *conn)
{
	return conn->user;
}

/* ---- posting and polling ---- */

static void fill(const struct fp_verbs_work *work, uint64_t wr_id, struct ibv_send_wr *wr,
                 struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){(uintptr_t)work->local, work->len_bytes, work->lkey};
	*wr = (struct ibv_send_wr){
	    .wr_id = wr_id,
	    .sg_list = sge,
	    .num_sge = work->len_bytes > 0,
	    .opcode = work->op == FP_VERBS_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
	    .send_flags =
	        (work->signalled ? IBV_SEND_SIGNALED : 0u) | (work->inline_data ? IBV_SEND_INLINE : 0u),
	    .wr.rdma = {work->remote, work->rkey},
	};
}

/*
 * Returns the wr_id of the next work request. If the request is signalled, its wr_id contains a
 * count: the request itself and the unsignalled ones before it. The completion ends all of these. A
 * queue of counts in the order of posting would not do, because soft iWARP completes a WRITE before
 * an earlier READ.
 */
static uint64_t mark(struct fp_verbs_conn *conn, const struct fp_verbs_work *work)
{
	uint64_t n_done = work->signalled ? conn->n_unmarked + 1 : 0;

	conn->n_unmarked = work->signalled ? 0 : conn->n_unmarked + 1;
	return work->id | n_done << ID_BITS;
}

int fp_verbs_post(struct fp_verbs_conn *conn, const struct fp_verbs_work *work, unsigned n)
{
	struct ibv_send_wr wr[FP_VERBS_CHAIN_MAX], *bad;
	struct ibv_sge sge[FP_VERBS_CHAIN_MAX];
	int r;

	assert(n > 0 && n <= FP_VERBS_CHAIN_MAX);
	if (conn->broken)
		return conn->broken;
	if (n > conn->send_depth - conn->n_sent)
		return -EAGAIN;
	for (unsigned i = 0; i < n; i++) {
		fill(&work[i], mark(conn, &work[i]), &wr[i], &sge[i]);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
	conn->n_sent += n;
	r = fp_verbs_api->ibv.post_send(conn->qp, wr, &bad);
	if (r) /* it does not matter how many were posted: the queue pair must be flushed */
		conn->broken = r > 0 ? -r : r;
	return conn->broken;
}

int fp_verbs_post_recv(struct fp_verbs_conn *conn, const struct fp_verbs_work *work)
{
	struct ibv_sge sge = {(uintptr_t)work->local, work->len_bytes, work->lkey};
	struct ibv_recv_wr wr = {.wr_id = work->id | RECV_MARK, .sg_list = &sge, .num_sge = 1}, *bad;
	int r = fp_verbs_api->ibv.post_recv(conn->qp, &wr, &bad);

	if (r && !conn->broken)
		conn->broken = r > 0 ? -r : r;
	return r > 0 ? -r : r;
}

static void translate(struct fp_verbs_conn *conn, const struct ibv_wc *wc, struct fp_verbs_completion *ret)
{
	bool received = wc->wr_id & RECV_MARK;

	*ret = (struct fp_verbs_completion){
	    .id = wc->wr_id & ((1ull << ID_BITS) - 1),
	    .status = fp_verbs_status(wc->status),
	    .wc_status = wc->status,
	};
	if (wc->status != IBV_WC_SUCCESS) {
		if (!conn->broken)
			conn->broken = ret->status == -ECANCELED ? -ECONNRESET : ret->status;
		return;
	}
	if (!received)
		conn->n_sent -= (unsigned)(wc->wr_id >> ID_BITS);
}

int fp_verbs_poll(struct fp_verbs_conn *conn, struct fp_verbs_completion *ret, unsigned max)
{
	struct ibv_wc wc[POLL_CHUNK];
	int n = fp_verbs_api->ibv.poll_cq(conn->cq, (int)FP_MIN(max, (unsigned)POLL_CHUNK), wc);

	if (n < 0)
		return conn->broken ? conn->broken : (conn->broken = -EIO);
	for (int i = 0; i < n; i++)
		translate(conn, &wc[i], &ret[i]);
	return n;
}

int fp_verbs_arm(struct fp_verbs_conn *conn, struct pollfd *ret_pollfd)
{
	int r = 0;

	take_channel_events(conn);
	/*
	 * Breaking now ends the work that waits for a lost peer. We can't ask rdma_cm itself here,
	 * because that allocates.
	 */
	if (fp_verbs_conn_stirs(conn) && !conn->broken)
		(void)fp_verbs_conn_flush(conn);
	if (!conn->armed)
		r = fp_verbs_api->ibv.req_notify_cq(conn->cq, 0);
	if (r)
		return r > 0 ? -r : r;
	conn->armed = true;
	*ret_pollfd =
	    (struct pollfd){.fd = conn->wait_fd >= 0 ? conn->wait_fd : conn->channel->fd, .events = POLLIN};
	return 0;
}

int fp_verbs_status(int wc_status)
{
	switch (wc_status) {
	case IBV_WC_SUCCESS:
		return 0;
	case IBV_WC_WR_FLUSH_ERR:
		return -ECANCELED;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_RD_REQ_ERR:
		return -EACCES;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return -ETIMEDOUT;
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return -ENOBUFS;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return -EFAULT;
	default:
		return -EIO;
	}
}

const char *fp_verbs_status_text(int wc_status)
{
	return fp_verbs_api->ibv.wc_status_str((enum ibv_wc_status)wc_status);
}
