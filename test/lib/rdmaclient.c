/*
 * Links over rdma for a client that speaks the protocol itself, correctly or not. rdmaclient.py
 * loads this file. Room: test/lib. The caller makes the bytes of a connection request, and this
 * file sends them unchecked.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "names.h"
#include "verbs.h"

#define SHOWN       __attribute__((visibility("default")))
#define DEADLINE_NS (20 * FP_NSEC_PER_SEC)
#define LOOK_MS     500
#define BUFFER      65536u

struct rdma_link;

/* Sends a connection request. 0 and *ret_link, or a negative errno. */
SHOWN int rdma_link(const char *host, unsigned port, const void *request, size_t len,
                    struct rdma_link **ret_link);
SHOWN void rdma_link_close(struct rdma_link *link);
/*
 * Makes one READ into the buffer `bytes`, or one WRITE from it, of at most 64 KiB. 0 or a negative
 * errno.
 */
SHOWN int rdma_transfer(struct rdma_link *link, int is_write, uint64_t remote, uint32_t rkey, void *bytes,
                        uint32_t len);
/* Makes READs of 64 KiB on all links, as many as the links take, until all links are broken. */
SHOWN void rdma_flood(struct rdma_link **links, unsigned n, uint64_t remote, uint32_t rkey);

struct rdma_link {
	struct fp_verbs_domain *domain;
	struct fp_verbs_conn *conn;
	struct fp_verbs_region region;
	int error;
	char bytes[BUFFER];
};

/*
 * A short queue, because an emulated device first finishes the READs that it has, even if other
 * clients wait.
 */
static const struct fp_verbs_conn_options link_options = {
    .send_depth = 16, .retry_count = 7, .ack_timeout = 16};

static int dial(const char *host, unsigned port, const void *request, size_t len, struct rdma_link *link)
{
	struct fp_addresses addresses;
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;
	char reply[256];
	size_t reply_len = sizeof(reply);
	int r = fp_verbs_domain_to(host, until_ns, &link->domain);

	if (r == 0)
		r = fp_names_find(host, (uint16_t)port, &addresses);
	if (r == 0)
		r = fp_verbs_connect(&addresses.list[0].any, &link_options, request, len, until_ns,
		                     link->domain, &link->conn, reply, &reply_len);
	return r;
}

int rdma_link(const char *host, unsigned port, const void *request, size_t len, struct rdma_link **ret_link)
{
	struct rdma_link *link = calloc(1, sizeof(*link));
	int r = link ? dial(host, port, request, len, link) : -ENOMEM;

	if (r == 0)
		r = fp_verbs_register(link->domain, link->bytes, sizeof(link->bytes), FP_VERBS_LOCAL,
		                      &link->region);
	if (r < 0)
		rdma_link_close(link);
	else
		*ret_link = link;
	return r;
}

void rdma_link_close(struct rdma_link *link)
{
	if (!link)
		return;
	fp_verbs_conn_close(link->conn);
	fp_verbs_deregister(&link->region);
	fp_verbs_domain_unref(link->domain);
	free(link);
}

static int post(struct rdma_link *link, enum fp_verbs_op op, uint64_t remote, uint32_t rkey, uint32_t len)
{
	struct fp_verbs_work work = {
	    .op = op,
	    .signalled = true,
	    .len_bytes = len,
	    .local = link->bytes,
	    .lkey = link->region.lkey,
	    .rkey = rkey,
	    .remote = remote,
	};

	return fp_verbs_post(link->conn, &work, 1);
}

int rdma_transfer(struct rdma_link *link, int is_write, uint64_t remote, uint32_t rkey, void *bytes,
                  uint32_t len)
{
	uint64_t until_ns = fp_clock_ns() + DEADLINE_NS;
	struct fp_verbs_completion done;
	struct pollfd p;
	int n, r;

	if (is_write)
		memcpy(link->bytes, bytes, len);
	r = post(link, is_write ? FP_VERBS_WRITE : FP_VERBS_READ, remote, rkey, len);
	while (r == 0 && (n = fp_verbs_poll(link->conn, &done, 1)) <= 0) {
		r = n < 0 ? n : fp_clock_ns() > until_ns ? -ETIMEDOUT : fp_verbs_arm(link->conn, &p);
		if (r == 0 && (n = fp_verbs_poll(link->conn, &done, 1)) > 0)
			break;
		if (r == 0)
			poll(&p, 1, LOOK_MS);
	}
	if (r < 0)
		return r;
	if (!is_write)
		memcpy(bytes, link->bytes, len);
	return done.status;
}

/* Collects completions and posts new READs. */
static void refill(struct rdma_link *link, uint64_t remote, uint32_t rkey)
{
	struct fp_verbs_completion done[16];
	int n;

	while (!link->error && (n = fp_verbs_poll(link->conn, done, 16)) != 0)
		link->error = n < 0 ? n : done[0].status;
	while (!link->error && (n = post(link, FP_VERBS_READ, remote, rkey, BUFFER)) != -EAGAIN)
		link->error = n;
}

void rdma_flood(struct rdma_link **links, unsigned n, uint64_t remote, uint32_t rkey)
{
	struct pollfd *polls = calloc(n, sizeof(*polls));
	unsigned left = n;

	while (polls && left > 0) {
		left = 0;
		for (unsigned i = 0; i < n; i++) {
			polls[i].fd = -1;
			if (links[i]->error)
				continue;
			(void)fp_verbs_arm(links[i]->conn, &polls[i]);
			refill(links[i], remote, rkey);
			left++;
		}
		poll(polls, n, LOOK_MS);
	}
	free(polls);
}
