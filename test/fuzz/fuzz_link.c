/*
 * Fuzz target: any bytes as the answers of a node on a tcp link. The first byte chooses the
 * requests under way. The node sends the rest and closes. Each request must end once. A READ that
 * succeeds must have the bytes of its own answer, whatever the node sent before.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "frames.h"
#include "fuzz.h"
#include "transport.h"
#include "wire.h"

#define N_REQUESTS      3u
#define N_SEGS          2u
#define SEG_BYTES       16u
#define MAX_OUTSTANDING 8
#define LEASE_BYTES     (1u << 20)
#define DEADLINE_NS     (60 * FP_NSEC_PER_SEC) /* never reached: all requests end when the node closes */

struct request {
	struct fp_io io;
	struct fp_seg segs[N_SEGS];
	uint8_t buf[N_SEGS * SEG_BYTES];
	bool done;
};

static struct {
	int listener;
	int peer; /* the node's end of the newest connection */
	struct fp_session *session;
} t;

/* ---- the node ---- */

static void send_frame(int fd, enum fp_wire_type type, uint64_t tag, const void *payload, size_t len)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_welcome)];

	fp_wire_header_encode(type, FP_WIRE_OK, tag, len, bytes);
	memcpy(bytes + FP_WIRE_HEADER_BYTES, payload, len);
	assert(send(fd, bytes, FP_WIRE_HEADER_BYTES + len, MSG_NOSIGNAL) ==
	       (ssize_t)(FP_WIRE_HEADER_BYTES + len));
}

static void *shake_hands(void *arg)
{
	const struct fp_wire_challenge challenge = {.version = FP_WIRE_VERSION};
	const struct fp_wire_welcome welcome = {.version = FP_WIRE_VERSION,
	                                        .session_id = 1,
	                                        .max_payload = FP_WIRE_MAX_PAYLOAD,
	                                        .max_outstanding = MAX_OUTSTANDING};
	uint8_t in[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_hello)], out[sizeof(welcome)];
	ssize_t auth_bytes = FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_auth);

	t.peer = accept4(t.listener, NULL, NULL, SOCK_CLOEXEC);
	assert(t.peer >= 0 && recv(t.peer, in, sizeof(in), MSG_WAITALL) == (ssize_t)sizeof(in));
	fp_wire_challenge_encode(&challenge, out);
	send_frame(t.peer, FP_WIRE_CHALLENGE, 0, out, sizeof(challenge));
	assert(recv(t.peer, in, (size_t)auth_bytes, MSG_WAITALL) == auth_bytes);
	fp_wire_welcome_encode(&welcome, out);
	send_frame(t.peer, FP_WIRE_WELCOME, 0, out, sizeof(welcome));
	return NULL;
}

static void *grant_lease(void *arg)
{
	const struct fp_wire_leased leased = {.lease_id = 1, .size_bytes = LEASE_BYTES};
	uint8_t in[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_lease)], out[sizeof(leased)];
	struct fp_wire_header header;

	assert(recv(t.peer, in, sizeof(in), MSG_WAITALL) == (ssize_t)sizeof(in));
	assert(fp_wire_header_decode(in, &header) == 0 && header.type == FP_WIRE_LEASE);
	fp_wire_leased_encode(&leased, out);
	send_frame(t.peer, FP_WIRE_LEASED, header.tag, out, sizeof(leased));
	return NULL;
}

static void begin_handshake(pthread_t *ret_node)
{
	assert(pthread_create(ret_node, NULL, shake_hands, NULL) == 0);
}

static void open_session(void)
{
	const struct fp_session_options options = {.client_name = "fuzz", .deadline_ns = DEADLINE_NS};
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(addr);
	const struct fp_lease *lease;
	struct fp_url url;
	char text[64];
	pthread_t node;

	t.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(bind(t.listener, (struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(t.listener, 4) == 0);
	assert(getsockname(t.listener, (struct sockaddr *)&addr, &len) == 0);
	snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", ntohs(addr.sin_port));
	assert(fp_url_parse(text, &url) == 0);
	begin_handshake(&node);
	assert(fp_session_open(&url, &options, &t.session) == 0);
	pthread_join(node, NULL);
	assert(pthread_create(&node, NULL, grant_lease, NULL) == 0);
	assert(fp_session_lease(t.session, LEASE_BYTES, &lease) == 0 && lease->id == 1);
	pthread_join(node, NULL);
}

/* ---- the client ---- */

static void submit_all(struct fp_link *link, struct request *requests, uint8_t writes)
{
	for (unsigned i = 0; i < N_REQUESTS; i++) {
		struct request *r = &requests[i];

		for (unsigned s = 0; s < N_SEGS; s++)
			r->segs[s] = (struct fp_seg){
			    .lease_id = 1, .len_bytes = SEG_BYTES, .buf = r->buf + (size_t)s * SEG_BYTES};
		r->io = (struct fp_io){.op = writes >> i & 1 ? FP_IO_WRITE : FP_IO_READ,
		                       .segs = r->segs,
		                       .n_segs = N_SEGS,
		                       .user = r};
		assert(fp_link_submit(link, &r->io) == 0);
	}
}

/* The payload of the first answer that fits the request; NULL: none does. */
static const uint8_t *answer_to(const struct request *r, const uint8_t *said, size_t len)
{
	struct fp_wire_header header;

	for (size_t at = 0;
	     len - at >= FP_WIRE_HEADER_BYTES && fp_wire_header_decode(said + at, &header) == 0;
	     at += header.length) {
		at += FP_WIRE_HEADER_BYTES;
		if (header.length > len - at)
			return NULL;
		if (header.tag == r->io.tag)
			return header.type == FP_WIRE_DATA && header.length == sizeof(r->buf) ? said + at
			                                                                      : NULL;
	}
	return NULL;
}

static void check_end(struct request *r, const uint8_t *said, size_t len)
{
	bool reads = r->io.op == FP_IO_READ;
	uint8_t type = reads ? FP_WIRE_DATA : FP_WIRE_WRITTEN;
	const uint8_t *payload;

	assert(!r->done && r->io.status <= 0 && r->io.status != -ETIMEDOUT);
	r->done = true;
	if (r->io.status == 0 && reads) {
		payload = answer_to(r, said, len);
		assert(payload && memcmp(payload, r->buf, sizeof(r->buf)) == 0);
	}
	if (r->io.status < 0 && r->io.status != -EPROTO && r->io.status != -ECONNRESET)
		type = FP_WIRE_ERROR;
	frames_note(type, fp_wire_status_from_errno(r->io.status));
}

static void await_all(struct fp_link *link, const uint8_t *said, size_t len)
{
	struct fp_io *done[N_REQUESTS];
	struct pollfd p;

	for (unsigned left = N_REQUESTS; left > 0;) {
		int n = fp_link_poll(link, done, N_REQUESTS);

		assert(n >= 0 && (unsigned)n <= left);
		for (int i = 0; i < n; i++)
			check_end(done[i]->user, said, len);
		left -= (unsigned)n;
		if (left && fp_link_pollfd(link, &p) > 0)
			assert(poll(&p, 1, (int)(DEADLINE_NS / FP_NSEC_PER_MSEC)) > 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct request requests[N_REQUESTS] = {0};
	const struct linger at_once = {.l_onoff = 1};
	struct fp_link *link;
	pthread_t node;

	if (!len)
		return 0;
	if (!t.session)
		open_session();
	begin_handshake(&node);
	assert(fp_link_open(t.session, &link) == 0);
	pthread_join(node, NULL);
	submit_all(link, requests, bytes[0]);
	if (len > 1)
		assert(send(t.peer, bytes + 1, len - 1, MSG_NOSIGNAL) == (ssize_t)(len - 1));
	shutdown(t.peer, SHUT_WR);
	await_all(link, bytes + 1, len - 1);
	setsockopt(t.peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(t.peer); /* closes by a reset, so that no port stays in TIME_WAIT */
	fp_link_close(link);
	return 0;
}

/* ---- what the corpus must reach ---- */

static uint32_t wanted(uint8_t type)
{
#define ENDS(name) FRAMES_ENDS(FP_WIRE_##name)
	if (type == FP_WIRE_ERROR)
		return ENDS(DENIED) | ENDS(FULL);
	return type == FP_WIRE_DATA || type == FP_WIRE_WRITTEN ? ENDS(OK) | ENDS(MALFORMED) : 0;
#undef ENDS
}

unsigned fuzz_missing(void)
{
	return frames_missing(wanted);
}
