/*
 * Verbs as Farpage uses them: domains, registered memory, and reliable connections that READ and
 * WRITE slices of memory at both ends. Room: transport; only verbs*.c include verbs headers. It
 * knows bytes and keys, no lease, frame or page.
 *
 *   domain      a protection domain on one device; queue pairs of other domains can't use its keys
 *   region      registered, and thereby pinned, memory of a domain
 *   connection  one RC queue pair with its completion queue and channel
 *
 * libibverbs and librdmacm are loaded when first needed: a program that uses tcp or shm loads
 * neither. A connection belongs to one thread at a time. Any thread may use domains and
 * registration.
 */
#ifndef FP_VERBS_H
#define FP_VERBS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "cleanup.h"

struct fp_verbs_domain;
struct fp_verbs_conn;
struct fp_verbs_listener;
struct rdma_cm_id;

#define FP_VERBS_PRIVATE_MAX 56 /* bytes that every fabric carries in a connection request */
#define FP_VERBS_CHAIN_MAX   64 /* work requests per doorbell */

/*
 * Loads the libraries, once. 0; -ELIBACC: libibverbs.so.1 or librdmacm.so.1 is not installed;
 * -EOPNOTSUPP: the program uses librdmacm itself (see fp_verbs_forget).
 */
int fp_verbs_load(void);

/*
 * Called in a forked child, before it opens anything and while it has one thread. Closes the
 * inherited devices and connections. So the parent's connections end with the parent, and the child
 * can make its own. The child must not use its parent's domains, regions and connections, not even
 * to release them: their memory is lost. If the program itself uses librdmacm, that library can't
 * be unloaded and keeps the parent's state for ever. Then fp_verbs_load fails with -EOPNOTSUPP.
 * Calling it twice is fine.
 */
void fp_verbs_forget(void);

/* ---- domains and regions ---- */

struct fp_verbs_limits {
	char device[64];
	bool iwarp;
	unsigned max_reads; /* READs that one queue pair may have outstanding in each direction */
};

struct fp_verbs_region {
	void *mr; /* NULL: not registered */
	void *base;
	size_t len_bytes;
	uint32_t lkey, rkey;
};

enum fp_verbs_access {
	FP_VERBS_LOCAL,       /* for this end's own work requests */
	FP_VERBS_REMOTE,      /* the peer may READ and WRITE it too */
	FP_VERBS_REMOTE_READ, /* the peer may READ it; nobody may write it by this key */
};

/*
 * Domains are counted; each connection holds a reference to its domain. The first three functions
 * make a domain. They return 0, or -ELIBACC, -ENODEV (there is no such device), -ENOMEM, -EIO, ...
 *
 * fp_verbs_domain_to: on the device that reaches `host`. Also -EHOSTUNREACH, or -ETIMEDOUT at
 * deadline_ns.
 *
 * fp_verbs_domain_at: on the device that has the address `own` of this machine; its port is 0. Also
 * -EADDRNOTAVAIL.
 *
 * fp_verbs_domain_open: on the device with the name `device`, for queue pairs connected without
 * rdma_cm. device NULL: on the first device with an active port. port_num: the port that must be
 * active; 0: any.
 */
int fp_verbs_domain_to(const char *host, uint64_t deadline_ns, struct fp_verbs_domain **ret_domain);
int fp_verbs_domain_at(const struct sockaddr *own, struct fp_verbs_domain **ret_domain);
int fp_verbs_domain_open(const char *device, uint8_t port_num, struct fp_verbs_domain **ret_domain);
struct fp_verbs_domain *fp_verbs_domain_ref(struct fp_verbs_domain *domain);
/* Puts a reference. Deregister the regions before the last one. NULL is fine. */
void fp_verbs_domain_unref(struct fp_verbs_domain *domain);
FP_DEFINE_CLEANUP(struct fp_verbs_domain, verbs_domain, fp_verbs_domain_unref)
const struct fp_verbs_limits *fp_verbs_domain_limits(const struct fp_verbs_domain *domain);
/* True once the device said that it failed or was removed. Lock-free, no system call. */
bool fp_verbs_domain_dead(const struct fp_verbs_domain *domain);
/*
 * Takes one event of the device about its queue pairs, its ports or itself. All domains of a device
 * share these events: the first caller gets them. Returns 1, *ret_text (static: "QP access error")
 * and *ret_qpn, the number of the queue pair (0: the event is not about a queue pair). Returns 0 if
 * there is no event. Never blocks.
 */
int fp_verbs_domain_event(struct fp_verbs_domain *domain, uint32_t *ret_qpn, const char **ret_text);
/* Readable when there may be an event. */
int fp_verbs_domain_event_fd(const struct fp_verbs_domain *domain);

/*
 * Notices devices that are gone from this machine. Closes each of them once its last domain is
 * closed, because the kernel's removal of the device waits for this. Connecting and listening run
 * this check, too. If you do neither, call it from time to time. Any thread; a few system calls, no
 * allocation.
 */
void fp_verbs_devices_check(void);

/*
 * Registers memory. 0 and *ret_region; -ENOMEM (usually RLIMIT_MEMLOCK is too low), -EFAULT, -EIO
 * (no device). A GiB takes 65 to 75 ms.
 */
int fp_verbs_register(struct fp_verbs_domain *domain, void *base, size_t len_bytes,
                      enum fp_verbs_access access, struct fp_verbs_region *ret_region);
/* A region that is not registered is fine. */
void fp_verbs_deregister(struct fp_verbs_region *region);

/* ---- connections ---- */

struct fp_verbs_conn_options {
	unsigned send_depth; /* work requests outstanding, READs and WRITEs included */
	unsigned recv_depth; /* receives posted; 0: none ever */
	bool responder;      /* the peer READs from here: allow it all READs that the device can answer */
	uint8_t retry_count; /* repeats of an unacknowledged request, 0 to 7 */
	uint8_t ack_timeout; /* 4.096 µs << this between retries, 1 to 31; 0: the fabric's default */
	uint8_t port_num;    /* port of the device, without rdma_cm; 0: the first active one */
};

/*
 * Connects through rdma_cm: resolves the route, sends private_data (at most FP_VERBS_PRIVATE_MAX
 * bytes) with the request, and waits for the peer's answer until deadline_ns. 0 and *ret_conn;
 * -EHOSTUNREACH (no address, route or device reaches the peer), -ECONNREFUSED (rejected, or nobody
 * listens), -ETIMEDOUT, -EXDEV (another device than the domain's reaches the peer), -EIO, -ENOMEM.
 *
 * The peer may send bytes when it accepts or rejects. They go to `reply`, at most *reply_len of
 * them; afterwards *reply_len is their number. Fabrics may pad them with zeros.
 */
int fp_verbs_connect(const struct sockaddr *address, const struct fp_verbs_conn_options *options,
                     const void *private_data, size_t private_len, uint64_t deadline_ns,
                     struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn, void *reply,
                     size_t *reply_len);

/*
 * The address of the queue pair at one end. The other end needs it to connect without rdma_cm or IP
 * addresses.
 */
struct fp_verbs_address {
	uint32_t qpn;
	uint32_t psn; /* 24 bits, random */
	uint16_t lid;
	uint8_t mtu;     /* enum ibv_mtu: 1 (256 bytes) to 5 (4096) */
	uint8_t n_reads; /* READs that it can answer at once */
	uint8_t gid[16];
};

/* Makes a queue pair in state INIT, and *ret_own, its address for the peer. */
int fp_verbs_manual_open(struct fp_verbs_domain *domain, const struct fp_verbs_conn_options *options,
                         struct fp_verbs_conn **ret_conn, struct fp_verbs_address *ret_own);
/*
 * Takes the queue pair through RTR to RTS. 0; -EINVAL (the device refuses these attributes),
 * -EHOSTUNREACH, -EIO.
 */
int fp_verbs_manual_connect(struct fp_verbs_conn *conn, const struct fp_verbs_address *peer);

/*
 * Destroys the queue pair. When this returns nothing touches its buffers any more, even if the
 * device has gone. Outstanding work does not complete. An rdma_cm connection says good-bye first.
 * NULL is fine.
 */
void fp_verbs_conn_close(struct fp_verbs_conn *conn);
FP_DEFINE_CLEANUP(struct fp_verbs_conn, verbs_conn, fp_verbs_conn_close)
/*
 * Puts the queue pair into its error state: all outstanding work completes with -ECANCELED, then
 * nothing touches its buffers. 0; or a negative errno: then the state of the work is unknown until
 * the connection is closed.
 */
int fp_verbs_conn_flush(struct fp_verbs_conn *conn);
struct fp_verbs_domain *fp_verbs_conn_domain(const struct fp_verbs_conn *conn);
uint32_t fp_verbs_conn_qpn(const struct fp_verbs_conn *conn);
/* READs that may be outstanding at once: the smaller of this end's limit and the peer's. */
unsigned fp_verbs_conn_max_reads(const struct fp_verbs_conn *conn);
/* Bytes that a WRITE may carry inline: the buffer is free again when the post returns. */
unsigned fp_verbs_conn_max_inline(const struct fp_verbs_conn *conn);
/* Asks rdma_cm (client side) whether the peer has gone. 0: no; else the error. */
int fp_verbs_conn_check(struct fp_verbs_conn *conn);
/*
 * Whether fp_verbs_conn_check would find an event, or the device has gone. On a connection in use
 * this is a sign that the peer has gone. Leaves the event where it is, because librdmacm allocates
 * memory to hand one out. Costs one poll(2).
 */
bool fp_verbs_conn_stirs(const struct fp_verbs_conn *conn);

enum fp_verbs_op {
	FP_VERBS_READ,
	FP_VERBS_WRITE,
};

/*
 * What a work request transfers: len_bytes between local memory and the peer's memory. A receive
 * uses only the local memory.
 */
struct fp_verbs_work {
	enum fp_verbs_op op;
	bool signalled;   /* gets its own completion; an error always gets one */
	bool inline_data; /* WRITE of at most max_inline bytes: copied at once, needs no key */
	uint32_t len_bytes;
	void *local;
	uint32_t lkey;
	uint32_t rkey;
	uint64_t remote;
	uint64_t id; /* the caller's, 48 bits */
};

struct fp_verbs_completion {
	uint64_t id;
	int status;    /* 0, or see fp_verbs_status */
	int wc_status; /* enum ibv_wc_status, for fp_verbs_status_text */
};

/*
 * Posts n (at most FP_VERBS_CHAIN_MAX) work requests as one chain with one doorbell. They begin in
 * order. READs of one connection complete in order, and so do its WRITEs. 0; -EAGAIN: send_depth
 * has no room for n, and nothing was posted; any other error: the connection is broken. No
 * allocation, no blocking.
 */
int fp_verbs_post(struct fp_verbs_conn *conn, const struct fp_verbs_work *work, unsigned n);
/*
 * Posts one receive of at least one byte, in a region: siw refuses empty ones. Result like that of
 * fp_verbs_post; op is ignored.
 */
int fp_verbs_post_recv(struct fp_verbs_conn *conn, const struct fp_verbs_work *work);
/* Returns up to max completions; 0: none; negative: the completion queue is dead. Never blocks. */
int fp_verbs_poll(struct fp_verbs_conn *conn, struct fp_verbs_completion *ret, unsigned max);
/*
 * Asks for an event at the next completion, and gives the descriptor to poll. Poll completions once
 * more before waiting: one may have come in between. 0 or a negative errno.
 */
int fp_verbs_arm(struct fp_verbs_conn *conn, struct pollfd *ret_pollfd);

/*
 * The errno of an ibv_wc_status: 0; -ECANCELED (flushed: another request broke the queue pair),
 * -EACCES (the peer refused key or bounds), -ETIMEDOUT (retries exceeded: nobody acknowledged),
 * -ENOBUFS (RNR retries exceeded: the peer had no receive posted), -EFAULT (protection error at
 * this end), -EIO (all others).
 */
int fp_verbs_status(int wc_status);
/*
 * The text of a status: "transport retry counter exceeded". Static, also after the connection
 * closed.
 */
const char *fp_verbs_status_text(int wc_status);

/* ---- the listening side (one thread) ---- */

enum fp_verbs_event_type {
	FP_VERBS_EV_NONE,         /* nothing more to say for now */
	FP_VERBS_EV_REQUEST,      /* accept or reject ev.request */
	FP_VERBS_EV_ESTABLISHED,  /* ev.conn can be used */
	FP_VERBS_EV_DISCONNECTED, /* ev.conn's peer has gone, or never came: close it */
	/*
	 * A device has gone: that of ev.conn, or, if ev.conn is NULL, that of the address ev.idx.
	 * Close the connection at once.
	 */
	FP_VERBS_EV_DEVICE_GONE,
};

/* A connection request. fp_verbs_prepare or fp_verbs_reject uses it up. */
struct fp_verbs_request {
	struct fp_verbs_listener *listener;
	struct rdma_cm_id *id;
	/*
	 * How many READs the peer wants to have outstanding here, and how many READs of ours it can
	 * answer at once.
	 */
	uint8_t n_peer_asks, n_peer_answers;
};

struct fp_verbs_event {
	enum fp_verbs_event_type type;
	struct fp_verbs_request request;
	struct fp_verbs_conn *conn;
	unsigned idx;
	size_t private_len; /* of a request */
	uint8_t private_data[FP_VERBS_PRIVATE_MAX];
	char peer[80];   /* "10.0.0.1:40000" */
	const char *why; /* static: "timewait", "unreachable", "disconnected" */
};

#define FP_VERBS_MAX_ADDRESSES 16u

int fp_verbs_listener_open(struct fp_verbs_listener **ret_listener);
/* Called every few seconds: frees the requests that were rejected before the last call. */
void fp_verbs_listener_sweep(struct fp_verbs_listener *listener);
/* Ends the listener. Close the connections that came in through it first. NULL is fine. */
void fp_verbs_listener_close(struct fp_verbs_listener *listener);
int fp_verbs_listener_fd(const struct fp_verbs_listener *listener);
/*
 * Listens at one more address of this machine. The any-address stands for all addresses, also for
 * those that the machine gets later. The caller chooses idx: below FP_VERBS_MAX_ADDRESSES and not
 * in use. 0; -EADDRINUSE, -EADDRNOTAVAIL, -ENODEV.
 */
int fp_verbs_listen(struct fp_verbs_listener *listener, unsigned idx, const struct sockaddr *own);
/* Stops listening there. Connections that came in stay. */
void fp_verbs_unlisten(struct fp_verbs_listener *listener, unsigned idx);
uint16_t fp_verbs_listener_port(const struct fp_verbs_listener *listener, unsigned idx);
/* The next event; *ret of type NONE if there is none. Never blocks. 0, or a negative errno: the
 * listener is dead. */
int fp_verbs_listener_next(struct fp_verbs_listener *listener, struct fp_verbs_event *ret);
/*
 * Admits a request in two steps. fp_verbs_prepare makes the connection in domain, so that the
 * caller can post receives before the peer is told. fp_verbs_admit tells the peer. fp_verbs_prepare
 * always uses the request up: if it fails, it rejects the peer without a reply. -EXDEV: the request
 * came in over a device that is not the domain's. Between the two steps, fp_verbs_conn_close
 * rejects the peer.
 */
int fp_verbs_prepare(struct fp_verbs_request *request, const struct fp_verbs_conn_options *options,
                     struct fp_verbs_domain *domain, struct fp_verbs_conn **ret_conn);
int fp_verbs_admit(struct fp_verbs_conn *conn, const void *reply, size_t reply_len);
/* Does not wait until the peer is told: fp_verbs_listener_sweep frees the request later. */
void fp_verbs_reject(struct fp_verbs_request *request, const void *reply, size_t reply_len);
void fp_verbs_conn_set_user(struct fp_verbs_conn *conn, void *user);
void *fp_verbs_conn_user(const struct fp_verbs_conn *conn);

#endif
