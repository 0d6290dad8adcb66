/*
 * A client of redis-server. Room: tools/bench. It sends requests in batches, and then reads the
 * answers of the batch.
 */
#include "redisload.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"
#include "rng.h"

#define BATCH          16
#define VALUE_BYTES    1000
#define REQUEST_BYTES  (VALUE_BYTES + 96)
#define ANSWER_SECONDS 120 /* the longest wait for an answer */
#define THETA          0.99
#define SCATTER        2654435761u /* a prime: neighbours in rank lie far apart */
#define SHUTDOWN       "*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n"

/* Requests that are not sent yet. */
struct batch {
	char out[BATCH * REQUEST_BYTES];
	size_t len;
	bool is_get[BATCH];
	unsigned n;
};

int fp_redisload_open(struct fp_redisload *load, const char *path, uint64_t n_keys, uint64_t seed)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const struct timeval limit = {.tv_sec = ANSWER_SECONDS};
	fp_autoclose int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return errno == ENOENT || errno == ECONNREFUSED ? -EAGAIN : -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0)
		return -errno;
	*load = (struct fp_redisload){.fd = fp_take_fd(fd), .n_keys = n_keys, .rng = seed};
	fp_zipf_init(&load->zipf, n_keys, THETA);
	return 0;
}

/* ---- requests ---- */

static void add_get(struct batch *batch, uint64_t key)
{
	batch->is_get[batch->n++] = true;
	batch->len += (size_t)snprintf(batch->out + batch->len, REQUEST_BYTES,
	                               "*2\r\n$3\r\nGET\r\n$16\r\n%016" PRIx64 "\r\n", key);
}

/* A value has 64 different characters. */
static void add_set(struct batch *batch, uint64_t key, uint64_t *rng)
{
	batch->is_get[batch->n++] = false;
	batch->len += (size_t)snprintf(batch->out + batch->len, REQUEST_BYTES,
	                               "*3\r\n$3\r\nSET\r\n$16\r\n%016" PRIx64 "\r\n$1000\r\n", key);
	for (unsigned i = 0; i < VALUE_BYTES / 8; i++) {
		uint64_t word = (fp_rng_next(rng) & 0x3f3f3f3f3f3f3f3full) + 0x3030303030303030ull;

		memcpy(batch->out + batch->len, &word, sizeof(word));
		batch->len += sizeof(word);
	}
	memcpy(batch->out + batch->len, "\r\n", 2);
	batch->len += 2;
}

static int send_all(int fd, const char *bytes, size_t len)
{
	while (len) {
		ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		bytes += n;
		len -= (size_t)n;
	}
	return 0;
}

/* ---- answers ---- */

/* Makes at least len bytes of answers available. */
static int want(struct fp_redisload *load, unsigned len)
{
	if (load->in_end - load->in_at >= len)
		return 0;
	memmove(load->in, load->in + load->in_at, load->in_end - load->in_at);
	load->in_end -= load->in_at;
	load->in_at = 0;
	while (load->in_end < len) {
		ssize_t n = recv(load->fd, load->in + load->in_end, sizeof(load->in) - load->in_end, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ECONNRESET;
		load->in_end += (unsigned)n;
	}
	return 0;
}

static int expect(struct fp_redisload *load, const char *text)
{
	unsigned len = (unsigned)strlen(text);
	int r = want(load, len);

	if (r == 0 && memcmp(load->in + load->in_at, text, len) != 0)
		r = -EPROTO;
	load->in_at += r == 0 ? len : 0;
	return r;
}

static int read_value(struct fp_redisload *load)
{
	int r = expect(load, "$1000\r\n");

	if (r == 0)
		r = want(load, VALUE_BYTES);
	for (unsigned i = 0; r == 0 && i < VALUE_BYTES; i += 8) {
		uint64_t word;

		memcpy(&word, load->in + load->in_at + i, sizeof(word));
		load->checksum = load->checksum * FP_RNG_STEP + word;
	}
	load->in_at += r == 0 ? VALUE_BYTES : 0;
	return r < 0 ? r : expect(load, "\r\n");
}

static int exchange(struct fp_redisload *load, struct batch *batch)
{
	int r = send_all(load->fd, batch->out, batch->len);

	for (unsigned i = 0; r == 0 && i < batch->n; i++)
		r = batch->is_get[i] ? read_value(load) : expect(load, "+OK\r\n");
	batch->n = 0;
	batch->len = 0;
	return r;
}

/* ---- the load ---- */

int fp_redisload_fill(struct fp_redisload *load)
{
	fp_autofree struct batch *batch = calloc(1, sizeof(*batch));
	int r = batch ? 0 : -ENOMEM;

	for (uint64_t key = 0; r == 0 && key < load->n_keys; key++) {
		add_set(batch, key, &load->rng);
		if (batch->n == BATCH || key + 1 == load->n_keys)
			r = exchange(load, batch);
	}
	return r;
}

int fp_redisload_run(struct fp_redisload *load)
{
	fp_autofree struct batch *batch = calloc(1, sizeof(*batch));
	int r = batch ? 0 : -ENOMEM;

	for (uint64_t i = 0; r == 0 && i < 2 * load->n_keys; i++) {
		uint64_t key = fp_zipf_draw(&load->zipf, &load->rng) * SCATTER % load->n_keys;

		if (fp_rng_next(&load->rng) % 10 == 0)
			add_set(batch, key, &load->rng);
		else
			add_get(batch, key);
		if (batch->n == BATCH || i + 1 == 2 * load->n_keys)
			r = exchange(load, batch);
	}
	return r;
}

void fp_redisload_close(struct fp_redisload *load)
{
	(void)send_all(load->fd, SHUTDOWN, strlen(SHUTDOWN));
	close(load->fd);
}
