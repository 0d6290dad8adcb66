/*
 * One connection to a node before it becomes a data path: dialling, the handshake, and whole frames
 * one at a time. It is a TCP or UNIX socket, for the control side of all transports. Room:
 * transport. Not thread-safe. May block up to a deadline, so never on a fault thread.
 */
#ifndef FP_HANDSHAKE_H
#define FP_HANDSHAKE_H

#include <stdint.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "transport.h"
#include "wire.h"

struct fp_handshake;

/* The fields of HELLO, and the secret. */
struct fp_handshake_options {
	enum fp_wire_purpose purpose;
	uint32_t features;
	const char *client_name;
	const char *secret;                    /* NULL: none */
	const struct fp_wire_welcome *session; /* LINK, RESUME: the session to join or to resume */
	struct fp_refusal *refusal;            /* NULL, or where the node's reason goes if it refuses */
};

/*
 * Connects to url and shakes hands, until deadline_ns (absolute). 0, *ret_handshake and
 * *ret_welcome; errors like those of fp_session_open. The deadline does not bound the look-up of a
 * host name (names.h), which takes as long as the resolver likes.
 */
int fp_handshake_open(const struct fp_url *url, const struct fp_handshake_options *options,
                      uint64_t deadline_ns, struct fp_handshake **ret_handshake,
                      struct fp_wire_welcome *ret_welcome);
/* Closes the socket as usual. The node may take this for the end of the process. NULL is fine. */
void fp_handshake_close(struct fp_handshake *handshake);
FP_DEFINE_CLEANUP(struct fp_handshake, handshake, fp_handshake_close)
/*
 * Closes as if the connection had broken: the node keeps the session for a resume. Not in a forked
 * child. NULL is fine.
 */
void fp_handshake_abort(struct fp_handshake *handshake);

/* Writes the name that a process has at a node unless it chooses another: "redis[42]". */
void fp_handshake_name_self(char *buf, size_t len);

/*
 * Sends a frame of at most FP_WIRE_MAX_PING bytes. -ETIMEDOUT leaves the connection in step: the
 * next call first sends the bytes that are left. Any other error means that the connection is dead.
 */
int fp_handshake_send(struct fp_handshake *handshake, enum fp_wire_type type, uint64_t tag,
                      const void *payload, size_t len, uint64_t deadline_ns);

/*
 * Receives one frame. *ret_payload lies in handshake until the next call. -ETIMEDOUT leaves the
 * connection in step: the next call completes a frame that came in part. Any other error means that
 * the connection is dead.
 */
int fp_handshake_receive(struct fp_handshake *handshake, uint64_t deadline_ns,
                         struct fp_wire_header *ret_header, const void **ret_payload);

/* Why a node refused, from the payload of an ERROR. cause NONE: the ERROR does not say. */
void fp_handshake_refusal(const void *payload, size_t len, struct fp_refusal *ret_refusal);

/* Takes the descriptor that came with the last frame: the caller owns it now. -1 if none came. */
int fp_handshake_take_memfd(struct fp_handshake *handshake);

/*
 * Makes the kernel break a TCP connection within a minute after the other machine vanishes. It uses
 * probes while idle, and a time limit for unacknowledged bytes. It does not notice a stopped
 * process whose kernel still answers.
 */
void fp_handshake_keep_alive(int fd);

/*
 * Frees handshake but not its socket, which the caller owns from now on. The socket is a blocking
 * one: pass MSG_DONTWAIT.
 */
int fp_handshake_take_socket(struct fp_handshake *handshake);

/*
 * Whether the connection still stands. 0: yes; -ECONNRESET: the other end has hung up, or somebody
 * shut it down; -EBADF: the program closed its descriptor, and may have reused the number. Reads
 * nothing, never blocks.
 */
int fp_handshake_check(const struct fp_handshake *handshake);

/* The address of the node that answered; of a UNIX socket only its family. */
const struct sockaddr *fp_handshake_address(const struct fp_handshake *handshake);

#endif
