/*
 * The pump: between a peer's stream and the socket pair whose other end is the daemon's. Room:
 * transport; see cm_server.h.
 */
#include "cm_server_internal.h"

#include <errno.h>
#include <sys/socket.h>

#define PUMP_ROUNDS 64 /* of one peer before others have their turn */

/* Fills half with what fill gave, if that is something. Returns whether anything moved, or a
 * negative errno.
 */
static int filled(struct fp_cm_server_buffer *half, ssize_t n)
{
	if (n == -EAGAIN)
		return 0;
	if (n < 0)
		return (int)n;
	half->begin = 0;
	half->end = (size_t)n;
	return n > 0;
}

static int drained(struct fp_cm_server_buffer *half, ssize_t n)
{
	if (n == -EAGAIN)
		return 0;
	if (n < 0)
		return (int)n;
	half->begin += (size_t)n;
	return n > 0;
}

static ssize_t normal(ssize_t n)
{
	return n >= 0 ? n : errno == EINTR || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

/* Each returns whether anything moved, or a negative errno: this way is broken. */
static int pump_in(struct fp_cm_server_peer *peer)
{
	struct fp_cm_server_buffer *in = peer->in;
	int r, moved = 0;

	if (fp_cm_server_buffer_is_empty(in)) {
		moved = filled(in, fp_verbs_stream_receive(peer->stream, in->bytes, sizeof(in->bytes)));
		if (moved < 0)
			return moved;
	}
	if (fp_cm_server_buffer_is_empty(in))
		return moved;
	r = drained(in, normal(send(peer->sock, in->bytes + in->begin, in->end - in->begin,
	                            MSG_NOSIGNAL | MSG_DONTWAIT)));
	if (r >= 0)
		return moved | r;
	in->begin = in->end; /* the daemon wants no more; what it still has to say goes out */
	return 1;
}

static int pump_out(struct fp_cm_server_peer *peer)
{
	struct fp_cm_server_buffer *out = peer->out;
	int r, moved = 0;
	ssize_t n;

	if (fp_cm_server_buffer_is_empty(out) && !peer->sock_eof) {
		n = normal(recv(peer->sock, out->bytes, sizeof(out->bytes), MSG_DONTWAIT));
		peer->sock_eof = n == 0;
		moved = filled(out, n);
		if (moved < 0)
			return moved;
	}
	if (fp_cm_server_buffer_is_empty(out))
		return moved;
	r = drained(out, fp_verbs_stream_send(peer->stream, out->bytes + out->begin, out->end - out->begin));
	return r < 0 ? r : moved | r;
}

/*
 * Moves what can be moved. A side that takes nothing holds the other up: what the daemon does not
 * read stays in the stream's buffers, whose credits then run out for the client.
 */
int fp_cm_server_pump_until_still(struct fp_cm_server_peer *peer)
{
	int in, out, r;

	peer->again = false;
	for (unsigned i = 0; i < PUMP_ROUNDS; i++) {
		in = pump_in(peer);
		out = in < 0 ? in : pump_out(peer);
		if (out < 0)
			return out;
		if (in || out)
			continue;
		r = fp_verbs_stream_wait(peer->stream, &peer->stream_poll);
		if (r <= 0)
			return r;
	}
	peer->again = true;
	return 0;
}

/* The daemon is through with it, and all that it said is out. */
static bool has_farewelled(const struct fp_cm_server_peer *peer)
{
	return peer->sock_eof && fp_cm_server_buffer_is_empty(peer->out) &&
	       fp_verbs_stream_is_idle(peer->stream);
}

void fp_cm_server_pump(struct fp_cm_server_peer *peer)
{
	int r = fp_cm_server_pump_until_still(peer);
	const char *why = fp_verbs_stream_why(peer->stream);

	if (r < 0 && why)
		fp_cm_server_tell_why(peer->server, FP_CM_SERVER_EVENT_BROKEN, peer->name,
		                      fp_cm_server_peer_session(peer), why);
	if (r < 0 || has_farewelled(peer))
		fp_cm_server_peer_cut_off(peer);
}
