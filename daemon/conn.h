/*
 * A connection: receives, hands whole requests to its handler, sends the answers, and ends. Room:
 * daemon. It knows sockets and the loop; request.c handles the requests.
 *
 *            accept                        WELCOME          EOF, BYE, refused
 *   (none) ─────────► expects HELLO, AUTH ─────────► open ──────────────────────────────► closing
 *                        │ time limit                 │ broken, silent                       │
 *                        ▼                            ▼                         time limit   ▼
 *                      killed: both directions shut ◄────────────────────────────────────────┘
 *                        └─► freed when no operation and no job holds it
 *
 * A connection that is refused before WELCOME goes to closing, too. While a connection is closing,
 * answers still go out and input is dropped. It is half-closed once all is sent, and freed at the
 * peer's end of file. A peer that has half-closed still reads: then the end waits for that, too.
 */
#ifndef FP_CONN_H
#define FP_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "inbox.h"
#include "loop.h"
#include "outbox.h"
#include "session.h"
#include "shard.h"
#include "turns.h"

#define FP_CONN_IOVS     256
#define FP_CONN_FEW_IOVS 8
/*
 * Two descriptors may be in flight on a connection: one of a LEASE whose client gave up waiting,
 * and one of its next LEASE.
 */
#define FP_CONN_FDS 2

/* What a place of a lease table costs when a session adopts or ends, as bytes to copy. */
#define FP_LEASE_COST 512u

struct fp_cm_server_link;
struct fp_node_server;

enum fp_conn_state { FP_CONN_HELLO, FP_CONN_AUTH, FP_CONN_OPEN, FP_CONN_CLOSING, FP_CONN_KILLED };

/* A WRITE whose data is arriving. The data goes to one segment after another. */
struct fp_conn_write {
	bool active;
	bool denied; /* its data is dropped */
	unsigned seg;
	uint32_t seg_bytes; /* how many bytes of the current segment have arrived */
	struct fp_node_lease *leases[FP_WIRE_MAX_SEGS];
};

struct fp_conn {
	LIST_ENTRY(fp_conn) in_server;
	TAILQ_ENTRY(fp_conn) stranger;
	LIST_ENTRY(fp_conn) in_session;
	/*
	 * The connection holds a reference to its client. The client of a stranger is its origin,
	 * see stranger.h. NULL: the connection was evicted.
	 */
	struct fp_client *client;
	enum fp_conn_place place; /* what it counts as, of its client */
	uint64_t trusted_by;      /* id of the session whose n_trusted counts it; 0: none */
	struct fp_node_server *server;
	struct fp_shard *shard; /* whose loop serves it: see shard.h */
	STAILQ_ENTRY(fp_conn) moving;
	int fd;
	/*
	 * A connection over a UNIX socket breaks only when its client ends, so its session ends
	 * with it.
	 */
	bool is_unix;
	char peer[FP_PEER_LEN];
	/*
	 * The queue pair that a QP frame on this LINK connection has connected. NULL: there is
	 * none.
	 */
	struct fp_cm_server_link *cm_link;
	enum fp_conn_state state;
	bool receiving, sending; /* operations in flight */
	bool eof;                /* the peer sends nothing more */
	bool half_closed;        /* we have told the peer that we send nothing more */
	bool cut;                /* it broke or fell silent; its session may go on after it */
	/*
	 * The worker makes a lease or a key for this connection. Further requests wait, so that
	 * answers keep their order.
	 */
	bool leasing;
	unsigned recv_bytes; /* how much one receive takes */
	struct fp_op recv_op, send_op;
	uint64_t since_ns; /* when its handshake or its closing began */
	uint64_t heard_ns; /* when bytes last arrived */
	struct fp_inbox inbox;
	struct fp_conn_write write;
	struct fp_turn turn;
	/* Bytes received but not handled yet. Nothing more is received until they are handled. */
	uint8_t *stash;
	size_t stash_bytes, stash_off;
	struct fp_outbox outbox;
	/* What its client's counts have of this connection. */
	size_t held_bytes, kept_bytes;
	unsigned n_waiting_fds;
	/* Memory that the kernel keeps for the socket, at the last look and since: see
	 * holding.h. */
	size_t queued_bytes, unlooked_bytes;
	bool is_narrow; /* its socket sends through a small buffer, and receives through a small window */
	bool is_small;  /* its receive buffer is small, too */
	/* What the window had room for, at most, when it got small, and has not been received
	 * yet. */
	uint32_t promised_bytes;
	/* Descriptors sent to the peer that, as far as we know, it has not received. */
	unsigned fds_out;
	bool passing; /* the send under way carries a descriptor */
	struct msghdr msg;
	/* Of the send under way: few, or malloc'd until it has ended. Most connections need few. */
	struct iovec *iov, few[FP_CONN_FEW_IOVS];
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	/* the handshake and its results */
	struct fp_wire_hello hello;
	struct fp_wire_challenge challenge;
	char client_name[FP_CLIENT_NAME_LEN]; /* of the client that it proved to be; "": not known yet */
	struct fp_wire_header lease_request;
	struct fp_refusal refusal;       /* the limit that the request in the inbox met; no cause: none yet */
	struct fp_node_session *session; /* NULL before WELCOME and after the session's end */
};

/* True if it is the control connection of a session, or will become one. */
bool fp_conn_is_control(const struct fp_conn *conn);

/* Begins to serve fd. Owns fd from here on, also after a failure. 0 or -ENOMEM. */
int fp_conn_start(struct fp_node_server *server, int fd);

/*
 * Moves the connection from its present session into another. If `session` is NULL, the connection
 * has no session from then on.
 */
void fp_conn_enter(struct fp_conn *conn, struct fp_node_session *session);

/*
 * Queues an answer, and owns it from then on. NULL (there was no memory for the answer) kills the
 * connection.
 */
void fp_conn_answer(struct fp_conn *conn, struct fp_reply *reply);
/*
 * Promises one more descriptor to the peer. 0, or -ENOSPC and *refusal, the limit that was met.
 * From then on the descriptor counts as in flight, until the peer has received all that we sent.
 * The kernel counts the descriptors in flight of all processes of our user, and refuses more than
 * RLIMIT_NOFILE (unix(7), ETOOMANYREFS). So each connection may have two in flight, and it ends
 * only after the peer has received them. The limit of connections is low enough for that.
 */
int fp_conn_promise_fd(struct fp_conn *conn, struct fp_refusal *refusal);

/* Answers ERROR. refusal as of fp_reply_new_error. The connection stays open. */
void fp_conn_answer_error(struct fp_conn *conn, const struct fp_wire_header *request,
                          enum fp_wire_status status, const struct fp_refusal *refusal);
/*
 * Answers ERROR, and closes once the answer is sent. Counts the refusal by its cause. Logs the
 * reason each time. If reason is NULL, logs a line of the cause instead, if one is due: see
 * fp_node_server_refused.
 */
void fp_conn_refuse(struct fp_conn *conn, enum fp_wire_status status, const struct fp_refusal *refusal,
                    const char *reason);
/* Ends the connection in order: its answers still go out. */
void fp_conn_close(struct fp_conn *conn);
/* Ends the connection at once, even in the middle of an operation. */
void fp_conn_kill(struct fp_conn *conn);
/* Like fp_conn_kill, but treats the end as a break of the network: the session may go on. */
void fp_conn_cut(struct fp_conn *conn);
/*
 * Charges work to the client's share of the loop's time. The work takes as long as copying so many
 * `bytes`.
 */
void fp_conn_charge(const struct fp_conn *conn, uint64_t bytes);
/*
 * Does what is due for the connection: sends, goes on to receive, or ends it. Call it last after
 * any change of conn, because it may free conn.
 */
void fp_conn_settle(struct fp_conn *conn);
/* The node stood still for stalled_ns. That time does not count as the peer's. */
void fp_conn_forgive(struct fp_conn *conn, uint64_t now_ns, uint64_t stalled_ns);
/*
 * Ends the connection if it is overdue. Otherwise looks whether it can be freed now. Never frees
 * it.
 */
void fp_conn_tick(struct fp_conn *conn, uint64_t now_ns);
/*
 * Frees a connection that has ended, if nothing of it is in flight. For the main loop, which takes
 * it back from its shard.
 */
void fp_conn_return(struct fp_conn *conn);
/* Settles the connection to which this turn belongs. */
void fp_conn_go_on(struct fp_turn *turn);

#endif
