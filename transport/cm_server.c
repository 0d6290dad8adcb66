/*
 * The server of links over rdma. Room: transport; see cm_server.h. cm_server_listen.c handles
 * requests and their proofs, cm_server_peer.c peers and links.
 *
 * One epoll descriptor watches rdma_cm, the devices' events, and the completion channel of each
 * link. We take one event at a time from epoll, because serving it may destroy other links.
 */
#include "cm_server_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "cleanup.h"

/* Events served in one call. After them the loop goes on with other work. */
#define SERVED_AT_ONCE 16
#define LOOK_S         2 /* seconds between looks for devices that went or came back */

void fp_cm_server_tell(const struct fp_cm_server *server, enum fp_cm_server_event_type type, const char *who,
                       uint64_t session_id, const char *why)
{
	const struct fp_cm_server_event event = {type, session_id, who, why};

	server->tell(server->user, &event);
}

int fp_cm_server_watch(struct fp_cm_server *server, int fd, struct fp_cm_server_link *link)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};

	return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0 || errno == EEXIST ? 0 : -errno;
}

bool fp_cm_server_unwatch(struct fp_cm_server *server, int fd)
{
	return epoll_ctl(server->epoll, EPOLL_CTL_DEL, fd, NULL) == 0;
}

int fp_cm_server_fd(const struct fp_cm_server *server)
{
	return server->epoll;
}

uint16_t fp_cm_server_port(const struct fp_cm_server *server)
{
	return server->port;
}

void fp_cm_server_counts(const struct fp_cm_server *server, struct fp_cm_server_counts *ret_counts)
{
	*ret_counts = (struct fp_cm_server_counts){
	    .rejected = server->n_rejected,
	    .denied = server->n_denied,
	    .listeners = server->n_addresses,
	};
	for (unsigned i = 0; i < server->n_addresses; i++)
		ret_counts->listeners_down += server->addresses[i].down;
	for (const struct fp_cm_server_peer *peer = server->peers.lh_first; peer;
	     peer = peer->entry.le_next) {
		ret_counts->peers++;
		ret_counts->queue_pairs += peer->n_links;
	}
}

void fp_cm_server_serve(struct fp_cm_server *server)
{
	struct epoll_event event;
	uint64_t n_expired;

	for (unsigned i = 0; i < SERVED_AT_ONCE && epoll_wait(server->epoll, &event, 1, 0) == 1; i++) {
		if (event.data.ptr) {
			fp_cm_server_link_check(event.data.ptr);
			continue;
		}
		fp_cm_server_devices_serve(server); /* before rdma_cm: iWARP says why a link broke */
		fp_cm_server_requests_serve(server);
		if (read(server->timer, &n_expired, sizeof(n_expired)) == sizeof(n_expired)) {
			fp_verbs_devices_check();
			fp_verbs_listener_sweep(server->listener);
			fp_cm_server_listen_again(server);
		}
		fp_cm_server_devices_serve(server); /* devices just found to be gone */
	}
}

/* ---- opening and closing ---- */

/*
 * Without any device, a listener at all addresses would wait for one for ever. A node configured
 * for rdma should get an error instead.
 */
static bool any_device(void)
{
	struct fp_rdma_device device;

	return fp_rdma_devices(&device, 1) > 0;
}

/* Fails if there is no device for the transport rdma+tcp. iWARP devices can't be used for it. */
static int check_device(const struct fp_cm_server *server)
{
	FP_CLEANUP(fp_cleanup_verbs_domain) struct fp_verbs_domain *domain = NULL;

	return fp_verbs_domain_open(server->rdma->device, (uint8_t)server->rdma->device_port, &domain);
}

static int open_descriptors(struct fp_cm_server *server)
{
	const struct itimerspec look = {.it_interval = {.tv_sec = LOOK_S}, .it_value = {.tv_sec = LOOK_S}};
	int r;

	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	server->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (server->epoll < 0 || server->timer < 0 || timerfd_settime(server->timer, 0, &look, NULL) < 0)
		return -errno;
	r = fp_verbs_listener_open(&server->listener);
	if (r == 0)
		r = fp_cm_server_watch(server, fp_verbs_listener_fd(server->listener), NULL);
	if (r == 0)
		r = fp_cm_server_watch(server, server->timer, NULL);
	return r;
}

static int prepare_server(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                          unsigned *ret_failed)
{
	int r = fp_verbs_load();

	if (r == 0 && !any_device())
		r = -ENODEV;
	if (r == 0)
		r = open_descriptors(server);
	if (r == 0 && server->by_hand)
		r = check_device(server);
	if (r == 0)
		r = fp_cm_server_listen(server, options, ret_failed);
	return r;
}

int fp_cm_server_open(const struct fp_cm_server_options *options, struct fp_cm_server **ret_server,
                      unsigned *ret_failed)
{
	FP_CLEANUP(fp_cleanup_server) struct fp_cm_server *server = calloc(1, sizeof(*server));
	int r;

	*ret_failed = options->n_listen;
	if (!server)
		return -ENOMEM;
	server->epoll = server->timer = -1;
	server->tell = options->tell;
	server->user = options->user;
	server->rdma = options->rdma ? options->rdma : &fp_rdma_defaults;
	server->by_hand = options->by_hand;
	r = prepare_server(server, options, ret_failed);
	if (r == 0)
		*ret_server = fp_take_ptr(server);
	return r;
}

void fp_cm_server_close(struct fp_cm_server *server)
{
	if (!server)
		return;
	while (server->peers.lh_first)
		fp_cm_server_peer_end(server->peers.lh_first);
	fp_verbs_listener_close(server->listener);
	fp_cleanup_close(&server->epoll);
	fp_cleanup_close(&server->timer);
	free(server);
}
