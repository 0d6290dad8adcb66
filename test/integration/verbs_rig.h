/*
 * Both ends of a connection over a real device in one process, and their memory. Room:
 * test/integration, test_verbs.c.
 */
#ifndef FP_VERBS_RIG_H
#define FP_VERBS_RIG_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "clock.h"
#include "testrng.h"
#include "names.h"
#include "rdma_link.h"
#include "verbs_internal.h"

#define PATIENCE_NS  (20 * FP_NSEC_PER_SEC)
#define REMOTE_BYTES (256u << 10)
#define HELLO        "hello, node"
#define WELCOME      "welcome"

static const char *address;
static bool iwarp;

static const struct fp_verbs_conn_options options = {
    .send_depth = 128, .recv_depth = 16, .responder = true, .retry_count = 7, .ack_timeout = 14};

/* Both ends of a connection, and memory for each. */
struct pair {
	struct fp_verbs_listener *listener;
	struct fp_verbs_domain *node_domain, *domain;
	struct fp_verbs_conn *node, *conn;
	struct fp_verbs_region remote, local;
	uint8_t *remote_bytes, *local_bytes;
};

struct connecting {
	uint16_t port;
	const struct fp_verbs_conn_options *options;
	struct fp_verbs_domain *domain;
	struct fp_verbs_conn *conn;
	char reply[64];
	size_t reply_len;
	int status;
};

static inline const struct sockaddr *address_of(uint16_t port, struct fp_addresses *ret_addresses)
{
	assert_int_equal(fp_names_find(address, port, ret_addresses), 0);
	return &ret_addresses->list[0].any;
}

static inline void *connect_main(void *arg)
{
	struct connecting *c = arg;
	struct fp_addresses node;

	c->reply_len = sizeof(c->reply);
	c->status =
	    fp_verbs_connect(address_of(c->port, &node), c->options, HELLO, sizeof(HELLO),
	                     fp_clock_ns() + PATIENCE_NS, c->domain, &c->conn, c->reply, &c->reply_len);
	return NULL;
}

static inline void listen_there(struct fp_verbs_listener **ret_listener)
{
	struct fp_addresses own;

	assert_int_equal(fp_verbs_listener_open(ret_listener), 0);
	assert_int_equal(fp_verbs_listen(*ret_listener, 0, address_of(0, &own)), 0);
}

/* Waits for the next event, and checks that it has this type. */
static inline void next_event(struct fp_verbs_listener *listener, enum fp_verbs_event_type type,
                              struct fp_verbs_event *ret)
{
	struct pollfd p = {.fd = fp_verbs_listener_fd(listener), .events = POLLIN};

	for (;;) {
		assert_int_equal(fp_verbs_listener_next(listener, ret), 0);
		if (ret->type == type)
			return;
		if (ret->type == FP_VERBS_EV_ESTABLISHED)
			continue;
		assert_int_equal(ret->type, FP_VERBS_EV_NONE);
		assert_int_equal(poll(&p, 1, 20000), 1);
	}
}

/* Connects the ends, each with its own domain. */
static inline void connect_both(struct pair *pair, const struct fp_verbs_conn_options *how)
{
	struct connecting c = {.port = fp_verbs_listener_port(pair->listener, 0), .options = how};
	struct fp_verbs_event event;
	struct fp_addresses own;
	pthread_t thread;

	assert_int_equal(fp_verbs_domain_at(address_of(0, &own), &pair->node_domain), 0);
	assert_int_equal(fp_verbs_domain_to(address, fp_clock_ns() + PATIENCE_NS, &pair->domain), 0);
	c.domain = pair->domain;
	assert_int_equal(pthread_create(&thread, NULL, connect_main, &c), 0);
	next_event(pair->listener, FP_VERBS_EV_REQUEST, &event);
	assert_true(event.private_len >= sizeof(HELLO));
	assert_memory_equal(event.private_data, HELLO, sizeof(HELLO));
	assert_int_equal(fp_verbs_prepare(&event.request, how, pair->node_domain, &pair->node), 0);
	assert_int_equal(fp_verbs_admit(pair->node, WELCOME, sizeof(WELCOME)), 0);
	pthread_join(thread, NULL);
	assert_int_equal(c.status, 0);
	assert_true(c.reply_len >= sizeof(WELCOME));
	assert_memory_equal(c.reply, WELCOME, sizeof(WELCOME));
	pair->conn = c.conn;
}

static inline void pair_memory(struct pair *pair)
{
	pair->remote_bytes = aligned_alloc(4096, REMOTE_BYTES);
	pair->local_bytes = aligned_alloc(4096, REMOTE_BYTES);
	assert_int_equal(fp_verbs_register(pair->node_domain, pair->remote_bytes, REMOTE_BYTES,
	                                   FP_VERBS_REMOTE, &pair->remote),
	                 0);
	assert_int_equal(
	    fp_verbs_register(pair->domain, pair->local_bytes, REMOTE_BYTES, FP_VERBS_LOCAL, &pair->local),
	    0);
}

static inline void pair_open(struct pair *pair)
{
	*pair = (struct pair){0};
	listen_there(&pair->listener);
	connect_both(pair, &options);
	pair_memory(pair);
	iwarp = fp_verbs_domain_limits(pair->domain)->iwarp;
}

static inline void pair_close(struct pair *pair)
{
	fp_verbs_conn_close(pair->conn);
	fp_verbs_conn_close(pair->node);
	fp_verbs_deregister(&pair->remote);
	fp_verbs_deregister(&pair->local);
	fp_verbs_domain_unref(pair->domain);
	fp_verbs_domain_unref(pair->node_domain);
	fp_verbs_listener_close(pair->listener);
	free(pair->remote_bytes);
	free(pair->local_bytes);
}

static inline struct fp_verbs_work work_of(const struct pair *pair, enum fp_verbs_op op, uint32_t offset,
                                           uint32_t len)
{
	return (struct fp_verbs_work){
	    .op = op,
	    .signalled = true,
	    .len_bytes = len,
	    .local = pair->local_bytes + offset,
	    .lkey = pair->local.lkey,
	    .remote = (uintptr_t)pair->remote_bytes + offset,
	    .rkey = pair->remote.rkey,
	    .id = offset,
	};
}

static inline struct fp_verbs_work recv_of(const struct fp_verbs_region *region, uint64_t id)
{
	return (struct fp_verbs_work){.id = id, .local = region->base, .len_bytes = 64, .lkey = region->lkey};
}

/* Waits on the channel, as an idle thread does. */
static inline void next_completion(struct fp_verbs_conn *conn, struct fp_verbs_completion *ret)
{
	int n;

	while ((n = fp_verbs_poll(conn, ret, 1)) == 0) {
		struct pollfd p;

		assert_int_equal(fp_verbs_arm(conn, &p), 0);
		n = fp_verbs_poll(conn, ret, 1);
		if (n)
			break;
		assert_int_equal(poll(&p, 1, 20000), 1);
	}
	assert_int_equal(n, 1);
}

static inline void fill(uint8_t *bytes, uint64_t seed)
{
	for (unsigned i = 0; i < REMOTE_BYTES; i += 8) {
		uint64_t v = test_random(&seed);

		memcpy(bytes + i, &v, 8);
	}
}

#endif
