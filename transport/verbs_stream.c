/*
 * The byte stream over SEND and RECEIVE. Room: transport; see verbs_stream.h for the protocol.
 *
 *   send buffer     free ─► filled and posted ─► its completion: free
 *   receive buffer  posted ─► arrived, in the ring ─► read by the owner ─► posted again, a credit to return
 */
#include "verbs_stream.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "lockedmem.h"

#define PREFIX_BYTES 4u
#define N_SENDS      (2 * FP_VERBS_STREAM_BUFFERS) /* completions may come later than the peer's credits */
#define N_BUFFERS    (N_SENDS + FP_VERBS_STREAM_BUFFERS)
#define POLL_CHUNK   8

struct arrival {
	uint8_t buffer;
	uint16_t at, end;
};

struct fp_verbs_stream {
	struct fp_verbs_conn *conn;
	struct fp_verbs_region region;
	int error;          /* what broke it; 0 while it works */
	const char *why;    /* see fp_verbs_stream_why */
	unsigned credits;   /* messages that the peer has room for */
	unsigned to_return; /* receives posted again that the peer does not know of */
	bool heard;         /* the peer has said something */
	unsigned n_free;    /* send buffers: */
	uint8_t free[N_SENDS];
	unsigned first, n_arrived; /* ring of what is here to be read */
	struct arrival arrived[FP_VERBS_STREAM_BUFFERS];
	uint8_t buffers[N_BUFFERS][FP_VERBS_STREAM_BUFFER_BYTES];
};

struct fp_verbs_conn_options fp_verbs_stream_conn_options(const struct fp_rdma_options *rdma)
{
	struct fp_verbs_conn_options options = fp_rdma_conn_options(rdma);

	options.send_depth = N_SENDS;
	options.recv_depth = FP_VERBS_STREAM_BUFFERS;
	return options;
}

static int post_recv(struct fp_verbs_stream *stream, unsigned buffer)
{
	struct fp_verbs_work work = {
	    .op = FP_VERBS_RECV,
	    .local = stream->buffers[buffer],
	    .len_bytes = FP_VERBS_STREAM_BUFFER_BYTES,
	    .lkey = stream->region.lkey,
	    .id = buffer,
	};

	return fp_verbs_post_recv(stream->conn, &work, 1);
}

int fp_verbs_stream_new(struct fp_verbs_conn *conn, struct fp_verbs_stream **ret_stream)
{
	struct fp_verbs_stream *stream = fp_lockedmem_new(sizeof(*stream));
	int r;

	if (!stream)
		return -ENOMEM;
	r = fp_verbs_register(fp_verbs_conn_domain(conn), stream->buffers, sizeof(stream->buffers),
	                      FP_VERBS_LOCAL, &stream->region);
	stream->conn = conn;
	stream->credits = FP_VERBS_STREAM_BUFFERS;
	while (stream->n_free < N_SENDS) {
		stream->free[stream->n_free] = (uint8_t)stream->n_free;
		stream->n_free++;
	}
	for (unsigned i = N_SENDS; i < N_BUFFERS && r == 0; i++)
		r = post_recv(stream, i);
	if (r < 0) {
		/* Receives may be posted into it: that connection can't be the caller's any more
		 * than this.
		 */
		fp_verbs_conn_flush(conn);
		fp_verbs_deregister(&stream->region);
		fp_lockedmem_free(stream, sizeof(*stream));
		return r;
	}
	*ret_stream = stream;
	return 0;
}

void fp_verbs_stream_close(struct fp_verbs_stream *stream)
{
	struct fp_verbs_domain *domain;

	if (!stream)
		return;
	domain = fp_verbs_domain_ref(fp_verbs_conn_domain(stream->conn));
	fp_verbs_conn_close(stream->conn);
	fp_verbs_deregister(&stream->region);
	fp_verbs_domain_unref(domain);
	fp_lockedmem_free(stream, sizeof(*stream));
}

static int fail(struct fp_verbs_stream *stream, int error)
{
	if (!stream->error)
		stream->error = error == -ECANCELED ? -ECONNRESET : error;
	return stream->error;
}

/* Sends len bytes (perhaps none) and all credits. */
static int send_message(struct fp_verbs_stream *stream, const void *bytes, size_t len)
{
	uint8_t buffer = stream->free[--stream->n_free];
	uint8_t *message = stream->buffers[buffer];
	struct fp_verbs_work work = {
	    .op = FP_VERBS_SEND,
	    .signalled = true,
	    .local = message,
	    .len_bytes = (uint32_t)(PREFIX_BYTES + len),
	    .lkey = stream->region.lkey,
	    .id = buffer,
	};
	int r;

	memset(message, 0, PREFIX_BYTES);
	message[0] = (uint8_t)stream->to_return;
	if (len)
		memcpy(message + PREFIX_BYTES, bytes, len);
	r = fp_verbs_post(stream->conn, &work, 1);
	if (r < 0)
		return fail(stream, r);
	stream->to_return = 0;
	stream->credits--;
	return 0;
}

/* The last credit is kept for this. */
static void return_credits(struct fp_verbs_stream *stream)
{
	if (stream->to_return >= FP_VERBS_STREAM_BUFFERS / 2 && stream->credits > 0 && stream->n_free > 0)
		(void)send_message(stream, NULL, 0);
}

static void post_again(struct fp_verbs_stream *stream, unsigned buffer)
{
	int r = post_recv(stream, buffer);

	if (r < 0)
		(void)fail(stream, r);
	stream->to_return++;
}

static void on_arrival(struct fp_verbs_stream *stream, const struct fp_verbs_completion *c)
{
	const uint8_t *message = stream->buffers[c->id];
	unsigned credits = message[0];

	stream->heard = true;
	if (c->len_bytes < PREFIX_BYTES || c->len_bytes > FP_VERBS_STREAM_BUFFER_BYTES || message[1] ||
	    message[2] || message[3] || credits > FP_VERBS_STREAM_BUFFERS - stream->credits) {
		(void)fail(stream, -EPROTO);
		return;
	}
	stream->credits += credits;
	if (c->len_bytes == PREFIX_BYTES) {
		post_again(stream, (unsigned)c->id);
		return;
	}
	stream->arrived[(stream->first + stream->n_arrived++) % FP_VERBS_STREAM_BUFFERS] =
	    (struct arrival){(uint8_t)c->id, PREFIX_BYTES, (uint16_t)c->len_bytes};
}

static void on_completion(const struct fp_verbs_completion *c, void *user)
{
	struct fp_verbs_stream *stream = user;

	if (c->op != FP_VERBS_RECV)
		stream->free[stream->n_free++] = (uint8_t)c->id;
	if (c->status < 0 && c->status != -ECANCELED && !stream->error)
		stream->why = fp_verbs_status_text(c->wc_status);
	if (c->status < 0)
		(void)fail(stream, -ECONNRESET);
	else if (c->op == FP_VERBS_RECV)
		on_arrival(stream, c);
}

/* Returns the number of completions that it took. */
static int progress(struct fp_verbs_stream *stream)
{
	int n = fp_verbs_dispatch(stream->conn, on_completion, stream);

	if (n < 0)
		(void)fail(stream, n);
	if (!stream->error)
		return_credits(stream);
	return n;
}

ssize_t fp_verbs_stream_send(struct fp_verbs_stream *stream, const void *bytes, size_t len)
{
	size_t sent = 0;

	(void)progress(stream);
	while (sent < len && !stream->error && stream->credits > 1 && stream->n_free > 0) {
		size_t n = FP_MIN(len - sent, (size_t)(FP_VERBS_STREAM_BUFFER_BYTES - PREFIX_BYTES));

		if (send_message(stream, (const char *)bytes + sent, n) < 0)
			break;
		sent += n;
	}
	if (sent > 0)
		return (ssize_t)sent;
	return stream->error ? stream->error : -EAGAIN;
}

ssize_t fp_verbs_stream_receive(struct fp_verbs_stream *stream, void *ret_bytes, size_t len)
{
	size_t got = 0;

	(void)progress(stream);
	while (got < len && stream->n_arrived > 0) {
		struct arrival *a = &stream->arrived[stream->first];
		size_t n = FP_MIN(len - got, (size_t)(a->end - a->at));

		memcpy((char *)ret_bytes + got, stream->buffers[a->buffer] + a->at, n);
		got += n;
		a->at = (uint16_t)(a->at + n);
		if (a->at < a->end)
			break;
		stream->first = (stream->first + 1) % FP_VERBS_STREAM_BUFFERS;
		stream->n_arrived--;
		if (!stream->error)
			post_again(stream, a->buffer);
	}
	if (!stream->error)
		return_credits(stream);
	if (got > 0)
		return (ssize_t)got;
	return stream->error ? stream->error : -EAGAIN;
}

int fp_verbs_stream_wait(struct fp_verbs_stream *stream, struct pollfd *ret_pollfd)
{
	int r = fp_verbs_arm(stream->conn, ret_pollfd);

	if (r < 0)
		return fail(stream, r);
	return progress(stream) > 0 || stream->error ? 1 : 0;
}

/* Half of the peer's receives are for this at most, until it says something and with that returns
 * them. */
bool fp_verbs_stream_nudge(struct fp_verbs_stream *stream)
{
	return !stream->heard && !stream->error && stream->credits > FP_VERBS_STREAM_BUFFERS / 2 &&
	       stream->n_free > 0 && send_message(stream, NULL, 0) == 0;
}

const char *fp_verbs_stream_why(const struct fp_verbs_stream *stream)
{
	return stream->why;
}

bool fp_verbs_stream_is_idle(const struct fp_verbs_stream *stream)
{
	return stream->n_free == N_SENDS;
}

struct fp_verbs_conn *fp_verbs_stream_conn(struct fp_verbs_stream *stream)
{
	return stream->conn;
}
