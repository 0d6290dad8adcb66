/* See proxy.h. */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_PAIRS   16
#define HELD_BYTES  (1u << 20) /* the most bytes held back for a connection; more stay in its socket */
#define PIECE_BYTES 65536u
#define PATIENCE_S  10

struct pair {
	int client, node; /* -1: closed */
	uint8_t *held;
	size_t held_bytes;
};

struct test_proxy {
	int listener, wake;
	uint16_t port, to_port;
	pthread_t thread;
	/* Guards the fields below. The thread holds it except while it waits. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct pair pairs[MAX_PAIRS];
	unsigned n_pairs;
	bool holding, stopping;
	size_t allow_bytes;
};

static struct sockaddr_in loopback(uint16_t port)
{
	return (struct sockaddr_in){
	    .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void reset(int *fd)
{
	const struct linger at_once = {.l_onoff = 1};

	if (*fd < 0)
		return;
	setsockopt(*fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(*fd);
	*fd = -1;
}

static void finish(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void accept_pair(struct test_proxy *proxy)
{
	struct sockaddr_in to = loopback(proxy->to_port);
	struct pair pair = {.client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC), .node = -1};

	if (pair.client < 0)
		return;
	pair.node = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pair.held = malloc(HELD_BYTES);
	if (proxy->n_pairs == MAX_PAIRS || !pair.held ||
	    connect(pair.node, (struct sockaddr *)&to, sizeof(to)) < 0) {
		reset(&pair.client);
		finish(&pair.node);
		free(pair.held);
		return;
	}
	proxy->pairs[proxy->n_pairs++] = pair;
}

static bool send_all(int fd, const uint8_t *bytes, size_t len)
{
	while (len > 0) {
		ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

		if (n < 0)
			return false;
		bytes += n;
		len -= (size_t)n;
	}
	return true;
}

static void from_client(struct test_proxy *proxy, struct pair *pair)
{
	uint8_t *at = pair->held + pair->held_bytes;
	size_t room = HELD_BYTES - pair->held_bytes, pass;
	ssize_t n = recv(pair->client, at, room < PIECE_BYTES ? room : PIECE_BYTES, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		n < 0 ? reset(&pair->client) : finish(&pair->client);
		if (!pair->held_bytes)
			n < 0 ? reset(&pair->node) : finish(&pair->node);
		return;
	}
	pass = proxy->holding && proxy->allow_bytes < (size_t)n ? proxy->allow_bytes : (size_t)n;
	if (proxy->holding)
		proxy->allow_bytes -= pass;
	if (pair->held_bytes)
		pass = 0;
	if (!send_all(pair->node, at, pass))
		reset(&pair->client);
	memmove(at, at + pass, (size_t)n - pass);
	pair->held_bytes += (size_t)n - pass;
	pthread_cond_broadcast(&proxy->changed);
}

static void from_node(struct pair *pair)
{
	uint8_t bytes[PIECE_BYTES];
	ssize_t n = recv(pair->node, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n > 0) {
		if (pair->client >= 0 && !send_all(pair->client, bytes, (size_t)n))
			reset(&pair->client);
		return;
	}
	/* The node's side stays open while bytes for the node are held back. */
	if (!pair->held_bytes)
		n < 0 ? reset(&pair->node) : finish(&pair->node);
	n < 0 ? reset(&pair->client) : finish(&pair->client);
}

static unsigned prepare_poll(struct test_proxy *proxy, struct pollfd *polls)
{
	unsigned n = 0;

	polls[n++] = (struct pollfd){.fd = proxy->wake, .events = POLLIN};
	polls[n++] = (struct pollfd){.fd = proxy->listener, .events = POLLIN};
	for (unsigned i = 0; i < proxy->n_pairs; i++) {
		const struct pair *pair = &proxy->pairs[i];
		bool node_is_watched = pair->client >= 0 || !pair->held_bytes;

		polls[n++] = (struct pollfd){.fd = pair->held_bytes < HELD_BYTES ? pair->client : -1,
		                             .events = POLLIN};
		polls[n++] = (struct pollfd){.fd = node_is_watched ? pair->node : -1, .events = POLLIN};
	}
	return n;
}

static void serve_pairs(struct test_proxy *proxy, const struct pollfd *polls, unsigned n)
{
	for (unsigned i = 0; 2 * i + 3 < n; i++) {
		struct pair *pair = &proxy->pairs[i];

		/* the connection may have been cut since the poll */
		if (polls[2 + 2 * i].revents && pair->client >= 0)
			from_client(proxy, pair);
		if (polls[3 + 2 * i].revents && pair->node >= 0)
			from_node(pair);
	}
}

static void *run(void *arg)
{
	struct test_proxy *proxy = arg;
	struct pollfd polls[2 + 2 * MAX_PAIRS];
	eventfd_t woken;

	pthread_mutex_lock(&proxy->lock);
	while (!proxy->stopping) {
		unsigned n = prepare_poll(proxy, polls);

		pthread_mutex_unlock(&proxy->lock);
		(void)poll(polls, n, -1);
		pthread_mutex_lock(&proxy->lock);
		if (polls[0].revents)
			(void)eventfd_read(proxy->wake, &woken);
		serve_pairs(proxy, polls, n);
		if (polls[1].revents && !proxy->stopping)
			accept_pair(proxy);
	}
	pthread_mutex_unlock(&proxy->lock);
	return NULL;
}

int test_proxy_start(uint16_t to_port, struct test_proxy **ret_proxy)
{
	struct test_proxy *proxy = calloc(1, sizeof(*proxy));
	struct sockaddr_in addr = loopback(0);
	socklen_t len = sizeof(addr);

	if (!proxy)
		return -ENOMEM;
	pthread_mutex_init(&proxy->lock, NULL);
	pthread_cond_init(&proxy->changed, NULL);
	proxy->to_port = to_port;
	proxy->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(proxy->listener, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(proxy->listener, MAX_PAIRS) < 0 ||
	    getsockname(proxy->listener, (struct sockaddr *)&addr, &len) < 0 ||
	    pthread_create(&proxy->thread, NULL, run, proxy) != 0) {
		close(proxy->listener);
		close(proxy->wake);
		free(proxy);
		return -EIO;
	}
	proxy->port = ntohs(addr.sin_port);
	*ret_proxy = proxy;
	return 0;
}

uint16_t test_proxy_port(const struct test_proxy *proxy)
{
	return proxy->port;
}

static void wake(struct test_proxy *proxy)
{
	(void)eventfd_write(proxy->wake, 1);
}

void test_proxy_cut(struct test_proxy *proxy)
{
	pthread_mutex_lock(&proxy->lock);
	for (unsigned i = 0; i < proxy->n_pairs; i++) {
		reset(&proxy->pairs[i].client);
		reset(&proxy->pairs[i].node);
		proxy->pairs[i].held_bytes = 0;
	}
	pthread_mutex_unlock(&proxy->lock);
	wake(proxy);
}

void test_proxy_hold(struct test_proxy *proxy, size_t allow_bytes)
{
	pthread_mutex_lock(&proxy->lock);
	proxy->holding = true;
	proxy->allow_bytes = allow_bytes;
	pthread_mutex_unlock(&proxy->lock);
}

static size_t sum_held(const struct test_proxy *proxy)
{
	size_t sum = 0;

	for (unsigned i = 0; i < proxy->n_pairs; i++)
		sum += proxy->pairs[i].held_bytes;
	return sum;
}

int test_proxy_await_held(struct test_proxy *proxy, size_t held_bytes)
{
	struct timespec until;
	int r = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&proxy->lock);
	while (r == 0 && sum_held(proxy) < held_bytes)
		r = pthread_cond_timedwait(&proxy->changed, &proxy->lock, &until);
	pthread_mutex_unlock(&proxy->lock);
	return -r;
}

size_t test_proxy_release(struct test_proxy *proxy)
{
	size_t refused = 0;

	pthread_mutex_lock(&proxy->lock);
	proxy->holding = false;
	for (unsigned i = 0; i < proxy->n_pairs; i++) {
		struct pair *pair = &proxy->pairs[i];

		if (pair->held_bytes && !send_all(pair->node, pair->held, pair->held_bytes))
			refused += pair->held_bytes;
		pair->held_bytes = 0;
	}
	pthread_mutex_unlock(&proxy->lock);
	wake(proxy);
	return refused;
}

void test_proxy_stop(struct test_proxy *proxy)
{
	if (!proxy)
		return;
	test_proxy_cut(proxy);
	pthread_mutex_lock(&proxy->lock);
	proxy->stopping = true;
	pthread_mutex_unlock(&proxy->lock);
	wake(proxy);
	pthread_join(proxy->thread, NULL);
	for (unsigned i = 0; i < proxy->n_pairs; i++)
		free(proxy->pairs[i].held);
	close(proxy->listener);
	close(proxy->wake);
	pthread_cond_destroy(&proxy->changed);
	pthread_mutex_destroy(&proxy->lock);
	free(proxy);
}
