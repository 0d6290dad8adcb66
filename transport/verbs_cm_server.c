/*
 * The gate's life, its thread and the orders that others give it. Room: transport; see
 * verbs_gate.h. Peers are in verbs_gate_peer.c, their streams in verbs_gate_pump.c, their links in
 * verbs_gate_link.c, who comes in and where in verbs_gate_listen.c.
 *
 * A round: poll; note on each end what was readable; device events; connection management; streams
 * and links; orders of other threads. Only the round itself closes anything, so that whatever poll
 * spoke of still stands when its turn comes.
 */
#include "verbs_cm_server_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

/* ---- what the gate tells ---- */

bool fp_cm_server_tell(struct fp_cm_server *gate, const struct fp_cm_server_news *news)
{
	/* a record is shorter than PIPE_BUF: it goes in whole or not at all */
	return write(gate->news_write, news, sizeof(*news)) == (ssize_t)sizeof(*news);
}

void fp_cm_server_tell_why(struct fp_cm_server *gate, enum fp_cm_server_news_type type, const char *who,
                           uint64_t session_id, const char *why)
{
	struct fp_cm_server_news news = {.type = type, .fd = -1, .session_id = session_id, .why = why};

	snprintf(news.who, sizeof(news.who), "%s", who);
	fp_cm_server_tell(gate, &news);
}

int fp_cm_server_news_fd(const struct fp_cm_server *gate)
{
	return gate->news_read;
}

uint16_t fp_cm_server_port(const struct fp_cm_server *gate, unsigned idx)
{
	return gate->listeners[idx].port;
}

bool fp_cm_server_has_device(const struct fp_cm_server *gate)
{
	return gate->by_hand;
}

void fp_cm_server_counts(const struct fp_cm_server *gate, struct fp_cm_server_counts *ret_counts)
{
	*ret_counts = (struct fp_cm_server_counts){
	    .rejected = atomic_load(&gate->n_rejected),
	    .denied = atomic_load(&gate->n_denied),
	    .peers = atomic_load(&gate->n_peers),
	    .queue_pairs = atomic_load(&gate->n_queue_pairs),
	    .listeners = gate->n_listeners,
	    .listeners_down = atomic_load(&gate->n_down),
	};
}

/* ---- the round ---- */

/* Room in the poll set for n more descriptors: it must not fail later. */
int fp_cm_server_reserve_ends(struct fp_cm_server *gate, unsigned n)
{
	unsigned wanted = 2 + FP_CM_SERVER_MAX_LISTENERS + FP_CM_SERVER_MAX_DEVICES + gate->n_ends + n;
	struct pollfd *polls;
	short **revents;

	if (wanted > gate->max_polls) {
		wanted *= 2;
		polls = reallocarray(gate->polls, wanted, sizeof(*polls));
		if (!polls)
			return -ENOMEM;
		gate->polls = polls;
		revents = reallocarray(gate->revents, wanted, sizeof(*revents));
		if (!revents)
			return -ENOMEM;
		gate->revents = revents;
		gate->max_polls = wanted;
	}
	gate->n_ends += n;
	return 0;
}

static void watch(struct fp_cm_server *gate, int fd, short events, short *revents)
{
	gate->polls[gate->n_polls] = (struct pollfd){.fd = fd, .events = events};
	gate->revents[gate->n_polls++] = revents;
}

static void watch_peer(struct fp_cm_server *gate, struct fp_cm_server_peer *peer)
{
	if (peer->stream && peer->sock >= 0) {
		short events =
		    (short)((fp_cm_server_half_is_empty(peer->out) && !peer->sock_eof ? POLLIN : 0) |
		            (fp_cm_server_half_is_empty(peer->in) ? 0 : POLLOUT));

		watch(gate, peer->stream_poll.fd, peer->stream_poll.events, &peer->stream_revents);
		/* asked for nothing, it would still say at once and for ever that the daemon hung
		 * up */
		watch(gate, events ? peer->sock : -1, events, &peer->sock_revents);
	}
	for (struct fp_cm_server_link *link = peer->links; link; link = link->next)
		watch(gate, link->fd, link->events, &link->revents);
}

/* Whoever is in no hurry waits for ever: no clock runs while peers READ and WRITE. */
static int timeout_ms(const struct fp_cm_server *gate)
{
	for (const struct fp_cm_server_peer *peer = gate->peers; peer; peer = peer->next)
		if (peer->again)
			return 0;
	return atomic_load(&gate->n_down) ? FP_CM_SERVER_RETRY_MS : -1;
}

static void sleep_until_something(struct fp_cm_server *gate, short *ret_orders)
{
	int wait_ms = timeout_ms(gate);

	gate->n_polls = 0;
	watch(gate, gate->eventfd, POLLIN, ret_orders);
	watch(gate, gate->uevents, POLLIN, &gate->uevents_revents);
	for (unsigned i = 0; i < gate->n_listeners; i++)
		if (gate->listeners[i].verbs)
			watch(gate, fp_verbs_listener_fd(gate->listeners[i].verbs), POLLIN,
			      &gate->listeners[i].revents);
	fp_cm_server_devices_watch(gate);
	for (unsigned i = 0; i < gate->n_watched; i++)
		watch(gate, fp_verbs_domain_event_fd(gate->watched[i]), POLLIN, &gate->watched_revents[i]);
	for (struct fp_cm_server_peer *peer = gate->peers; peer; peer = peer->next)
		watch_peer(gate, peer);
	if (poll(gate->polls, gate->n_polls, wait_ms) < 0)
		for (unsigned i = 0; i < gate->n_polls; i++)
			gate->polls[i].revents = 0;
	for (unsigned i = 0; i < gate->n_polls; i++)
		*gate->revents[i] = gate->polls[i].revents;
}

static void serve_peer(struct fp_cm_server_peer *peer)
{
	bool due = peer->again || peer->stream_revents || peer->sock_revents;

	for (struct fp_cm_server_link *link = peer->links, *next; link; link = next) {
		next = link->next;
		if (link->revents)
			fp_cm_server_link_check(link);
	}
	if (due && peer->stream && peer->sock >= 0)
		fp_cm_server_pump(peer);
	peer->stream_revents = peer->sock_revents = 0;
}

static bool has_lost_its_device(const struct fp_cm_server_peer *peer)
{
	return (peer->stream || peer->open) && fp_verbs_domain_dead(peer->domain);
}

static struct fp_cm_server_order *take_orders(struct fp_cm_server *gate, bool *ret_stopping)
{
	struct fp_cm_server_order *first;

	pthread_mutex_lock(&gate->lock);
	first = gate->orders;
	gate->orders = NULL;
	gate->orders_end = &gate->orders;
	*ret_stopping = gate->stopping;
	pthread_mutex_unlock(&gate->lock);
	return first;
}

static void run_orders(struct fp_cm_server *gate, struct fp_cm_server_order *order)
{
	while (order) {
		struct fp_cm_server_order *next = order->next; /* its owner may be gone once it is done */

		order->run(gate, order);
		pthread_mutex_lock(&gate->lock);
		order->done = true;
		pthread_cond_broadcast(&gate->obeyed);
		pthread_mutex_unlock(&gate->lock);
		order = next;
	}
}

/* Returns false when the gate is to close. */
static bool round_of(struct fp_cm_server *gate)
{
	short orders = 0;
	bool stopping;
	eventfd_t n;

	sleep_until_something(gate, &orders);
	if (gate->uevents_revents)
		fp_verbs_devices_heard(gate->uevents);
	fp_cm_server_devices_serve(
	    gate); /* first: iWARP says why a queue pair broke, then that its peer has gone */
	for (unsigned i = 0; i < gate->n_listeners; i++)
		if (gate->listeners[i].verbs && gate->listeners[i].revents)
			fp_cm_server_listener_serve(gate, &gate->listeners[i]);
	for (struct fp_cm_server_peer *peer = gate->peers, *next; peer; peer = next) {
		next = peer->next;
		if (has_lost_its_device(peer))
			fp_cm_server_peer_give_up(peer);
		else
			serve_peer(peer);
	}
	fp_cm_server_listeners_tend(gate);
	if (orders)
		eventfd_read(gate->eventfd, &n);
	run_orders(gate, take_orders(gate, &stopping));
	return !stopping;
}

static void *run_gate(void *arg)
{
	struct fp_cm_server *gate = arg;

	while (round_of(gate))
		continue;
	while (gate->peers)
		fp_cm_server_peer_remove(gate->peers);
	return NULL;
}

/* Has the gate's thread carry it out. */
void fp_cm_server_give_order(struct fp_cm_server *gate, struct fp_cm_server_order *order)
{
	pthread_mutex_lock(&gate->lock);
	*gate->orders_end = order;
	gate->orders_end = &order->next;
	eventfd_write(gate->eventfd, 1);
	while (!order->done)
		pthread_cond_wait(&gate->obeyed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

/* ---- opening and closing ---- */

/* A wildcard listener would wait for ever for a device; who configured rdma wants to hear that
 * there is none.
 */
static bool any_device(void)
{
	struct fp_cm_server_device device;

	return fp_cm_server_devices(&device, 1) > 0;
}

int fp_cm_server_domain_open(const struct fp_cm_server *gate, struct fp_verbs_domain **ret_domain)
{
	return fp_verbs_domain_open(gate->rdma->device, (uint8_t)gate->rdma->device_port, ret_domain);
}

/* There is none of iWARP that could be connected by hand. */
static int check_device(const struct fp_cm_server *gate)
{
	FP_CLEANUP(fp_cleanup_verbs_domain) struct fp_verbs_domain *domain = NULL;

	return fp_cm_server_domain_open(gate, &domain);
}

static int open_pipes(struct fp_cm_server *gate)
{
	int fds[2];

	gate->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (gate->eventfd < 0 || pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	gate->uevents = fp_verbs_devices_watch(); /* without, rdma_cm still says most of it */
	gate->news_read = fds[0];
	gate->news_write = fds[1];
	return fcntl(gate->news_write, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

/* Signals are the program's other threads'. */
static int start_thread(struct fp_cm_server *gate)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&gate->thread, NULL, run_gate, gate);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

static void drop_news(struct fp_cm_server *gate)
{
	struct fp_cm_server_news news;

	if (gate->news_read < 0 || fcntl(gate->news_read, F_SETFL, O_NONBLOCK) < 0)
		return;
	while (read(gate->news_read, &news, sizeof(news)) == (ssize_t)sizeof(news)) {
		if (news.fd >= 0)
			close(news.fd);
		fp_cm_server_peer_unref(news.peer);
	}
}

static void free_gate(struct fp_cm_server *gate)
{
	drop_news(gate);
	for (unsigned i = 0; i < gate->n_listeners; i++) {
		fp_verbs_listener_close(gate->listeners[i].verbs);
		free(gate->listeners[i].host);
	}
	fp_cleanup_close(&gate->eventfd);
	fp_cleanup_close(&gate->uevents);
	fp_cleanup_close(&gate->news_read);
	fp_cleanup_close(&gate->news_write);
	free(gate->polls);
	free(gate->revents);
	pthread_mutex_destroy(&gate->lock);
	pthread_cond_destroy(&gate->obeyed);
	free(gate);
}

static int prepare_gate(struct fp_cm_server *gate, const struct fp_cm_server_options *options,
                        unsigned *ret_failed)
{
	int r = fp_verbs_load();

	if (r == 0 && !any_device())
		r = -ENODEV;
	if (r == 0)
		r = open_pipes(gate);
	if (r == 0)
		r = fp_cm_server_reserve_ends(gate, 0);
	if (r == 0 && gate->by_hand)
		r = check_device(gate);
	if (r == 0)
		r = fp_cm_server_listeners_open(gate, options, ret_failed);
	return r;
}

int fp_cm_server_open(const struct fp_cm_server_options *options, struct fp_cm_server **ret_gate,
                      unsigned *ret_failed)
{
	struct fp_cm_server *gate = calloc(1, sizeof(*gate));
	int r;

	*ret_failed = options->n_listen;
	if (!gate)
		return -ENOMEM;
	gate->eventfd = gate->uevents = gate->news_read = gate->news_write = -1;
	gate->orders_end = &gate->orders;
	gate->max_peers = options->max_peers;
	gate->max_unfinished = options->max_unfinished;
	gate->admits = options->admits;
	gate->user = options->user;
	gate->rdma = options->rdma ? options->rdma : &fp_rdma_defaults;
	gate->by_hand = options->by_hand;
	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->obeyed, NULL);
	r = prepare_gate(gate, options, ret_failed);
	if (r == 0)
		r = start_thread(gate);
	if (r < 0) {
		free_gate(gate);
		return r;
	}
	*ret_gate = gate;
	return 0;
}

void fp_cm_server_close(struct fp_cm_server *gate)
{
	if (!gate)
		return;
	pthread_mutex_lock(&gate->lock);
	gate->stopping = true;
	eventfd_write(gate->eventfd, 1);
	pthread_mutex_unlock(&gate->lock);
	pthread_join(gate->thread, NULL);
	free_gate(gate);
}
