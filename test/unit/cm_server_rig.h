/*
 * An rdma_cm server without a device: its verbs are played here. A connection is an eventfd, a
 * stream a socket pair. Room: test/unit, test_cm_server.c, which includes it once.
 */
#ifndef FP_CM_SERVER_RIG_H
#define FP_CM_SERVER_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth.h"
#include "cleanup.h"
#include "cm_server.h"
#include "verbs_stream.h"

#define SECRET      "0123456789abcdef"
#define PATIENCE_MS 10000
#define MAX_EVENTS  8

/* ---- verbs as played here ---- */

struct fp_verbs_domain {
	unsigned n_refs;
};
struct fp_verbs_request {
	uint8_t private_data[sizeof(struct fp_wire_cm)];
	_Atomic int32_t answer; /* enum fp_wire_status of a rejection; -1: none yet; -2: prepared */
};
struct fp_verbs_conn {
	void *user;
	int fd; /* readable: its queue pair broke */
	_Atomic bool flushed;
	struct fp_verbs_domain *domain;
};
struct fp_verbs_stream {
	struct fp_verbs_conn *conn;
	int fd;
	bool blocked;
};
struct fp_verbs_listener {
	int fd;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the following: the gate's thread calls in */
static int load_result, listen_result;
static unsigned n_devices;
static _Atomic int32_t n_domains, n_listeners, n_conns, n_regions, last_access;
static struct fp_verbs_listener listener;
static struct fp_verbs_event events[MAX_EVENTS];
static unsigned n_events;
static struct fp_verbs_conn *last_conn;
static int client_fd; /* the other end of the last stream */
static const char *_Atomic stream_why;

static const struct fp_verbs_limits limits = {.device = "played0"};

int fp_verbs_load(void)
{
	return load_result;
}

unsigned fp_rdma_devices(struct fp_rdma_device *ret_devices, unsigned max)
{
	return n_devices;
}

int fp_verbs_devices_watch(void)
{
	return -EPERM;
}

void fp_verbs_devices_heard(int fd)
{
}

int fp_verbs_listen(const char *host, uint16_t port, struct fp_verbs_listener **ret_listener)
{
	if (listen_result < 0)
		return listen_result;
	listener.fd = eventfd(0, EFD_NONBLOCK);
	n_listeners++;
	*ret_listener = &listener;
	return 0;
}

void fp_verbs_listener_close(struct fp_verbs_listener *closed)
{
	if (!closed)
		return;
	close(closed->fd);
	pthread_mutex_lock(&lock);
	n_listeners--;
	pthread_mutex_unlock(&lock);
}

int fp_verbs_listener_fd(const struct fp_verbs_listener *of)
{
	return of->fd;
}

uint16_t fp_verbs_listener_port(const struct fp_verbs_listener *of)
{
	return 7461;
}

int fp_verbs_listener_next(struct fp_verbs_listener *of, struct fp_verbs_event *ret)
{
	eventfd_t n;

	pthread_mutex_lock(&lock);
	*ret = n_events ? events[0] : (struct fp_verbs_event){.type = FP_VERBS_EV_NONE};
	if (n_events)
		memmove(events, events + 1, --n_events * sizeof(events[0]));
	else
		eventfd_read(of->fd, &n);
	pthread_mutex_unlock(&lock);
	return 0;
}

static inline void happens(struct fp_verbs_event event)
{
	pthread_mutex_lock(&lock);
	assert_true(n_events < MAX_EVENTS);
	events[n_events++] = event;
	eventfd_write(listener.fd, 1);
	pthread_mutex_unlock(&lock);
}

struct fp_verbs_domain *fp_verbs_domain_ref(struct fp_verbs_domain *domain)
{
	pthread_mutex_lock(&lock);
	domain->n_refs++;
	pthread_mutex_unlock(&lock);
	return domain;
}

void fp_verbs_domain_unref(struct fp_verbs_domain *domain)
{
	if (!domain)
		return;
	pthread_mutex_lock(&lock);
	if (--domain->n_refs == 0) {
		n_domains--;
		free(domain);
	}
	pthread_mutex_unlock(&lock);
}

int fp_verbs_domain_open(const char *device, uint8_t port_num, struct fp_verbs_domain **ret_domain)
{
	pthread_mutex_lock(&lock);
	*ret_domain = calloc(1, sizeof(**ret_domain));
	(*ret_domain)->n_refs = 1;
	n_domains++;
	pthread_mutex_unlock(&lock);
	return 0;
}

const struct fp_verbs_limits *fp_verbs_domain_limits(const struct fp_verbs_domain *domain)
{
	return &limits;
}

bool fp_verbs_domain_dead(const struct fp_verbs_domain *domain)
{
	return false;
}

int fp_verbs_domain_event(struct fp_verbs_domain *domain, uint32_t *ret_qpn, const char **ret_text)
{
	return 0;
}

int fp_verbs_domain_event_fd(const struct fp_verbs_domain *domain)
{
	return -1;
}

int fp_verbs_register(struct fp_verbs_domain *domain, void *base, size_t len_bytes,
                      enum fp_verbs_access access, struct fp_verbs_region *ret_region)
{
	pthread_mutex_lock(&lock);
	n_regions++;
	last_access = access;
	pthread_mutex_unlock(&lock);
	*ret_region = (struct fp_verbs_region){.mr = base, .base = base, .len_bytes = len_bytes};
	return 0;
}

void fp_verbs_deregister(struct fp_verbs_region *region)
{
	pthread_mutex_lock(&lock);
	n_regions -= region->mr != NULL;
	pthread_mutex_unlock(&lock);
	*region = (struct fp_verbs_region){0};
}

static inline struct fp_verbs_conn *conn_new(struct fp_verbs_domain **domain)
{
	struct fp_verbs_conn *conn = calloc(1, sizeof(*conn));

	if (!*domain)
		fp_verbs_domain_open(NULL, 0, domain);
	conn->domain = fp_verbs_domain_ref(*domain);
	conn->fd = eventfd(0, EFD_NONBLOCK);
	pthread_mutex_lock(&lock);
	n_conns++;
	last_conn = conn;
	pthread_mutex_unlock(&lock);
	return conn;
}

int fp_verbs_prepare(struct fp_verbs_request *request, const struct fp_verbs_conn_options *options,
                     struct fp_verbs_domain **domain, struct fp_verbs_conn **ret_conn)
{
	*ret_conn = conn_new(domain);
	request->answer = -2;
	return 0;
}

int fp_verbs_admit(struct fp_verbs_conn *conn, const void *reply, size_t reply_len)
{
	struct fp_wire_cm_reply decoded;

	assert_int_equal(fp_wire_cm_reply_decode(reply, reply_len, &decoded), 0);
	assert_int_equal(decoded.status, FP_WIRE_OK);
	return 0;
}

void fp_verbs_reject(struct fp_verbs_request *request, const void *reply, size_t reply_len)
{
	struct fp_wire_cm_reply decoded;

	assert_int_equal(fp_wire_cm_reply_decode(reply, reply_len, &decoded), 0);
	request->answer = decoded.status;
}

void fp_verbs_conn_close(struct fp_verbs_conn *conn)
{
	if (!conn)
		return;
	fp_verbs_domain_unref(conn->domain);
	pthread_mutex_lock(&lock);
	close(conn->fd);
	n_conns--;
	pthread_mutex_unlock(&lock);
	free(conn);
}

void fp_verbs_conn_set_user(struct fp_verbs_conn *conn, void *user)
{
	conn->user = user;
}

void *fp_verbs_conn_user(const struct fp_verbs_conn *conn)
{
	return conn->user;
}

uint32_t fp_verbs_conn_qpn(const struct fp_verbs_conn *conn)
{
	return (uint32_t)conn->fd;
}

int fp_verbs_manual_open(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                         struct fp_verbs_conn **ret_conn, struct fp_verbs_address *ret_own)
{
	*ret_conn = conn_new(&domain);
	*ret_own = (struct fp_verbs_address){.qpn = 77};
	return 0;
}

int fp_verbs_manual_connect(struct fp_verbs_conn *conn, const struct fp_verbs_address *peer)
{
	return peer->qpn == 66 ? 0 : -EINVAL;
}

int fp_verbs_post_recv(struct fp_verbs_conn *conn, const struct fp_verbs_work *work, unsigned n)
{
	return 0;
}

int fp_verbs_poll(struct fp_verbs_conn *conn, struct fp_verbs_completion *ret, unsigned max)
{
	if (!atomic_exchange(&conn->flushed, false))
		return 0;
	*ret = (struct fp_verbs_completion){.op = FP_VERBS_RECV, .status = -ECANCELED};
	return 1;
}

int fp_verbs_arm(struct fp_verbs_conn *conn, struct pollfd *ret_pollfd)
{
	*ret_pollfd = (struct pollfd){.fd = conn->fd, .events = POLLIN};
	return 0;
}

int fp_verbs_stream_new(struct fp_verbs_conn *conn, struct fp_verbs_stream **ret_stream)
{
	struct fp_verbs_stream *stream = calloc(1, sizeof(*stream));
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	stream->conn = conn;
	stream->fd = fds[0];
	pthread_mutex_lock(&lock);
	client_fd = fds[1];
	pthread_mutex_unlock(&lock);
	*ret_stream = stream;
	return 0;
}

void fp_verbs_stream_close(struct fp_verbs_stream *stream)
{
	if (!stream)
		return;
	fp_verbs_conn_close(stream->conn);
	close(stream->fd);
	free(stream);
}

ssize_t fp_verbs_stream_send(struct fp_verbs_stream *stream, const void *bytes, size_t len)
{
	ssize_t n = send(stream->fd, bytes, len, MSG_NOSIGNAL);

	stream->blocked = n < 0;
	return n < 0 ? -errno : n;
}

ssize_t fp_verbs_stream_receive(struct fp_verbs_stream *stream, void *ret_bytes, size_t len)
{
	ssize_t n = recv(stream->fd, ret_bytes, len, 0);

	return n < 0 ? -errno : n == 0 ? -ECONNRESET : n;
}

int fp_verbs_stream_wait(struct fp_verbs_stream *stream, struct pollfd *ret_pollfd)
{
	*ret_pollfd = (struct pollfd){.fd = stream->fd, .events = stream->blocked ? POLLOUT : POLLIN};
	return 0;
}

struct fp_verbs_conn_options fp_verbs_stream_conn_options(const struct fp_rdma_options *rdma)
{
	return fp_rdma_conn_options(rdma);
}

const char *fp_verbs_stream_why(const struct fp_verbs_stream *stream)
{
	return stream_why;
}

bool fp_verbs_stream_is_idle(const struct fp_verbs_stream *stream)
{
	return true;
}

/* ---- tests ---- */

static inline bool knows_secret(void *user, const struct fp_wire_cm *cm)
{
	uint8_t proof[FP_WIRE_CM_PROOF_BYTES];

	return fp_auth_prove_cm(SECRET, NULL, cm, proof) == 0 &&
	       fp_auth_equal(proof, cm->proof, sizeof(proof));
}

static inline struct fp_cm_server *gate_open(void)
{
	const struct fp_cm_server_address address = {.host = "10.0.0.1", .port = 7461};
	const struct fp_cm_server_options options = {.listen = &address,
	                                             .n_listen = 1,
	                                             .admits = knows_secret,
	                                             .by_hand = true,
	                                             .max_peers = 2,
	                                             .max_unfinished = 1};
	struct fp_cm_server *gate;
	unsigned failed;

	assert_int_equal(fp_cm_server_open(&options, &gate, &failed), 0);
	return gate;
}

static inline int setup(void **state)
{
	load_result = listen_result = 0;
	n_devices = 1;
	n_domains = n_listeners = n_conns = n_regions = n_events = 0;
	last_conn = NULL;
	*state = gate_open();
	return 0;
}

/* Nothing is left over, whatever a test did. */
static inline int teardown(void **state)
{
	fp_cm_server_close(*state);
	assert_int_equal(n_conns, 0);
	assert_int_equal(n_domains, 0);
	assert_int_equal(n_listeners, 0);
	assert_int_equal(n_regions, 0);
	return 0;
}

static inline struct fp_cm_server_event next_news(const struct fp_cm_server *gate)
{
	struct pollfd p = {.fd = fp_cm_server_event_fd(gate), .events = POLLIN};
	struct fp_cm_server_event news;

	assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	assert_int_equal(read(p.fd, &news, sizeof(news)), sizeof(news));
	return news;
}

static inline void await(const _Atomic int32_t *word, int32_t until)
{
	for (unsigned i = 0; i < PATIENCE_MS; i++) {
		if (*word == until)
			return;
		usleep(1000);
	}
	assert_int_equal(*word, until);
}

static inline void await_conns(int32_t n)
{
	await(&n_conns, n);
}

/* token NULL: a control connection. */
static inline void ask(struct fp_verbs_request *request, const char *secret, uint64_t session_id,
                       const uint8_t *token)
{
	struct fp_wire_cm cm = {.min_version = 1,
	                        .max_version = 1,
	                        .purpose = token ? FP_WIRE_LINK : FP_WIRE_CONTROL,
	                        .session_id = session_id};

	assert_int_equal(fp_auth_prove_cm(secret, token, &cm, cm.proof), 0);
	fp_wire_cm_encode(&cm, request->private_data);
	request->answer = -1;
	happens((struct fp_verbs_event){.type = FP_VERBS_EV_REQUEST,
	                                .request = request,
	                                .private_data = request->private_data,
	                                .private_len = sizeof(request->private_data),
	                                .peer = "10.0.0.2:4"});
}

static inline struct fp_cm_server_event enter(const struct fp_cm_server *gate)
{
	struct fp_verbs_request request;
	struct fp_cm_server_event news;

	ask(&request, SECRET, 0, NULL);
	await(&request.answer, -2);
	happens((struct fp_verbs_event){.type = FP_VERBS_EV_ESTABLISHED, .conn = last_conn});
	news = next_news(gate);
	assert_int_equal(news.type, FP_CM_SERVER_EVENT_PEER);
	assert_string_equal(news.who, "10.0.0.2:4");
	return news;
}

static inline void leave(struct fp_cm_server_event *news)
{
	close(news->fd);
	fp_cm_server_peer_end(news->peer);
	fp_cm_server_peer_unref(news->peer);
	close(client_fd);
}

#endif
