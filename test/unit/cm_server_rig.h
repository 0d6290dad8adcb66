/*
 * An rdma_cm server without a device: this file stands in for the verbs. Each connection is an
 * eventfd. Room: test/unit; only test_cm_server.c includes it, once.
 */
#ifndef FP_CM_SERVER_RIG_H
#define FP_CM_SERVER_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "auth.h"
#include "cleanup.h"
#include "cm_server.h"
#include "rdma_options.h"

#define MAX_EVENTS 8

/* ---- the played verbs ---- */

struct fp_verbs_domain {
	unsigned n_refs;
	int fd; /* readable if the device has news */
};
struct fp_verbs_conn {
	void *user;
	int fd; /* readable once the connection's queue pair is broken */
	bool flushed;
	struct fp_verbs_domain *domain;
};
struct fp_verbs_listener {
	int fd;
};

static int load_result, listen_result, next_result;
static unsigned n_devices;
static bool device_dead;
static int n_domains, n_listeners, n_conns, n_regions;
static enum fp_verbs_access last_access;
static struct fp_verbs_listener listener;
static struct fp_verbs_event events[MAX_EVENTS];
static unsigned n_events;
static struct fp_verbs_conn *last_conn;
/*
 * The server's last answer to a request. -1: there is no answer yet. -2: the server has accepted
 * the request. Other values: the enum fp_wire_status with which it has rejected the request.
 */
static int last_answer;

static const struct fp_verbs_limits limits = {.device = "played0"};

int fp_verbs_load(void)
{
	return load_result;
}

unsigned fp_rdma_devices(struct fp_rdma_device *ret_devices, unsigned max)
{
	return n_devices;
}

void fp_verbs_listener_sweep(struct fp_verbs_listener *swept)
{
}

void fp_verbs_devices_check(void)
{
}

int fp_verbs_listener_open(struct fp_verbs_listener **ret_listener)
{
	listener.fd = eventfd(0, EFD_NONBLOCK);
	*ret_listener = &listener;
	return 0;
}

int fp_verbs_listen(struct fp_verbs_listener *of, unsigned idx, const struct sockaddr *own)
{
	if (listen_result < 0)
		return listen_result;
	n_listeners++;
	return 0;
}

void fp_verbs_unlisten(struct fp_verbs_listener *of, unsigned idx)
{
	n_listeners--;
}

void fp_verbs_listener_close(struct fp_verbs_listener *closed)
{
	if (!closed)
		return;
	close(closed->fd);
	n_listeners = 0;
}

int fp_verbs_listener_fd(const struct fp_verbs_listener *of)
{
	return of->fd;
}

uint16_t fp_verbs_listener_port(const struct fp_verbs_listener *of, unsigned idx)
{
	return 7462;
}

int fp_verbs_listener_next(struct fp_verbs_listener *of, struct fp_verbs_event *ret)
{
	eventfd_t n;

	if (next_result < 0)
		return next_result;
	*ret = n_events ? events[0] : (struct fp_verbs_event){.type = FP_VERBS_EV_NONE};
	if (n_events)
		memmove(events, events + 1, --n_events * sizeof(events[0]));
	else
		eventfd_read(of->fd, &n);
	return 0;
}

static inline void happens(struct fp_cm_server *server, struct fp_verbs_event event)
{
	assert_true(n_events < MAX_EVENTS);
	events[n_events++] = event;
	eventfd_write(listener.fd, 1);
	fp_cm_server_serve(server);
}

struct fp_verbs_domain *fp_verbs_domain_ref(struct fp_verbs_domain *domain)
{
	domain->n_refs++;
	return domain;
}

void fp_verbs_domain_unref(struct fp_verbs_domain *domain)
{
	if (!domain)
		return;
	if (--domain->n_refs == 0) {
		n_domains--;
		close(domain->fd);
		free(domain);
	}
}

int fp_verbs_domain_at(const struct sockaddr *own, struct fp_verbs_domain **ret_domain)
{
	return fp_verbs_domain_open(NULL, 0, ret_domain);
}

int fp_verbs_domain_open(const char *device, uint8_t port_num, struct fp_verbs_domain **ret_domain)
{
	*ret_domain = calloc(1, sizeof(**ret_domain));
	(*ret_domain)->n_refs = 1;
	(*ret_domain)->fd = eventfd(0, EFD_NONBLOCK);
	n_domains++;
	return 0;
}

const struct fp_verbs_limits *fp_verbs_domain_limits(const struct fp_verbs_domain *domain)
{
	return &limits;
}

bool fp_verbs_domain_dead(const struct fp_verbs_domain *domain)
{
	return device_dead;
}

int fp_verbs_domain_event(struct fp_verbs_domain *domain, uint32_t *ret_qpn, const char **ret_text)
{
	return 0;
}

int fp_verbs_domain_event_fd(const struct fp_verbs_domain *domain)
{
	return domain->fd;
}

int fp_verbs_register(struct fp_verbs_domain *domain, void *base, size_t len_bytes,
                      enum fp_verbs_access access, struct fp_verbs_region *ret_region)
{
	n_regions++;
	last_access = access;
	*ret_region = (struct fp_verbs_region){.mr = base, .base = base, .len_bytes = len_bytes};
	return 0;
}

void fp_verbs_deregister(struct fp_verbs_region *region)
{
	n_regions -= region->mr != NULL;
	*region = (struct fp_verbs_region){0};
}

static inline struct fp_verbs_conn *conn_new(struct fp_verbs_domain *domain)
{
	struct fp_verbs_conn *conn = calloc(1, sizeof(*conn));

	conn->domain = fp_verbs_domain_ref(domain);
	conn->fd = eventfd(0, EFD_NONBLOCK);
	n_conns++;
	last_conn = conn;
	return conn;
}

int fp_verbs_prepare(struct fp_verbs_request *request, const struct fp_verbs_conn_options *options,
                     struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn)
{
	*ret_conn = conn_new(domain);
	last_answer = -2;
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
	last_answer = decoded.status;
}

void fp_verbs_conn_close(struct fp_verbs_conn *conn)
{
	if (!conn)
		return;
	fp_verbs_domain_unref(conn->domain);
	close(conn->fd);
	n_conns--;
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
	*ret_conn = conn_new(domain);
	*ret_own = (struct fp_verbs_address){.qpn = 77};
	return 0;
}

int fp_verbs_manual_connect(struct fp_verbs_conn *conn, const struct fp_verbs_address *peer)
{
	return peer->qpn == 66 ? 0 : -EINVAL;
}

int fp_verbs_post_recv(struct fp_verbs_conn *conn, const struct fp_verbs_work *work)
{
	return 0;
}

int fp_verbs_poll(struct fp_verbs_conn *conn, struct fp_verbs_completion *ret, unsigned max)
{
	if (!conn->flushed)
		return 0;
	conn->flushed = false;
	*ret = (struct fp_verbs_completion){.status = -ECANCELED};
	return 1;
}

int fp_verbs_arm(struct fp_verbs_conn *conn, struct pollfd *ret_pollfd)
{
	*ret_pollfd = (struct pollfd){.fd = conn->fd, .events = POLLIN};
	return 0;
}

/* ---- tests ---- */

static struct fp_cm_server_event told; /* last */
static unsigned n_told;

static inline void hear(void *user, const struct fp_cm_server_event *event)
{
	told = *event;
	n_told++;
}

static inline struct sockaddr_storage address_of(uint32_t host, uint16_t port)
{
	const struct sockaddr_in in4 = {
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(host)};
	struct sockaddr_storage address = {0};

	memcpy(&address, &in4, sizeof(in4));
	return address;
}

#define OWN 0x0a000001u /* 10.0.0.1 */

static inline int setup(void **state)
{
	const struct sockaddr_storage address = address_of(OWN, 7461);
	const struct fp_cm_server_options options = {
	    .listen = &address, .n_listen = 1, .tell = hear, .by_hand = true};
	struct fp_cm_server *server;
	unsigned failed;

	load_result = listen_result = next_result = 0;
	n_devices = 1;
	n_domains = n_listeners = n_conns = n_regions = 0;
	n_events = n_told = 0;
	device_dead = false;
	last_conn = NULL;
	assert_int_equal(fp_cm_server_open(&options, &server, &failed), 0);
	*state = server;
	return 0;
}

/* Checks that nothing is left open, whatever the test did. */
static inline int teardown(void **state)
{
	fp_cm_server_close(*state);
	assert_int_equal(n_conns, 0);
	assert_int_equal(n_domains, 0);
	assert_int_equal(n_listeners, 0);
	assert_int_equal(n_regions, 0);
	return 0;
}

/* Asks for a link. Returns the server's answer. */
static inline int ask(struct fp_cm_server *server, uint64_t session_id, const uint8_t *token)
{
	struct fp_wire_cm cm = {.min_version = FP_WIRE_VERSION,
	                        .max_version = FP_WIRE_VERSION,
	                        .purpose = FP_WIRE_LINK,
	                        .session_id = session_id};
	struct fp_verbs_event event = {
	    .type = FP_VERBS_EV_REQUEST, .private_len = sizeof(cm), .peer = "10.0.0.2:4"};

	assert_int_equal(fp_auth_prove_cm(token, &cm, cm.proof), 0);
	fp_wire_cm_encode(&cm, event.private_data);
	last_answer = -1;
	happens(server, event);
	return last_answer;
}

static const uint8_t token[FP_WIRE_TOKEN_BYTES] = {1};

/* Makes a peer of a session with that id. The token above admits its links. */
static inline struct fp_cm_server_peer *enter(struct fp_cm_server *server, uint64_t session_id)
{
	const struct sockaddr_storage own = address_of(OWN, 7461);
	struct fp_cm_server_peer *peer;

	assert_int_equal(fp_cm_server_peer_new(server, (const struct sockaddr *)&own, "10.0.0.2:4", &peer),
	                 0);
	fp_cm_server_peer_admit(peer, session_id, token);
	return peer;
}

static inline void leave(struct fp_cm_server_peer *peer)
{
	fp_cm_server_peer_end(peer);
	fp_cm_server_peer_unref(peer);
}

#endif
