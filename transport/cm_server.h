/*
 * The server of links over rdma. It keeps a protection domain for each session. Through queue pairs
 * of the domain, clients READ and WRITE the memory registered in it. Room: transport; only the
 * daemon uses it. It knows tokens and bytes, never frames or leases.
 *
 *   connection request ──► magic, version, session, proof by its token? ──no──► rejected with a status
 *                                │ yes
 *                                ▼
 *   a queue pair in the domain of that session's peer. It sends nothing. One receive is posted on
 *   it. When that receive is flushed, the queue pair has broken
 *
 * A peer is one session with its domain. The daemon ends a peer, deregisters its regions, and puts
 * its reference. Queue pairs are connected through rdma_cm, or without it (rdma+tcp).
 *
 * Only the loop's thread calls these functions, unless a comment says "any thread". The server has
 * no thread: the loop calls fp_cm_server_serve when the server's descriptor is readable. READs and
 * WRITEs of peers cost no CPU here.
 */
#ifndef FP_CM_SERVER_H
#define FP_CM_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "verbs.h"
#include "wire.h"

struct fp_rdma_options;
struct fp_cm_server;
struct fp_cm_server_peer;
struct fp_cm_server_link;

enum fp_cm_server_event_type {
	FP_CM_SERVER_EVENT_REJECTED, /* a connection request was rejected */
	FP_CM_SERVER_EVENT_DENIED,   /* a link broke because its client used memory without a key for it */
	FP_CM_SERVER_EVENT_DEVICE,   /* a device or a listener went away, or came back */
	FP_CM_SERVER_EVENT_LOST,     /* the device of session_id's peer has gone: end the peer soon */
};

struct fp_cm_server_event {
	enum fp_cm_server_event_type type;
	uint64_t session_id; /* for DENIED and LOST: the session; 0: it is not known yet */
	const char *who;
	const char *why;
};

struct fp_cm_server_options {
	/*
	 * The daemon's TCP addresses. The server listens for links at the same addresses, all on
	 * one port. That is the port of listen[0] plus one, or any free port if listen[0] has port
	 * 0.
	 */
	const struct sockaddr_storage *listen;
	unsigned n_listen;
	/* Called from within fp_cm_server_serve; must not end a peer. */
	void (*tell)(void *user, const struct fp_cm_server_event *event);
	void *user;
	const struct fp_rdma_options *rdma; /* not copied: must outlive the server; NULL: the defaults */
	/* Also serve rdma+tcp, on the device that rdma names. That device can't be iWARP. */
	bool by_hand;
};

/* Totals since the server opened, and present numbers. */
struct fp_cm_server_counts {
	uint64_t rejected, denied;
	unsigned peers, queue_pairs;
	/* The number of configured addresses, and of those whose device is gone. */
	unsigned listeners, listeners_down;
};

/* An rdma device of this machine, and its first port. */
struct fp_rdma_device {
	char name[64];
	char state[16]; /* "ACTIVE", "DOWN", ... */
	bool iwarp;
};

/*
 * Lists the devices that the kernel has now, at most max. Returns their number. Any thread; reads a
 * few small files.
 */
unsigned fp_rdma_devices(struct fp_rdma_device *ret_devices, unsigned max);

/*
 * Opens listeners. 0 and *ret_server; -ELIBACC (libibverbs.so.1 or librdmacm.so.1 is not
 * installed), -ENODEV (no rdma device at all, no device of that name, or none with such an
 * address), -EADDRINUSE, -EADDRNOTAVAIL, -ENOMEM. *ret_failed: the index of the address that
 * failed, or n_listen if no address is to blame.
 */
int fp_cm_server_open(const struct fp_cm_server_options *options, struct fp_cm_server **ret_server,
                      unsigned *ret_failed);
/* Ends the peers that are left. NULL is fine. */
void fp_cm_server_close(struct fp_cm_server *server);
FP_DEFINE_CLEANUP(struct fp_cm_server, server, fp_cm_server_close)

/* Readable when there is something to serve. */
int fp_cm_server_fd(const struct fp_cm_server *server);
/* Handles a bounded number of events; never waits. */
void fp_cm_server_serve(struct fp_cm_server *server);
/* The port to which clients connect their links. 0: the server does not listen for links. */
uint16_t fp_cm_server_port(const struct fp_cm_server *server);
void fp_cm_server_counts(const struct fp_cm_server *server, struct fp_cm_server_counts *ret_counts);

/*
 * Makes a peer. own: the address of this machine that the client of the peer reached. own NULL: the
 * queue pairs of the peer are connected without rdma_cm. 0 and *ret_peer, a reference; -EOPNOTSUPP:
 * the server does not listen at own, or (own NULL) does not serve rdma+tcp; -ENODEV, -ENOMEM, ...
 */
int fp_cm_server_peer_new(struct fp_cm_server *server, const struct sockaddr *own, const char *name,
                          struct fp_cm_server_peer **ret_peer);
/* Admits links that name session_id and prove token. Call it before the client learns either. */
void fp_cm_server_peer_admit(struct fp_cm_server_peer *peer, uint64_t session_id,
                             const uint8_t token[FP_WIRE_TOKEN_BYTES]);
/*
 * Ends a peer: destroys its links. When this returns, no request can reach the peer's memory any
 * more, not even one still under way. No link can attach to the peer afterwards. Calling it twice
 * is fine.
 */
void fp_cm_server_peer_end(struct fp_cm_server_peer *peer);
/* Any thread. */
struct fp_cm_server_peer *fp_cm_server_peer_ref(struct fp_cm_server_peer *peer);
/*
 * NULL is fine. Before the last reference is put, the caller must end the peer and deregister its
 * regions. Any thread.
 */
void fp_cm_server_peer_unref(struct fp_cm_server_peer *peer);
unsigned fp_cm_server_peer_queue_pairs(const struct fp_cm_server_peer *peer);
unsigned fp_cm_server_peer_regions(const struct fp_cm_server_peer *peer);

/*
 * Registers memory in the peer's domain for its links to READ, and to WRITE unless access forbids
 * it. Like fp_verbs_register, it may be called on any thread and may take long. Deregister it
 * before the last reference is put. Deregistering a region that is not registered is fine.
 */
int fp_cm_server_peer_register(struct fp_cm_server_peer *peer, void *base, size_t len_bytes,
                               enum fp_verbs_access access, struct fp_verbs_region *ret_region);
void fp_cm_server_peer_deregister(struct fp_cm_server_peer *peer, struct fp_verbs_region *region);

/*
 * Connects a queue pair of the peer's domain to the client's, without rdma_cm. 0, *ret_own (the
 * address that the client needs), and *ret_link; -EPERM (this peer's queue pairs are connected
 * through rdma_cm), -EINVAL (the device refuses these attributes), -EUSERS (the peer has as many
 * links as allowed), -ECONNRESET (the peer was ended), -EHOSTUNREACH, -EIO, -ENOMEM.
 */
int fp_cm_server_peer_connect(struct fp_cm_server_peer *peer, const struct fp_verbs_address *client,
                              struct fp_verbs_address *ret_own, struct fp_cm_server_link **ret_link);
/*
 * Destroys the queue pair, unless the end of its peer already did. A link holds a reference to its
 * peer. NULL is fine.
 */
void fp_cm_server_link_close(struct fp_cm_server_link *link);

#endif
