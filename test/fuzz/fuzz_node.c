/*
 * Fuzz target: any bytes that a client may send to a running node on one connection. Each answer
 * must be one that its request permits. Afterwards the node must end the connection and take back
 * its leases, and must serve other clients' sessions as before. The first byte chooses the node:
 * with secrets or without, and over which socket.
 *
 * An input can't know some values, so it has blanks in their place. A blank is one byte, repeated
 * to the length of the value. The target replaces the blanks by these values:
 *
 *   24 times 0xee    id and token of another client's session
 *   24 times 0xed    id and token of a session that maps leases
 *   32 times 0xec    in an AUTH: the proof of the secret with all rights
 *   32 times 0xeb    in an AUTH: the proof of the secret without rights
 */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "auth.h"
#include "cleanup.h"
#include "clock.h"
#include "handshake.h"
#include "frames.h"
#include "fuzz.h"
#include "log.h"
#include "node_server.h"

#define HAS_SECRET 1u
#define OVER_TCP   2u

#define MAX_INPUT_BYTES 4096u
#define LEASE_BYTES     (1u << 20)
#define POOL_BYTES      (8u << 20)
#define QUOTA_BYTES     (4u << 20) /* of nodes with secrets */
#define MAX_LEASES      3
#define DEADLINE_NS     (60 * FP_NSEC_PER_SEC) /* never reached: a correct node answers at once */

#define BLANK_OTHER 0xee
#define BLANK_MAPS  0xed
#define BLANK_ALL   0xec
#define BLANK_NONE  0xeb

/*
 * Another client's session. If `dialog` is NULL, the session is not open, or an input has taken it
 * over.
 */
struct session {
	struct fp_handshake *dialog;
	struct fp_wire_welcome welcome;
	uint64_t tag;
};

struct node {
	struct fp_config *config;
	bool has_secret;
	int ready_fd;
	char socket[64];
	uint16_t port;
	struct session other, maps;
};

static struct node nodes[2];

/* An input and the answers of its node. */
struct talk {
	struct node *node;
	int fd;
	/*
	 * The target wrote a proof into the input's AUTH, so the input counts as one that knows the
	 * secret.
	 */
	bool proved;
	bool drained;
	unsigned n_frames, n_answers;
	struct fp_wire_header frames[MAX_INPUT_BYTES / FP_WIRE_HEADER_BYTES + 1]; /* type 0: unknown */
};

/* ---- the nodes, and other clients' sessions ---- */

static const struct {
	const char *name, *text;
	unsigned rights;
} secrets[] = {
    {"all", "the secret that may do everything", FP_RIGHTS_ALL},
    {"none", "the secret that may do nothing", 0},
};

static void add_secrets(struct fp_auth_config *auth)
{
	auth->given = true;
	for (size_t i = 0; i < FP_ARRAY_LEN(secrets); i++) {
		struct fp_node_secret *secret = fp_secrets_add(&auth->secrets);

		secret->name = strdup(secrets[i].name);
		secret->text = strdup(secrets[i].text);
		secret->rights = secrets[i].rights;
	}
}

static void *serve(void *arg)
{
	struct node *node = arg;
	struct fp_node_server_options options = {
	    .config = node->config, .ready_fd = node->ready_fd, .users_fd = -1};

	assert(fp_node_server_run(&options) == 0);
	return NULL;
}

static void start_node(struct node *node)
{
	struct fp_pool_config *pool;
	char listen[80], urls[128];
	pthread_t thread;
	int ready[2];
	FILE *said;

	snprintf(node->socket, sizeof(node->socket), "@fuzz-node-%d-%d", (int)getpid(), (int)(node - nodes));
	snprintf(listen, sizeof(listen), "unix:%s", node->socket);
	node->config = fp_config_new();
	pool = fp_config_add_pool(node->config);
	pool->name = strdup("main");
	pool->size_bytes = POOL_BYTES;
	node->config->limits.max_leases = MAX_LEASES;
	node->config->limits.grace_ns = FP_NSEC_PER_MSEC; /* each broken connection costs this time */
	if (node->has_secret) {
		add_secrets(&node->config->auth);
		node->config->limits.client_quota_bytes = QUOTA_BYTES;
	}
	assert(fp_config_add_listen(node->config, listen) == 0);
	assert(fp_config_add_listen(node->config, "tcp://127.0.0.1:0") == 0 && pipe(ready) == 0);
	node->ready_fd = ready[1];
	assert(pthread_create(&thread, NULL, serve, node) == 0);
	said = fdopen(ready[0], "r");
	assert(said && fgets(urls, sizeof(urls), said));
	node->port = (uint16_t)atoi(strrchr(urls, ':') + 1);
	fclose(said);
}

/*
 * Makes a request over another client's session. Returns 0 and the payload of the answer, or a
 * negative errno if the session has ended.
 */
static int ask(struct session *session, enum fp_wire_type type, const void *request, size_t len,
               const void **ret_payload)
{
	uint64_t deadline_ns = fp_clock_ns() + DEADLINE_NS;
	struct fp_wire_header header;
	int r = fp_handshake_send(session->dialog, type, ++session->tag, request, len, deadline_ns);

	if (r == 0)
		r = fp_handshake_receive(session->dialog, deadline_ns, &header, ret_payload);
	if (r < 0) {
		assert(r == -ECONNRESET || r == -EPIPE);
		return r;
	}
	assert(header.tag == session->tag && header.type == type + 1);
	return 0;
}

static void open_session(const struct node *node, struct session *session, uint32_t features)
{
	const struct fp_handshake_options options = {.purpose = FP_WIRE_CONTROL,
	                                             .client_name = "other",
	                                             .features = features,
	                                             .secret = node->has_secret ? secrets[0].text : NULL};
	const struct fp_wire_lease lease = {.size_bytes = LEASE_BYTES};
	uint8_t bytes[sizeof(lease)];
	struct fp_url url = {.transport = &fp_transport_shm};
	const void *payload;

	if (session->dialog)
		return;
	memcpy(url.host, node->socket, sizeof(node->socket));
	assert(fp_handshake_open(&url, &options, fp_clock_ns() + DEADLINE_NS, &session->dialog,
	                         &session->welcome) == 0);
	fp_wire_lease_encode(&lease, bytes);
	assert(ask(session, FP_WIRE_LEASE, bytes, sizeof(bytes), &payload) == 0);
}

/*
 * The session must have its leases, and the pool must have all other memory: at once, or as soon as
 * freed memory is scrubbed.
 */
static void check_session(const struct node *node, struct session *session)
{
	uint64_t give_up_ns = fp_clock_ns() + DEADLINE_NS;
	uint64_t leased_bytes = node->other.dialog ? 2 * LEASE_BYTES : LEASE_BYTES;
	struct fp_wire_info info;
	const void *payload;

	do {
		assert(fp_clock_ns() < give_up_ns);
		if (ask(session, FP_WIRE_INFO, NULL, 0, &payload) < 0) {
			fp_handshake_close(fp_take_ptr(session->dialog));
			return;
		}
		assert(fp_wire_info_decode(payload, sizeof(info), &info) == 0);
		assert(info.leased_bytes == LEASE_BYTES && info.capacity_bytes == POOL_BYTES);
	} while (info.free_bytes != POOL_BYTES - leased_bytes);
}

static void check_others(const struct talk *talk)
{
	struct node *node = talk->node;
	const void *payload;

	if (talk->drained)
		assert(ask(&node->maps, FP_WIRE_UNDRAIN, NULL, 0, &payload) == 0);
	check_session(node, &node->other);
	check_session(node, &node->maps);
	assert(node->maps.dialog);
}

/* ---- bytes that no input can know ---- */

static uint8_t *find_blank(uint8_t *bytes, size_t len, uint8_t blank, size_t blank_len)
{
	uint8_t whole[FP_WIRE_PROOF_BYTES];

	memset(whole, blank, blank_len);
	return memmem(bytes, len, whole, blank_len);
}

static void fill_in_sessions(const struct node *node, uint8_t *bytes, size_t len)
{
	const struct {
		uint8_t blank;
		const struct fp_wire_welcome *welcome;
	} known[] = {{BLANK_OTHER, &node->other.welcome}, {BLANK_MAPS, &node->maps.welcome}};
	uint8_t *at;

	for (size_t i = 0; i < FP_ARRAY_LEN(known); i++)
		while ((at = find_blank(bytes, len, known[i].blank, sizeof(struct fp_wire_adopt)))) {
			const struct fp_wire_adopt own = {.session_id = known[i].welcome->session_id};

			fp_wire_adopt_encode(&own, at);
			memcpy(at + offsetof(struct fp_wire_adopt, token), known[i].welcome->token,
			       FP_WIRE_TOKEN_BYTES);
		}
}

/*
 * The index of the secret whose proof must replace the blank in the AUTH; negative: there is no
 * blank.
 */
static int wanted_secret(const struct talk *talk, uint8_t *auth)
{
	static const uint8_t blanks[] = {BLANK_ALL, BLANK_NONE}; /* in the order of the secrets */

	if (talk->n_frames < 2 || talk->frames[0].type != FP_WIRE_HELLO ||
	    talk->frames[1].type != FP_WIRE_AUTH)
		return -1;
	for (int i = 0; i < (int)sizeof(blanks); i++)
		if (find_blank(auth, FP_WIRE_PROOF_BYTES, blanks[i], FP_WIRE_PROOF_BYTES))
			return i;
	return -1;
}

/* Finds the frames of the input, up to the first that is invalid or incomplete. */
static void find_frames(struct talk *talk, const uint8_t *bytes, size_t len)
{
	size_t at = 0;

	while (at < len && talk->n_frames < FP_ARRAY_LEN(talk->frames)) {
		struct fp_wire_header *header = &talk->frames[talk->n_frames++];

		if (len - at < FP_WIRE_HEADER_BYTES || fp_wire_header_decode(bytes + at, header) < 0) {
			header->type = 0;
			return;
		}
		at += FP_WIRE_HEADER_BYTES + header->length;
	}
}

/* ---- the conversation ---- */

static int dial(const struct node *node, bool over_tcp)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t un_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(node->socket));
	int fd = socket(over_tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(un.sun_path + 1, node->socket + 1, strlen(node->socket) - 1);
	in.sin_port = htons(node->port);
	assert(fd >= 0);
	if (over_tcp)
		assert(connect(fd, (struct sockaddr *)&in, sizeof(in)) == 0);
	else
		assert(connect(fd, (struct sockaddr *)&un, un_len) == 0);
	return fd;
}

/* Receives len bytes; fewer at the end of the stream. */
static size_t receive(int fd, uint8_t *ret_bytes, size_t len)
{
	size_t have = 0;

	while (have < len) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n;
		int ready;

		while ((ready = poll(&p, 1, (int)(DEADLINE_NS / FP_NSEC_PER_MSEC))) < 0 && errno == EINTR)
			;
		assert(ready == 1);
		n = recv(fd, ret_bytes + have, len - have, 0);
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	return have;
}

/*
 * Checks that the answer belongs to the next frame: a node answers each frame once, in the order of
 * the frames.
 */
static void check_answer(struct talk *talk, const struct fp_wire_header *answer)
{
	const struct fp_wire_header *frame = &talk->frames[talk->n_answers++];
	bool out_of_step = answer->status == FP_WIRE_MALFORMED || answer->status == FP_WIRE_VERSION_GAP;

	assert(talk->n_answers <= talk->n_frames);
	assert(answer->type == FP_WIRE_ERROR || answer->type == frame->type + 1);
	assert(answer->tag == frame->tag || (out_of_step && answer->tag == 0));
	assert(answer->type != FP_WIRE_WELCOME || talk->proved || !talk->node->has_secret);
	talk->drained |= answer->type == FP_WIRE_DRAINED;
	frames_note(frame->type, (unsigned)answer->status);
}

/*
 * Receives an answer, and copies its payload to ret_payload if it has this length. False: no more
 * answers.
 */
static bool next_answer(struct talk *talk, void *ret_payload, size_t len)
{
	static uint8_t payload[FP_WIRE_MAX_DATA];
	uint8_t bytes[FP_WIRE_HEADER_BYTES];
	struct fp_wire_header header;

	if (receive(talk->fd, bytes, sizeof(bytes)) < sizeof(bytes))
		return false;
	assert(fp_wire_header_decode(bytes, &header) == 0 && header.length <= sizeof(payload));
	if (receive(talk->fd, payload, header.length) < header.length)
		return false;
	check_answer(talk, &header);
	if (len > 0 && header.length == len)
		memcpy(ret_payload, payload, len);
	return true;
}

/* Sends HELLO and puts the right proof into AUTH. Returns the number of bytes sent. */
static size_t prove(struct talk *talk, uint8_t *input)
{
	const size_t hello_bytes = FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_hello);
	uint8_t *auth = input + hello_bytes + FP_WIRE_HEADER_BYTES,
	        bytes[sizeof(struct fp_wire_challenge)] = {0};
	int secret = wanted_secret(talk, auth);
	struct fp_wire_challenge challenge;
	struct fp_wire_hello hello;

	if (secret < 0)
		return 0;
	assert(send(talk->fd, input, hello_bytes, MSG_NOSIGNAL) == (ssize_t)hello_bytes);
	if (next_answer(talk, bytes, sizeof(bytes)) &&
	    fp_wire_hello_decode(input + FP_WIRE_HEADER_BYTES, sizeof(hello), &hello) == 0 &&
	    fp_wire_challenge_decode(bytes, sizeof(bytes), &challenge) == 0) {
		assert(fp_auth_prove_client(secrets[secret].text, &hello, &challenge, auth) == 0);
		talk->proved = true;
	}
	return hello_bytes;
}

static struct node *choose_node(uint8_t how)
{
	struct node *node = &nodes[how & HAS_SECRET];

	if (!node->config) {
		fp_log_init("fuzz_node", FP_LOG_ERROR);
		node->has_secret = how & HAS_SECRET;
		start_node(node);
	}
	open_session(node, &node->other, 0);
	open_session(node, &node->maps, FP_WIRE_FEATURE_MEMFD);
	return node;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	uint8_t input[MAX_INPUT_BYTES + FP_WIRE_PROOF_BYTES] = {0};
	uint8_t how = len ? bytes[0] : 0;
	struct talk talk = {.node = choose_node(how)};
	size_t said;

	if (!len)
		return 0;
	len = FP_MIN(len - 1, MAX_INPUT_BYTES);
	memcpy(input, bytes + 1, len);
	fill_in_sessions(talk.node, input, len);
	find_frames(&talk, input, len);
	talk.fd = dial(talk.node, how & OVER_TCP);
	said = FP_MIN(prove(&talk, input), len);
	(void)send(talk.fd, input + said, len - said, MSG_NOSIGNAL); /* the node may have refused them */
	shutdown(talk.fd, SHUT_WR);
	while (next_answer(&talk, NULL, 0))
		;
	close(talk.fd);
	check_others(&talk);
	return 0;
}

/* ---- what the corpus must reach ---- */

static uint32_t wanted(uint8_t type)
{
#define ENDS(name) FRAMES_ENDS(FP_WIRE_##name)
	static const uint32_t refusals[] = {
	    [FP_WIRE_HELLO] = ENDS(MALFORMED) | ENDS(VERSION_GAP),
	    [FP_WIRE_AUTH] = ENDS(MALFORMED) | ENDS(DENIED) | ENDS(NOT_PERMITTED) | ENDS(GONE),
	    [FP_WIRE_PING] = ENDS(MALFORMED),
	    [FP_WIRE_BYE] = ENDS(MALFORMED),
	    [FP_WIRE_LEASE] = ENDS(MALFORMED) | ENDS(FULL) | ENDS(OVER_QUOTA) | ENDS(DRAINING) | ENDS(BUSY) |
	                      ENDS(NOT_PERMITTED),
	    [FP_WIRE_RELEASE] = ENDS(MALFORMED) | ENDS(DENIED),
	    [FP_WIRE_ATTACH] = ENDS(MALFORMED) | ENDS(DENIED) | ENDS(NOT_PERMITTED),
	    [FP_WIRE_ADOPT] = ENDS(MALFORMED) | ENDS(BAD_VALUE) | ENDS(GONE) | ENDS(NOT_PERMITTED),
	    [FP_WIRE_INFO] = ENDS(MALFORMED),
	    [FP_WIRE_STATUS] = ENDS(MALFORMED) | ENDS(NOT_PERMITTED),
	    [FP_WIRE_DRAIN] = ENDS(MALFORMED) | ENDS(NOT_PERMITTED),
	    [FP_WIRE_UNDRAIN] = ENDS(MALFORMED) | ENDS(NOT_PERMITTED),
	    [FP_WIRE_QP] = ENDS(MALFORMED) | ENDS(NOT_PERMITTED),
	    [FP_WIRE_READ] = ENDS(MALFORMED) | ENDS(DENIED),
	    [FP_WIRE_WRITE] = ENDS(MALFORMED) | ENDS(DENIED),
	};
#undef ENDS

	if (type & 1) /* the type of an answer, which the inbox refuses in any case */
		return 0;
	return (type < FP_ARRAY_LEN(refusals) ? refusals[type] : 0) |
	       (type == FP_WIRE_QP ? 0 : FRAMES_ENDS(FP_WIRE_OK)); /* a QP needs a device */
}

unsigned fuzz_missing(void)
{
	return frames_missing(wanted);
}
