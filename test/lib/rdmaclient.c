/*
 * Connections over rdma for a client that speaks the protocol by hand, rightly or wrongly:
 * rdmaclient.py loads this. Room: test/lib. It proves nothing and checks nothing: connection
 * requests are the caller's.
 *
 *   rdma_dial    a control stream, as one end of a socket pair whose other end a thread pumps
 *   rdma_link    a queue pair for READ and WRITE
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "verbs.h"
#include "verbs_stream.h"

#define SHOWN       __attribute__((visibility("default")))
#define DEADLINE_NS (20 * FP_NSEC_PER_SEC)
#define LOOK_MS     500 /* a stream asks as often whether its peer has gone */
#define BUFFER      65536u

struct rdma_link;

/* Each of these two sends a connection request. Returns a descriptor; or a negative errno. */
SHOWN int rdma_dial(const char *host, unsigned port, const void *request, size_t len);
SHOWN int rdma_link(const char *host, unsigned port, const void *request, size_t len,
                    struct rdma_link **ret_link);
SHOWN void rdma_link_close(struct rdma_link *link);
/* One READ into bytes, or one WRITE of them, of at most 64 KiB. 0 or a negative errno. */
SHOWN int rdma_transfer(struct rdma_link *link, int is_write, uint64_t remote, uint32_t rkey, void *bytes,
                        uint32_t len);
/* READs of 64 KiB on all links, as many as they take, until all are broken. */
SHOWN void rdma_flood(struct rdma_link **links, unsigned n, uint64_t remote, uint32_t rkey);

struct half {
	size_t begin, end;
	char bytes[BUFFER];
};

struct pump {
	struct fp_verbs_stream *stream;
	int sock;
	struct half in, out;
};

struct rdma_link {
	struct fp_verbs_domain *domain;
	struct fp_verbs_conn *conn;
	struct fp_verbs_region region;
	int error;
	char bytes[BUFFER];
};

/* Of a few READs: what an emulated device has taken it finishes, whoever has come since. */
static const struct fp_verbs_conn_options link_options = {
    .send_depth = 16, .retry_count = 7, .ack_timeout = 16};

static int dial(const char *host, unsigned port, const void *request, size_t len,
                const struct fp_verbs_conn_options *options, struct fp_verbs_domain **domain,
                struct fp_verbs_conn **ret_conn)
{
	char reply[256];
	size_t reply_len = sizeof(reply);

	return fp_verbs_connect(host, (uint16_t)port, options, request, len, fp_clock_ns() + DEADLINE_NS,
	                        domain, ret_conn, reply, &reply_len);
}

/* ---- control streams ---- */

/* Each returns whether something moved; negative: the end. */
static int moved(size_t *at, ssize_t n)
{
	if (n == -EAGAIN)
		return 0;
	if (n <= 0)
		return -1;
	*at += (size_t)n;
	return 1;
}

static ssize_t errno_of(ssize_t n)
{
	return n < 0 ? -errno : n;
}

static int pump_in(struct pump *p)
{
	if (p->in.begin == p->in.end) {
		ssize_t n = fp_verbs_stream_receive(p->stream, p->in.bytes, sizeof(p->in.bytes));

		p->in.begin = p->in.end = 0;
		return moved(&p->in.end, n);
	}
	return moved(&p->in.begin, errno_of(send(p->sock, p->in.bytes + p->in.begin, p->in.end - p->in.begin,
	                                         MSG_DONTWAIT | MSG_NOSIGNAL)));
}

static int pump_out(struct pump *p)
{
	if (p->out.begin == p->out.end) {
		ssize_t n = errno_of(recv(p->sock, p->out.bytes, sizeof(p->out.bytes), MSG_DONTWAIT));

		p->out.begin = p->out.end = 0;
		return moved(&p->out.end, n);
	}
	return moved(&p->out.begin,
	             fp_verbs_stream_send(p->stream, p->out.bytes + p->out.begin, p->out.end - p->out.begin));
}

/* Returns false when either end is gone. */
static bool pump_sleep(struct pump *p)
{
	bool reads = p->out.begin == p->out.end, writes = p->in.begin < p->in.end;
	struct pollfd polls[2] = {
	    {0}, {.fd = p->sock, .events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0))}};
	int r = fp_verbs_stream_wait(p->stream, &polls[0]);

	if (r == 0 && poll(polls, 2, LOOK_MS) == 0)
		return fp_verbs_conn_check(fp_verbs_stream_conn(p->stream)) == 0;
	return r >= 0;
}

static void *pump_on_and_on(void *arg)
{
	struct pump *p = arg;
	int in = 1, out = 1;

	while (in >= 0 && out >= 0) {
		in = pump_in(p);
		out = pump_out(p);
		if (in == 0 && out == 0 && !pump_sleep(p))
			break;
	}
	close(p->sock);
	fp_verbs_stream_close(p->stream);
	free(p);
	return NULL;
}

static int start(struct pump *p)
{
	pthread_attr_t attr;
	pthread_t thread;
	int fds[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	p->sock = fds[0];
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attr, pump_on_and_on, p);
	pthread_attr_destroy(&attr);
	if (r == 0)
		return fds[1];
	close(fds[0]);
	close(fds[1]);
	return -r;
}

int rdma_dial(const char *host, unsigned port, const void *request, size_t len)
{
	struct fp_verbs_conn_options how = fp_verbs_stream_conn_options(NULL);
	struct fp_verbs_domain *domain = NULL;
	struct fp_verbs_conn *conn;
	struct pump *p = calloc(1, sizeof(*p));
	int r = p ? dial(host, port, request, len, &how, &domain, &conn) : -ENOMEM;

	if (r == 0) {
		r = fp_verbs_stream_new(conn, &p->stream);
		if (r < 0)
			fp_verbs_conn_close(conn);
	}
	fp_verbs_domain_unref(domain); /* the connection holds it */
	if (r == 0)
		r = start(p);
	if (r < 0 && p) {
		fp_verbs_stream_close(p->stream);
		free(p);
	}
	return r;
}

/* ---- data ---- */

int rdma_link(const char *host, unsigned port, const void *request, size_t len, struct rdma_link **ret_link)
{
	struct rdma_link *link = calloc(1, sizeof(*link));
	int r = link ? 0 : -ENOMEM;

	if (r == 0)
		r = dial(host, port, request, len, &link_options, &link->domain, &link->conn);
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

/* Takes what has completed and posts anew. */
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
