/*
 * The transport interface: sessions, leases and links to one memory node, the same for shm, tcp and
 * rdma. Room: transport. It knows offsets in leases, never pages, slots or faults.
 *
 *   session   one client's state at one node. It is made once and owns the leases. Its calls block
 *             until a deadline, may allocate, and take the session's own lock: any thread may
 *             call, but never a fault thread.
 *   lease     a contiguous piece of a pool. shm maps it here: see fp_lease.base.
 *   link      one data path of a session, owned by one thread (asserted). Several links reach the
 *             same leases, so that demand reads need not queue behind write-backs. Submitting and
 *             polling never allocate, never block.
 */
#ifndef FP_TRANSPORT_H
#define FP_TRANSPORT_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "refusal.h"

#define FP_IO_MAX_SEGS   64          /* segments of one request */
#define FP_SEG_MAX_BYTES (64u << 10) /* bytes of one segment */

struct fp_session;
struct fp_link;
struct fp_rdma_options;

/* One way to reach a node: one address over one transport. */
struct fp_url {
	const struct fp_transport *transport;
	char text[128]; /* the URL as given; if it has several addresses: "SCHEME://HOST[:PORT]" */
	char host[108]; /* host name or address; for shm the socket's path ("@name": abstract) */
	uint16_t port;  /* port for tcp and rdma; the default port if none was given */
};

#define FP_URL_MAX_ADDRESSES  8
#define FP_URL_MAX_TRANSPORTS 2

/* The ways to one node: each of its addresses over each transport that its URL allows. */
struct fp_url_set {
	unsigned n_addresses; /* that the URL names */
	/*
	 * How many transports the URL allows: for auto, as many as this build has; for any other
	 * URL, one. In urls the best transport comes first.
	 */
	unsigned n_transports;
	struct fp_url urls[FP_URL_MAX_TRANSPORTS][FP_URL_MAX_ADDRESSES];
};

/*
 * How rdma moves the bytes of a segment. Programs use AUTO; the others are for measurements. A
 * segment that the chosen way cannot carry goes EAGER.
 */
enum fp_protocol {
	/*
	 * Small WRITEs go inline. Other segments go registered if a region holds the buffer, else
	 * eager.
	 */
	FP_PROTOCOL_AUTO,
	FP_PROTOCOL_INLINE,     /* WRITE: in the work request itself, up to the device's limit */
	FP_PROTOCOL_EAGER,      /* copied through the link's own registered memory */
	FP_PROTOCOL_REGISTERED, /* straight from or into the caller's buffer, see fp_link_register */
};

/* "auto", "inline", "eager", "registered". 0 and *ret_protocol, or -EINVAL. */
int fp_protocol_parse(const char *text, enum fp_protocol *ret_protocol);

struct fp_session_options {
	const char *client_name; /* shown by the node; NULL: comm and pid */
	/* The secret of this client, or NULL. Not copied: it must outlive the session. */
	const char *secret;
	uint64_t deadline_ns; /* how long a control call may take; also an io without a deadline of its own */
	uint64_t connect_ns;  /* how long the opening may take; 0: deadline_ns */
	const struct fp_session_identity *resume; /* NULL: a new session; else the session to resume */
	enum fp_protocol protocol;                /* of the session's links */
	const struct fp_rdma_options *rdma; /* not copied: must outlive the session; NULL: the defaults */
	/*
	 * A session of those who look after the node: info, status, drain, undrain and ping alone,
	 * no lease and no link. max_sessions does not keep it out. The client needs the right
	 * status or admin.
	 */
	bool is_operator;
	/*
	 * NULL, or where fp_session_open writes why the node refused the session. It does so only
	 * if it fails because the node refused, and the node said why.
	 */
	struct fp_refusal *refusal;
};

/*
 * Names a session, so that a caller can resume it after a break, or adopt its leases. It is a
 * secret: everyone who has it reaches the leases.
 */
struct fp_session_identity {
	uint64_t idle_ns; /* silence after which the node drops a connection; 0: never */
	uint64_t id;
	uint8_t token[16];
	uint64_t grace_ns; /* how long the node keeps the leases of a session that is cut off */
};

/* A granted lease. Owned by the session; valid until it is released or the session closes. */
struct fp_lease {
	uint32_t id; /* chosen by the node, unique in this session */
	uint64_t size_bytes;
	void *base;     /* where it is mapped here (load/store transports), else NULL */
	bool read_only; /* adopted: writes are refused with -EACCES */
	/* rdma: the address and the key by which a device reaches it at the node; else 0 */
	uint64_t remote_address;
	uint32_t remote_key;
};

struct fp_node_info {
	uint64_t capacity_bytes;   /* of all pools that this session can lease from */
	uint64_t free_bytes;       /* of them, at most what the node's host can give now */
	uint64_t quota_bytes;      /* of this client, in all its sessions; UINT64_MAX: none */
	uint64_t charged_bytes;    /* of that quota, in use now */
	struct fp_refusal refusal; /* what would refuse even the smallest lease now; cause NONE: nothing */
};

/* The leases that a draining node still has. */
struct fp_drain_info {
	uint64_t leased_bytes; /* of all sessions */
	uint32_t sessions;
};

enum fp_io_op { FP_IO_READ, FP_IO_WRITE };

struct fp_seg {
	uint32_t lease_id;
	uint32_t len_bytes;    /* 1..FP_SEG_MAX_BYTES */
	uint64_t offset_bytes; /* in the lease */
	void *buf;             /* local; must stay valid and untouched until the io completes */
};

/*
 * One request: all segments move in one direction. The caller owns it, and keeps it (and segs) in
 * place from submit until fp_link_poll returns it. It completes exactly once, with 0 or a negative
 * errno.
 *
 * -ETIMEDOUT: the deadline passed. Sent bytes can't be taken back, so the link breaks too.
 *
 * -ECONNRESET, -EPIPE, ...: the link broke. Every outstanding io ends with that error, and the link
 * is dead.
 *
 * -EACCES: a segment is not inside a lease of the session, or the io writes to a read-only lease.
 * This is checked before the node is asked. If the node or its device refuses, the link breaks too.
 *
 * After a failed or timed-out write the remote bytes are undefined. After a failed read the bytes
 * of the local buffers are undefined.
 */
struct fp_io {
	enum fp_io_op op;
	unsigned n_segs;
	struct fp_seg *segs;
	uint64_t deadline_ns; /* absolute, CLOCK_MONOTONIC; 0: now plus the session's deadline_ns */
	int status;           /* result, valid once polled */
	void *user;           /* caller's */
	/* used by the transport between submit and poll */
	uint64_t tag;
	struct fp_io *next;
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
	void (*refusal)(struct fp_session *session, struct fp_refusal *ret_refusal); /* NULL: never known */
	int (*status)(struct fp_session *session, char **ret_json);
	int (*drain)(struct fp_session *session, struct fp_drain_info *ret_info);
	int (*undrain)(struct fp_session *session);
	int (*ping)(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns);
	int (*check)(struct fp_session *session); /* NULL: links and heartbeats notice the session's end */
	int (*identity)(struct fp_session *session, struct fp_session_identity *ret_identity);
	int (*attach)(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease);
	int (*adopt)(struct fp_session *session, const struct fp_session_identity *parent,
	             unsigned *ret_n_leases);
	void (*abandon)(struct fp_session *session);
	int (*link_open)(struct fp_session *session, struct fp_link **ret_link);
	void (*link_close)(struct fp_link *link);
	int (*link_register)(struct fp_link *link, void *base,
	                     size_t len_bytes);   /* NULL: the transport does not need it */
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
	pthread_t owner; /* the thread that submitted last; valid if owned */
	bool owned;
	const char *why;                /* see fp_link_why */
	struct fp_io *done, *last_done; /* completed, in order, not yet polled */
	unsigned n_done;
};

/* For transports: completes an io. The next fp_link_poll returns it. */
void fp_link_io_done(struct fp_link *link, struct fp_io *io, int status);
/* For transports: takes up to max completed ios. Returns their number. */
int fp_link_take_done(struct fp_link *link, struct fp_io **ret_done, unsigned max);

extern const struct fp_transport fp_transport_shm, fp_transport_tcp, fp_transport_rdma, fp_transport_rdma_tcp;

/*
 * Parses a URL that names one way: "shm:PATH", "tcp://HOST[:PORT]", "rdma://HOST[:PORT]" or
 * "rdma+tcp://HOST[:PORT]". The last connects queue pairs without rdma_cm. IPv6 hosts stand in
 * brackets. Returns 0 and sets *ret_url; or -EINVAL (not a URL of ours, or it names several ways),
 * -ENAMETOOLONG (the path, or the host).
 */
int fp_url_parse(const char *text, struct fp_url *ret_url);

/*
 * Parses the URLs of fp_url_parse, and two forms more. "SCHEME://HOST,HOST[:PORT]": one node at up
 * to FP_URL_MAX_ADDRESSES addresses, all at that port. "auto://HOST[,HOST][:PORT]": rdma on PORT +
 * 1 if possible, else tcp on PORT. Without PORT each transport uses its default port. 0 and
 * *ret_set; errors like those of fp_url_parse; -E2BIG: too many addresses.
 */
int fp_url_parse_set(const char *text, struct fp_url_set *ret_set);

/*
 * Connects, shakes hands (version, authentication) and opens a session. Blocks up to
 * options->connect_ns. 0 and *ret_session; -ECONNREFUSED, -ENOENT, -EHOSTUNREACH, -ENXIO (the name
 * of the host has no address), -ETIMEDOUT, -EPROTO (the peer does not speak our protocol),
 * -EPROTONOSUPPORT (no common version), -EACCES (wrong or missing secret), -EKEYREJECTED (the node
 * could not prove that it knows the secret), -EUSERS (a limit of the node, see options->refusal).
 * Close it with fp_session_close, after its links.
 */
int fp_session_open(const struct fp_url *url, const struct fp_session_options *options,
                    struct fp_session **ret_session);
#define FP_EXPLAIN_LEN 512
/*
 * Explains an error of fp_session_open, or of a control call, to a person, and says what to do.
 * refusal: what the node said, NULL if it was not asked for. rdma: as in the session's options.
 * Returns buf (FP_EXPLAIN_LEN bytes) or a constant. May read a few small files.
 */
const char *fp_session_explain(int error, const struct fp_refusal *refusal,
                               const struct fp_rdma_options *rdma, char *buf, size_t len);

void fp_session_close(struct fp_session *session);

/* Asks for size_bytes (a multiple of 4 KiB), zeroed. -ENOSPC: pools are full, or the node is
 * drained; -EDQUOT: over the quota; -EUSERS: too many leases; -EPERM. fp_session_refusal says
 * more. */
int fp_session_lease(struct fp_session *session, uint64_t size_bytes, const struct fp_lease **ret_lease);

/* True for the errors of fp_session_lease with which a node says no. */
bool fp_session_is_refusal(int error);

/* Gives a lease back. No io may be outstanding on it. */
int fp_session_release(struct fp_session *session, uint32_t lease_id);

/* Asks for the room that the node has for this client. */
int fp_session_info(struct fp_session *session, struct fp_node_info *ret_info);
/* How much this client may still lease at the node, in bytes. */
uint64_t fp_node_info_room(const struct fp_node_info *info);

/*
 * Why the node refused the last call of this session that it refused: call it after a call has
 * failed with -ENOSPC, -EDQUOT, -EUSERS or -EPERM. cause NONE: it refused none, or did not say why.
 * Any thread; does not ask the node.
 */
void fp_session_refusal(struct fp_session *session, struct fp_refusal *ret_refusal);

#define FP_PING_MAX_BYTES 4096u

/*
 * One round trip over the control connection, with len_bytes (at most FP_PING_MAX_BYTES) each way.
 * Used as a heartbeat, and to measure a two-sided call. deadline_ns is absolute; 0: the session's
 * default. -ETIMEDOUT: no answer yet, but the session may live. Other errors: its control
 * connection is broken.
 */
int fp_session_ping(struct fp_session *session, size_t len_bytes, uint64_t deadline_ns);

/*
 * Checks whether a session with mapped leases is still alive. 0: it is; other transports always
 * return 0. -ECONNRESET: the node ended the session, or the node itself ended. -EBADF: the program
 * closed our descriptor. The mappings stay, with the right bytes. A node that still runs counts
 * their memory as kept. Any thread; neither asks the node nor blocks.
 */
int fp_session_check(struct fp_session *session);

/*
 * The value for options->resume, to be used within grace_ns after the connection broke. It can be
 * asked for after the break, too. Opening with it resumes the session over a new connection, by any
 * transport and address of the same node. The resumed session owns the same leases, but this side
 * must attach each of them (fp_session_attach). Before the node answers, it ends the old connection
 * and all links of the session. So no request that was still under way on them changes bytes
 * afterwards. fp_session_open returns -ESTALE if the node knows no such session: its leases are
 * gone. An shm session has an identity for fp_session_adopt only, with grace_ns 0. Opening with it
 * gives -EOPNOTSUPP, because a mapping does not break. Never blocks; any thread.
 */
int fp_session_identity(struct fp_session *session, struct fp_session_identity *ret_identity);

/*
 * Makes a lease known and reachable here, after the session was resumed or has adopted the lease.
 * -EACCES: the session has no such lease. -EPERM: over shm, because the node passes a lease's
 * memory only once, at the grant.
 */
int fp_session_attach(struct fp_session *session, uint32_t lease_id, const struct fp_lease **ret_lease);

/*
 * Gives a session without leases every lease of another session of the same node, with the same ids
 * and read-only. The other session must be alive, or in its grace period. A lease ends only when
 * its last session has released it or ended. So nobody but a session with the right to write
 * changes its bytes. This side must attach each lease (fp_session_attach). Over shm it need not,
 * because a forked child has its parent's mappings (see fp_session_abandon). It can still release
 * the leases by their ids (fp_session_release). Leases that the parent itself adopted come along. A
 * session that adopted stays an adopter through a resume.
 *
 * The memory stays charged to the client that it was granted to, until no session has it. While
 * this session has the leases, its later leases get other ids. 0 and *ret_n_leases (may be NULL),
 * the number of leases adopted; -ESTALE: the node knows no such session, or the token is wrong;
 * -EINVAL: the session has leases, or has adopted before, or is the parent itself. After an error
 * of the control call it is unknown whether the session adopted: close it, and adopt with another.
 */
int fp_session_adopt(struct fp_session *session, const struct fp_session_identity *parent,
                     unsigned *ret_n_leases);

/*
 * Closes this end of a session that was resumed, or will be. It sends no BYE, because BYE gives the
 * leases back. Close its links first. Mapped leases stay mapped, and the caller unmaps them. In
 * contrast, fp_session_close unmaps them and sends BYE, so that the node frees them at once.
 *
 * In a forked child, both functions only close its copies of the descriptors, and unmap nothing.
 * While the child has its copy of a socket, the node does not see the parent's end.
 */
void fp_session_abandon(struct fp_session *session);

/* The node's status: one JSON object, malloc'd for the caller. -EPERM: this client may not ask. */
int fp_session_status(struct fp_session *session, char **ret_json);

/*
 * Asks the node to grant no more leases to anyone; existing leases stay usable. -EPERM: this client
 * may not ask.
 */
int fp_session_drain(struct fp_session *session, struct fp_drain_info *ret_info);
/*
 * Undoes fp_session_drain: the node grants leases again. Fine if it was not draining. -EPERM: this
 * client may not ask.
 */
int fp_session_undrain(struct fp_session *session);

/*
 * Called in a forked child, after it closed its copies of its parent's links and sessions, and
 * before it opens its own. Closes inherited devices, so that the parent's sessions end with the
 * parent. Resets locks. Calling it twice is fine. Never blocks.
 */
void fp_transport_forked(void);
/*
 * Call it now and then, from a thread that may block. Closes devices that were removed from this
 * machine, because the kernel cannot finish the removal before that.
 */
void fp_transport_check_devices(void);

/* Opens a new data path. Its owner is the first thread that submits. */
int fp_link_open(struct fp_session *session, struct fp_link **ret_link);
/*
 * The next thread that submits becomes the owner. The caller makes sure that the new owner sees all
 * of this thread's work.
 */
void fp_link_hand_over(struct fp_link *link);
/*
 * Announces that buffers of later ios lie in these bytes, so that a device may reach them without a
 * copy. This is a hint: a transport that can't use it copies instead, and so does any transport
 * after an error. The bytes stay in place until the link closes. Call it before the first submit;
 * blocks.
 */
void fp_link_register(struct fp_link *link, void *base, size_t len_bytes);
/*
 * Makes the link unusable: fp_link_poll soon returns every outstanding io, with an error if it was
 * not done. Breaking a link twice is fine. For the owner only; never blocks.
 */
void fp_link_break(struct fp_link *link);
/*
 * Closes the link and abandons its outstanding ios: they do not complete, and nothing touches their
 * buffers any more. NULL is fine.
 */
void fp_link_close(struct fp_link *link);

/*
 * Starts io. 0: fp_link_poll will return it (with an error status if the link is already dead);
 * -EAGAIN: the link takes no more outstanding ios, poll first; -EINVAL: n_segs or a length is out
 * of range.
 */
int fp_link_submit(struct fp_link *link, struct fp_io *io);

/*
 * Makes progress and returns up to max completed ios in ret_done. Returns their number (0: none
 * yet). Never blocks.
 */
int fp_link_poll(struct fp_link *link, struct fp_io **ret_done, unsigned max);

/*
 * Why the link broke, in the words of its device, such as "transport retry counter exceeded". NULL:
 * it works, or the device said no more than the errno does. Static. For the owner only.
 */
const char *fp_link_why(const struct fp_link *link);

/*
 * Gives the fd and events to wait for until fp_link_poll may have more. fd is -1 if there is
 * nothing to wait for (always over shm). The caller must also poll when the nearest deadline
 * passes. Returns 1 if an fd was given, else 0.
 */
int fp_link_pollfd(struct fp_link *link, struct pollfd *ret_pollfd);

#endif
