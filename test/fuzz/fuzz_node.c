/*
 * Fuzz target: any bytes as all that a client says to a running node on one connection. Every answer is a
 * frame of the protocol, the node then ends the connection, and takes back what was leased over it; another
 * client's session is served as before.
 *
 * Where the bytes hold 24 times 0xee, that session's id and token are put: a LINK, a RESUME or an ADOPT then
 * reaches what it holds. DRAIN, which would outlast the input, becomes STATUS.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "dialog.h"
#include "fuzz.h"
#include "log.h"
#include "server.h"

#define MAX_INPUT_BYTES 4096u
#define LEASE_BYTES     (1u << 20)
#define POOL_BYTES      (8u << 20)
#define DEADLINE_NS     (60 * FP_NSEC_PER_SEC) /* of what a sound node does at once */

static struct {
	struct fp_config *config;
	char socket[64];
	struct fp_dialog *dialog; /* of the other client's session; NULL: an input has taken it over */
	struct fp_wire_welcome welcome;
	uint64_t tag;
} t;

static void *serve(void *ready_fd)
{
	struct fp_server_options options = {
	    .config = t.config, .ready_fd = (int)(intptr_t)ready_fd, .users_fd = -1};

	assert(fp_server_run(&options) == 0);
	return NULL;
}

static void start_node(void)
{
	struct fp_pool_config *pool;
	char listen[80], urls[128];
	pthread_t thread;
	int ready[2];
	FILE *said;

	fp_log_init("fuzz_node", FP_LOG_ERROR);
	snprintf(t.socket, sizeof(t.socket), "@fuzz-node-%d", (int)getpid());
	snprintf(listen, sizeof(listen), "unix:%s", t.socket);
	t.config = fp_config_new();
	pool = fp_config_add_pool(t.config);
	pool->name = strdup("main");
	pool->size_bytes = POOL_BYTES;
	assert(fp_config_add_listen(t.config, listen) == 0 && pipe(ready) == 0);
	assert(pthread_create(&thread, NULL, serve, (void *)(intptr_t)ready[1]) == 0);
	said = fdopen(ready[0], "r");
	assert(said && fgets(urls, sizeof(urls), said));
	fclose(said);
}

/* Asks the node for the other client. 0, or negative: its session is gone. */
static int ask(enum fp_wire_type type, const void *request, size_t len, const void **ret_payload)
{
	uint64_t deadline_ns = fp_clock_ns() + DEADLINE_NS;
	struct fp_wire_header header;
	int r = fp_dialog_send(t.dialog, type, ++t.tag, request, len, deadline_ns);

	if (r == 0)
		r = fp_dialog_receive(t.dialog, deadline_ns, &header, ret_payload);
	if (r < 0) {
		assert(r == -ECONNRESET || r == -EPIPE);
		return r;
	}
	assert(header.tag == t.tag && header.type == type + 1);
	return 0;
}

static void open_session(void)
{
	const struct fp_dialog_options options = {.purpose = FP_WIRE_CONTROL, .client_name = "other"};
	const struct fp_wire_lease lease = {.size_bytes = LEASE_BYTES};
	uint8_t bytes[sizeof(lease)];
	struct fp_url url = {.transport = &fp_transport_shm};
	const void *payload;

	memcpy(url.host, t.socket, sizeof(t.socket));
	assert(fp_dialog_open(&url, &options, fp_clock_ns() + DEADLINE_NS, &t.dialog, &t.welcome) == 0);
	fp_wire_lease_encode(&lease, bytes);
	assert(ask(FP_WIRE_LEASE, bytes, sizeof(bytes), &payload) == 0);
}

/* Its session must have what it had, and the pool all else: at once, or when what is freed was scrubbed. */
static void check_session(void)
{
	uint64_t give_up_ns = fp_clock_ns() + DEADLINE_NS;
	struct fp_wire_info info;
	const void *payload;

	do {
		assert(fp_clock_ns() < give_up_ns);
		if (ask(FP_WIRE_INFO, NULL, 0, &payload) < 0) {
			fp_dialog_close(fp_take_ptr(t.dialog));
			return;
		}
		assert(fp_wire_info_decode(payload, sizeof(info), &info) == 0);
		assert(info.leased_bytes == LEASE_BYTES && info.capacity_bytes == POOL_BYTES);
	} while (info.free_bytes != POOL_BYTES - LEASE_BYTES);
}

static void fill_in(uint8_t *bytes, size_t len)
{
	static const uint8_t drain[] = {'F', 'A', 'R', 'P', FP_WIRE_VERSION, FP_WIRE_DRAIN};
	uint8_t blank[sizeof(uint64_t) + FP_WIRE_TOKEN_BYTES], own[sizeof(blank)], *at;

	memset(blank, 0xee, sizeof(blank));
	memcpy(own, &t.welcome.session_id, sizeof(uint64_t));
	memcpy(own + sizeof(uint64_t), t.welcome.token, FP_WIRE_TOKEN_BYTES);
	while ((at = memmem(bytes, len, blank, sizeof(blank))))
		memcpy(at, own, sizeof(own));
	while ((at = memmem(bytes, len, drain, sizeof(drain))))
		at[5] = FP_WIRE_STATUS;
}

static int dial(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(addr.sun_path + 1, t.socket + 1, strlen(t.socket) - 1);
	assert(fd >= 0);
	assert(connect(fd, (struct sockaddr *)&addr,
	               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(t.socket))) == 0);
	return fd;
}

/* Up to len bytes; fewer at the end of the stream. Nothing: they are dropped. */
static size_t receive(int fd, uint8_t *ret_bytes, size_t len)
{
	uint8_t trash[65536];
	size_t have = 0;

	while (have < len) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		ssize_t n;
		int ready;

		while ((ready = poll(&p, 1, (int)(DEADLINE_NS / FP_NSEC_PER_MSEC))) < 0 && errno == EINTR)
			;
		assert(ready == 1);
		n = ret_bytes ? recv(fd, ret_bytes + have, len - have, 0)
		              : recv(fd, trash, FP_MIN(len - have, sizeof(trash)), 0);
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	return have;
}

static void check_answers(int fd)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];
	struct fp_wire_header header;

	while (receive(fd, bytes, sizeof(bytes)) == sizeof(bytes)) {
		assert(fp_wire_header_decode(bytes, &header) == 0);
		assert(header.type & 1);
		if (receive(fd, NULL, header.length) < header.length)
			break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	uint8_t input[MAX_INPUT_BYTES];
	fp_autoclose int fd = -1;

	if (!t.config)
		start_node();
	if (!t.dialog)
		open_session();
	len = FP_MIN(len, sizeof(input));
	memcpy(input, bytes, len);
	fill_in(input, len);
	fd = dial();
	(void)send(fd, input, len, MSG_NOSIGNAL); /* the node may have refused the first half already */
	shutdown(fd, SHUT_WR);
	check_answers(fd);
	check_session();
	return 0;
}
