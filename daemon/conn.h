/*
 * A connection: receives, hands whole requests to its handler, sends the answers, and comes to an
 * end. Room: daemon. It knows sockets and the loop; what requests mean is request.c's.
 *
 *              accept                 WELCOME            EOF, BYE, refused or draining
 *   (none) ─────────► expects HELLO, AUTH ─────► open ─────────► closing: answers still go out, input is
 * dropped │ time limit                          │ all sent: half-closed; EOF from the peer ▼ ▼ killed: both
 * directions shut ─► freed when no operation and no job holds it
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
#include "turns.h"

#define FP_CONN_IOVS 256

struct fp_cm_server_peer;
struct fp_cm_server_link;
struct fp_node_server;

enum fp_conn_state { FP_CONN_HELLO, FP_CONN_AUTH, FP_CONN_OPEN, FP_CONN_CLOSING, FP_CONN_KILLED };

/* A WRITE whose data is arriving: it goes to the segments one after another. */
struct fp_conn_write {
	bool active;
	bool denied; /* its data is dropped */
	unsigned seg;
	uint32_t seg_bytes; /* of the current segment, already there */
	struct fp_node_lease *leases[FP_WIRE_MAX_SEGS];
};

struct fp_conn {
	LIST_ENTRY(fp_conn) in_server;
	TAILQ_ENTRY(fp_conn) stranger;
	LIST_ENTRY(fp_conn) in_session;
	struct fp_client *client; /* whose it is, held: a stranger's is his origin; NULL: it was evicted */
	struct fp_node_server *server;
	int fd;
	bool is_unix;
	char peer[FP_PEER_LEN];
	struct fp_cm_server_peer *cm_peer; /* it came in by rdma: fd is a socket pair's end; NULL: a socket */
	struct fp_cm_server_link *cm_link; /* of a LINK whose queue pairs were connected by hand */
	enum fp_conn_state state;
	bool receiving, sending, timing; /* operations in flight */
	bool timer_cancelled;            /* its end was asked for */
	bool timing_idle;                /* the timer is that of an open control connection */
	bool eof;                        /* nothing more will come */
	bool half_closed;                /* we said that nothing more will come */
	bool drained;                    /* while stopping: the peer can send nothing more */
	bool cut;                        /* it broke, or fell silent: its session may go on without it */
	bool leasing; /* a lease is being made for it: further requests wait, answers keep their order */
	unsigned recv_bytes; /* to be received at once */
	struct fp_op recv_op, send_op, time_op;
	struct __kernel_timespec time;
	uint64_t heard_ns; /* when something came last */
	struct fp_inbox inbox;
	struct fp_conn_write write;
	struct fp_turn turn;
	uint8_t *stash; /* received, and not yet looked at: then nothing more is received */
	size_t stash_bytes, stash_off;
	uint8_t *own_buf; /* where the loop has no shared buffers */
	struct fp_outbox outbox;
	unsigned fds_promised; /* descriptors that are being made, or in the outbox */
	unsigned fds_sent;     /* and those that were sent and, for all we know, not received yet */
	bool passing;          /* the send under way takes one along */
	struct msghdr msg;
	struct iovec iov[FP_CONN_IOVS];
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	/* the handshake, and what came of it */
	struct fp_wire_hello hello;
	struct fp_wire_challenge challenge;
	struct fp_wire_header lease_request;
	struct fp_node_session *session; /* NULL before WELCOME and after the session's end */
};

/* Whether it is a session's control connection, or is to be. */
bool fp_conn_is_control(const struct fp_conn *conn);
/* Whether it can break while the client lives: then its session outlives it for a grace period. */
bool fp_conn_may_break(const struct fp_conn *conn);

/* Begins to serve fd and, unless NULL, the rdma_cm server's peer behind it; both are its own from
 * here on (also on failure: the peer is then ended). 0 or -ENOMEM. */
int fp_conn_start(struct fp_node_server *server, int fd, struct fp_cm_server_peer *cm_peer);

/* It is session's from now on; NULL: nobody's. It leaves the one before. */
void fp_conn_enter(struct fp_conn *conn, struct fp_node_session *session);

/* Queues an answer and owns it; NULL (no memory for it) kills the connection. */
void fp_conn_answer(struct fp_conn *conn, struct fp_reply *reply);
/*
 * Whether one more descriptor may be sent to the peer; then it is counted until the peer has
 * received it. What is not received counts for our user, all its processes together, and past
 * RLIMIT_NOFILE the kernel takes no descriptor for anybody (unix(7), ETOOMANYREFS). So each
 * connection has few, and all have a part of that limit, of which no client has more than three
 * quarters.
 */
bool fp_conn_promise_fd(struct fp_conn *conn);
/* There is none after all. Fine where none was promised. */
void fp_conn_unpromise_fd(struct fp_conn *conn);

/* Answers ERROR; the connection goes on. */
void fp_conn_answer_error(struct fp_conn *conn, const struct fp_wire_header *request,
                          enum fp_wire_status status);
/* Answers ERROR, logs why and closes once it is sent. */
void fp_conn_refuse(struct fp_conn *conn, enum fp_wire_status status, const char *reason);
/* Ends it at once, whatever is under way. */
void fp_conn_kill(struct fp_conn *conn);
/* Charges a piece of work, in bytes that could be copied meanwhile, to its client's share of the
 * loop's time.
 */
void fp_conn_charge(const struct fp_conn *conn, uint64_t bytes);
/*
 * Does what is due: sends, resumes or stops receiving, ends. To be called after anything about conn
 * has changed, last of all, since it may free it.
 */
void fp_conn_settle(struct fp_conn *conn);
/* Its turn has come: settles the connection of turn. */
void fp_conn_go_on(struct fp_turn *turn);

#endif
