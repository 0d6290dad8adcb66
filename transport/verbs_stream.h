/*
 * A byte stream over SEND and RECEIVE of one connection: what control frames travel on where there
 * is no TCP. Room: transport. One thread at a time; nothing blocks.
 *
 * Each end posts FP_VERBS_STREAM_BUFFERS receives of FP_VERBS_STREAM_BUFFER_BYTES. Every message
 * begins with 4 bytes: credits (one byte: receives that its sender has posted again since its last
 * message) and zeros, then bytes of the stream, perhaps none. Nobody sends without a credit, and
 * the last one is kept for a message that carries credits: so a receive is always posted (iWARP
 * ends a connection that finds none, InfiniBand waits), and neither end starves the other.
 */
#ifndef FP_VERBS_STREAM_H
#define FP_VERBS_STREAM_H

#include "rdma_options.h"
#include "verbs.h"

#define FP_VERBS_STREAM_BUFFERS      16u
#define FP_VERBS_STREAM_BUFFER_BYTES 4096u

struct fp_verbs_stream;

/* What options a stream's connection needs: enough depth for its buffers, responder false. rdma
 * NULL: the defaults. */
struct fp_verbs_conn_options fp_verbs_stream_conn_options(const struct fp_rdma_options *rdma);

/*
 * Makes a stream of conn, which stays the caller's until this has succeeded and is the stream's
 * from then on. On the listening side between prepare and admit, so that receives are posted before
 * the peer sends. 0; -ENOMEM, -EIO.
 */
int fp_verbs_stream_new(struct fp_verbs_conn *conn, struct fp_verbs_stream **ret_stream);
/* Closes the connection too. NULL is fine. */
void fp_verbs_stream_close(struct fp_verbs_stream *stream);
FP_DEFINE_CLEANUP(struct fp_verbs_stream, stream, fp_verbs_stream_close)

/* Takes up to len bytes. Returns how many; -EAGAIN: no credit or buffer now; else the stream is
 * broken. */
ssize_t fp_verbs_stream_send(struct fp_verbs_stream *stream, const void *bytes, size_t len);
/* Gives up to len bytes. Returns how many; -EAGAIN: none here; -ECONNRESET and others: the stream
 * is broken.
 */
ssize_t fp_verbs_stream_receive(struct fp_verbs_stream *stream, void *ret_bytes, size_t len);
/*
 * Makes what follows from completions happen (buffers posted again, credits returned), and arms. 0
 * and *ret_pollfd: wait for it, then try again; 1: something came meanwhile, try at once; negative:
 * broken.
 */
int fp_verbs_stream_wait(struct fp_verbs_stream *stream, struct pollfd *ret_pollfd);
/*
 * Sends a message without bytes if the peer has said nothing yet. For a peer that may not have seen
 * the first one: see rdma.c. False if it has seen it, or there were enough of them, or the stream
 * is broken.
 */
bool fp_verbs_stream_nudge(struct fp_verbs_stream *stream);
/* What broke it, in the words of its device: as fp_link_why. */
const char *fp_verbs_stream_why(const struct fp_verbs_stream *stream);
/* Whether all that was taken has been sent, as far as this device tells. */
bool fp_verbs_stream_is_idle(const struct fp_verbs_stream *stream);
struct fp_verbs_conn *fp_verbs_stream_conn(struct fp_verbs_stream *stream);

#endif
