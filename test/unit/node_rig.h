/*
 * A node in the test's own thread: the real server's parts, with loop, worker and a pool, and peers
 * on real sockets. The loop advances only while a test waits. Room: test/unit, for test_conn.c and
 * test_request*.c. Include it before other headers of ours.
 *
 * After each test, node_rig_teardown checks that the node has given back all that it took.
 */
#ifndef FP_NODE_RIG_H
#define FP_NODE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "clock.h"
#include "node_server.h"
#include "request.h"
#include "wire.h"

#define MIB           (1ull << 20)
#define POOL_BYTES    (16 * MIB)
#define DEADLINE_NS   (20 * FP_NSEC_PER_SEC)
#define MAX_FRAME     (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PAYLOAD)
#define N_IDLE_ROUNDS 5 /* enough for all that can happen without the peer */

/* The test's end of a connection. */
struct peer {
	int fd;                     /* -1: closed */
	int passed_fd;              /* came with the last frame; -1: none */
	struct fp_conn *conn;       /* the node's end; it may be gone */
	struct fp_wire_hello hello; /* what its HELLO contains */
	struct fp_wire_welcome welcome;
	uint64_t tag; /* the tag of the last request */
};

extern struct node_rig {
	struct fp_node_server server;
	struct fp_pool *pool;
	bool hold_turns;  /* if true, no connection gets its turn */
	bool hold_worker; /* if true, nobody looks at what the worker has done */
	bool worker_is_done;
	bool waker_armed;
	struct fp_op waker;
	int listener; /* on loopback */
} rig;

int node_rig_setup(void **state);
int node_rig_teardown(void **state);

/* Runs one round of the node's loop, which waits a moment at most. */
void rig_round(void);
void rig_rounds(unsigned n);

/* Runs the node until condition holds. */
#define AWAIT(condition)                                                                                     \
	do {                                                                                                 \
		uint64_t until_ns_ = fp_clock_ns() + DEADLINE_NS;                                            \
		while (!(condition)) {                                                                       \
			assert_true(fp_clock_ns() < until_ns_);                                              \
			rig_round();                                                                         \
		}                                                                                            \
	} while (0)

/*
 * Starts n threads that serve links. They run by themselves, and also while the test waits for
 * nothing. Before the test looks at a link of the node, it calls fp_shards_hold.
 */
void rig_start_shards(unsigned n);

/* The nth allocation of this thread from now on fails, once. If nth is 0, no allocation fails. */
void rig_fail_allocation(unsigned nth);
/* True if that allocation has failed. */
bool rig_failed(void);

/* Ends hold_worker, and looks at what the worker has done. */
void rig_release_worker(void);

/* Makes the connection's client use up its share. From then on no connection gets its turn. */
void rig_use_up(const struct peer *peer);
/* Returns how much of its share the connection's client has left. */
int64_t rig_credit(const struct peer *peer);

/* ---- peers ---- */

/* These connect a peer, without a handshake. */
struct peer peer_connect_unix(void);
struct peer peer_connect_tcp(void);
/* Closes the peer's end, so that the node sees an end of file. */
void peer_close(struct peer *peer);
/* Closes the peer's end by a reset, so that the node sees a broken connection. */
void peer_break(struct peer *peer);

/* Sends bytes, while the node runs. */
void peer_send_bytes(const struct peer *peer, const void *bytes, size_t len);
/* Sends a request, with the next tag. */
void peer_send(struct peer *peer, enum fp_wire_type type, const void *payload, size_t len);
/* Writes a request with the next tag to ret_bytes. Returns its length. */
size_t peer_encode(struct peer *peer, enum fp_wire_type type, const void *payload, size_t len,
                   uint8_t *ret_bytes);

/* Receives a frame. Its payload is valid until the next frame of any peer. False: end of stream. */
bool peer_receive(struct peer *peer, struct fp_wire_header *ret_header, const uint8_t **ret_payload);
/* Receives an answer to the last request, of that type and length. Returns its payload. */
const uint8_t *peer_expect(struct peer *peer, enum fp_wire_type type, size_t len);
/* Receives an ERROR with that status for the last request; it names no limit. */
void peer_expect_error(struct peer *peer, enum fp_wire_status status);
/* The same of one that names a limit, which is returned. */
struct fp_wire_refusal peer_expect_refusal(struct peer *peer, enum fp_wire_status status,
                                           enum fp_refusal_cause cause);
/* Checks that the stream ends without another byte. */
void peer_expect_end(struct peer *peer);

/*
 * Writes n PINGs to ret_bytes. The payload of each has len bytes with the ping's number. Returns
 * the length of all n.
 */
size_t peer_encode_pings(struct peer *peer, unsigned n, size_t len, uint8_t *ret_bytes);
/* Receives the answers to the last n PINGs, which must come in order. */
void peer_expect_pongs(struct peer *peer, unsigned n, size_t len);
/* Sends one PING and receives its answer. */
void peer_ping(struct peer *peer);
/* From now on the kernel holds few bytes on the way to this peer. */
void peer_make_narrow(const struct peer *peer);

/*
 * Sets the peer's HELLO. If `session` is NULL, the peer asks for a new session. Otherwise it joins
 * or resumes the session of the peer to which `session` points.
 */
void peer_set_hello(struct peer *peer, enum fp_wire_purpose purpose, uint32_t features,
                    const struct peer *session);
/*
 * The first two send one frame of the handshake. The third makes the whole handshake. They use the
 * HELLO that was set before. If `secret` is NULL, the peer has no secret.
 */
void peer_send_hello(struct peer *peer);
void peer_send_auth(struct peer *peer, const struct fp_wire_challenge *challenge, const char *secret);
void peer_shake_hands(struct peer *peer, const char *secret);
/* The first opens a session's control connection, the second a link of that session. */
struct peer peer_open(bool over_tcp, uint32_t features);
struct peer peer_open_link(const struct peer *control, bool over_tcp);

void peer_send_lease(struct peer *control, uint64_t size_bytes);
/* Sends a RELEASE or an ATTACH of the lease. */
void peer_send_id(struct peer *control, enum fp_wire_type type, uint32_t lease_id);
void peer_send_adopt(struct peer *child, const struct fp_wire_welcome *parent);
/* Receives a LEASED or an ATTACHED. */
struct fp_wire_leased peer_expect_leased(struct peer *control, enum fp_wire_type type);
/* Sends a LEASE and receives its answer. Returns the lease's id. */
uint32_t peer_lease(struct peer *control, uint64_t size_bytes);
/* Sends a READ or a WRITE. data: the bytes of a WRITE; NULL for a READ. */
void peer_send_io(struct peer *link, enum fp_wire_type type, const struct fp_wire_seg *segs, unsigned n_segs,
                  const void *data);
/* These write or read one segment of a lease, and receive the answer. */
void peer_write(struct peer *link, struct fp_wire_seg seg, const void *data);
void peer_read(struct peer *link, struct fp_wire_seg seg, void *ret_data);

#endif
