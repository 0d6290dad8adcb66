/*
 * The server's life, its thread and the calls that others give it. Room: transport; see
 * cm_server.h. Peers are in cm_server_peer.c, their streams in cm_server_pump.c, their links in
 * cm_server_link.c, who comes in and where in cm_server_listen.c.
 *
 * A round: poll; note on each end what was readable; device events; connection management; streams
 * and links; calls of other threads. Only the round itself closes anything, so that whatever poll
 * spoke of still stands when its turn comes.
 */
#include "cm_server_internal.h"

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

/* --- what the server tells ----------------------------------------------------------------------------- */

bool fp_cm_server_tell(struct fp_cm_server *server, const struct fp_cm_server_event *event)
{
	/* a record is shorter than PIPE_BUF: it goes in whole or not at all */
	return write(server->events_write, event, sizeof(*event)) == (ssize_t)sizeof(*event);
}

void fp_cm_server_tell_why(struct fp_cm_server *server, enum fp_cm_server_event_type type, const char *who,
                           uint64_t session_id, const char *why)
{
	struct fp_cm_server_event event = {.type = type, .fd = -1, .session_id = session_id, .why = why};

	snprintf(event.who, sizeof(event.who), "%s", who);
	fp_cm_server_tell(server, &event);
}

int fp_cm_server_event_fd(const struct fp_cm_server *server)
{
	return server->events_read;
}

uint16_t fp_cm_server_port(const struct fp_cm_server *server, unsigned idx)
{
	return server->listeners[idx].port;
}

bool fp_cm_server_has_device(const struct fp_cm_server *server)
{
	return server->by_hand;
}

void fp_cm_server_counts(const struct fp_cm_server *server, struct fp_cm_server_counts *ret_counts)
{
	*ret_counts = (struct fp_cm_server_counts){
	    .rejected = atomic_load(&server->n_rejected),
	    .denied = atomic_load(&server->n_denied),
	    .peers = atomic_load(&server->n_peers),
	    .queue_pairs = atomic_load(&server->n_queue_pairs),
	    .listeners = server->n_listeners,
	    .listeners_down = atomic_load(&server->n_down),
	};
}

/* --- the round --------------------------------------------------------------------------------------- */

/* Room in the poll set for n more descriptors: it must not fail later. */
int fp_cm_server_reserve_polls(struct fp_cm_server *server, unsigned n)
{
	unsigned wanted = 2 + FP_CM_SERVER_MAX_LISTENERS + FP_CM_SERVER_MAX_DEVICES + server->n_reserved + n;
	struct pollfd *polls;
	short **revents;

	if (wanted > server->max_polls) {
		wanted *= 2;
		polls = reallocarray(server->polls, wanted, sizeof(*polls));
		if (!polls)
			return -ENOMEM;
		server->polls = polls;
		revents = reallocarray(server->revents, wanted, sizeof(*revents));
		if (!revents)
			return -ENOMEM;
		server->revents = revents;
		server->max_polls = wanted;
	}
	server->n_reserved += n;
	return 0;
}

static void watch(struct fp_cm_server *server, int fd, short events, short *revents)
{
	server->polls[server->n_polls] = (struct pollfd){.fd = fd, .events = events};
	server->revents[server->n_polls++] = revents;
}

static void watch_peer(struct fp_cm_server *server, struct fp_cm_server_peer *peer)
{
	if (peer->stream && peer->sock >= 0) {
		short events =
		    (short)((fp_cm_server_buffer_is_empty(peer->out) && !peer->sock_eof ? POLLIN : 0) |
		            (fp_cm_server_buffer_is_empty(peer->in) ? 0 : POLLOUT));

		watch(server, peer->stream_poll.fd, peer->stream_poll.events, &peer->stream_revents);
		/* asked for nothing, it would still say at once and for ever that the daemon hung
		 * up */
		watch(server, events ? peer->sock : -1, events, &peer->sock_revents);
	}
	for (struct fp_cm_server_link *link = peer->links; link; link = link->next)
		watch(server, link->fd, link->events, &link->revents);
}

/* Whoever is in no hurry waits for ever: no clock runs while peers READ and WRITE. */
static int timeout_ms(const struct fp_cm_server *server)
{
	for (const struct fp_cm_server_peer *peer = server->peers; peer; peer = peer->next)
		if (peer->again)
			return 0;
	return atomic_load(&server->n_down) ? FP_CM_SERVER_RETRY_MS : -1;
}

static void sleep_until_something(struct fp_cm_server *server, short *ret_calls)
{
	int wait_ms = timeout_ms(server);

	server->n_polls = 0;
	watch(server, server->eventfd, POLLIN, ret_calls);
	watch(server, server->uevents, POLLIN, &server->uevents_revents);
	for (unsigned i = 0; i < server->n_listeners; i++)
		if (server->listeners[i].verbs)
			watch(server, fp_verbs_listener_fd(server->listeners[i].verbs), POLLIN,
			      &server->listeners[i].revents);
	fp_cm_server_devices_watch(server);
	for (unsigned i = 0; i < server->n_watched; i++)
		watch(server, fp_verbs_domain_event_fd(server->watched[i]), POLLIN,
		      &server->watched_revents[i]);
	for (struct fp_cm_server_peer *peer = server->peers; peer; peer = peer->next)
		watch_peer(server, peer);
	if (poll(server->polls, server->n_polls, wait_ms) < 0)
		for (unsigned i = 0; i < server->n_polls; i++)
			server->polls[i].revents = 0;
	for (unsigned i = 0; i < server->n_polls; i++)
		*server->revents[i] = server->polls[i].revents;
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

static struct fp_cm_server_call *take_calls(struct fp_cm_server *server, bool *ret_stopping)
{
	struct fp_cm_server_call *first;

	pthread_mutex_lock(&server->lock);
	first = server->calls;
	server->calls = NULL;
	server->calls_end = &server->calls;
	*ret_stopping = server->stopping;
	pthread_mutex_unlock(&server->lock);
	return first;
}

static void run_calls(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	while (call) {
		struct fp_cm_server_call *next = call->next; /* its owner may be gone once it is done */

		call->run(server, call);
		pthread_mutex_lock(&server->lock);
		call->done = true;
		pthread_cond_broadcast(&server->call_done);
		pthread_mutex_unlock(&server->lock);
		call = next;
	}
}

/* Returns false when the server is to close. */
static bool round_of(struct fp_cm_server *server)
{
	short calls = 0;
	bool stopping;
	eventfd_t n;

	sleep_until_something(server, &calls);
	if (server->uevents_revents)
		fp_verbs_devices_heard(server->uevents);
	fp_cm_server_devices_serve(
	    server); /* first: iWARP says why a queue pair broke, then that its peer has gone */
	for (unsigned i = 0; i < server->n_listeners; i++)
		if (server->listeners[i].verbs && server->listeners[i].revents)
			fp_cm_server_listener_serve(server, &server->listeners[i]);
	for (struct fp_cm_server_peer *peer = server->peers, *next; peer; peer = next) {
		next = peer->next;
		if (has_lost_its_device(peer))
			fp_cm_server_peer_give_up(peer);
		else
			serve_peer(peer);
	}
	fp_cm_server_listeners_retry(server);
	if (calls)
		eventfd_read(server->eventfd, &n);
	run_calls(server, take_calls(server, &stopping));
	return !stopping;
}

static void *run_server(void *arg)
{
	struct fp_cm_server *server = arg;

	while (round_of(server))
		continue;
	while (server->peers)
		fp_cm_server_peer_remove(server->peers);
	return NULL;
}

/* Has the server's thread carry it out. */
void fp_cm_server_run_call(struct fp_cm_server *server, struct fp_cm_server_call *call)
{
	pthread_mutex_lock(&server->lock);
	*server->calls_end = call;
	server->calls_end = &call->next;
	eventfd_write(server->eventfd, 1);
	while (!call->done)
		pthread_cond_wait(&server->call_done, &server->lock);
	pthread_mutex_unlock(&server->lock);
}

/* --- opening and closing ----------------------------------------------------------------------------- */

/* A wildcard listener would wait for ever for a device; who configured rdma wants to hear that
 * there is none.
 */
static bool any_device(void)
{
	struct fp_rdma_device device;

	return fp_rdma_devices(&device, 1) > 0;
}

int fp_cm_server_domain_open(const struct fp_cm_server *server, struct fp_verbs_domain **ret_domain)
{
	return fp_verbs_domain_open(server->rdma->device, (uint8_t)server->rdma->device_port, ret_domain);
}

/* There is none of iWARP that could be connected by hand. */
static int check_device(const struct fp_cm_server *server)
{
	FP_CLEANUP(fp_cleanup_verbs_domain) struct fp_verbs_domain *domain = NULL;

	return fp_cm_server_domain_open(server, &domain);
}

static int open_pipes(struct fp_cm_server *server)
{
	int fds[2];

	server->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (server->eventfd < 0 || pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	server->uevents = fp_verbs_devices_watch(); /* without, rdma_cm still says most of it */
	server->events_read = fds[0];
	server->events_write = fds[1];
	return fcntl(server->events_write, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

/* Signals are the program's other threads'. */
static int start_thread(struct fp_cm_server *server)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&server->thread, NULL, run_server, server);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

static void drop_events(struct fp_cm_server *server)
{
	struct fp_cm_server_event event;

	if (server->events_read < 0 || fcntl(server->events_read, F_SETFL, O_NONBLOCK) < 0)
		return;
	while (read(server->events_read, &event, sizeof(event)) == (ssize_t)sizeof(event)) {
		if (event.fd >= 0)
			close(event.fd);
		fp_cm_server_peer_unref(event.peer);
	}
}

static void free_server(struct fp_cm_server *server)
{
	drop_events(server);
	for (unsigned i = 0; i < server->n_listeners; i++) {
		fp_verbs_listener_close(server->listeners[i].verbs);
		free(server->listeners[i].host);
	}
	fp_cleanup_close(&server->eventfd);
	fp_cleanup_close(&server->uevents);
	fp_cleanup_close(&server->events_read);
	fp_cleanup_close(&server->events_write);
	free(server->polls);
	free(server->revents);
	pthread_mutex_destroy(&server->lock);
	pthread_cond_destroy(&server->call_done);
	free(server);
}

static int prepare_server(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                          unsigned *ret_failed)
{
	int r = fp_verbs_load();

	if (r == 0 && !any_device())
		r = -ENODEV;
	if (r == 0)
		r = open_pipes(server);
	if (r == 0)
		r = fp_cm_server_reserve_polls(server, 0);
	if (r == 0 && server->by_hand)
		r = check_device(server);
	if (r == 0)
		r = fp_cm_server_listeners_open(server, options, ret_failed);
	return r;
}

int fp_cm_server_open(const struct fp_cm_server_options *options, struct fp_cm_server **ret_server,
                      unsigned *ret_failed)
{
	struct fp_cm_server *server = calloc(1, sizeof(*server));
	int r;

	*ret_failed = options->n_listen;
	if (!server)
		return -ENOMEM;
	server->eventfd = server->uevents = server->events_read = server->events_write = -1;
	server->calls_end = &server->calls;
	server->max_peers = options->max_peers;
	server->max_unfinished = options->max_unfinished;
	server->admits = options->admits;
	server->user = options->user;
	server->rdma = options->rdma ? options->rdma : &fp_rdma_defaults;
	server->by_hand = options->by_hand;
	pthread_mutex_init(&server->lock, NULL);
	pthread_cond_init(&server->call_done, NULL);
	r = prepare_server(server, options, ret_failed);
	if (r == 0)
		r = start_thread(server);
	if (r < 0) {
		free_server(server);
		return r;
	}
	*ret_server = server;
	return 0;
}

void fp_cm_server_close(struct fp_cm_server *server)
{
	if (!server)
		return;
	pthread_mutex_lock(&server->lock);
	server->stopping = true;
	eventfd_write(server->eventfd, 1);
	pthread_mutex_unlock(&server->lock);
	pthread_join(server->thread, NULL);
	free_server(server);
}
