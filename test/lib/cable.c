/* See cable.h. */
#include "cable.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"

#define PAIRS_MAX    64
#define BUFFER_BYTES (64u << 10)
#define BACKLOG      64

/* Bytes under way in one direction. */
struct flow {
	size_t at, end;
	bool ended; /* the sender has shut down or closed its side */
	char bytes[BUFFER_BYTES];
};

/*
 * fd[0] is the client's side, and fd[1] is the node's side. Both are -1 if the pair is free.
 * flow[i] has the bytes that fd[i] sent.
 */
struct pair {
	int fd[2];
	struct flow flow[2];
};

struct test_cable {
	char url[64];
	int listen_fd, wake_fd;
	pthread_t thread;
	_Atomic unsigned accepted;
	/* what the thread is asked to do; protected by `lock` */
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	unsigned asked, done;
	enum test_cable_mode mode;
	bool reset, stopping;
	struct sockaddr_in target;
	/* only the thread uses these */
	enum test_cable_mode current;
	struct pair pairs[PAIRS_MAX];
};

static int parse(const char *url, struct sockaddr_in *ret_address)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	char host[64];
	unsigned port;

	if (sscanf(url, "tcp://%63[^:]:%u", host, &port) != 2 ||
	    inet_pton(AF_INET, host, &address.sin_addr) != 1)
		return -EINVAL;
	address.sin_port = htons((uint16_t)port);
	*ret_address = address;
	return 0;
}

/* ---- pairs of sockets ---- */

static void reset_fd(int fd)
{
	const struct linger now = {.l_onoff = 1, .l_linger = 0};

	if (fd < 0)
		return;
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
}

static void pair_end(struct pair *pair, bool reset)
{
	for (int i = 0; i < 2; i++) {
		if (reset)
			reset_fd(pair->fd[i]);
		else if (pair->fd[i] >= 0)
			close(pair->fd[i]);
		pair->fd[i] = -1;
	}
}

static void reset_all(struct test_cable *cable)
{
	for (int i = 0; i < PAIRS_MAX; i++)
		pair_end(&cable->pairs[i], true);
}

static int set_up(int fd)
{
	const int one = 1;

	return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void accept_one(struct test_cable *cable)
{
	int client = accept4(cable->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), node;
	struct pair *pair = cable->pairs;

	if (client < 0)
		return;
	while (pair < cable->pairs + PAIRS_MAX && pair->fd[0] >= 0)
		pair++;
	node = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (cable->current == TEST_CABLE_CUT || pair == cable->pairs + PAIRS_MAX || node < 0 ||
	    connect(node, (struct sockaddr *)&cable->target, sizeof(cable->target)) < 0) {
		reset_fd(client);
		reset_fd(node);
		return;
	}
	set_up(client);
	set_up(node);
	pair->fd[0] = client;
	pair->fd[1] = node;
	for (int i = 0; i < 2; i++) {
		pair->flow[i].at = pair->flow[i].end = 0;
		pair->flow[i].ended = false;
	}
	atomic_fetch_add(&cable->accepted, 1);
}

/*
 * Forwards as many bytes as possible from fd[from] to the other side. False: the connection is
 * broken.
 */
static bool pump(struct pair *pair, int from)
{
	struct flow *flow = &pair->flow[from];
	ssize_t n;

	if (flow->at == flow->end && !flow->ended) {
		flow->at = flow->end = 0;
		n = recv(pair->fd[from], flow->bytes, BUFFER_BYTES, MSG_DONTWAIT);
		if (n < 0)
			return errno == EAGAIN;
		flow->end = (size_t)n;
		flow->ended = n == 0;
		if (n == 0)
			shutdown(pair->fd[!from], SHUT_WR);
	}
	if (flow->at < flow->end) {
		n = send(pair->fd[!from], flow->bytes + flow->at, flow->end - flow->at,
		         MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN;
		flow->at += (size_t)n;
	}
	return true;
}

static void pair_serve(struct pair *pair, const struct pollfd *fds)
{
	for (int from = 0; from < 2; from++) {
		bool readable = fds[from].revents & (POLLIN | POLLHUP | POLLERR);
		bool writable = fds[!from].revents & POLLOUT;

		if ((readable || writable) && !pump(pair, from)) {
			pair_end(pair, true);
			return;
		}
	}
	if (pair->flow[0].ended && pair->flow[1].ended)
		pair_end(pair, false);
}

/*
 * The events to wait for at fd[i]: readable if its flow has space, writable if bytes wait for it.
 */
static short events_of(const struct pair *pair, int i)
{
	const struct flow *in = &pair->flow[i], *out = &pair->flow[!i];

	return (short)((in->at == in->end && !in->ended ? POLLIN : 0) | (out->at < out->end ? POLLOUT : 0));
}

/* ---- the thread ---- */

/* Takes over the mode and target that the test asked for. False: stop. */
static bool obey(struct test_cable *cable)
{
	bool go_on;

	pthread_mutex_lock(&cable->lock);
	cable->current = cable->mode;
	if (cable->reset || cable->mode == TEST_CABLE_CUT)
		reset_all(cable);
	cable->reset = false;
	cable->done = cable->asked;
	pthread_cond_broadcast(&cable->done_cond);
	go_on = !cable->stopping;
	pthread_mutex_unlock(&cable->lock);
	return go_on;
}

static void serve_round(struct test_cable *cable)
{
	struct pollfd fds[2 + 2 * PAIRS_MAX] = {{.fd = cable->wake_fd, .events = POLLIN},
	                                        {.fd = cable->listen_fd, .events = POLLIN}};
	bool moving = cable->current == TEST_CABLE_FORWARD;
	eventfd_t ignored;

	for (int i = 0; i < 2 * PAIRS_MAX; i++) {
		const struct pair *pair = &cable->pairs[i / 2];
		short events = pair->fd[0] >= 0 && moving ? events_of(pair, i & 1) : 0;

		fds[2 + i] = (struct pollfd){.fd = events ? pair->fd[i & 1] : -1, .events = events};
	}
	if (poll(fds, FP_ARRAY_LEN(fds), -1) <= 0)
		return;
	if (fds[0].revents)
		eventfd_read(cable->wake_fd, &ignored);
	for (int i = 0; i < PAIRS_MAX && moving; i++)
		if (fds[2 + 2 * i].revents || fds[3 + 2 * i].revents)
			pair_serve(&cable->pairs[i], &fds[2 + 2 * i]);
	if (fds[1].revents)
		accept_one(cable);
}

static void *run(void *arg)
{
	struct test_cable *cable = arg;

	while (obey(cable))
		serve_round(cable);
	return NULL;
}

/*
 * Makes the thread take over the fields that `lock` protects, and waits until it has done so. The
 * caller holds `lock`.
 */
static void ask(struct test_cable *cable)
{
	unsigned mine = ++cable->asked;

	eventfd_write(cable->wake_fd, 1);
	while ((int)(cable->done - mine) < 0)
		pthread_cond_wait(&cable->done_cond, &cable->lock);
}

void test_cable_set(struct test_cable *cable, enum test_cable_mode mode)
{
	pthread_mutex_lock(&cable->lock);
	cable->mode = mode;
	ask(cable);
	pthread_mutex_unlock(&cable->lock);
}

void test_cable_reset(struct test_cable *cable)
{
	pthread_mutex_lock(&cable->lock);
	cable->reset = true;
	ask(cable);
	pthread_mutex_unlock(&cable->lock);
}

void test_cable_retarget(struct test_cable *cable, const char *url)
{
	pthread_mutex_lock(&cable->lock);
	if (parse(url, &cable->target) < 0)
		abort();
	ask(cable);
	pthread_mutex_unlock(&cable->lock);
}

unsigned test_cable_accepted(const struct test_cable *cable)
{
	return atomic_load(&cable->accepted);
}

const char *test_cable_url(const struct test_cable *cable)
{
	return cable->url;
}

/* ---- starting and stopping ---- */

static void cable_free(struct test_cable *cable)
{
	fp_cleanup_close(&cable->listen_fd);
	fp_cleanup_close(&cable->wake_fd);
	free(cable);
}

static int start_listening(struct test_cable *cable)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);

	cable->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cable->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (cable->listen_fd < 0 || cable->wake_fd < 0 ||
	    bind(cable->listen_fd, (struct sockaddr *)&address, len) < 0 ||
	    listen(cable->listen_fd, BACKLOG) < 0 ||
	    getsockname(cable->listen_fd, (struct sockaddr *)&address, &len) < 0)
		return -errno;
	snprintf(cable->url, sizeof(cable->url), "tcp://127.0.0.1:%u", ntohs(address.sin_port));
	return 0;
}

int test_cable_start(const char *url, struct test_cable **ret_cable)
{
	struct test_cable *cable = calloc(1, sizeof(*cable));
	int r;

	if (!cable)
		return -ENOMEM;
	cable->listen_fd = cable->wake_fd = -1;
	for (int i = 0; i < PAIRS_MAX; i++)
		cable->pairs[i].fd[0] = cable->pairs[i].fd[1] = -1;
	pthread_mutex_init(&cable->lock, NULL);
	pthread_cond_init(&cable->done_cond, NULL);
	r = parse(url, &cable->target);
	if (r == 0)
		r = start_listening(cable);
	if (r == 0)
		r = -pthread_create(&cable->thread, NULL, run, cable);
	if (r < 0) {
		cable_free(cable);
		return r;
	}
	*ret_cable = cable;
	return 0;
}

void test_cable_stop(struct test_cable *cable)
{
	if (!cable)
		return;
	pthread_mutex_lock(&cable->lock);
	cable->stopping = cable->reset = true;
	ask(cable);
	pthread_mutex_unlock(&cable->lock);
	pthread_join(cable->thread, NULL);
	cable_free(cable);
}
