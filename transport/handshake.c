/*
 * Dialling, handshake and frames of the control side. Room: transport. It knows sockets and the
 * wire, not the calls that are made over them.
 */
#include "handshake.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "auth.h"
#include "clock.h"
#include "fdutil.h"
#include "names.h"

#define MAX_SEND (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING)

struct fp_handshake {
	int fd;
	ino_t inode; /* inode of that socket, to recognise it; 0: unknown */
	struct sockaddr_storage address;
	int memfd; /* descriptor that came with the frame in `in`; -1: none */
	size_t out_len, out_sent;
	size_t in_got;
	uint8_t out[MAX_SEND];                                 /* one frame on its way out */
	uint8_t in[FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_STATUS]; /* one frame on its way in */
};

/*
 * socket_send and socket_receive never block. They return the number of bytes moved (at least 1).
 * -EAGAIN: no byte can be moved now. Any other errno says why the connection is dead (-ECONNRESET
 * at its end).
 */
static ssize_t socket_send(int fd, const void *bytes, size_t len)
{
	ssize_t n;

	do
		n = send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Keeps the first descriptor that came and closes any other: a node sends one per frame. */
static void keep_memfd(struct msghdr *msg, int *memfd)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = c->cmsg_type == SCM_RIGHTS ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (*memfd < 0)
				*memfd = fp_fd_move_high(fd);
			else
				close(fd);
		}
	}
}

/* Puts a descriptor that came along into *memfd, if that is -1. */
static ssize_t socket_receive(int fd, void *ret_bytes, size_t len, int *memfd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {ret_bytes, len};
	struct msghdr msg = {.msg_iov = &iov,
	                     .msg_iovlen = 1,
	                     .msg_control = control.bytes,
	                     .msg_controllen = sizeof(control.bytes)};
	bool locked = fp_fd_lock_exclusive();
	ssize_t n;

	do
		n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		keep_memfd(&msg, memfd);
	fp_fd_unlock(locked);
	return n < 0 ? -errno : n == 0 ? -ECONNRESET : n;
}

/*
 * Whether the descriptor surely no longer refers to our socket. False if the program forbids us to
 * look (seccomp).
 */
static bool is_stranger(const struct fp_handshake *handshake)
{
	struct stat st;

	if (fstat(handshake->fd, &st) < 0)
		return errno == EBADF;
	return handshake->inode && (!S_ISSOCK(st.st_mode) || st.st_ino != handshake->inode);
}

/*
 * connect(2), given up at the deadline. It uses a blocking socket with a send timeout instead of
 * poll(2): poll does not tell when a UNIX socket's full backlog has room.
 */
static int connect_by(int fd, const struct sockaddr *addr, socklen_t len, uint64_t deadline_ns)
{
	for (;;) {
		uint64_t now = fp_clock_ns(), left_us;
		struct timeval tv;

		if (now >= deadline_ns)
			return -ETIMEDOUT;
		/*
		 * Never 0, because 0 means no limit. tv_usec stays below one second, because a
		 * whole second is EDOM.
		 */
		left_us = (deadline_ns - now) / FP_NSEC_PER_USEC + 1;
		tv.tv_sec = (time_t)(left_us / (FP_NSEC_PER_SEC / FP_NSEC_PER_USEC));
		tv.tv_usec = (suseconds_t)(left_us % (FP_NSEC_PER_SEC / FP_NSEC_PER_USEC));
		if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0)
			return -errno;
		if (connect(fd, addr, len) == 0)
			return 0;
		if (errno == EAGAIN || errno == EINPROGRESS || errno == EALREADY)
			return -ETIMEDOUT;
		if (errno == EACCES) /* the kernel's refusal; our own -EACCES would mean a wrong secret */
			return -EPERM;
		if (errno != EINTR)
			return -errno;
	}
}

void fp_handshake_keep_alive(int fd)
{
	const int one = 1, idle_s = 15, interval_s = 5, count = 6, unacknowledged_ms = 45000;

	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof(unacknowledged_ms));
}

static int dial_address(const struct sockaddr *addr, socklen_t len, uint64_t deadline_ns, int *ret_fd)
{
	fp_autoclose int fd = FP_FD_OPEN(socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
	int r, on = 1;

	if (fd < 0)
		return -errno;
	if (addr->sa_family != AF_UNIX) {
		if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
			return -errno;
		fp_handshake_keep_alive(fd);
	}
	r = connect_by(fd, addr, len, deadline_ns);
	if (r < 0)
		return r;
	*ret_fd = fp_take_fd(fd);
	return 0;
}

static int dial_unix(struct fp_handshake *handshake, const struct fp_url *url, uint64_t deadline_ns)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t len = strlen(url->host);

	static_assert(sizeof(url->host) <= sizeof(addr.sun_path), "what parses fits");
	memcpy(addr.sun_path, url->host, len);
	if (addr.sun_path[0] == '@')
		addr.sun_path[0] = '\0';
	else
		len++;
	handshake->address.ss_family = AF_UNIX;
	return dial_address((struct sockaddr *)&addr,
	                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len), deadline_ns,
	                    &handshake->fd);
}

/*
 * Dials the host's addresses in order until one answers. If none does, returns the last one's
 * error.
 */
static int dial_host(struct fp_handshake *handshake, const struct fp_url *url, uint64_t deadline_ns)
{
	struct fp_addresses addresses;
	int r = fp_names_find(url->host, url->port, &addresses);

	if (r < 0)
		return r;
	r = -EHOSTUNREACH;
	for (unsigned i = 0; i < addresses.n && r < 0; i++) {
		memcpy(&handshake->address, &addresses.list[i].room, sizeof(handshake->address));
		r = dial_address(&addresses.list[i].any, addresses.list[i].len, deadline_ns, &handshake->fd);
	}
	fp_names_tried(url->host, r == 0);
	return r;
}

static struct fp_handshake *handshake_new(void)
{
	struct fp_handshake *handshake = malloc(sizeof(*handshake));

	if (!handshake)
		return NULL;
	handshake->fd = handshake->memfd = -1;
	handshake->out_len = handshake->out_sent = handshake->in_got = 0;
	return handshake;
}

static int dial(const struct fp_url *url, uint64_t deadline_ns, struct fp_handshake **ret_handshake)
{
	fp_autofree struct fp_handshake *handshake = handshake_new();
	struct stat st;
	int r;

	if (!handshake)
		return -ENOMEM;
	r = url->transport->default_port ? dial_host(handshake, url, deadline_ns)
	                                 : dial_unix(handshake, url, deadline_ns);
	if (r < 0)
		return r;
	handshake->inode = fstat(handshake->fd, &st) == 0 ? st.st_ino : 0;
	fp_fd_watch(handshake->fd);
	*ret_handshake = fp_take_ptr(handshake);
	return 0;
}

static void handshake_free(struct fp_handshake *handshake)
{
	if (handshake->memfd >= 0)
		close(handshake->memfd);
	free(handshake);
}

void fp_handshake_close(struct fp_handshake *handshake)
{
	if (!handshake)
		return;
	if (is_stranger(handshake)) /* the number now belongs to a file of the program: do not close it */
		fp_fd_forget(handshake->fd);
	else
		fp_fd_close(handshake->fd);
	handshake_free(handshake);
}

/* SO_LINGER with a time of 0 closes a TCP socket with a reset (RFC 9293, 3.10.4, and socket(7)). */
void fp_handshake_abort(struct fp_handshake *handshake)
{
	const struct linger at_once = {.l_onoff = 1};

	if (handshake && !is_stranger(handshake))
		(void)setsockopt(handshake->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	fp_handshake_close(handshake);
}

int fp_handshake_take_socket(struct fp_handshake *handshake)
{
	int fd = handshake->fd;

	handshake_free(handshake);
	return fd;
}

int fp_handshake_check(const struct fp_handshake *handshake)
{
	struct pollfd p = {.fd = handshake->fd, .events = POLLRDHUP};

	if (is_stranger(handshake))
		return -EBADF;
	return poll(&p, 1, 0) == 1 ? -ECONNRESET : 0;
}

const struct sockaddr *fp_handshake_address(const struct fp_handshake *handshake)
{
	return (const struct sockaddr *)&handshake->address;
}

int fp_handshake_take_memfd(struct fp_handshake *handshake)
{
	return fp_take_fd(handshake->memfd);
}

static int flush(struct fp_handshake *handshake, uint64_t deadline_ns)
{
	while (handshake->out_sent < handshake->out_len) {
		ssize_t n = socket_send(handshake->fd, handshake->out + handshake->out_sent,
		                        handshake->out_len - handshake->out_sent);

		if (n == -EAGAIN)
			n = fp_clock_poll(handshake->fd, POLLOUT, deadline_ns);
		else if (n > 0)
			handshake->out_sent += (size_t)n;
		if (n < 0)
			return (int)n;
	}
	return 0;
}

int fp_handshake_send(struct fp_handshake *handshake, enum fp_wire_type type, uint64_t tag,
                      const void *payload, size_t len, uint64_t deadline_ns)
{
	int r = flush(handshake, deadline_ns);

	if (r < 0)
		return r;
	assert(FP_WIRE_HEADER_BYTES + len <= sizeof(handshake->out));
	fp_wire_header_encode(type, FP_WIRE_OK, tag, len, handshake->out);
	if (len > 0)
		memcpy(handshake->out + FP_WIRE_HEADER_BYTES, payload, len);
	handshake->out_len = FP_WIRE_HEADER_BYTES + len;
	handshake->out_sent = 0;
	return flush(handshake, deadline_ns);
}

/*
 * Reads until `want` bytes of the frame are here, and never beyond: a descriptor belongs to the
 * frame it came with.
 */
static int fill(struct fp_handshake *handshake, size_t want, uint64_t deadline_ns)
{
	while (handshake->in_got < want) {
		ssize_t n = socket_receive(handshake->fd, handshake->in + handshake->in_got,
		                           want - handshake->in_got, &handshake->memfd);

		if (n == -EAGAIN)
			n = fp_clock_poll(handshake->fd, POLLIN, deadline_ns);
		else if (n > 0)
			handshake->in_got += (size_t)n;
		if (n < 0)
			return (int)n;
	}
	return 0;
}

int fp_handshake_receive(struct fp_handshake *handshake, uint64_t deadline_ns,
                         struct fp_wire_header *ret_header, const void **ret_payload)
{
	struct fp_wire_header header;
	int r;

	if (handshake->in_got == 0 && handshake->memfd >= 0)
		close(fp_handshake_take_memfd(handshake));
	r = fill(handshake, FP_WIRE_HEADER_BYTES, deadline_ns);
	if (r < 0)
		return r;
	r = fp_wire_header_decode(handshake->in, &header);
	if (r < 0)
		return r;
	if (header.length > sizeof(handshake->in) - FP_WIRE_HEADER_BYTES)
		return -EPROTO;
	r = fill(handshake, FP_WIRE_HEADER_BYTES + header.length, deadline_ns);
	if (r < 0)
		return r;
	handshake->in_got = 0;
	*ret_header = header;
	*ret_payload = handshake->in + FP_WIRE_HEADER_BYTES;
	return 0;
}

void fp_handshake_refusal(const void *payload, size_t len, struct fp_refusal *ret_refusal)
{
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	struct fp_wire_refusal wire;

	if (fp_wire_refusal_decode(payload, len, &wire) == 0)
		fp_refusal_from_wire(&wire, &refusal);
	*ret_refusal = refusal;
}

/*
 * The refusal that came with an ERROR. A node that finds no version in common and does not say
 * which one it speaks is older: it knows no refusals.
 */
static struct fp_refusal refusal_of(const struct fp_wire_header *error, const void *payload)
{
	struct fp_refusal refusal;

	fp_handshake_refusal(payload, error->length, &refusal);
	if (refusal.cause == FP_REFUSAL_NONE && error->status == FP_WIRE_VERSION_GAP)
		refusal = (struct fp_refusal){.cause = FP_REFUSAL_VERSION, .used = FP_WIRE_VERSION};
	return refusal;
}

/* Receives the one answer that the handshake allows next. Returns the length of its payload.
 * refusal may be NULL. */
static int expect(struct fp_handshake *handshake, enum fp_wire_type type, uint64_t deadline_ns,
                  const void **ret_payload, struct fp_refusal *refusal)
{
	struct fp_wire_header header;
	int r = fp_handshake_receive(handshake, deadline_ns, &header, ret_payload);

	if (r < 0)
		return r;
	if (header.type == FP_WIRE_ERROR && refusal)
		*refusal = refusal_of(&header, *ret_payload);
	if (header.type == FP_WIRE_ERROR)
		return fp_wire_status_to_errno(header.status);
	return header.type == type ? (int)header.length : -EPROTO;
}

/*
 * Asks the kernel for the process's name: the program may have moved the string to which the C
 * library points.
 */
void fp_handshake_name_self(char *buf, size_t len)
{
	char comm[32];
	ssize_t n = fp_fd_read_file("/proc/self/comm", comm, sizeof(comm));

	if (n <= 0)
		comm[0] = '?';
	snprintf(buf, len, "%.*s[%d]", n > 0 ? (int)n - 1 : 1, comm, (int)getpid());
}

static int send_hello(struct fp_handshake *handshake, const struct fp_handshake_options *options,
                      uint64_t deadline_ns, struct fp_wire_hello *ret_hello)
{
	struct fp_wire_hello hello = {.min_version = FP_WIRE_VERSION,
	                              .max_version = FP_WIRE_VERSION,
	                              .purpose = (uint8_t)options->purpose,
	                              .features = options->features};
	uint8_t bytes[sizeof(hello)];
	int r = fp_auth_random(hello.nonce, sizeof(hello.nonce));

	if (r < 0)
		return r;
	if (options->session) {
		hello.session_id = options->session->session_id;
		memcpy(hello.token, options->session->token, sizeof(hello.token));
	}
	fp_wire_name_set(hello.client_name, options->client_name);
	fp_wire_hello_encode(&hello, bytes);
	*ret_hello = hello;
	return fp_handshake_send(handshake, FP_WIRE_HELLO, 0, bytes, sizeof(bytes), deadline_ns);
}

/*
 * A client with a secret trusts only a node that proves that it knows the same secret. This holds
 * even if the node asks the client for no proof.
 */
static int check_welcome(const char *secret, const struct fp_wire_hello *hello,
                         const struct fp_wire_challenge *challenge, const struct fp_wire_welcome *welcome)
{
	uint8_t proof[FP_WIRE_PROOF_BYTES];
	int r = fp_auth_prove_server(secret, hello, challenge, welcome, proof);

	if (r < 0)
		return r;
	if (secret && !fp_auth_equal(proof, welcome->proof, sizeof(proof)))
		return -EKEYREJECTED;
	if (welcome->version != challenge->version || (welcome->features & ~hello->features))
		return -EPROTO;
	return 0;
}

static int shake_hands(struct fp_handshake *handshake, const struct fp_handshake_options *options,
                       uint64_t deadline_ns, struct fp_wire_welcome *ret_welcome)
{
	struct fp_wire_hello hello;
	struct fp_wire_challenge challenge;
	struct fp_wire_welcome welcome;
	struct fp_wire_auth auth;
	const void *payload;
	int r;

	if ((r = send_hello(handshake, options, deadline_ns, &hello)) < 0 ||
	    (r = expect(handshake, FP_WIRE_CHALLENGE, deadline_ns, &payload, options->refusal)) < 0 ||
	    (r = fp_wire_challenge_decode(payload, (size_t)r, &challenge)) < 0)
		return r;
	if (challenge.version < hello.min_version || challenge.version > hello.max_version)
		return -EPROTONOSUPPORT;
	if ((r = fp_auth_prove_client(options->secret, &hello, &challenge, auth.proof)) < 0 ||
	    (r = fp_handshake_send(handshake, FP_WIRE_AUTH, 0, &auth, sizeof(auth), deadline_ns)) < 0 ||
	    (r = expect(handshake, FP_WIRE_WELCOME, deadline_ns, &payload, options->refusal)) < 0 ||
	    (r = fp_wire_welcome_decode(payload, (size_t)r, &welcome)) < 0 ||
	    (r = check_welcome(options->secret, &hello, &challenge, &welcome)) < 0)
		return r;
	*ret_welcome = welcome;
	return 0;
}

/*
 * The node may have understood a RESUME although we got no answer. If we then closed the connection
 * as usual, the node would free the leases. So the connection must look broken.
 */
int fp_handshake_open(const struct fp_url *url, const struct fp_handshake_options *options,
                      uint64_t deadline_ns, struct fp_handshake **ret_handshake,
                      struct fp_wire_welcome *ret_welcome)
{
	struct fp_handshake *handshake;
	int r = dial(url, deadline_ns, &handshake);

	if (r < 0)
		return r;
	r = shake_hands(handshake, options, deadline_ns, ret_welcome);
	if (r == 0)
		*ret_handshake = handshake;
	else if (options->purpose == FP_WIRE_RESUME)
		fp_handshake_abort(handshake);
	else
		fp_handshake_close(handshake);
	return r;
}
