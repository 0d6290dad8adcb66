/*
 * Client sessions as the node holds them: identity, token, leases, counts of bytes. Room: daemon.
 * It knows leases, never sockets; its callers know which connection has which session.
 *
 *            open               the control connection breaks         grace period over
 *   (none) ────────► connected ──────────────────────────────► cut off ────────────────► ended
 *                        ▲  │  renewed: a RESUME with its token   │                        ▲
 *                        │  └─────────────────────────────────────┼────────────────────────┘
 *                        └────────────────────────────────────────┘        BYE, end of file
 *
 * A session keeps its token until it ends. On a node with secrets the token is not enough: a RESUME
 * must prove the secret too.
 */
#ifndef FP_NODE_SESSION_H
#define FP_NODE_SESSION_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "client.h"
#include "lease.h"
#include "wire.h"

#define FP_PEER_LEN 80

/*
 * So many of a session's trusted connections take a place of its client. Whoever overheard the
 * token gets no more of them.
 */
#define FP_MAX_TRUSTED 2

#define FP_SESSION_BUCKETS 1024u

#define FP_MAX_OPERATORS 8 /* sessions that look after the node: max_sessions does not count them */

/*
 * The lease tables of one client's adopting sessions may have at most so many places together. That
 * is enough for 500 children of a parent with 256 leases. A session that has ended counts until all
 * that it adopted is freed.
 */
#define FP_MAX_ADOPTED (1u << 17)

struct fp_node_session {
	struct fp_node_session *next, **at;               /* at: the pointer that points here */
	struct fp_node_session *bucket_next, **bucket_at; /* of those whose ids end alike */
	uint64_t id;                                      /* never reused while the node runs */
	uint8_t token[FP_WIRE_TOKEN_BYTES];
	/* It was resumed, and the client has not used the new connection yet. */
	bool unconfirmed;
	uint64_t grace_ns, idle_timeout_ns; /* as last told to the client; a reload does not change them */
	bool cut_off;                       /* it has no control connection; it ends at expires_ns */
	uint64_t expires_ns;
	unsigned n_resumes;
	/*
	 * The session whose leases this one adopted. The parent may have ended since then. 0: this
	 * session adopted no leases.
	 */
	uint64_t parent_id;
	struct fp_client *client; /* holds a reference; a RESUME does not change it */
	char name[FP_WIRE_NAME_BYTES];
	char peer[FP_PEER_LEN];
	/* The transport of the newest connection: "shm", "tcp", "rdma", "rdma+tcp". Static. */
	const char *transport;
	bool memfd;       /* its leases are passed to the client, as memfds */
	bool is_operator; /* it looks after the node, and has no leases */
	/*
	 * Holds a reference. The leases of this session have keys for the links of this peer. NULL:
	 * no keys.
	 */
	struct fp_cm_server_peer *cm_peer;
	unsigned n_links;
	unsigned
	    n_trusted; /* connections that named its token, and have not proved its client's secret yet */
	LIST_HEAD(, fp_conn) conns; /* its control connection and links; the server keeps the list */
	uint64_t opened_ns;
	_Atomic uint64_t read_bytes, written_bytes; /* every shard counts here */
	struct fp_node_leases leases;
};

/* Zero-initialised, it is empty. */
struct fp_node_sessions {
	struct fp_node_session *first;
	struct fp_node_session *buckets[FP_SESSION_BUCKETS]; /* by id */
	unsigned n;                                          /* without those of operators */
	unsigned n_operators; /* those of operators; their limit counts connections */
	uint64_t last_id;
};

/*
 * Opens a session of client with a new id and token. 0 and *ret_session, which belongs to
 * `sessions`; -ENOMEM, or an error of getrandom.
 */
int fp_node_session_open(struct fp_node_sessions *sessions, struct fp_client *client, const char *name,
                         const char *peer, struct fp_node_session **ret_session);
/* Makes a new session one of an operator. */
void fp_node_session_set_operator(struct fp_node_sessions *sessions, struct fp_node_session *session);
/*
 * Ends cm_peer. When this returns, no link reaches the session's leases any more, and the worker
 * revokes their keys. Takes some milliseconds. A session without cm_peer is fine.
 */
void fp_node_session_disarm(struct fp_node_session *session);

/*
 * Gives a session the leases of its parent, read-only; at most once. Returns 0 or -ENOMEM. -EINVAL:
 * the session has leases, or has adopted before, or is the parent itself. -ENOSPC: the lease tables
 * of the client's adopting sessions would have more than FP_MAX_ADOPTED places.
 */
int fp_node_session_adopt(struct fp_node_session *session, const struct fp_node_session *parent);

/* Ends it and gives its leases back. */
void fp_node_session_end(struct fp_node_sessions *sessions, struct fp_node_session *session);

/* Returns the session with that id and token. NULL: it is unknown, or the token is wrong. */
struct fp_node_session *fp_node_session_find(const struct fp_node_sessions *sessions, uint64_t id,
                                             const uint8_t token[FP_WIRE_TOKEN_BYTES]);

/* Returns the session with that id, or NULL. */
struct fp_node_session *fp_node_session_by_id(const struct fp_node_sessions *sessions, uint64_t id);

/* Returns the name of the client of a session; "gone" if the session has ended. */
const char *fp_node_session_name(const struct fp_node_sessions *sessions, uint64_t id);

#endif
