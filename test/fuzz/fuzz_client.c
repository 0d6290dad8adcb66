/*
 * Fuzz target: any bytes as what a node says to a client, from the handshake through the control calls to the
 * farewell. The first byte chooses how the session is opened, the next ones, up to a zero, are the calls; the
 * rest is what the node says. A client with a secret believes no node that cannot prove it.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "control.h"
#include "fuzz.h"

#define HAS_SECRET 1u
#define RESUMES    2u
#define HAS_KEYS   4u
#define N_OPENINGS 8u

#define MAX_PIECE_BYTES 100u

struct node {
	const uint8_t *bytes;
	size_t len;
};

static struct node node;

static ssize_t take_all(void *context, const void *bytes, size_t len)
{
	return (ssize_t)len;
}

/* A few bytes at a time; at the end the node is gone. */
static ssize_t say(void *context, void *ret_bytes, size_t len, int *fd)
{
	size_t n = FP_MIN(FP_MIN(len, node.len), MAX_PIECE_BYTES);

	if (n == 0)
		return -ECONNRESET;
	memcpy(ret_bytes, node.bytes, n);
	node.bytes += n;
	node.len -= n;
	return (ssize_t)n;
}

static int wait_for_nothing(void *context, short events, uint64_t deadline_ns)
{
	return 0;
}

static void forget(void *context, enum fp_dialog_end end)
{
}

static const struct fp_dialog_stream_ops stream_ops = {take_all, say, wait_for_nothing, forget};

static int dial(const struct fp_url *url, const struct fp_dialog_options *options, uint64_t deadline_ns,
                struct fp_session *session, struct fp_dialog_stream *ret_stream)
{
	*ret_stream = (struct fp_dialog_stream){.ops = &stream_ops};
	return 0;
}

static int call(struct fp_session *session, uint8_t which)
{
	const struct fp_session_identity parent = {.id = 1};
	const struct fp_lease *lease;
	struct fp_node_info info;
	struct fp_drain_info drain;
	fp_autofree char *json = NULL;
	int r;

	switch (which % 8) {
	case 0:
		r = fp_control_lease(session, 4096, &lease);
		assert(r < 0 || (lease->size_bytes >= 4096 && !lease->read_only &&
		                 fp_control_find_lease(session, lease->id) == lease));
		return r;
	case 1:
		r = fp_control_attach(session, 1, &lease);
		assert(r < 0 || lease->id == 1);
		return r;
	case 2:
		return fp_control_release(session, 1);
	case 3:
		return fp_control_info(session, &info);
	case 4:
		r = fp_control_status(session, &json);
		assert(r < 0 || strlen(json) <= FP_WIRE_MAX_STATUS);
		return r;
	case 5:
		return fp_control_drain(session, &drain);
	case 6:
		return fp_control_ping(session, 16, 0);
	default:
		return fp_control_adopt(session, &parent, NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const struct fp_session_identity resumed = {.id = 1};
	const struct fp_url url = {.transport = &fp_transport_tcp};
	uint8_t opening = len ? bytes[0] % N_OPENINGS : 0;
	const uint8_t *calls = bytes + 1, *end = len ? memchr(calls, 0, len - 1) : NULL;
	const struct fp_control_ops ops = {.transport = &fp_transport_tcp,
	                                   .features = opening & HAS_KEYS ? FP_WIRE_FEATURE_KEYS : 0,
	                                   .dial = dial};
	const struct fp_session_options options = {.client_name = "fuzz",
	                                           .secret = opening & HAS_SECRET ? "secret" : NULL,
	                                           .resume = opening & RESUMES ? &resumed : NULL};
	struct fp_session *session;

	if (!end)
		return 0;
	node = (struct node){end + 1, len - (size_t)(end + 1 - bytes)};
	if (fp_control_open(&ops, &url, &options, &session) < 0)
		return 0;
	assert(!(opening & HAS_SECRET));
	for (; calls < end; calls++)
		assert(call(session, *calls) <= 0);
	fp_control_close(session);
	return 0;
}
