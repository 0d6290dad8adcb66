/*
 * Connections through rdma_cm. The client's side waits for each step until a deadline; events drive
 * the listening side. Room: transport; see verbs.h.
 *
 *   client   address ─► route ─► queue pair ─► connect ─► ESTABLISHED | REJECTED | UNREACHABLE
 *   node     REQUEST ─► prepare (queue pair) ─► admit ─► ESTABLISHED ─► DISCONNECTED | DEVICE_GONE
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"
#include "fdutil.h"
#include "names.h"
#include "verbs_internal.h"

#define BACKLOG 128
/*
 * rdma_cm chooses a port that is free among its own. On iWARP a TCP socket may already use that
 * port: then the next try chooses another.
 */
#define PORT_TRIES 16
/*
 * The time of one try. A second try is needed because rdma_cm may not tell the first one that the
 * kernel has found the address.
 */
#define RESOLVE_NS (2 * FP_NSEC_PER_SEC)

/*
 * How many rejected ids a listener keeps until the sweep. Destroying an id waits until the device
 * has sent the rejection, which can take many milliseconds on a busy machine.
 */
#define REJECTED_KEPT 64u

/*
 * The rdma_cm ids of a listener and of the connections that came in through it share one event
 * channel.
 */
struct fp_verbs_listener {
	struct rdma_event_channel *events;
	struct rdma_cm_id *ids[FP_VERBS_MAX_ADDRESSES]; /* NULL: it does not listen there */
	struct rdma_cm_id *rejected[REJECTED_KEPT];     /* NULL: free */
	unsigned n_rejected;
	/* the ids rejected before the last sweep: those from n_swept to n_old, if not destroyed */
	unsigned n_swept, n_old;
};

static struct rdma_event_channel *channel_new(void)
{
	bool locked = fp_fd_lock_exclusive();
	struct rdma_event_channel *channel = fp_verbs_api->rdma.create_event_channel();

	if (channel)
		channel->fd = fp_fd_move_high(channel->fd);
	fp_fd_unlock(locked);
	if (channel)
		fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	return channel;
}

static void channel_free(struct rdma_event_channel *channel)
{
	bool locked;

	if (!channel)
		return;
	locked = fp_fd_lock_exclusive();
	fp_fd_forget(channel->fd);
	fp_verbs_api->rdma.destroy_event_channel(channel);
	fp_fd_unlock(locked);
}

static int failure(void)
{
	return errno ? -errno : -EIO;
}

static int create_qp(struct fp_verbs_conn *conn, struct ibv_qp_init_attr *attr)
{
	if (fp_verbs_api->rdma.create_qp(conn->id, conn->domain->pd, attr))
		return failure();
	conn->qp = conn->id->qp;
	return 0;
}

static uint8_t reads_of(unsigned n)
{
	return (uint8_t)FP_MIN(n, (unsigned)FP_VERBS_MAX_READS);
}

void fp_verbs_cm_close(struct fp_verbs_conn *conn)
{
	bool listening = !conn->events;

	(void)fp_verbs_conn_check(conn); /* this may be the only event that tells of the device's removal */
	if (listening && !conn->admitted)
		fp_verbs_api->rdma.reject(conn->id, NULL, 0);
	else if (!conn->gone)
		fp_verbs_api->rdma.disconnect(conn->id);
	if (conn->qp)
		fp_verbs_api->rdma.destroy_qp(conn->id);
	fp_verbs_api->rdma.destroy_id(conn->id);
	if (conn->wait_fd >= 0)
		fp_fd_close(conn->wait_fd);
	channel_free(conn->events);
}

/*
 * Call it before the queue pair is connected. Kernels before 5.2 lack the option: that is no error.
 */
static void wish_ack_timeout(struct fp_verbs_conn *conn)
{
	uint8_t timeout = conn->options.ack_timeout;

	if (timeout && !conn->domain->device->limits.iwarp)
		(void)fp_verbs_api->rdma.set_option(conn->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
		                                    &timeout, sizeof(timeout));
}

/* ---- the client's side ---- */

/* The errno of an attempt to connect that ended with this event. */
static int event_error(const struct rdma_cm_event *event)
{
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		return event->status == -ETIMEDOUT ? -ETIMEDOUT : -EHOSTUNREACH;
	case RDMA_CM_EVENT_REJECTED:
		return -ECONNREFUSED;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		return event->status < 0 ? event->status : -ECONNREFUSED;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return -ECONNRESET;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		return -ENODEV;
	default:
		return -EPROTO;
	}
}

struct attempt {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	uint64_t deadline_ns;
	void *reply;
	size_t *reply_len;
	unsigned max_reads; /* granted by the peer; valid once established */
};

static void take_reply(struct attempt *a, const struct rdma_cm_event *event)
{
	bool carries = event->event == RDMA_CM_EVENT_ESTABLISHED || event->event == RDMA_CM_EVENT_REJECTED;
	size_t len = carries ? event->param.conn.private_data_len : 0;

	*a->reply_len = event->param.conn.private_data ? FP_MIN(len, *a->reply_len) : 0;
	if (*a->reply_len)
		memcpy(a->reply, event->param.conn.private_data, *a->reply_len);
}

/* Waits for one event. Any but the expected one ends the attempt. */
static int expect(struct attempt *a, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	int r;

	while (fp_verbs_api->rdma.get_cm_event(a->events, &event)) {
		if (errno != EAGAIN && errno != EINTR)
			return failure();
		r = fp_clock_poll(a->events->fd, POLLIN, a->deadline_ns);
		if (r < 0)
			return r;
	}
	r = event->event == type ? 0 : event_error(event);
	if (type == RDMA_CM_EVENT_ESTABLISHED) {
		take_reply(a, event);
		a->max_reads = event->param.conn.initiator_depth;
	}
	fp_verbs_api->rdma.ack_cm_event(event);
	return r;
}

static int left_ms(const struct attempt *a)
{
	uint64_t now = fp_clock_ns();

	return now >= a->deadline_ns ? 1 : (int)((a->deadline_ns - now) / FP_NSEC_PER_MSEC) + 1;
}

/* Finds the device that reaches an address. */
static int resolve_address(struct attempt *a, const struct sockaddr *address)
{
	int r;

	a->events = channel_new();
	if (!a->events || fp_verbs_api->rdma.create_id(a->events, &a->id, NULL, RDMA_PS_TCP) ||
	    fp_verbs_api->rdma.resolve_addr(a->id, NULL, (struct sockaddr *)address, left_ms(a)))
		return failure();
	r = expect(a, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (a->id->verbs)
		fp_verbs_device_note(a->id->verbs);
	return r;
}

static void attempt_end(struct attempt *a)
{
	if (a->id)
		fp_verbs_api->rdma.destroy_id(a->id);
	channel_free(a->events);
}

static int resolve_route(struct attempt *a)
{
	if (fp_verbs_api->rdma.resolve_route(a->id, left_ms(a)))
		return failure();
	return expect(a, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

int fp_verbs_domain_to(const char *host, uint64_t deadline_ns, struct fp_verbs_domain **ret_domain)
{
	struct fp_addresses addresses;
	int r = fp_verbs_load();

	*ret_domain = NULL;
	fp_verbs_devices_check();
	if (r == 0)
		r = fp_names_find(host, 0, &addresses);
	if (r < 0)
		return r;
	r = -EHOSTUNREACH;
	for (unsigned i = 0; i < addresses.n && r < 0; i += r != -ETIMEDOUT || fp_clock_ns() >= deadline_ns) {
		struct attempt a = {.deadline_ns = FP_MIN(deadline_ns, fp_clock_ns() + RESOLVE_NS)};

		r = resolve_address(&a, &addresses.list[i].any);
		if (r == 0)
			r = fp_verbs_domain_of(a.id->verbs, ret_domain);
		attempt_end(&a);
	}
	if (r < 0)
		fp_names_tried(host, false);
	return r;
}

static int establish(struct attempt *a, struct fp_verbs_conn *conn, const void *private_data,
                     size_t private_len)
{
	const struct fp_verbs_device *device = conn->domain->device;
	struct rdma_conn_param param = {
	    .private_data = private_data,
	    .private_data_len = (uint8_t)private_len,
	    .responder_resources = reads_of(conn->options.responder ? device->n_answers : 0),
	    .initiator_depth = reads_of(device->n_asks),
	    .retry_count = conn->options.retry_count,
	    .rnr_retry_count = FP_VERBS_RNR_RETRIES,
	};
	int r;

	wish_ack_timeout(conn);
	if (fp_verbs_api->rdma.connect(conn->id, &param))
		return failure();
	r = expect(a, RDMA_CM_EVENT_ESTABLISHED);
	/* iWARP without enhanced set-up does not say how many READs it granted */
	conn->max_reads = a->max_reads ? FP_MIN(a->max_reads, device->n_asks) : device->n_asks;
	return r;
}

/* Makes one descriptor to wait for completions and for the peer's good-bye. */
static int open_wait_fd(struct fp_verbs_conn *conn)
{
	int fds[] = {conn->channel->fd, conn->events->fd};

	conn->wait_fd = FP_FD_OPEN(epoll_create1(EPOLL_CLOEXEC));
	for (unsigned i = 0; i < FP_ARRAY_LEN(fds); i++) {
		struct epoll_event event = {.events = EPOLLIN};

		if (epoll_ctl(conn->wait_fd, EPOLL_CTL_ADD, fds[i], &event) < 0)
			return -errno;
	}
	return 0;
}

/* Once conn exists, it takes over the id and the event channel of the attempt. */
static int connect_to(struct attempt *a, const struct sockaddr *address,
                      const struct fp_verbs_conn_options *options, const void *private_data,
                      size_t private_len, struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	int r = resolve_address(a, address);

	if (r == 0)
		r = resolve_route(a);
	if (r == 0)
		r = fp_verbs_domain_of(a->id->verbs, &domain);
	if (r == 0)
		r = fp_verbs_conn_new(domain, options, &conn);
	if (r < 0)
		return r;
	conn->gone = -ENOTCONN; /* no peer to say good-bye to yet */
	conn->id = fp_take_ptr(a->id);
	conn->events = a->events;
	a->events = NULL;
	r = fp_verbs_conn_create_qp(conn, create_qp);
	if (r < 0)
		return r;
	a->events = conn->events; /* borrowed for the wait */
	r = establish(a, conn, private_data, private_len);
	a->events = NULL;
	if (r == 0)
		r = open_wait_fd(conn);
	if (r < 0)
		return r;
	conn->gone = 0;
	*ret_conn = fp_take_ptr(conn);
	return 0;
}

int fp_verbs_connect(const struct sockaddr *address, const struct fp_verbs_conn_options *options,
                     const void *private_data, size_t private_len, uint64_t deadline_ns,
                     struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn, void *reply,
                     size_t *reply_len)
{
	size_t room;
	int r = -EADDRINUSE;

	assert(private_len <= FP_VERBS_PRIVATE_MAX);
	fp_verbs_devices_check();
	for (unsigned i = 0; i < PORT_TRIES && r == -EADDRINUSE; i++) {
		struct attempt a = {.deadline_ns = deadline_ns, .reply = reply, .reply_len = &room};

		room = *reply_len;
		r = connect_to(&a, address, options, private_data, private_len, domain, ret_conn);
		attempt_end(&a);
	}
	*reply_len = r == 0 || r == -ECONNREFUSED ? room : 0;
	return r;
}

int fp_verbs_conn_check(struct fp_verbs_conn *conn)
{
	struct rdma_cm_event *event;

	while (conn->events && fp_verbs_api->rdma.get_cm_event(conn->events, &event) == 0) {
		if (event->event != RDMA_CM_EVENT_ADDR_CHANGE && !conn->gone)
			conn->gone = event_error(event);
		if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
			conn->domain->device->dead = true;
		fp_verbs_api->rdma.ack_cm_event(event);
	}
	if (!conn->gone && fp_verbs_domain_dead(conn->domain))
		conn->gone = -ENODEV;
	return conn->gone;
}

bool fp_verbs_conn_stirs(const struct fp_verbs_conn *conn)
{
	struct pollfd p = {.fd = conn->events ? conn->events->fd : -1, .events = POLLIN};

	return conn->gone || fp_verbs_domain_dead(conn->domain) || (conn->events && poll(&p, 1, 0) == 1);
}

/* ---- the listening side ---- */

int fp_verbs_domain_at(const struct sockaddr *own, struct fp_verbs_domain **ret_domain)
{
	struct rdma_cm_id *id;
	int r = fp_verbs_load();

	*ret_domain = NULL;
	if (r < 0)
		return r;
	if (fp_verbs_api->rdma.create_id(NULL, &id, NULL, RDMA_PS_TCP))
		return failure();
	if (fp_verbs_api->rdma.bind_addr(id, (struct sockaddr *)own))
		r = failure();
	if (id->verbs)
		fp_verbs_device_note(id->verbs);
	if (r == 0)
		r = id->verbs ? fp_verbs_domain_of(id->verbs, ret_domain) : -ENODEV;
	fp_verbs_api->rdma.destroy_id(id);
	return r;
}

int fp_verbs_listener_open(struct fp_verbs_listener **ret_listener)
{
	struct fp_verbs_listener *listener;
	int r = fp_verbs_load();

	if (r < 0)
		return r;
	listener = calloc(1, sizeof(*listener));
	if (!listener)
		return -ENOMEM;
	listener->events = channel_new();
	if (!listener->events) {
		r = failure();
		free(listener);
		return r;
	}
	*ret_listener = listener;
	return 0;
}

void fp_verbs_unlisten(struct fp_verbs_listener *listener, unsigned idx)
{
	if (listener->ids[idx])
		fp_verbs_api->rdma.destroy_id(fp_take_ptr(listener->ids[idx]));
}

static int listen_once(struct fp_verbs_listener *listener, unsigned idx, const struct sockaddr *own)
{
	struct rdma_cm_id **id = &listener->ids[idx];
	int r = 0;

	if (fp_verbs_api->rdma.create_id(listener->events, id, NULL, RDMA_PS_TCP))
		return failure();
	if (fp_verbs_api->rdma.bind_addr(*id, (struct sockaddr *)own) ||
	    fp_verbs_api->rdma.listen(*id, BACKLOG))
		r = failure();
	if ((*id)->verbs)
		fp_verbs_device_note((*id)->verbs);
	if (r < 0)
		fp_verbs_unlisten(listener, idx);
	return r;
}

int fp_verbs_listen(struct fp_verbs_listener *listener, unsigned idx, const struct sockaddr *own)
{
	int r = -EADDRINUSE;

	assert(idx < FP_VERBS_MAX_ADDRESSES && !listener->ids[idx]);
	fp_verbs_devices_check();
	for (unsigned i = 0; i < PORT_TRIES && r == -EADDRINUSE; i++)
		r = listen_once(listener, idx, own);
	return r;
}

static void destroy_rejected(struct fp_verbs_listener *listener)
{
	for (unsigned i = 0; i < REJECTED_KEPT; i++)
		if (listener->rejected[i])
			fp_verbs_api->rdma.destroy_id(fp_take_ptr(listener->rejected[i]));
}

void fp_verbs_listener_sweep(struct fp_verbs_listener *listener)
{
	for (; listener->n_swept != listener->n_old; listener->n_swept++) {
		struct rdma_cm_id **place = &listener->rejected[listener->n_swept % REJECTED_KEPT];

		if (*place)
			fp_verbs_api->rdma.destroy_id(fp_take_ptr(*place));
	}
	listener->n_old = listener->n_rejected;
}

void fp_verbs_listener_close(struct fp_verbs_listener *listener)
{
	if (!listener)
		return;
	destroy_rejected(listener);
	for (unsigned i = 0; i < FP_VERBS_MAX_ADDRESSES; i++)
		fp_verbs_unlisten(listener, i);
	channel_free(listener->events);
	free(listener);
}

int fp_verbs_listener_fd(const struct fp_verbs_listener *listener)
{
	return listener->events->fd;
}

uint16_t fp_verbs_listener_port(const struct fp_verbs_listener *listener, unsigned idx)
{
	return ntohs((uint16_t)fp_verbs_api->rdma.get_src_port(listener->ids[idx]));
}

static void name_peer(struct rdma_cm_id *id, char *ret_name, size_t size)
{
	const struct sockaddr *address = &id->route.addr.dst_addr;
	char host[INET6_ADDRSTRLEN] = "?";
	uint16_t port = 0;

	if (address->sa_family == AF_INET) {
		inet_ntop(AF_INET, &id->route.addr.dst_sin.sin_addr, host, sizeof(host));
		port = ntohs(id->route.addr.dst_sin.sin_port);
	} else if (address->sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &id->route.addr.dst_sin6.sin6_addr, host, sizeof(host));
		port = ntohs(id->route.addr.dst_sin6.sin6_port);
	}
	snprintf(ret_name, size, address->sa_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
}

static void request_event(struct fp_verbs_listener *listener, const struct rdma_cm_event *event,
                          struct fp_verbs_event *ret)
{
	const struct rdma_conn_param *said = &event->param.conn;

	ret->type = FP_VERBS_EV_REQUEST;
	ret->request = (struct fp_verbs_request){
	    .listener = listener,
	    .id = event->id,
	    .n_peer_asks = said->responder_resources,
	    .n_peer_answers = said->initiator_depth,
	};
	event->id->context = NULL;
	fp_verbs_device_note(event->id->verbs); /* even if the request is rejected later */
	if (said->private_data)
		ret->private_len = FP_MIN((size_t)said->private_data_len, sizeof(ret->private_data));
	if (ret->private_len)
		memcpy(ret->private_data, said->private_data, ret->private_len);
	name_peer(event->id, ret->peer, sizeof(ret->peer));
}

static void conn_event(const struct rdma_cm_event *event, struct fp_verbs_event *ret)
{
	ret->conn = event->id->context;
	ret->why = "disconnected";
	switch (event->event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		ret->type = FP_VERBS_EV_ESTABLISHED;
		ret->why = "established";
		return;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		ret->type = FP_VERBS_EV_DEVICE_GONE;
		ret->why = "the device is being removed";
		return;
	case RDMA_CM_EVENT_REJECTED:
		ret->why = "rejected by the peer";
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		ret->why = "unreachable";
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		ret->why = "connection set-up failed";
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		ret->why = "left timewait";
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		break;
	default: /* an address moved, multicast: not for us */
		ret->conn = NULL;
		return;
	}
	ret->type = FP_VERBS_EV_DISCONNECTED;
}

static bool find_own(const struct fp_verbs_listener *listener, const struct rdma_cm_id *id, unsigned *ret_idx)
{
	for (*ret_idx = 0; *ret_idx < FP_VERBS_MAX_ADDRESSES; ++*ret_idx)
		if (listener->ids[*ret_idx] == id)
			return true;
	return false;
}

/* Translates an event; type NONE: it does not concern us. */
static void translate(struct fp_verbs_listener *listener, const struct rdma_cm_event *event,
                      struct fp_verbs_event *ret)
{
	*ret = (struct fp_verbs_event){.type = FP_VERBS_EV_NONE};
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		request_event(listener, event, ret);
	} else if (find_own(listener, event->id, &ret->idx)) {
		if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
			ret->type = FP_VERBS_EV_DEVICE_GONE;
			fp_verbs_device_gone(event->id->verbs);
		}
	} else if (event->id->context) { /* NULL: an unanswered request, to which our answer will fail */
		conn_event(event, ret);
		if (ret->type == FP_VERBS_EV_DEVICE_GONE)
			ret->conn->domain->device->dead = true;
		if (ret->type == FP_VERBS_EV_DISCONNECTED)
			ret->conn->gone = -ECONNRESET;
	}
}

int fp_verbs_listener_next(struct fp_verbs_listener *listener, struct fp_verbs_event *ret)
{
	struct rdma_cm_event *event;
	bool removed;

	do {
		if (fp_verbs_api->rdma.get_cm_event(listener->events, &event)) {
			*ret = (struct fp_verbs_event){.type = FP_VERBS_EV_NONE};
			return errno == EAGAIN || errno == EINTR ? 0 : failure();
		}
		translate(listener, event, ret);
		removed = event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
		fp_verbs_api->rdma.ack_cm_event(event);
		if (removed)
			destroy_rejected(
			    listener); /* the kernel removes a device only when its ids are gone */
	} while (ret->type == FP_VERBS_EV_NONE);
	return 0;
}

void fp_verbs_reject(struct fp_verbs_request *request, const void *reply, size_t reply_len)
{
	struct fp_verbs_listener *listener = request->listener;
	struct rdma_cm_id **place = &listener->rejected[listener->n_rejected++ % REJECTED_KEPT];

	fp_verbs_api->rdma.reject(request->id, reply, (uint8_t)reply_len);
	if (*place)
		fp_verbs_api->rdma.destroy_id(*place);
	*place = fp_take_ptr(request->id);
}

static int prepare(struct fp_verbs_request *request, const struct fp_verbs_conn_options *options,
                   struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn)
{
	FP_CLEANUP(fp_cleanup_verbs_conn) struct fp_verbs_conn *conn = NULL;
	struct rdma_cm_id *id = request->id;
	const struct fp_verbs_device *device = domain->device;
	int r = fp_verbs_domain_of(id->verbs, &domain);

	if (r == 0)
		r = fp_verbs_conn_new(domain, options, &conn);
	if (r < 0)
		return r;
	conn->id = fp_take_ptr(request->id);
	conn->id->context = conn;
	/*
	 * First the READs that we may have outstanding at the peer, then those that the peer may
	 * have here.
	 */
	conn->max_reads = FP_MIN(device->n_asks, (unsigned)request->n_peer_answers);
	conn->n_granted =
	    reads_of(options->responder ? FP_MIN(device->n_answers, (unsigned)request->n_peer_asks) : 0);
	r = fp_verbs_conn_create_qp(conn, create_qp);
	if (r < 0)
		return r;
	*ret_conn = fp_take_ptr(conn);
	return 0;
}

int fp_verbs_prepare(struct fp_verbs_request *request, const struct fp_verbs_conn_options *options,
                     struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn)
{
	int r = prepare(request, options, domain, ret_conn);

	if (request->id)
		fp_verbs_reject(request, NULL, 0);
	return r;
}

int fp_verbs_admit(struct fp_verbs_conn *conn, const void *reply, size_t reply_len)
{
	struct rdma_conn_param param = {
	    .private_data = reply,
	    .private_data_len = (uint8_t)reply_len,
	    .responder_resources = conn->n_granted,
	    .initiator_depth = reads_of(conn->max_reads),
	    .rnr_retry_count = FP_VERBS_RNR_RETRIES,
	};

	wish_ack_timeout(conn);
	if (fp_verbs_api->rdma.accept(conn->id, &param))
		return failure();
	conn->admitted = true;
	return 0;
}
