/*
 * The server: where a memory node is entered by rdma. One thread a node process owns the rdma
 * listeners, the control stream of every peer and every queue pair. Room: transport; the daemon
 * uses it, the compute side never. It knows connections, proofs and bytes, never frames or leases;
 * what a lease is to be registered for its caller says.
 *
 *   connection request ──► magic, version, proof? ──no──► rejected with a status
 *        │ CONTROL, RESUME                   │ LINK: peer of that session, proof by its token
 *        ▼                                   ▼
 *   a peer: domain of its own,          a queue pair in that peer's domain, that READs and WRITEs what is
 *   stream ◄─pump─► socket pair         registered there and says nothing. One receive is posted on it: its
 *                       │               flush tells that the queue pair broke
 *                       ▼ event
 *               the daemon's loop: a connection like any other
 *
 * One peer is one control connection and one protection domain. It is cut off when its connection
 * breaks: its links are destroyed and its socket ends. The daemon ends it (fp_cm_server_peer_end)
 * in any case, deregisters what it registered for it, and lets go of it. A session over tcp whose
 * queue pairs are connected by hand has a peer too, one without a stream.
 *
 * Threads: everything that touches a queue pair runs on the server's thread; calls from others post
 * an order to it and wait until it was carried out (some milliseconds). The thread sleeps in
 * poll(2) on completion channels, CM events, device events and socket ends, so READs and WRITEs of
 * peers, which make none, cost no CPU. It never waits for the daemon: event that a full pipe does
 * not take is dropped, with what it was about.
 */
#ifndef FP_CM_SERVER_H
#define FP_CM_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs.h"
#include "wire.h"

#define FP_CM_SERVER_MAX_LINKS     64u /* queue pairs of one peer, its stream not counted */
#define FP_CM_SERVER_MAX_LISTENERS 16u
#define FP_CM_SERVER_NAME_BYTES    80u

struct fp_cm_server;
struct fp_cm_server_peer;
struct fp_cm_server_link;

struct fp_cm_server_address {
	const char *host; /* numeric; NULL: all devices and addresses, also those that come later */
	uint16_t port;    /* 0: any */
};

struct fp_cm_server_options {
	const struct fp_cm_server_address *listen;
	unsigned n_listen;
	/* Whether who asks for a CONTROL or RESUME is let in. On the server's thread; must not
	 * block. */
	bool (*admits)(void *user, const struct fp_wire_cm *cm);
	void *user;
	const struct fp_rdma_options *rdma; /* not copied: it outlives the server; NULL: the defaults */
	bool by_hand;            /* queue pairs are connected by hand, too: on a device of rdma, not iWARP */
	unsigned max_peers;      /* with a stream */
	unsigned max_unfinished; /* of them: requests whose connection is not there yet; the oldest goes */
};

enum fp_cm_server_event_type {
	FP_CM_SERVER_EVENT_PEER,     /* one has come */
	FP_CM_SERVER_EVENT_REJECTED, /* somebody was not let in; why */
	FP_CM_SERVER_EVENT_DENIED,   /* a link broke because its client used what it has no key for; why */
	FP_CM_SERVER_EVENT_BROKEN,   /* a peer's control connection broke; why, in the words of its device */
	FP_CM_SERVER_EVENT_DEVICE,   /* why: a device or a listener went away, or came back */
};

/* What the server tells: records of this size come out of fp_cm_server_event_fd. */
struct fp_cm_server_event {
	enum fp_cm_server_event_type type;
	int fd;                         /* PEER: the daemon's end of its byte stream, now the reader's */
	struct fp_cm_server_peer *peer; /* PEER: a reference, now the reader's; else NULL */
	uint64_t session_id;            /* DENIED, BROKEN */
	const char *why;                /* static */
	char who[FP_CM_SERVER_NAME_BYTES];
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
 * Opens listeners and starts the thread. 0 and *ret_server; -ELIBACC (libibverbs.so.1 or
 * librdmacm.so.1 is not installed), -ENODEV (there is no rdma device; or not that device, or none
 * with such an address), -EADDRINUSE, -EADDRNOTAVAIL, -ENOMEM. *ret_failed: the index of the
 * address that failed, n_listen: none of them.
 */
int fp_cm_server_open(const struct fp_cm_server_options *options, struct fp_cm_server **ret_server,
                      unsigned *ret_failed);
/*
 * Destroys all queue pairs, ends all peers, stops the thread. References to peers stay valid until
 * they are put. NULL is fine. News that was not read is given up, with descriptors and references.
 */
void fp_cm_server_close(struct fp_cm_server *server);
FP_DEFINE_CLEANUP(struct fp_cm_server, server, fp_cm_server_close)

/* The read end of a pipe, blocking, of whole records. */
int fp_cm_server_event_fd(const struct fp_cm_server *server);
/* The port of listener idx. */
uint16_t fp_cm_server_port(const struct fp_cm_server *server, unsigned idx);
/* Whether fp_cm_server_peer_new can succeed. */
bool fp_cm_server_has_device(const struct fp_cm_server *server);
void fp_cm_server_counts(const struct fp_cm_server *server, struct fp_cm_server_counts *ret_counts);

/*
 * Lets links attach to peer: those that name session_id and prove token. Before the client is told
 * either. Any thread, never blocks.
 */
void fp_cm_server_peer_admit(struct fp_cm_server_peer *peer, uint64_t session_id,
                             const uint8_t token[FP_WIRE_TOKEN_BYTES]);
/*
 * Destroys its links and lets no more attach; its stream goes on. When this returns nothing
 * registered for it can be reached any more, whatever is still under way. Any thread but the
 * server's; again is fine.
 */
void fp_cm_server_peer_fence(struct fp_cm_server_peer *peer);
/*
 * Ends it: its links and its stream are destroyed. When this returns nothing of the peer's can be
 * reached through them any more, whatever is still under way, and no link will attach. Any thread
 * but the server's; again is fine.
 */
void fp_cm_server_peer_end(struct fp_cm_server_peer *peer);
struct fp_cm_server_peer *fp_cm_server_peer_ref(struct fp_cm_server_peer *peer);
/* NULL is fine. Its regions are gone before the last, and it was ended. Any thread. */
void fp_cm_server_peer_unref(struct fp_cm_server_peer *peer);
const char *fp_cm_server_peer_name(const struct fp_cm_server_peer *peer);
/* The device that it came in by. */
const char *fp_cm_server_peer_device(const struct fp_cm_server_peer *peer);
/* Now: its queue pairs, links and stream; its regions. Any thread. */
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
 * A peer without a stream, for queue pairs connected by hand on the server's device. 0 and
 * *ret_peer, a reference; -EOPNOTSUPP: the server has none; -ENODEV, -ENOMEM.
 */
int fp_cm_server_peer_new(struct fp_cm_server *server, const char *name, struct fp_cm_server_peer **ret_peer);
/*
 * Connects a queue pair of its domain to the client's. 0, *ret_own to be told to the client, and
 * *ret_link; -EINVAL (the device refuses these attributes), -EUSERS (as many as there may be),
 * -ECONNRESET (the peer was ended), -EHOSTUNREACH, -EIO, -ENOMEM.
 */
int fp_cm_server_peer_connect(struct fp_cm_server_peer *peer, const struct fp_verbs_address *client,
                              struct fp_verbs_address *ret_own, struct fp_cm_server_link **ret_link);
/* Destroys the queue pair, if the end of its peer has not; a link holds its peer. NULL is fine. */
void fp_cm_server_link_close(struct fp_cm_server_link *link);

#endif
