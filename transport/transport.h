/*
 * The transport interface: sessions, leases and links to one memory node, the same for shm, tcp and
 * rdma. Room: transport. Bytes only: it knows offsets in leases, never pages, slots or faults.
 *
 *   session   one client's standing at one node: made once, owns the leases. Control calls block (with a
 * deadline), may allocate, and are serialised by the session's own lock: any thread, never a fault
 * thread.
 *   lease     a contiguous piece of a pool. On load/store transports (shm) it is mapped here, see base.
 *   link      one data path of a session, owned by one thread (asserted). Several links reach the same
 * leases, so that demand reads need not queue behind write-backs. Submitting and polling never
 * allocate, never block.
 */
#ifndef FP_TRANSPORT_H
#define FP_TRANSPORT_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_IO_MAX_SEGS   64          /* segments of one request */
#define FP_SEG_MAX_BYTES (64u << 10) /* bytes of one segment */

struct fp_session;
struct fp_link;
struct fp_rdma_options;

/* One way to a node: one address over one transport. */
struct fp_url {
	const struct fp_transport *transport;
	char text[128]; /* as given; of one address of several: "SCHEME://HOST[:PORT]" */
	char host[108]; /* host name or address; for shm the socket's path ("@name": abstract) */
	uint16_t port;  /* tcp, rdma: 0 was replaced by the default */
};

#define FP_URL_MAX_ADDRESSES  8
#define FP_URL_MAX_TRANSPORTS 2

/* All the ways to one node: each of its addresses over each transport that its URL allows. */
struct fp_url_set {
	unsigned n_addresses;  /* as they were named */
	unsigned n_transports; /* of auto: those that this build has, best first; else 1 */
	struct fp_url urls[FP_URL_MAX_TRANSPORTS][FP_URL_MAX_ADDRESSES];
};

/* How the bytes of a segment travel on rdma. All but AUTO are for measuring: what one cannot carry
 * goes eager. */
enum fp_protocol {
	FP_PROTOCOL_AUTO,   /* registered where a region holds the buffer; small WRITEs inline; else eager */
	FP_PROTOCOL_INLINE, /* WRITE: in the work request itself, up to what the device takes */
	FP_PROTOCOL_EAGER,  /* copied through registered memory of the link's own */
	FP_PROTOCOL_REGISTERED, /* straight from or into the caller's buffer, see fp_link_register */
};

/* "auto", "inline", "eager", "registered". 0 and *ret_protocol, or -EINVAL. */
int fp_protocol_parse(const char *text, enum fp_protocol *ret_protocol);

struct fp_session_options {
	const char *client_name; /* shown by the node; NULL: comm and pid */
	const char *secret;      /* of this client; not copied: it outlives the session; NULL: none */
	uint64_t deadline_ns;    /* of each control call and, unless an io says otherwise, each request */
	uint64_t connect_ns;     /* of the opening alone; 0: deadline_ns */
	const struct fp_session_identity *resume; /* NULL: a new session; else this one goes on */
	enum fp_protocol protocol;                /* of its links */
	const struct fp_rdma_options *rdma; /* not copied: it outlives the session; NULL: the defaults */
};

/* What a session whose connection broke is resumed by, and its leases adopted. A secret: whoever
 * has it reaches the leases. */
struct fp_session_identity {
	uint64_t idle_ns; /* the node takes a connection that is silent for so long as broken; 0: never */
	uint64_t id;
	uint8_t token[16];
	uint64_t grace_ns; /* how long the node keeps the leases of a session that is cut off */
};

/* A granted lease. Owned by the session; valid until it is released or the session closes. */
struct fp_lease {
	uint32_t id; /* of this session, chosen by the node */
	uint64_t size_bytes;
	void *base;     /* where it is mapped here (load/store transports), else NULL */
	bool read_only; /* adopted: a write of it is refused with -EACCES */
	/* where a device at the node finds it, by which key (rdma); 0 where the transport has
	 * none */
	uint64_t remote_address;
	uint32_t remote_key;
};

struct fp_node_info {
	uint64_t capacity_bytes; /* all pools */
	uint64_t free_bytes;
};

/* What a draining node still holds. */
struct fp_drain_info {
	uint64_t leased_bytes; /* to all sessions */
	uint32_t sessions;
};

enum fp_io_op { FP_IO_READ, FP_IO_WRITE };

struct fp_seg {
	uint32_t lease_id;
	uint32_t len_bytes;    /* 1..FP_SEG_MAX_BYTES */
	uint64_t offset_bytes; /* in the lease */
	void *buf;             /* local; stays valid and untouched until the io completes */
};

/*
 * One request: all segments move in one direction. Owned by the caller, who keeps it (and segs) in
 * place from submit until it comes out of fp_link_poll. It completes exactly once: 0, or a negative
 * errno.
 *
 * -ETIMEDOUT: the deadline passed. What was sent can't be taken back, so the link breaks with it.
 *
 * -ECONNRESET, -EPIPE, ...: the link broke. Every outstanding io ends so, the link is dead.
 *
 * -EACCES: no such lease, or out of its bounds: said before the node is asked. A refusal of the
 * node or its device breaks the link, too.
 *
 * After a failed or timed-out write the remote bytes are undefined; after a failed read the buffers
 * are.
 */
struct fp_io {
	enum fp_io_op op;
	unsigned n_segs;
	struct fp_seg *segs;
	uint64_t deadline_ns; /* absolute, CLOCK_MONOTONIC; 0: session's default from now */
	int status;           /* result, valid once polled */
	void *user;           /* caller's */
	/* the transport's, between submit and poll */
	uint64_t tag;
	struct fp_io *next;
	uint64_t priv[4];
};

struct fp_transport {
	const char *scheme;    /* "shm", "tcp", "rdma" */
	uint16_t default_port; /* 0: the scheme has none */
	bool load_store;       /* leases are mapped: fp_lease.base is set, reads and writes are copies */
	int (*session_open)(const struct fp_url *url, const struct fp_session_options *options,
	                    struct fp_session **ret_session);
	void (*session_close)(struct fp_session *session);
	int (*lease)(struct fp_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease);
	int (*release)(struct fp_session *session, uint32_t lease_id);
	int (*info)(struct fp_session *session, struct fp_node_info *ret_info);
	int (*status)(struct fp_session *session, char **ret_json);
	int (*drain)(struct fp_session *session, struct fp_drain_info *ret_info);
	int (*undrain)(struct fp_session *session);
	int (*ping)(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns);
	int (*check)(struct fp_session *session); /* NULL: its links and heartbeats tell */
	int (*identity)(struct fp_session *session, struct fp_session_identity *ret_identity);
	int (*attach)(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease);
	int (*adopt)(struct fp_session *session, const struct fp_session_identity *parent,
	             unsigned *ret_n_leases);
	void (*abandon)(struct fp_session *session);
	int (*link_open)(struct fp_session *session, struct fp_link **ret_link);
	void (*link_close)(struct fp_link *link);
	int (*link_register)(struct fp_link *link, void *base,
	                     size_t len_bytes);   /* NULL: has no use for it */
	void (*link_break)(struct fp_link *link); /* NULL: nothing is ever outstanding */
	int (*submit)(struct fp_link *link, struct fp_io *io);
	int (*poll)(struct fp_link *link, struct fp_io **ret_done, unsigned max);
	int (*pollfd)(struct fp_link *link, struct pollfd *ret_pollfd);
};

/* First members of each transport's own session and link, so that the calls below can dispatch. */
struct fp_session {
	const struct fp_transport *transport;
};
struct fp_link {
	const struct fp_transport *transport;
	const struct fp_session *session;
	pthread_t owner; /* who submitted last, while owned */
	bool owned;
	const char *why;                /* see fp_link_why */
	struct fp_io *done, *last_done; /* completed, in order, not yet polled */
	unsigned n_done;
};

/* For transports: completes an io, which the next fp_link_poll hands out. */
void fp_link_io_done(struct fp_link *link, struct fp_io *io, int status);
/* For transports: hands out up to max of those. Returns their number. */
int fp_link_take_done(struct fp_link *link, struct fp_io **ret_done, unsigned max);

extern const struct fp_transport fp_transport_shm, fp_transport_tcp, fp_transport_rdma, fp_transport_rdma_tcp;

/*
 * Parses the URL of one way: "shm:PATH", "tcp://HOST[:PORT]", "rdma://HOST[:PORT]" or
 * "rdma+tcp://HOST[:PORT]" (control over tcp, data over queue pairs connected by hand); IPv6 hosts in
 * brackets. 0 and *ret_url; -EINVAL (not a URL of ours, or one of several ways), -EPROTONOSUPPORT
 * (a scheme that this build lacks), -ENAMETOOLONG.
 */
int fp_url_parse(const char *text, struct fp_url *ret_url);

/*
 * Parses those, "SCHEME://HOST,HOST[:PORT]" (one node at up to FP_URL_MAX_ADDRESSES addresses; the port is
 * that of all) and "auto://HOST[,HOST][:PORT]" (tcp on PORT, rdma on PORT + 1 and preferred; no port: the
 * default of each). 0 and *ret_set; as fp_url_parse; -E2BIG: too many addresses.
 */
int fp_url_parse_set(const char *text, struct fp_url_set *ret_set);

/*
 * Connects, shakes hands (version, authentication) and opens a session. Blocks up to
 * options->deadline_ns. 0 and *ret_session; -ECONNREFUSED, -ENOENT, -EHOSTUNREACH, -ETIMEDOUT,
 * -EPROTO (the peer does not speak our protocol), -EPROTONOSUPPORT (no common version), -EACCES
 * (wrong or missing secret), -EKEYREJECTED (the node could not prove that it knows the secret).
 * Release with fp_session_close, after its links.
 */
int fp_session_open(const struct fp_url *url, const struct fp_session_options *options,
                    struct fp_session **ret_session);
#define FP_EXPLAIN_LEN 512
/*
 * What such an error means and what to do, for a person; rdma as in the session's options. Returns
 * buf (FP_EXPLAIN_LEN bytes) or a constant. May read a few small files.
 */
const char *fp_session_explain(int error, const struct fp_rdma_options *rdma, char *buf, size_t len);

void fp_session_close(struct fp_session *session);

/* Asks for size_bytes (a multiple of 4 KiB), zeroed. -ENOSPC: pools are full; -EDQUOT: over the
 * quota. */
int fp_session_lease(struct fp_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease);

/* Gives a lease back. No io may be outstanding on it. */
int fp_session_release(struct fp_session *session, uint32_t lease_id);

int fp_session_info(struct fp_session *session, struct fp_node_info *ret_info);

#define FP_PING_MAX_BYTES 4096u

/*
 * One round trip over the control connection that carries len_bytes (at most FP_PING_MAX_BYTES)
 * each way: heartbeat, and the measure of a two-sided call. deadline_ns: absolute; 0: the
 * session's. -ETIMEDOUT: no answer yet (the session may live); other errors: its control connection
 * is broken.
 */
int fp_session_ping(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns);

/*
 * Whether a session whose leases are mapped still stands: 0; -ECONNRESET: the node has ended it, or
 * was ended; -EBADF: its descriptor was closed behind our back. What is mapped stays, and stays
 * right; a node that runs on counts it as kept. 0 over other transports. Any thread; neither asks
 * the node nor blocks.
 */
int fp_session_check(struct fp_session *session);

/*
 * What to put into options->resume when the connection has broken, within grace_ns of that. Valid
 * also once it is broken. Opening with it makes a session of a new connection, over any transport
 * and address of the same node, that owns the same leases: none is known here until
 * fp_session_attach. The node ends the old connection and all its links before it answers: nothing
 * that was still under way on them lands afterwards. -ESTALE (of fp_session_open): the node knows
 * no such session, its leases are gone. Sessions over shm have an identity too, for
 * fp_session_adopt, with grace_ns 0: opening with it is -EOPNOTSUPP (a mapping does not break).
 * Never blocks; any thread.
 */
int fp_session_identity(struct fp_session *session, struct fp_session_identity *ret_identity);

/* Makes a lease of a session that was resumed, or has adopted it, known and reachable here.
 * -EACCES: it has no such lease; -EPERM: shm, whose leases are passed once, when they are
 * granted. */
int fp_session_attach(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease);

/*
 * Gives a session that has no lease yet every lease of another one of the same node (a living one,
 * or one that is cut off and in its grace period), by the same ids and read-only. A lease ends when
 * the last session that has it has released it or ended, so the bytes stay as they are for as long
 * as nobody who may write them does. None is known here until fp_session_attach; over shm no
 * mapping comes of it (a forked child has its parent's, see fp_session_abandon), but
 * fp_session_release takes these ids all the same. What the parent itself had adopted comes along.
 * The session stays an adopter through a resume.
 *
 * Its memory stays charged to the client that it was granted to, until nobody has it. Leases that
 * are asked for later have other ids. 0 and *ret_n_leases (may be NULL), how many it has now;
 * -ESTALE: the node knows no such session, or not by this token; -EINVAL: the session has leases,
 * or has adopted before, or is the parent itself; errors of control calls, after which it may have
 * adopted or not: close it and adopt with another.
 */
int fp_session_adopt(struct fp_session *session, const struct fp_session_identity *parent,
                     unsigned *ret_n_leases);

/*
 * Closes this end of a session that was resumed, or is to be: its connection goes away without the
 * word that gives the leases back. After its links. Leases that are mapped stay so, and are the
 * caller's to unmap. fp_session_close unmaps them and says that word, so that the node frees them
 * at once.
 *
 * In a forked child both close its copies of the descriptors, say nothing and unmap nothing. As
 * long as the child has its copy of a socket, the node does not see the parent's end.
 */
void fp_session_abandon(struct fp_session *session);

/*
 * What the node says of itself: one JSON object, malloc'd for the caller. -EPERM: it does not tell
 * this client.
 */
int fp_session_status(struct fp_session *session, char **ret_json);

/* Asks the node to grant no further leases to anyone; what is leased stays usable. -EPERM as
 * above. */
int fp_session_drain(struct fp_session *session, struct fp_drain_info *ret_info);
/* Takes that back: the node grants leases again. Fine where it was not asked. -EPERM as above. */
int fp_session_undrain(struct fp_session *session);

/*
 * In a forked child, once it has closed its copies of its parent's links and sessions, and before
 * it opens its own: lets go of devices, so that the parent's sessions end with the parent, and of
 * locks. Again is fine. Blocks not.
 */
void fp_transport_forked(void);
/*
 * To be called now and then, by a thread that may block: lets go of devices that were taken from
 * this machine, for which whoever takes them waits.
 */
void fp_transport_check_devices(void);

/* A new data path. The calling thread need not be the owner: the first to submit is. */
int fp_link_open(struct fp_session *session, struct fp_link **ret_link);
/* The next thread that submits or polls is the owner. The caller makes sure that it sees all of
 * this one's work. */
void fp_link_hand_over(struct fp_link *link);
/*
 * Says that buffers of later ios lie in these bytes, so that a device may reach them without a
 * copy. A hint: whoever fails or has no use for it copies. The bytes stay in place until the link
 * closes. Before the first submit; blocks.
 */
void fp_link_register(struct fp_link *link, void *base, size_t len_bytes);
/*
 * The link is of no use any more: every outstanding io comes out of fp_link_poll with an error,
 * soon, unless it is done. Again is fine. Its owner's; never blocks.
 */
void fp_link_break(struct fp_link *link);
/*
 * Outstanding ios are abandoned: they do not complete, and nothing touches their buffers any more.
 * NULL is fine.
 */
void fp_link_close(struct fp_link *link);

/*
 * Starts io. 0: it will come out of fp_link_poll (also when the link is already dead: with an error
 * status); -EAGAIN: as many are outstanding as the link takes, poll first; -EINVAL: n_segs or a
 * length is out of range.
 */
int fp_link_submit(struct fp_link *link, struct fp_io *io);

/* Makes progress and hands out up to max completed ios. Returns their number (0: none yet). Never
 * blocks. */
int fp_link_poll(struct fp_link *link, struct fp_io **ret_done, unsigned max);

/*
 * What broke the link, in the words of its device, such as "transport retry counter exceeded";
 * NULL: it works, or its errors say all that is known. Static. Its owner's.
 */
const char *fp_link_why(const struct fp_link *link);

/*
 * What to wait for until fp_link_poll may have more: fd and events; fd -1 where completions are
 * always immediate (shm). Also poll again when the nearest deadline passes. Returns 1 if an fd was
 * given, else 0.
 */
int fp_link_pollfd(struct fp_link *link, struct pollfd *ret_pollfd);

#endif
