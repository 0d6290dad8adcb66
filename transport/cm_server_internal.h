/*
 * Shared by cm_server.c (opening and serving), cm_server_listen.c (addresses and connection
 * requests) and cm_server_peer.c (peers and links). Room: transport; no other file includes it.
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
	struct fp_verbs_conn *conn; /* NULL: destroyed; a held link stays allocated after that */
	bool held;                  /* made by fp_cm_server_peer_connect: its holder frees it */
	int fd;                     /* its completion channel; -1: not watched */
};

struct fp_cm_server_peer {
	LIST_ENTRY(fp_cm_server_peer) entry;
	struct fp_cm_server *server;
	_Atomic unsigned n_refs, n_regions;
	bool ended; /* removed from the list */
	bool by_hand;
	bool lost; /* its device has gone, and the daemon was told */
	char name[FP_CM_SERVER_NAME_BYTES];
	struct fp_verbs_domain *domain;
	uint64_t session_id; /* 0: no link may attach */
	uint8_t token[FP_WIRE_TOKEN_BYTES];
	LIST_HEAD(, fp_cm_server_link) links;
	unsigned n_links;
	struct fp_verbs_region scratch; /* registers the byte below */
	/*
	 * The receive of a link is posted on this byte, because siw refuses an empty receive. No
	 * client sends to it.
	 */
	uint8_t byte;
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
/*
 * Watches fd. When fd is readable, the server serves link. If link is NULL, it serves everything
 * but links. Watching it twice is fine. 0 or a negative errno. Closing a descriptor ends its watch.
 */
int fp_cm_server_watch(struct fp_cm_server *server, int fd, struct fp_cm_server_link *link);
/* True if it was watched. */
bool fp_cm_server_unwatch(struct fp_cm_server *server, int fd);

/* --- cm_server_listen.c ----------------------------------------------------------------------------- */

/* Arguments and result like those of fp_cm_server_open. */
int fp_cm_server_listen(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                        unsigned *ret_failed);
/* Listens again at addresses whose device was gone. */
void fp_cm_server_listen_again(struct fp_cm_server *server);
/* Whether the server listens for links at this address. */
bool fp_cm_server_listens_at(const struct fp_cm_server *server, const struct sockaddr *own);
/* Handles a bounded number of rdma_cm's events. */
void fp_cm_server_requests_serve(struct fp_cm_server *server);

/* --- cm_server_peer.c ------------------------------------------------------------------------------- */

/*
 * The peer to which a request may attach. NULL for an unknown session and for a wrong token: so the
 * client can't tell one from the other.
 */
struct fp_cm_server_peer *fp_cm_server_find_peer(const struct fp_cm_server *server,
                                                 const struct fp_wire_cm *cm);
/* The options of a link's connection. Only the client sends requests on it. */
struct fp_verbs_conn_options fp_cm_server_link_options(const struct fp_cm_server *server);
/* Makes conn a link of peer. On success the link owns conn. 0 and *ret_link; -ENOMEM, -EIO, ... */
int fp_cm_server_link_add(struct fp_cm_server_peer *peer, struct fp_verbs_conn *conn,
                          struct fp_cm_server_link **ret_link);
/*
 * Destroys the link's queue pair; frees the link unless it is held. Destroying a held link twice is
 * fine.
 */
void fp_cm_server_link_destroy(struct fp_cm_server_link *link);
/*
 * Called when the descriptor of a link is readable: the link may be broken. It may be freed here.
 */
void fp_cm_server_link_check(struct fp_cm_server_link *link);
/* Called when the link's client has gone. Frees the link. */
void fp_cm_server_link_gone(struct fp_cm_server_link *link);
/* Handles the events of peers' devices, and tells the daemon of devices that have gone. */
void fp_cm_server_devices_serve(struct fp_cm_server *server);

#endif
