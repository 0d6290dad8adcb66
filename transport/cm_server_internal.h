/*
 * What the server's rooms share: cm_server.c (life, thread and calls), cm_server_peer.c,
 * cm_server_pump.c, cm_server_link.c and cm_server_listen.c. Room: transport; included by no other
 * file.
 *
 * The list of peers and all queue pairs are the server's thread's alone; a peer's identity (what
 * links attach by) is under its lock, counts are atomics. Functions below are for that thread
 * unless they say otherwise.
 */
#ifndef FP_CM_SERVER_INTERNAL_H
#define FP_CM_SERVER_INTERNAL_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cm_server.h"
#include "verbs_stream.h"

#define FP_CM_SERVER_PUMP_BYTES  32768u /* of each direction's buffer */
#define FP_CM_SERVER_MAX_DEVICES 16u
#define FP_CM_SERVER_RETRY_MS    2000 /* until a listener whose device went is tried again */

/* The user pointer of every connection. */
struct fp_cm_server_endpoint {
	struct fp_cm_server_peer *peer;
	struct fp_cm_server_link *link;         /* NULL: the peer's stream */
	struct fp_cm_server_listener *listener; /* that it came in by; NULL: by hand, or closed */
};

struct fp_cm_server_link {
	struct fp_cm_server_link *next, **at;
	struct fp_cm_server_endpoint end;
	struct fp_verbs_conn *conn; /* NULL: destroyed; a handle of fp_cm_server_peer_connect outlives it */
	bool held;                  /* connected by hand: its owner frees it */
	int fd;
	short events, revents;
};

struct fp_cm_server_buffer {
	size_t begin, end;
	uint8_t bytes[FP_CM_SERVER_PUMP_BYTES];
};

struct fp_cm_server_peer {
	struct fp_cm_server_peer *next, **at;
	struct fp_cm_server *server;
	struct fp_cm_server_endpoint end;
	_Atomic unsigned n_refs;
	_Atomic bool ended; /* by its owner or with the server: not in the list any more */
	char name[FP_CM_SERVER_NAME_BYTES];
	struct fp_verbs_domain *domain;
	_Atomic unsigned n_queue_pairs, n_regions;
	pthread_mutex_t lock; /* of the next two */
	uint64_t session_id;  /* 0: no link may attach */
	uint8_t token[FP_WIRE_TOKEN_BYTES];
	/* the server's thread */
	struct fp_cm_server_link *links;
	unsigned n_links;
	struct fp_verbs_region scratch; /* of the byte below */
	uint8_t byte; /* where a link's receive would go, which no client sends for: siw takes none without */
	bool open;    /* its stream, or being one by hand, lets it have links */
	bool handed;  /* the daemon knows it */
	bool sock_eof;              /* the daemon will send no more */
	bool again;                 /* there is more to pump */
	struct fp_verbs_conn *conn; /* until there is a stream of it */
	struct fp_verbs_stream *stream;
	struct pollfd stream_poll;
	int sock; /* our end; -1: none */
	short stream_revents, sock_revents;
	struct fp_cm_server_buffer *in, *out; /* stream to socket, socket to stream */
};

/* A call of another thread. */
struct fp_cm_server_call {
	struct fp_cm_server_call *next;
	void (*run)(struct fp_cm_server *server, struct fp_cm_server_call *call);
	struct fp_cm_server_peer *peer;
	struct fp_cm_server_link *link;
	const char *name;
	const struct fp_verbs_address *client;
	struct fp_verbs_address own;
	int result;
	bool done;
};

struct fp_cm_server_listener {
	struct fp_verbs_listener *verbs; /* NULL: its device is gone, it is tried again */
	char *host;
	uint16_t port;
	bool failed;      /* to be closed once its connections are */
	unsigned n_conns; /* that share its events */
	short revents;
};

struct fp_cm_server {
	pthread_t thread;
	struct fp_cm_server_listener listeners[FP_CM_SERVER_MAX_LISTENERS];
	unsigned n_listeners;
	bool (*admits)(void *user, const struct fp_wire_cm *cm);
	void *user;
	const struct fp_rdma_options *rdma;
	bool by_hand;
	unsigned max_peers, max_unfinished;
	int eventfd;
	int uevents; /* devices that go; negative: none is told */
	int events_read, events_write;
	_Atomic unsigned n_peers, n_queue_pairs, n_down;
	_Atomic uint64_t n_rejected, n_denied;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t call_done;
	struct fp_cm_server_call *calls, **calls_end;
	bool stopping;
	/* the thread's */
	struct fp_cm_server_peer *peers;
	struct pollfd *polls;
	short **revents; /* where each poll's answer goes */
	unsigned n_polls, max_polls, n_reserved;
	struct fp_verbs_domain
	    *watched[FP_CM_SERVER_MAX_DEVICES]; /* one domain of each device with peers; held in a round */
	short watched_revents[FP_CM_SERVER_MAX_DEVICES];
	unsigned n_watched;
	short uevents_revents;
	uint64_t retry_ns;
};

/* --- cm_server.c ------------------------------------------------------------------------------------ */

/* Returns false if nobody reads the event: what it was about is to be dropped. Never blocks. */
bool fp_cm_server_tell(struct fp_cm_server *server, const struct fp_cm_server_event *event);
void fp_cm_server_tell_why(struct fp_cm_server *server, enum fp_cm_server_event_type type, const char *who,
                           uint64_t session_id, const char *why);
/* Room in the poll set for n more descriptors: it must not fail later. 0 or -ENOMEM. */
int fp_cm_server_reserve_polls(struct fp_cm_server *server, unsigned n);
/* Has the server's thread carry it out, and waits for that. Any thread but the server's. */
void fp_cm_server_run_call(struct fp_cm_server *server, struct fp_cm_server_call *call);

/* --- cm_server_peer.c ------------------------------------------------------------------------------- */

/* In the list, with the list's reference, without a domain. 0 and *ret_peer, or -ENOMEM. */
int fp_cm_server_peer_add(struct fp_cm_server *server, const char *name, struct fp_cm_server_peer **ret_peer);
/*
 * Its connection has come to an end: nothing is reached through it any more. What had arrived is in
 * the socket, which ends now for the daemon too; the peer stays until it is ended.
 */
void fp_cm_server_peer_cut_off(struct fp_cm_server_peer *peer);
/* Cuts it off and takes it and its reference out of the list; again is fine. */
void fp_cm_server_peer_remove(struct fp_cm_server_peer *peer);
/* Cuts it off; a peer that was never handed over is removed, as nobody else will. */
void fp_cm_server_peer_give_up(struct fp_cm_server_peer *peer);
/* One queue pair more (1) or less (-1). */
void fp_cm_server_peer_count_queue_pair(struct fp_cm_server_peer *peer, int change);
/* The session that it was admitted for; 0: none. Any thread. */
uint64_t fp_cm_server_peer_session(struct fp_cm_server_peer *peer);

/* --- cm_server_pump.c ------------------------------------------------------------------------------- */

/* Moves what can be moved, and cuts the peer off if that was its end. */
void fp_cm_server_pump(struct fp_cm_server_peer *peer);
/*
 * Moves what can be moved; peer->again if its turn was over first. 0, or a negative errno: a way is
 * broken. A side that takes nothing holds the other up: what the daemon does not read stays in the
 * stream's buffers, whose credits then run out for the client.
 */
int fp_cm_server_pump_until_still(struct fp_cm_server_peer *peer);

static inline bool fp_cm_server_buffer_is_empty(const struct fp_cm_server_buffer *half)
{
	return half->begin == half->end;
}

/* --- cm_server_link.c ------------------------------------------------------------------------------- */

/* Of a link's connection, which the client alone asks for something. */
struct fp_verbs_conn_options fp_cm_server_link_options(const struct fp_cm_server *server);
/* A domain for queue pairs by hand. As fp_verbs_domain_open. */
int fp_cm_server_domain_open(const struct fp_cm_server *server, struct fp_verbs_domain **ret_domain);

/* Makes conn, which the link owns from then on, a link of peer. 0 and *ret_link; -ENOMEM, -EIO,
 * ... */
int fp_cm_server_link_add(struct fp_cm_server_peer *peer, struct fp_verbs_conn *conn,
                          struct fp_cm_server_link **ret_link);
/* Destroys its queue pair, and frees it unless it is held. */
void fp_cm_server_link_destroy(struct fp_cm_server_link *link);
/* Its descriptor was readable: it broke, perhaps. The link may be gone afterwards. */
void fp_cm_server_link_check(struct fp_cm_server_link *link);
/* Its client has gone. The link is gone afterwards. */
void fp_cm_server_link_gone(struct fp_cm_server *server, struct fp_cm_server_link *link);
/* Fills server->watched; serving it takes what the devices say and empties it. */
void fp_cm_server_devices_watch(struct fp_cm_server *server);
void fp_cm_server_devices_serve(struct fp_cm_server *server);

/* --- cm_server_listen.c ----------------------------------------------------------------------------- */

/* As fp_cm_server_open: *ret_failed is set where an address failed. Before the thread runs. */
int fp_cm_server_listeners_open(struct fp_cm_server *server, const struct fp_cm_server_options *options,
                                unsigned *ret_failed);
void fp_cm_server_listener_serve(struct fp_cm_server *server, struct fp_cm_server_listener *listener);
/* Closes listeners whose device is gone once nothing of it is open, and tries them again. */
void fp_cm_server_listeners_retry(struct fp_cm_server *server);
/* The connection came in by listener, and shares its events; released when it is closed. */
void fp_cm_server_listener_hold(struct fp_cm_server_endpoint *end, struct fp_cm_server_listener *listener);
void fp_cm_server_listener_release(struct fp_cm_server_endpoint *end);

#endif
