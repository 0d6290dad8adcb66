/*
 * Fuzz target: any bytes as a node's answers to a client, from the handshake through the control
 * calls to BYE. The first byte chooses how the session is opened. The next bytes, up to a zero, are
 * the calls. The rest is the node's answers. If the proof in WELCOME is 32 times 0xee, the target
 * replaces it by the node's real proof, because a client with a secret accepts no other. After a
 * wrong answer a client must close the connection.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "auth.h"
#include "cleanup.h"
#include "control.h"
#include "frames.h"
#include "fuzz.h"

#define HAS_SECRET 1u
#define RESUMES    2u
#define HAS_KEYS   4u
#define MAPS       8u

#define MAX_PIECE_BYTES 100u
#define MAX_INPUT_BYTES 4096u
#define SECRET          "secret"
#define BLANK           0xee

/*
 * Results that are no status. PROVED: the node has proved that it knows the secret. LATE: a late
 * answer came to a call that had given up.
 */
#define PROVED 16
#define LATE   17

#define FRAME_BYTES(type) (FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_##type))

static struct {
	uint8_t bytes[MAX_INPUT_BYTES];
	size_t len, said;
	bool has_secret, has_keys, proved;
	unsigned n_heard;
	uint8_t asked; /* the type of the present call */
} node;

/* ---- the node ---- */

/* If WELCOME has a blank in place of the proof, writes the node's real proof there. */
static void prove(const uint8_t *hello_frame)
{
	const uint8_t *at = node.bytes + FP_WIRE_HEADER_BYTES;
	uint8_t *payload = node.bytes + FRAME_BYTES(challenge) + FP_WIRE_HEADER_BYTES,
	        blank[FP_WIRE_PROOF_BYTES];
	struct fp_wire_hello hello;
	struct fp_wire_challenge challenge;
	struct fp_wire_welcome welcome;

	memset(blank, BLANK, sizeof(blank));
	if (!node.has_secret || node.len < FRAME_BYTES(challenge) + FRAME_BYTES(welcome) ||
	    fp_wire_hello_decode(hello_frame + FP_WIRE_HEADER_BYTES, sizeof(hello), &hello) < 0 ||
	    fp_wire_challenge_decode(at, sizeof(challenge), &challenge) < 0 ||
	    fp_wire_welcome_decode(payload, sizeof(welcome), &welcome) < 0 ||
	    memcmp(welcome.proof, blank, sizeof(blank)) != 0)
		return;
	assert(fp_auth_prove_server(SECRET, &hello, &challenge, &welcome,
	                            payload + offsetof(struct fp_wire_welcome, proof)) == 0);
	node.proved = true;
}

/* A nonce must not come twice: otherwise somebody could send a node's recorded answers again. */
static void check_nonce(const uint8_t *hello_frame)
{
	static uint8_t last[FP_WIRE_NONCE_BYTES];
	const uint8_t *nonce = hello_frame + FP_WIRE_HEADER_BYTES + offsetof(struct fp_wire_hello, nonce);

	assert(memcmp(nonce, last, sizeof(last)) != 0);
	memcpy(last, nonce, sizeof(last));
}

/* ---- the node's socket: these functions replace the C library's ---- */

int connect(int fd, const struct sockaddr *address, socklen_t len)
{
	return 0;
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
	return 0;
}

/* A client must send each frame in one piece. */
ssize_t send(int fd, const void *bytes, size_t len, int flags)
{
	struct fp_wire_header header;

	assert(len >= FP_WIRE_HEADER_BYTES && fp_wire_header_decode(bytes, &header) == 0);
	assert(len == FP_WIRE_HEADER_BYTES + header.length);
	if (!node.n_heard++) {
		assert(header.type == FP_WIRE_HELLO);
		check_nonce(bytes);
		prove(bytes);
	}
	if (header.type == FP_WIRE_RELEASE && node.asked != FP_WIRE_RELEASE && node.asked != FP_WIRE_LEASE)
		frames_note(FP_WIRE_LEASED, LATE);
	return (ssize_t)len;
}

/* Gives a few bytes at a time. After the last byte the node has closed. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	size_t len = msg->msg_iov->iov_len, n = FP_MIN(FP_MIN(len, node.len - node.said), MAX_PIECE_BYTES);

	assert(len <= FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_STATUS); /* the size of a handshake's buffer */
	memcpy(msg->msg_iov->iov_base, node.bytes + node.said, n);
	node.said += n;
	msg->msg_controllen = 0;
	return (ssize_t)n;
}

/* The socket is readable until its end has been read. */
int poll(struct pollfd *polls, nfds_t n, int timeout_ms)
{
	return 0;
}

/* The type of the last complete frame; 0: there is none. */
static uint8_t last_said(void)
{
	struct fp_wire_header header = {0};

	for (size_t at = 0; at < node.said; at += FP_WIRE_HEADER_BYTES + header.length)
		if (node.said - at < FP_WIRE_HEADER_BYTES ||
		    fp_wire_header_decode(node.bytes + at, &header) < 0 ||
		    node.said - at < FP_WIRE_HEADER_BYTES + header.length)
			return 0;
	return header.type;
}

/* True if every frame after the handshake answers a call, in time or late. */
static bool was_asked(void)
{
	struct fp_wire_header header = {0};
	unsigned n = 0;

	for (size_t at = 0; at < node.said; at += FP_WIRE_HEADER_BYTES + header.length)
		if (fp_wire_header_decode(node.bytes + at, &header) < 0 ||
		    (n++ >= 2 && (header.tag < 1 || header.tag > node.n_heard - 2)))
			return false;
	return true;
}

/* ---- the client ---- */

static int call(struct fp_session *session, enum fp_wire_type type)
{
	const struct fp_session_identity parent = {.id = 1};
	const struct fp_lease *lease;
	struct fp_node_info info;
	struct fp_drain_info drain;
	fp_autofree char *json = NULL;
	int r;

	switch (type) {
	case FP_WIRE_LEASE:
		r = fp_control_lease(session, 4096, &lease);
		assert(r < 0 || (lease->size_bytes >= 4096 && !lease->read_only &&
		                 fp_control_find_lease(session, lease->id) == lease));
		assert(r < 0 || node.has_keys || (!lease->remote_address && !lease->remote_key));
		return r;
	case FP_WIRE_ATTACH:
		r = fp_control_attach(session, 1, &lease);
		assert(r < 0 || lease->id == 1);
		return r;
	case FP_WIRE_RELEASE:
		return fp_control_release(session, 1);
	case FP_WIRE_INFO:
		return fp_control_info(session, &info);
	case FP_WIRE_STATUS:
		r = fp_control_status(session, &json);
		assert(r < 0 || strlen(json) <= FP_WIRE_MAX_STATUS);
		return r;
	case FP_WIRE_DRAIN:
		return fp_control_drain(session, &drain);
	case FP_WIRE_UNDRAIN:
		return fp_control_undrain(session);
	case FP_WIRE_PING:
		return fp_control_ping(session, 16, 0);
	default:
		return fp_control_adopt(session, &parent, NULL);
	}
}

static unsigned end_of(int r)
{
	return r == -EKEYREJECTED ? FP_WIRE_DENIED
	       : r == -EOPNOTSUPP ? FP_WIRE_NOT_PERMITTED
	                          : fp_wire_status_from_errno(r);
}

/*
 * A byte of the input, modulo the length of this array, is a call's index. A zero byte ends the
 * calls, so another multiple of the length stands for index 0.
 */
static const uint8_t calls[] = {FP_WIRE_UNDRAIN, FP_WIRE_ATTACH, FP_WIRE_RELEASE,
                                FP_WIRE_INFO,    FP_WIRE_STATUS, FP_WIRE_DRAIN,
                                FP_WIRE_PING,    FP_WIRE_ADOPT,  FP_WIRE_LEASE};

/* True if this call always sends a request, whatever leases the client has. */
static bool always_asks(uint8_t type)
{
	return type != FP_WIRE_ATTACH && type != FP_WIRE_RELEASE;
}

static void talk(struct fp_session *session, const uint8_t *numbers, const uint8_t *end)
{
	bool broken = false;

	for (; numbers < end; numbers++) {
		int r;

		node.asked = calls[*numbers % sizeof(calls)];
		r = call(session, (enum fp_wire_type)node.asked);
		assert(r <= 0 && (!broken || !always_asks(node.asked) || r == -EPROTO));
		assert(r < 0 || !always_asks(node.asked) || was_asked());
		broken = broken || (r == -EPROTO && last_said() != FP_WIRE_ERROR);
		frames_note(r < 0 && last_said() == FP_WIRE_ERROR ? FP_WIRE_ERROR : node.asked + 1,
		            end_of(r));
	}
	node.asked = FP_WIRE_BYE;
	fp_control_close(session);
	if (last_said() == FP_WIRE_FAREWELL)
		frames_note(FP_WIRE_FAREWELL, FP_WIRE_OK);
}

/* CHALLENGE is the answer to HELLO, and WELCOME the answer to AUTH. */
static void note_handshake(int r)
{
	if (last_said() == FP_WIRE_ERROR)
		frames_note(FP_WIRE_ERROR, end_of(r));
	else
		frames_note(node.n_heard > 1 ? FP_WIRE_WELCOME : FP_WIRE_CHALLENGE, end_of(r));
	if (node.n_heard > 1)
		frames_note(FP_WIRE_CHALLENGE, FP_WIRE_OK);
	if (r == 0 && node.has_secret)
		frames_note(FP_WIRE_WELCOME, PROVED);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	const struct fp_session_identity resumed = {.id = 1};
	const struct fp_url url = {.transport = &fp_transport_tcp, .host = "127.0.0.1", .port = 1};
	uint8_t opening = len ? bytes[0] : 0;
	const uint8_t *numbers = bytes + 1, *end = len ? memchr(numbers, 0, len - 1) : NULL;
	const struct fp_control_ops ops = {.transport = &fp_transport_tcp,
	                                   .features = (opening & HAS_KEYS ? FP_WIRE_FEATURE_KEYS : 0) |
	                                               (opening & MAPS ? FP_WIRE_FEATURE_MEMFD : 0)};
	const struct fp_session_options options = {.client_name = "fuzz",
	                                           .secret = opening & HAS_SECRET ? SECRET : NULL,
	                                           .resume = opening & RESUMES ? &resumed : NULL};
	struct fp_session *session;
	int r;

	if (!end)
		return 0;
	memset(&node, 0, sizeof(node));
	node.has_secret = opening & HAS_SECRET;
	node.has_keys = opening & HAS_KEYS;
	node.len = FP_MIN(len - (size_t)(end + 1 - bytes), MAX_INPUT_BYTES);
	memcpy(node.bytes, end + 1, node.len);
	r = fp_control_open(&ops, &url, &options, &session);
	if (node.n_heard)
		note_handshake(r);
	if (r < 0)
		return 0;
	assert(!node.has_secret || node.proved);
	talk(session, numbers, end);
	return 0;
}

/* ---- what the corpus must reach ---- */

static uint32_t wanted(uint8_t type)
{
	switch (type) {
#define ENDS(name) FRAMES_ENDS(FP_WIRE_##name)
	case FP_WIRE_ERROR:
		return ENDS(MALFORMED) | ENDS(VERSION_GAP) | ENDS(DENIED) | ENDS(FULL) | ENDS(OVER_QUOTA) |
		       ENDS(BUSY) | ENDS(BAD_VALUE) | ENDS(NOT_PERMITTED) | ENDS(BROKEN) | ENDS(GONE);
	case FP_WIRE_CHALLENGE:
		return ENDS(OK) | ENDS(MALFORMED) | ENDS(VERSION_GAP);
	case FP_WIRE_WELCOME:
		return ENDS(OK) | ENDS(MALFORMED) | ENDS(DENIED) | ENDS(NOT_PERMITTED) | FRAMES_ENDS(PROVED);
	case FP_WIRE_LEASED:
		return ENDS(OK) | ENDS(MALFORMED) | FRAMES_ENDS(LATE);
	case FP_WIRE_FAREWELL:
		return ENDS(OK);
	case FP_WIRE_DATA: /* see fuzz_link.c */
	case FP_WIRE_WRITTEN:
	case FP_WIRE_QP_REPLY: /* needs a device */
		return 0;
	default:
		return type & 1 ? ENDS(OK) | ENDS(MALFORMED) : 0;
#undef ENDS
	}
}

unsigned fuzz_missing(void)
{
	return frames_missing(wanted);
}
