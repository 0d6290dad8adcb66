/*
 * The server of links over rdma: it has the protection domains of sessions, and the queue pairs by
 * which clients READ and WRITE what is registered there. Room: transport; the daemon uses it, the
 * compute side never. It knows tokens and bytes, never frames or leases.
 *
 *   connection request ──► magic, version, session, proof by its token? ──no──► rejected with a status
 *                                │
 *                                ▼
 *   a queue pair in the domain of that session's peer. It says nothing: one receive is posted on
 *   it, whose flush tells that the queue pair broke
 *
 * One peer is one session and its domain. The daemon ends it, deregisters what it registered for
 * it, and lets go of it. Queue pairs are connected through rdma_cm, or by hand.
 *
 * Threads: all calls are the loop's, but those that say "any thread". The server has no thread: the
 * loop calls fp_cm_server_serve when the server's descriptor is readable. READs and WRITEs of peers
 * cost no CPU here.
 */
#ifndef FP_CM_SERVER_H
#define FP_CM_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "verbs.h"
#include "wire.h"

#define FP_CM_SERVER_MAX_LINKS 64u /* of one peer */

struct fp_rdma_options;
struct fp_cm_server;
struct fp_cm_server_peer;
struct fp_cm_server_link;

enum fp_cm_server_event_type {
	FP_CM_SERVER_EVENT_REJECTED, /* somebody was not let in */
	FP_CM_SERVER_EVENT_DENIED,   /* a link broke because its client used what it has no key for */
	FP_CM_SERVER_EVENT_DEVICE,   /* a device or a listener went away, or came back */
	FP_CM_SERVER_EVENT_LOST, /* the device of session_id's peer has gone: the peer is to be ended soon */
};

struct fp_cm_server_event {
	enum fp_cm_server_event_type type;
	uint64_t session_id; /* DENIED, LOST; 0: none yet */
	const char *who;
	const char *why;
};

struct fp_cm_server_options {
	/* TCP addresses of the machine: their links are listened for at the same ones, all at
	 * one port, the one after the first address's (that one's is 0: any). */
	const struct sockaddr_storage *listen;
	unsigned n_listen;
	/* Called from within fp_cm_server_serve; ends no peer. */
	void (*tell)(void *user, const struct fp_cm_server_event *event);
	void *user;
	const struct fp_rdma_options *rdma; /* not copied: it outlives the server; NULL: the defaults */
	bool by_hand; /* queue pairs are connected by hand, too: on a device of rdma, not iWARP */
};

/* Totals since the server opened, and now. */
struct fp_cm_server_counts {
	uint64_t rejected, denied;
	unsigned peers, queue_pairs;
	unsigned listeners, listeners_down; /* configured; of them those whose device is gone */
};

/* An rdma device of this machine, and its first port. */
struct fp_rdma_device {
	char name[64];
	char state[16]; /* "ACTIVE", "DOWN", ... */
	bool iwarp;
};

/* As the kernel lists them now, at most max. Returns their number. Any thread; reads a few small
 * files. */
unsigned fp_rdma_devices(struct fp_rdma_device *ret_devices, unsigned max);

/*
 * Opens listeners. 0 and *ret_server; -ELIBACC (libibverbs.so.1 or librdmacm.so.1 is not
 * installed), -ENODEV (there is no rdma device; or not that device, or none with such an address),
 * -EADDRINUSE, -EADDRNOTAVAIL, -ENOMEM. *ret_failed: the index of the address that failed,
 * n_listen: none of them.
 */
int fp_cm_server_open(const struct fp_cm_server_options *options, struct fp_cm_server **ret_server,
                      unsigned *ret_failed);
/* After its last peer was ended. NULL is fine. */
void fp_cm_server_close(struct fp_cm_server *server);
FP_DEFINE_CLEANUP(struct fp_cm_server, server, fp_cm_server_close)

/* Readable when there is something to serve. */
int fp_cm_server_fd(const struct fp_cm_server *server);
/* Never waits; does a bounded part of what there is. */
void fp_cm_server_serve(struct fp_cm_server *server);
/* Where clients connect their links; 0: nowhere. */
uint16_t fp_cm_server_port(const struct fp_cm_server *server);
void fp_cm_server_counts(const struct fp_cm_server *server, struct fp_cm_server_counts *ret_counts);

/*
 * A peer whose client reached this machine at the address own, or, own NULL, whose queue pairs are
 * connected by hand. 0 and *ret_peer, a reference; -EOPNOTSUPP: links are not listened for there,
 * or none are connected by hand; -ENODEV, -ENOMEM, ...
 */
int fp_cm_server_peer_new(struct fp_cm_server *server, const struct sockaddr *own, const char *name,
                          struct fp_cm_server_peer **ret_peer);
/* Lets links attach to it: those that name session_id and prove token. Before the client is told
 * either. */
void fp_cm_server_peer_admit(struct fp_cm_server_peer *peer, uint64_t session_id,
                             const uint8_t token[FP_WIRE_TOKEN_BYTES]);
/*
 * Ends it: its links are destroyed. When this returns nothing of the peer's can be reached any
 * more, whatever is still under way, and no link will attach. Again is fine.
 */
void fp_cm_server_peer_end(struct fp_cm_server_peer *peer);
/* Any thread. */
struct fp_cm_server_peer *fp_cm_server_peer_ref(struct fp_cm_server_peer *peer);
/* NULL is fine. Its regions are gone before the last, and it was ended. Any thread. */
void fp_cm_server_peer_unref(struct fp_cm_server_peer *peer);
unsigned fp_cm_server_peer_queue_pairs(const struct fp_cm_server_peer *peer);
unsigned fp_cm_server_peer_regions(const struct fp_cm_server_peer *peer);

/*
 * Registers memory in the peer's domain for its links to READ, and to WRITE unless access forbids
 * it. As fp_verbs_register: any thread, may take long. Deregistration before the last reference is
 * put; a region that is not registered is fine.
 */
int fp_cm_server_peer_register(struct fp_cm_server_peer *peer, void *base, size_t len_bytes,
                               enum fp_verbs_access access, struct fp_verbs_region *ret_region);
void fp_cm_server_peer_deregister(struct fp_cm_server_peer *peer, struct fp_verbs_region *region);

/*
 * By hand: connects a queue pair of the peer's domain to the client's. 0, *ret_own to be told to
 * the client, and *ret_link; -EPERM (its queue pairs are connected through rdma_cm), -EINVAL (the
 * device refuses these attributes), -EUSERS (as many as there may be), -ECONNRESET (the peer was
 * ended), -EHOSTUNREACH, -EIO, -ENOMEM.
 */
int fp_cm_server_peer_connect(struct fp_cm_server_peer *peer, const struct fp_verbs_address *client,
                              struct fp_verbs_address *ret_own, struct fp_cm_server_link **ret_link);
/* Destroys the queue pair, if the end of its peer has not; a link holds its peer. NULL is fine. */
void fp_cm_server_link_close(struct fp_cm_server_link *link);

#endif
