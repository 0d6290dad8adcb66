/*
 * A tcp link to a peer that this test simulates: it answers late, in pieces, wrongly, or never. A
 * helper thread serves the handshakes. Afterwards the test has both ends.
 */
#include "transport.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "auth.h"
#include "cleanup.h"
#include "clock.h"
#include "testrng.h"
#include "wire.h"

#define MAX_OUTSTANDING 8
#define LEASE_ID        5
#define PATIENCE_NS     (20 * FP_NSEC_PER_SEC) /* how long the test waits before it fails */
#define POISON          0xee

struct rig {
	int listener, control, peer; /* the node's ends of the connections */
	struct fp_session *session;
	struct fp_link *link;
};

static void read_all(int fd, void *buf, size_t len)
{
	assert_int_equal(recv(fd, buf, len, MSG_WAITALL), len);
}

static void send_all(int fd, const void *buf, size_t len)
{
	assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
}

static void send_frame(int fd, enum fp_wire_type type, int32_t status, uint64_t tag, const void *payload,
                       size_t len)
{
	fp_autofree uint8_t *bytes = malloc(FP_WIRE_HEADER_BYTES + len);

	fp_wire_header_encode(type, status, tag, len, bytes);
	if (len > 0)
		memcpy(bytes + FP_WIRE_HEADER_BYTES, payload, len);
	send_all(fd, bytes, FP_WIRE_HEADER_BYTES + len);
}

static int serve_handshake(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	struct fp_wire_challenge challenge = {.version = FP_WIRE_VERSION};
	struct fp_wire_welcome welcome = {.version = FP_WIRE_VERSION,
	                                  .session_id = 1,
	                                  .max_payload = FP_WIRE_MAX_PAYLOAD,
	                                  .max_outstanding = MAX_OUTSTANDING};
	uint8_t in[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_hello)], out[sizeof(welcome)];

	read_all(fd, in, sizeof(in));
	fp_wire_challenge_encode(&challenge, out);
	send_frame(fd, FP_WIRE_CHALLENGE, 0, 0, out, sizeof(challenge));
	read_all(fd, in, FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_auth));
	fp_wire_welcome_encode(&welcome, out);
	send_frame(fd, FP_WIRE_WELCOME, 0, 0, out, sizeof(welcome));
	return fd;
}

/* Grants the lease that all requests use. */
static void serve_lease(int fd)
{
	struct fp_wire_leased leased = {.size_bytes = FP_WIRE_MAX_DATA, .lease_id = LEASE_ID};
	uint8_t in[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_lease)], out[sizeof(leased)];
	struct fp_wire_header header;

	read_all(fd, in, sizeof(in));
	assert_int_equal(fp_wire_header_decode(in, &header), 0);
	fp_wire_leased_encode(&leased, out);
	send_frame(fd, FP_WIRE_LEASED, 0, header.tag, out, sizeof(out));
}

static void *serve_handshakes(void *arg)
{
	struct rig *rig = arg;

	rig->control = serve_handshake(rig->listener);
	serve_lease(rig->control);
	rig->peer = serve_handshake(rig->listener);
	return NULL;
}

static int setup(void **state)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct fp_session_options options = {.deadline_ns = PATIENCE_NS};
	int on = 1, few_bytes = 65536; /* a write of a few MiB must not fit into the socket's buffer */
	socklen_t len = sizeof(addr);
	const struct fp_lease *lease;
	struct fp_url url;
	struct pollfd p;
	pthread_t server;
	char text[64];

	rig->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(rig->listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(rig->listener, SOL_SOCKET, SO_RCVBUF, &few_bytes, sizeof(few_bytes));
	assert_int_equal(bind(rig->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(rig->listener, 4), 0);
	assert_int_equal(getsockname(rig->listener, (struct sockaddr *)&addr, &len), 0);
	snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", ntohs(addr.sin_port));
	assert_int_equal(fp_url_parse(text, &url), 0);
	assert_int_equal(pthread_create(&server, NULL, serve_handshakes, rig), 0);
	assert_int_equal(fp_session_open(&url, &options, &rig->session), 0);
	assert_int_equal(fp_session_lease(rig->session, FP_WIRE_MAX_DATA, &lease), 0);
	assert_int_equal(fp_link_open(rig->session, &rig->link), 0);
	pthread_join(server, NULL);
	assert_int_equal(fp_link_pollfd(rig->link, &p), 1);
	setsockopt(p.fd, SOL_SOCKET, SO_SNDBUF, &few_bytes, sizeof(few_bytes));
	*state = rig;
	return 0;
}

static int teardown(void **state)
{
	struct rig *rig = *state;

	fp_link_close(rig->link);
	close(rig->control); /* there is no node to answer a BYE */
	fp_session_close(rig->session);
	close(rig->peer);
	close(rig->listener);
	free(rig);
	return 0;
}

/* A request with its segments and buffer: n_segs segments of seg_bytes each. */
struct job {
	struct fp_io io;
	struct fp_seg segs[FP_IO_MAX_SEGS];
	uint8_t *buf;
	size_t len;
};

static struct job *job_new(enum fp_io_op op, unsigned n_segs, uint32_t seg_bytes, uint8_t fill)
{
	struct job *job = calloc(1, sizeof(*job));

	job->len = (size_t)n_segs * seg_bytes;
	job->buf = malloc(job->len);
	memset(job->buf, fill, job->len);
	for (unsigned i = 0; i < n_segs; i++)
		job->segs[i] = (struct fp_seg){.lease_id = LEASE_ID,
		                               .len_bytes = seg_bytes,
		                               .offset_bytes = (uint64_t)i * seg_bytes,
		                               .buf = job->buf + (size_t)i * seg_bytes};
	job->io = (struct fp_io){.op = op, .n_segs = n_segs, .segs = job->segs, .status = 1, .user = job};
	return job;
}

static void job_free(struct job *job)
{
	free(job->buf);
	free(job);
}

/* Waits on the link, as a caller does, until one io comes out. */
static struct fp_io *await(struct rig *rig)
{
	uint64_t end = fp_clock_ns() + PATIENCE_NS;
	struct fp_io *done;
	struct pollfd p;

	while (fp_link_poll(rig->link, &done, 1) == 0) {
		assert_true(fp_clock_ns() < end);
		if (fp_link_pollfd(rig->link, &p))
			poll(&p, 1, 5);
	}
	return done;
}

static void assert_filled(const uint8_t *buf, uint8_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (buf[i] != value)
			fail_msg("byte %zu is %02x, not %02x", i, buf[i], value);
}

static void await_status(struct rig *rig, struct job *job, int status)
{
	assert_ptr_equal(await(rig), &job->io);
	assert_int_equal(job->io.status, status);
}

/* Receives a request's header and table. */
static struct fp_wire_table take_request(struct rig *rig, struct fp_wire_header *ret_header)
{
	uint8_t bytes[FP_WIRE_MAX_TABLE];
	struct fp_wire_table table;
	size_t have = 8;
	int r;

	read_all(rig->peer, bytes, FP_WIRE_HEADER_BYTES);
	assert_int_equal(fp_wire_header_decode(bytes, ret_header), 0);
	read_all(rig->peer, bytes, have);
	while ((r = fp_wire_table_decode(ret_header, bytes, have, &table)) == 0) {
		read_all(rig->peer, bytes + have, sizeof(struct fp_wire_seg));
		have += sizeof(struct fp_wire_seg);
	}
	assert_int_equal(r, 1);
	return table;
}

static void submit(struct rig *rig, struct job *job)
{
	assert_int_equal(fp_link_submit(rig->link, &job->io), 0);
}

static void answer_read(struct rig *rig, uint64_t tag, uint8_t value, size_t len)
{
	fp_autofree uint8_t *bytes = malloc(len);

	memset(bytes, value, len);
	send_frame(rig->peer, FP_WIRE_DATA, 0, tag, bytes, len);
}

/* Checks that the stream is in step: sends a new read, and gets it answered. */
static void assert_usable(struct rig *rig)
{
	struct job *job = job_new(FP_IO_READ, 3, 100, 0);
	struct fp_wire_header header;

	submit(rig, job);
	take_request(rig, &header);
	answer_read(rig, header.tag, 0x77, 300);
	await_status(rig, job, 0);
	assert_filled(job->buf, 0x77, 300);
	job_free(job);
}

static void read_and_write(void **state)
{
	struct rig *rig = *state;
	struct job *read = job_new(FP_IO_READ, 2, 4096, 0), *write = job_new(FP_IO_WRITE, 2, 1000, 0x31);
	struct fp_wire_header header;
	struct fp_wire_table table;
	uint8_t bytes[2000];

	submit(rig, read);
	table = take_request(rig, &header);
	assert_int_equal(header.type, FP_WIRE_READ);
	assert_true(header.tag == read->io.tag);
	assert_int_equal(table.n_segs, 2);
	assert_int_equal(table.segs[1].lease_id, LEASE_ID);
	assert_int_equal(table.segs[1].offset_bytes, 4096);
	answer_read(rig, header.tag, 9, 8192);
	await_status(rig, read, 0);
	assert_filled(read->buf, 9, 8192);
	submit(rig, write);
	take_request(rig, &header);
	read_all(rig->peer, bytes, sizeof(bytes));
	assert_filled(bytes, 0x31, sizeof(bytes));
	send_frame(rig->peer, FP_WIRE_WRITTEN, 0, header.tag, NULL, 0);
	await_status(rig, write, 0);
	job_free(read);
	job_free(write);
}

static void answer_byte_by_byte(void **state)
{
	struct rig *rig = *state;
	struct job *job = job_new(FP_IO_READ, 2, 50, 0);
	uint8_t bytes[FP_WIRE_HEADER_BYTES + 100];
	struct fp_io *done;

	submit(rig, job);
	fp_wire_header_encode(FP_WIRE_DATA, FP_WIRE_OK, job->io.tag, 100, bytes);
	memset(bytes + FP_WIRE_HEADER_BYTES, 3, 100);
	for (size_t i = 0; i < sizeof(bytes) - 1; i++) {
		send_all(rig->peer, bytes + i, 1);
		assert_int_equal(fp_link_poll(rig->link, &done, 1), 0);
	}
	send_all(rig->peer, bytes + sizeof(bytes) - 1, 1);
	await_status(rig, job, 0);
	assert_filled(job->buf, 3, 100);
	job_free(job);
}

static void assert_broken(struct rig *rig, int error)
{
	struct job *later = job_new(FP_IO_READ, 1, 1, 0);
	struct pollfd p;

	assert_int_equal(fp_link_pollfd(rig->link, &p), 0);
	submit(rig, later);
	await_status(rig, later, error);
	job_free(later);
}

/*
 * The client checks requests itself. If the node refuses one, the two disagree about the lease, so
 * the link breaks.
 */
static void refusal_breaks_the_link(void **state)
{
	struct rig *rig = *state;
	struct job *bad = job_new(FP_IO_READ, 1, 4096, POISON), *good = job_new(FP_IO_READ, 1, 4096, 0);

	submit(rig, bad);
	submit(rig, good);
	send_frame(rig->peer, FP_WIRE_ERROR, FP_WIRE_DENIED, bad->io.tag, NULL, 0);
	answer_read(rig, good->io.tag, 4, 4096);
	await_status(rig, bad, -EACCES);
	await_status(rig, good, -ECONNRESET);
	assert_broken(rig, -ECONNRESET);
	job_free(bad);
	job_free(good);
}

static void deadline_breaks_the_link(void **state)
{
	struct rig *rig = *state;
	struct job *job = job_new(FP_IO_READ, 2, 40000, 0), *other = job_new(FP_IO_READ, 1, 100, 0);

	submit(rig, other);
	job->io.deadline_ns = 1;
	submit(rig, job);
	await_status(rig, other, -ETIMEDOUT);
	await_status(rig, job, -ETIMEDOUT);
	assert_broken(rig, -ETIMEDOUT);
	job_free(job);
	job_free(other);
}

static void deadline_in_mid_answer(void **state)
{
	struct rig *rig = *state;
	struct job *job = job_new(FP_IO_READ, 2, 1000, 0);
	uint8_t bytes[FP_WIRE_HEADER_BYTES + 2000];
	struct fp_wire_header header;
	struct fp_io *done;

	job->io.deadline_ns = fp_clock_ns() + 30 * FP_NSEC_PER_MSEC;
	submit(rig, job);
	take_request(rig, &header);
	fp_wire_header_encode(FP_WIRE_DATA, FP_WIRE_OK, header.tag, 2000, bytes);
	memset(bytes + FP_WIRE_HEADER_BYTES, 6, 2000);
	send_all(rig->peer, bytes, FP_WIRE_HEADER_BYTES + 1234);
	assert_int_equal(fp_link_poll(rig->link, &done, 1), 0);
	await_status(rig, job, -ETIMEDOUT);
	memset(job->buf, POISON, job->len);
	(void)send(rig->peer, bytes + FP_WIRE_HEADER_BYTES + 1234, 2000 - 1234, MSG_NOSIGNAL);
	assert_broken(rig, -ETIMEDOUT);
	assert_filled(job->buf, POISON, job->len);
	job_free(job);
}

/* Writes until the sockets are full and a frame is half sent. */
static void fill_up(struct rig *rig, struct job **jobs, uint64_t deadline_ns)
{
	for (unsigned i = 0; i < MAX_OUTSTANDING; i++) {
		jobs[i] = job_new(FP_IO_WRITE, FP_IO_MAX_SEGS, FP_SEG_MAX_BYTES, 0x44);
		jobs[i]->io.deadline_ns = deadline_ns;
		submit(rig, jobs[i]);
	}
}

/* The caller has its buffers back, and overwrites them. */
static void reuse(struct job *job)
{
	memset(job->buf, POISON, job->len);
	memset(job->segs, POISON, sizeof(job->segs));
	memset(&job->io, POISON, sizeof(job->io));
}

/* The node receives only bytes of the writes, up to the end of the stream. */
static void assert_no_more_comes(struct rig *rig)
{
	struct fp_wire_header header;
	uint8_t bytes[4096];
	ssize_t n;

	take_request(rig, &header);
	while ((n = recv(rig->peer, bytes, sizeof(bytes), 0)) > 0)
		assert_false(memchr(bytes, POISON, (size_t)n));
}

static void deadline_in_mid_write(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[MAX_OUTSTANDING];

	fill_up(rig, jobs, 1);
	for (unsigned i = 0; i < MAX_OUTSTANDING; i++) {
		struct fp_io *io = await(rig);

		assert_int_equal(io->status, -ETIMEDOUT);
		reuse(io->user);
	}
	assert_no_more_comes(rig);
	for (unsigned i = 0; i < MAX_OUTSTANDING; i++)
		job_free(jobs[i]);
}

static void refusal_overtakes_write(void **state)
{
	struct rig *rig = *state;
	struct job *write = job_new(FP_IO_WRITE, FP_IO_MAX_SEGS, FP_SEG_MAX_BYTES, 0x44);

	submit(rig, write);
	send_frame(rig->peer, FP_WIRE_ERROR, FP_WIRE_DENIED, write->io.tag, NULL, 0);
	await_status(rig, write, -EACCES);
	reuse(write);
	assert_no_more_comes(rig);
	assert_broken(rig, -ECONNRESET);
	job_free(write);
}

/* Every kind of wrong answer breaks the link, and each outstanding io ends once. */
static void assert_breaks(const void *answer, size_t len, int error, struct rig *rig, struct job *jobs[3])
{
	struct fp_io *done;

	if (len > 0)
		send_all(rig->peer, answer, len);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(await(rig)->status, error);
	assert_int_equal(fp_link_poll(rig->link, &done, 1), 0);
	assert_broken(rig, error);
	for (unsigned i = 0; i < 3; i++)
		job_free(jobs[i]);
}

enum wrong {
	WRONG_MAGIC,
	WRONG_VERSION,
	WRONG_TYPE,
	WRONG_LENGTH,
	WRONG_TAG,
	WRONG_WRITTEN,
	WRONG_ORDER,
	TOO_EARLY,
	WRONGS
};

static void wrong_answer(struct rig *rig, enum wrong wrong)
{
	struct job *jobs[3] = {job_new(FP_IO_READ, 1, 4096, 0), job_new(FP_IO_READ, 1, 64, 0),
	                       job_new(FP_IO_WRITE, FP_IO_MAX_SEGS, FP_SEG_MAX_BYTES, 0x44)};
	uint8_t bytes[FP_WIRE_HEADER_BYTES];
	uint64_t tags[3];

	for (unsigned i = 0; i < 3; i++) {
		submit(rig, jobs[i]);
		tags[i] = jobs[i]->io.tag;
	}
	fp_wire_header_encode(FP_WIRE_DATA, FP_WIRE_OK, wrong == WRONG_TAG ? tags[2] + 100000 : tags[0],
	                      wrong == WRONG_LENGTH ? 4095 : 4096, bytes);
	if (wrong == WRONG_MAGIC)
		bytes[0] = 'X';
	if (wrong == WRONG_VERSION)
		bytes[4] = 9;
	if (wrong == WRONG_TYPE)
		fp_wire_header_encode(FP_WIRE_PONG, FP_WIRE_OK, tags[0], 0, bytes);
	if (wrong == WRONG_WRITTEN)
		fp_wire_header_encode(FP_WIRE_WRITTEN, FP_WIRE_OK, tags[0], 0, bytes);
	if (wrong == WRONG_ORDER)
		fp_wire_header_encode(FP_WIRE_DATA, FP_WIRE_OK, tags[1], 64, bytes);
	if (wrong == TOO_EARLY) /* this answer comes before the write is fully sent */
		fp_wire_header_encode(FP_WIRE_WRITTEN, FP_WIRE_OK, tags[2], 0, bytes);
	assert_breaks(bytes, sizeof(bytes), wrong == WRONG_VERSION ? -EPROTONOSUPPORT : -EPROTO, rig, jobs);
}

static void wrong_answers(void **state)
{
	for (enum wrong wrong = 0; wrong < WRONGS; wrong++) {
		void *rig;

		setup(&rig);
		wrong_answer(rig, wrong);
		teardown(&rig);
	}
}

static void peer_goes(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[3];

	for (unsigned i = 0; i < 3; i++) {
		jobs[i] = job_new(FP_IO_READ, 1, 4096, 0);
		submit(rig, jobs[i]);
	}
	shutdown(rig->peer, SHUT_WR);
	assert_breaks("", 0, -ECONNRESET, rig, jobs);
}

static void as_many_as_the_node_takes(void **state)
{
	struct rig *rig = *state;
	struct job *jobs[MAX_OUTSTANDING + 1];

	for (unsigned i = 0; i <= MAX_OUTSTANDING; i++)
		jobs[i] = job_new(FP_IO_READ, 1, 512, 0);
	for (unsigned i = 0; i < MAX_OUTSTANDING; i++)
		submit(rig, jobs[i]);
	assert_int_equal(fp_link_submit(rig->link, &jobs[MAX_OUTSTANDING]->io), -EAGAIN);
	answer_read(rig, jobs[0]->io.tag, 0, 512);
	await_status(rig, jobs[0], 0);
	submit(rig, jobs[MAX_OUTSTANDING]);
	for (unsigned i = 1; i <= MAX_OUTSTANDING; i++)
		answer_read(rig, jobs[i]->io.tag, (uint8_t)i, 512);
	for (unsigned i = 0; i < MAX_OUTSTANDING; i++)
		assert_int_equal(await(rig)->status, 0);
	for (unsigned i = 0; i <= MAX_OUTSTANDING; i++) {
		assert_filled(jobs[i]->buf, (uint8_t)i, 512);
		job_free(jobs[i]);
	}
}

static void bad_requests(void **state)
{
	struct rig *rig = *state;
	struct job *job = job_new(FP_IO_READ, 1, 512, 0);

	job->io.n_segs = 0;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->io.n_segs = FP_IO_MAX_SEGS + 1;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->io.n_segs = 1;
	job->segs[0].len_bytes = 0;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->segs[0].len_bytes = FP_SEG_MAX_BYTES + 1;
	assert_int_equal(fp_link_submit(rig->link, &job->io), -EINVAL);
	job->segs[0].len_bytes = 512;
	job->segs[0].offset_bytes = FP_WIRE_MAX_DATA - 511;
	submit(rig, job);
	await_status(rig, job, -EACCES);
	assert_usable(rig);
	job_free(job);
}

static void closed_with_requests_outstanding(void **state)
{
	struct rig *rig = *state;
	struct job *read = job_new(FP_IO_READ, 2, 4096, POISON);
	struct job *write = job_new(FP_IO_WRITE, FP_IO_MAX_SEGS, FP_SEG_MAX_BYTES, 0x44);

	submit(rig, read);
	submit(rig, write);
	fp_link_close(fp_take_ptr(rig->link));
	assert_int_equal(read->io.status, 1);
	assert_int_equal(write->io.status, 1);
	job_free(read);
	job_free(write);
}

static void assert_own_bytes(struct job **jobs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(jobs[i]->io.status, 0);
		assert_filled(jobs[i]->buf, (uint8_t)(i + 1), jobs[i]->len);
		job_free(jobs[i]);
	}
}

/* Answers reads of random sizes, in random pieces: every read gets its own bytes. */
static void random_answers(void **state)
{
	struct rig *rig = *state;
	uint64_t rng = test_seed("tcplink");
	struct job *jobs[MAX_OUTSTANDING];

	for (unsigned round = 0; round < 300; round++) {
		unsigned n = 1 + (unsigned)(test_random(&rng) % MAX_OUTSTANDING);
		size_t len = 0, at = 0, n_done = 0;
		uint8_t *bytes;

		for (unsigned i = 0; i < n; i++) {
			jobs[i] = job_new(FP_IO_READ, 1 + (unsigned)(test_random(&rng) % 4),
			                  1 + (uint32_t)(test_random(&rng) % 30000), 0);
			submit(rig, jobs[i]);
			len += FP_WIRE_HEADER_BYTES + jobs[i]->len;
		}
		bytes = malloc(len);
		len = 0;
		for (unsigned i = 0; i < n; i++) {
			fp_wire_header_encode(FP_WIRE_DATA, FP_WIRE_OK, jobs[i]->io.tag, jobs[i]->len,
			                      bytes + len);
			memset(bytes + len + FP_WIRE_HEADER_BYTES, (int)(i + 1), jobs[i]->len);
			len += FP_WIRE_HEADER_BYTES + jobs[i]->len;
		}
		while (n_done < n) {
			size_t most = 1 + test_random(&rng) % 20000, piece = FP_MIN(most, len - at);
			struct fp_io *done[4];

			if (piece > 0)
				send_all(rig->peer, bytes + at, piece);
			at += piece;
			n_done +=
			    (size_t)fp_link_poll(rig->link, done, 1 + (unsigned)(test_random(&rng) % 4));
		}
		assert_own_bytes(jobs, n);
		free(bytes);
	}
}

#define with_rig(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_rig(read_and_write),
	    with_rig(answer_byte_by_byte),
	    with_rig(refusal_breaks_the_link),
	    with_rig(deadline_breaks_the_link),
	    with_rig(deadline_in_mid_answer),
	    with_rig(deadline_in_mid_write),
	    with_rig(refusal_overtakes_write),
	    cmocka_unit_test(wrong_answers),
	    with_rig(peer_goes),
	    with_rig(as_many_as_the_node_takes),
	    with_rig(bad_requests),
	    with_rig(closed_with_requests_outstanding),
	    with_rig(random_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
