/*
 * What the server's rooms share: cm_server.c (life and round), cm_server_listen.c (addresses and
 * connection requests) and cm_server_peer.c (peers and links). Room: transport; included by no
 * other file.
 */
#ifndef FP_CM_SERVER_INTERNAL_H
#define FP_CM_SERVER_INTERNAL_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "cm_server.h"
#include "rdma_options.h"

#define FP_CM_SERVER_NAME_BYTES 80u

struct fp_cm_server_link {
	LIST_ENTRY(fp_cm_server_link) entry;
	struct fp_cm_server_peer *peer;
	struct fp_verbs_conn *conn; /* NULL: destroyed; a handle of fp_cm_server_peer_connect outlives it */
	bool held;                  /* connected by hand: its owner frees it */
	int fd;                     /* its completion channel; -1: not watched */
};

struct fp_cm_server_peer {
	LIST_ENTRY(fp_cm_server_peer) entry;
	struct fp_cm_server *server;
	_Atomic unsigned n_refs, n_regions;
	bool ended; /* not in the list any more */
	bool by_hand;
	bool lost; /* its device has gone, which was told */
	char name[FP_CM_SERVER_NAME_BYTES];
	struct fp_verbs_domain *domain;
	uint64_t session_id; /* 0: no link may attach */
	uint8_t token[FP_WIRE_TOKEN_BYTES];
	LIST_HEAD(, fp_cm_server_link) links;
	unsigned n_links;
	struct fp_verbs_region scratch; /* of the byte below */
	uint8_t byte; /* where a link's receive would go, which no client sends for: siw takes none without */
};

struct fp_cm_server_address {
	struct sockaddr_storage own;
	bool down; /* its device is gone */
};

struct fp_cm_server {
	void (*tell)(void *user, const struct fp_cm_server_event *event);
	void *user;
	const struct fp_rdma_options *rdma;
	bool by_hand;
	int epoll, timer;
	struct fp_verbs_listener *listener;
	struct fp_cm_server_address addresses[FP_VERBS_MAX_ADDRESSES];
	unsigned n_addresses;
	uint16_t port;
	uint64_t n_rejected, n_denied;
	LIST_HEAD(, fp_cm_server_peer) peers;
};

/* --- cm_server.c ------------------------------------------------------------------------------------ */

void fp_cm_server_tell(const struct fp_cm_server *server, enum fp_cm_server_event_type type, const char *who,
                       uint64_t session_id, const char *why);
/* Serves link, or NULL: all but links, when fd is readable. Again is fine. 0 or a negative errno. A
 * descriptor that is closed is not watched any more. */
int fp_cm_server_watch(struct fp_cm_server *server, int fd, struct fp_cm_server_link *link);
void fp_cm_server_unwatch(struct fp_cm_server *server, int fd);

/* --- cm_server_listen.c ----------------------------------------------------------------------------- */

/* As fp_cm_server_open. */
int fp_cm_server_listen(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                        unsigned *ret_failed);
/* Tries addresses again whose device went. */
void fp_cm_server_listen_again(struct fp_cm_server *server);
/* Whether links are listened for at this address. */
bool fp_cm_server_listens_at(const struct fp_cm_server *server, const struct sockaddr *own);
/* Takes what connection management says: a bounded part of it. */
void fp_cm_server_requests_serve(struct fp_cm_server *server);

/* --- cm_server_peer.c ------------------------------------------------------------------------------- */

/* The peer that a request may attach to: the same answer for an unknown session as for a wrong
 * token. */
struct fp_cm_server_peer *fp_cm_server_find_peer(const struct fp_cm_server *server,
                                                 const struct fp_wire_cm *cm);
/* Of a link's connection, which the client alone asks for something. */
struct fp_verbs_conn_options fp_cm_server_link_options(const struct fp_cm_server *server);
/* Makes conn, which the link owns from then on, a link of peer. 0 and *ret_link; -ENOMEM, -EIO,
 * ... */
int fp_cm_server_link_add(struct fp_cm_server_peer *peer, struct fp_verbs_conn *conn,
                          struct fp_cm_server_link **ret_link);
/* Destroys its queue pair, and frees it unless it is held. Again is fine. */
void fp_cm_server_link_destroy(struct fp_cm_server_link *link);
/* Its descriptor was readable: it broke, perhaps. The link may be gone afterwards. */
void fp_cm_server_link_check(struct fp_cm_server_link *link);
/* Its client has gone. The link is gone afterwards. */
void fp_cm_server_link_gone(struct fp_cm_server_link *link);
/* Takes what the devices of peers say, and tells of devices that have gone. */
void fp_cm_server_devices_serve(struct fp_cm_server *server);

#endif
