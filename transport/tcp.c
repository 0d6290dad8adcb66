/*
 * The tcp transport: requests are pipelined on one connection a link, answers match them by tag in
 * any order, bytes go straight between the socket and the segments' buffers. Room: transport. The
 * control side is control.c's.
 *
 *            submit                whole frame sent              answer received
 *   free ─────────────► waiting ────────────────────► flying ─────────────────────► free, io done
 *                          │ first of the queue: being sent │
 *                          └──────── deadline passed ───────┴─────────────────────► free, io done -ETIMEDOUT
 *
 * An io that is done belongs to its caller again at once, so nothing here may look at it, its
 * segments or its buffers afterwards. Two frames can be half way when their io ends, and the stream
 * must stay in step: the rest of one being sent goes out as zeros (the bytes under a failed write
 * are undefined), the rest of one being received is dropped.
 *
 * All memory is allocated when the link opens; after that no allocation, lock or log.
 */
#include "transport.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "control.h"
#include "fdutil.h"
#include "lockedmem.h"

#define SPILL_BYTES 65536u
#define MAX_STEPS   1024 /* of the stream in one poll: no peer keeps us in it by sending on and on */

enum request_state { REQUEST_FREE, REQUEST_WAITING, REQUEST_FLYING };

struct tcp_request {
	TAILQ_ENTRY(tcp_request) entry; /* in the list of its state */
	enum request_state state;
	struct fp_io *io; /* NULL: free, or ended while its frame is being sent */
	uint64_t tag; /* index in link->requests + FP_LINK_MAX_OUTSTANDING * a number that never repeats */
	uint64_t deadline_ns;
	size_t head_bytes, data_bytes; /* of the request's frame: header and table; a WRITE's data */
	size_t answer_bytes;           /* of the answer's payload if all goes well */
	uint8_t head[FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_TABLE];
};

TAILQ_HEAD(tcp_request_list, tcp_request);

struct tcp_link {
	struct fp_link base;
	int fd;
	int error;                 /* what broke the link; 0 while it works */
	uint64_t patience_ns;      /* deadline of an io that has none */
	uint64_t next_deadline_ns; /* no request ends before this */
	uint64_t n_submitted;
	struct tcp_request_list free, waiting, flying; /* flying: oldest first */
	size_t sent_bytes;                             /* of the frame of the first that waits */
	struct {
		uint8_t header_bytes[FP_WIRE_HEADER_BYTES];
		size_t header_got;
		struct fp_wire_header header; /* valid once header_got is whole */
		struct tcp_request *target;   /* whose buffers the payload goes to; NULL: it is dropped */
		size_t payload_got;
	} in;
	/* bytes of the stream that were read ahead into the wrong place; taken before the
	 * socket's */
	size_t spill_at, spill_end;
	struct tcp_request requests[FP_LINK_MAX_OUTSTANDING];
	uint8_t spill[SPILL_BYTES];
};

/* Stands in for the data of a write that ended while it was being sent. */
static const uint8_t zeros[FP_SEG_MAX_BYTES];

static struct tcp_link *link_of(struct fp_link *link)
{
	return (struct tcp_link *)link;
}

static struct tcp_request_list *list_of(struct tcp_link *link, enum request_state state)
{
	switch (state) {
	case REQUEST_WAITING:
		return &link->waiting;
	case REQUEST_FLYING:
		return &link->flying;
	default:
		return &link->free;
	}
}

static void request_move(struct tcp_link *link, struct tcp_request *req, enum request_state state)
{
	TAILQ_REMOVE(list_of(link, req->state), req, entry);
	req->state = state;
	TAILQ_INSERT_TAIL(list_of(link, state), req, entry);
}

static bool being_sent(const struct tcp_link *link, const struct tcp_request *req)
{
	return req == TAILQ_FIRST(&link->waiting) && link->sent_bytes > 0;
}

/*
 * Ends a request: from here on its io is the caller's. Its frame may still be going out, and then
 * it stays for that.
 */
static void request_end(struct tcp_link *link, struct tcp_request *req, int status)
{
	fp_link_io_done(&link->base, req->io, status);
	req->io = NULL;
	if (link->in.target == req)
		link->in.target = NULL;
	if (!being_sent(link, req))
		request_move(link, req, REQUEST_FREE);
}

static void end_all(struct tcp_link *link, struct tcp_request_list *list, int status)
{
	struct tcp_request *req;

	while ((req = TAILQ_FIRST(list))) {
		if (req->io)
			request_end(link, req, status);
		else
			request_move(link, req, REQUEST_FREE);
	}
}

/*
 * The link is of no use any more: everything outstanding ends, and so does at once whatever is
 * submitted later.
 */
static void link_break(struct tcp_link *link, int error)
{
	link->error = error;
	link->sent_bytes = 0;
	end_all(link, &link->flying, error);
	end_all(link, &link->waiting, error);
	shutdown(link->fd, SHUT_RDWR);
}

/* Ends what is overdue, and notes when to look again. */
static void expire(struct tcp_link *link, uint64_t now_ns)
{
	struct tcp_request_list *lists[] = {&link->flying, &link->waiting};

	if (now_ns < link->next_deadline_ns)
		return;
	link->next_deadline_ns = UINT64_MAX;
	for (size_t i = 0; i < FP_ARRAY_LEN(lists); i++) {
		for (struct tcp_request *req = TAILQ_FIRST(lists[i]), *next; req; req = next) {
			next = TAILQ_NEXT(req, entry);
			if (!req->io)
				continue;
			if (req->deadline_ns <= now_ns)
				request_end(link, req, -ETIMEDOUT);
			else
				link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
		}
	}
}

/*
 * The part of an io's buffers that begins skip bytes into them, at most max bytes long. Returns the
 * number of iovecs (at most io->n_segs).
 */
static int seg_iov(const struct fp_io *io, size_t skip, size_t max, struct iovec *ret_iov)
{
	int n = 0;

	for (unsigned i = 0; i < io->n_segs && max > 0; i++) {
		size_t len = io->segs[i].len_bytes;

		if (skip >= len) {
			skip -= len;
			continue;
		}
		len = FP_MIN(len - skip, max);
		ret_iov[n++] = (struct iovec){(char *)io->segs[i].buf + skip, len};
		max -= len;
		skip = 0;
	}
	return n;
}

static int zero_iov(size_t len, struct iovec *ret_iov)
{
	int n = 0;

	for (; len > 0; n++) {
		ret_iov[n] = (struct iovec){(void *)zeros, FP_MIN(len, sizeof(zeros))};
		len -= ret_iov[n].iov_len;
	}
	return n;
}

/*
 * Sends what it can of the frame of the first that waits. 0: some bytes went; -EAGAIN; or what
 * broke the link.
 */
static int send_some(struct tcp_link *link, const struct tcp_request *req)
{
	struct iovec iov[1 + FP_IO_MAX_SEGS];
	struct msghdr msg = {.msg_iov = iov};
	size_t skip = 0;
	ssize_t n;

	if (link->sent_bytes < req->head_bytes)
		iov[msg.msg_iovlen++] = (struct iovec){(void *)(req->head + link->sent_bytes),
		                                       req->head_bytes - link->sent_bytes};
	else
		skip = link->sent_bytes - req->head_bytes;
	if (req->data_bytes > 0)
		msg.msg_iovlen += (size_t)(req->io ? seg_iov(req->io, skip, SIZE_MAX, iov + msg.msg_iovlen)
		                                   : zero_iov(req->data_bytes - skip, iov + msg.msg_iovlen));
	n = sendmsg(link->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	link->sent_bytes += (size_t)n;
	return 0;
}

static void flush(struct tcp_link *link)
{
	struct tcp_request *req;

	while ((req = TAILQ_FIRST(&link->waiting))) {
		int r = send_some(link, req);

		if (r == -EAGAIN)
			return;
		if (r < 0) {
			link_break(link, r);
			return;
		}
		if (link->sent_bytes == req->head_bytes + req->data_bytes) {
			link->sent_bytes = 0;
			request_move(link, req, req->io ? REQUEST_FLYING : REQUEST_FREE);
		}
	}
}

/* Copies bytes that were read ahead to where they belong. */
static ssize_t take_spill(struct tcp_link *link, const struct iovec *iov, int n_iov)
{
	size_t start = link->spill_at;

	for (int i = 0; i < n_iov && link->spill_at < link->spill_end; i++) {
		size_t len = FP_MIN(iov[i].iov_len, link->spill_end - link->spill_at);

		memcpy(iov[i].iov_base, link->spill + link->spill_at, len);
		link->spill_at += len;
	}
	return (ssize_t)(link->spill_at - start);
}

/* Keeps len bytes of the stream that lie in iov and belong elsewhere. */
static void put_spill(struct tcp_link *link, const struct iovec *iov, size_t len)
{
	assert(link->spill_at == link->spill_end && len <= sizeof(link->spill));
	link->spill_at = 0;
	link->spill_end = len;
	for (uint8_t *to = link->spill; len > 0; iov++) {
		size_t part = FP_MIN(iov->iov_len, len);

		memcpy(to, iov->iov_base, part);
		to += part;
		len -= part;
	}
}

/* The next bytes of the stream: more than 0, or -EAGAIN, or what broke the link. */
static ssize_t receive(struct tcp_link *link, struct iovec *iov, int n_iov)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n_iov};
	ssize_t n;

	if (link->spill_at < link->spill_end)
		return take_spill(link, iov, n_iov);
	do
		n = recvmsg(link->fd, &msg, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return -ECONNRESET;
	return n > 0 ? n : -errno;
}

static struct tcp_request *request_of_tag(struct tcp_link *link, uint64_t tag)
{
	struct tcp_request *req = &link->requests[tag % FP_LINK_MAX_OUTSTANDING];

	return req->tag == tag && req->io ? req : NULL;
}

static bool was_ours(const struct tcp_link *link, uint64_t tag)
{
	uint64_t number = tag / FP_LINK_MAX_OUTSTANDING;

	return number >= 1 && number <= link->n_submitted;
}

/*
 * A header is complete: decides where its payload goes. What answers nothing (any more) is dropped.
 * An error may overtake the end of a write that is being sent; anything else must not come before
 * its request has gone.
 */
static int begin_answer(struct tcp_link *link)
{
	struct fp_wire_header *header = &link->in.header;
	struct tcp_request *req;
	int r = fp_wire_header_decode(link->in.header_bytes, header);

	if (r < 0)
		return r;
	link->in.payload_got = 0;
	link->in.target = NULL;
	req = request_of_tag(link, header->tag);
	if (!req)
		return was_ours(link, header->tag) ? 0 : -EPROTO;
	if (header->type == FP_WIRE_ERROR) {
		if (req->state != REQUEST_FLYING && !being_sent(link, req))
			return -EPROTO;
	} else if (req->state != REQUEST_FLYING || header->length != req->answer_bytes ||
	           header->type != (req->io->op == FP_IO_READ ? FP_WIRE_DATA : FP_WIRE_WRITTEN)) {
		return -EPROTO;
	}
	link->in.target = req;
	return 0;
}

static void end_answer(struct tcp_link *link)
{
	link->in.header_got = 0;
	if (link->in.target)
		request_end(link, link->in.target, fp_wire_status_to_errno(link->in.header.status));
}

/*
 * Receives a header, and in the same call as much of a payload as it likely has: answers mostly
 * come in the order asked, so what follows the header is taken to be for the oldest request that
 * flies, and is read into its buffers. Those are undefined until that request is answered, so a
 * wrong guess costs a copy and no more.
 */
static int receive_header(struct tcp_link *link)
{
	struct tcp_request *guess = link->in.header_got == 0 ? TAILQ_FIRST(&link->flying) : NULL;
	size_t missing = FP_WIRE_HEADER_BYTES - link->in.header_got, extra;
	struct iovec iov[1 + FP_IO_MAX_SEGS];
	int r, n_iov = 1;
	ssize_t n;

	if (link->spill_at < link->spill_end)
		guess = NULL;
	iov[0] = (struct iovec){link->in.header_bytes + link->in.header_got, missing};
	if (guess && guess->answer_bytes > 0)
		n_iov += seg_iov(guess->io, 0, SPILL_BYTES, iov + 1);
	n = receive(link, iov, n_iov);
	if (n < 0)
		return (int)n;
	link->in.header_got += FP_MIN((size_t)n, missing);
	if (link->in.header_got < FP_WIRE_HEADER_BYTES)
		return 0;
	extra = (size_t)n - missing;
	r = begin_answer(link);
	if (r < 0)
		return r;
	if (link->in.target && link->in.target == guess && link->in.header.type == FP_WIRE_DATA)
		link->in.payload_got = extra;
	else if (extra > 0)
		put_spill(link, iov + 1, extra);
	return 0;
}

/* The payload of an answer that nobody waits for. The spill is free for it whenever the socket is
 * read. */
static ssize_t drop(struct tcp_link *link, size_t left)
{
	struct iovec iov = {link->spill, FP_MIN(left, sizeof(link->spill))};

	if (link->spill_at == link->spill_end)
		return receive(link, &iov, 1);
	left = FP_MIN(left, link->spill_end - link->spill_at);
	link->spill_at += left;
	return (ssize_t)left;
}

static int receive_payload(struct tcp_link *link)
{
	size_t left = link->in.header.length - link->in.payload_got;
	struct iovec iov[FP_IO_MAX_SEGS];
	ssize_t n;

	if (link->in.target)
		n = receive(link, iov, seg_iov(link->in.target->io, link->in.payload_got, SIZE_MAX, iov));
	else
		n = drop(link, left);
	if (n < 0)
		return (int)n;
	link->in.payload_got += (size_t)n;
	return 0;
}

/* One step of the stream. 0: there may be more; -EAGAIN; or what broke the link. */
static int receive_some(struct tcp_link *link)
{
	int r = link->in.header_got < FP_WIRE_HEADER_BYTES ? receive_header(link) : receive_payload(link);

	if (r == 0 && link->in.header_got == FP_WIRE_HEADER_BYTES &&
	    link->in.payload_got == link->in.header.length)
		end_answer(link);
	return r;
}

static bool expects_more(const struct tcp_link *link)
{
	return !TAILQ_EMPTY(&link->flying) || link->in.header_got > 0 || link->spill_at < link->spill_end;
}

/* Receives until max ios are done, nothing is expected any more, or nothing has come. */
static void receive_answers(struct tcp_link *link, unsigned max)
{
	int r = receive_some(link);

	for (int step = 1; r == 0 && step < MAX_STEPS && link->base.n_done < max && expects_more(link);
	     step++)
		r = receive_some(link);
	if (r < 0 && r != -EAGAIN)
		link_break(link, r);
}

static void encode_request(struct tcp_request *req, const struct fp_io *io)
{
	struct fp_wire_seg segs[FP_IO_MAX_SEGS];
	size_t table_bytes, total = 0;

	for (unsigned i = 0; i < io->n_segs; i++) {
		segs[i] = (struct fp_wire_seg){io->segs[i].lease_id, io->segs[i].len_bytes,
		                               io->segs[i].offset_bytes};
		total += segs[i].len_bytes;
	}
	table_bytes = fp_wire_table_encode(segs, io->n_segs, req->head + FP_WIRE_HEADER_BYTES);
	req->head_bytes = FP_WIRE_HEADER_BYTES + table_bytes;
	req->data_bytes = io->op == FP_IO_WRITE ? total : 0;
	req->answer_bytes = io->op == FP_IO_READ ? total : 0;
	fp_wire_header_encode(io->op == FP_IO_READ ? FP_WIRE_READ : FP_WIRE_WRITE, FP_WIRE_OK, req->tag,
	                      table_bytes + req->data_bytes, req->head);
}

static int tcp_submit(struct fp_link *base, struct fp_io *io)
{
	struct tcp_link *link = link_of(base);
	struct tcp_request *req = TAILQ_FIRST(&link->free);

	if (link->error < 0) {
		fp_link_io_done(&link->base, io, link->error);
		return 0;
	}
	if (!req)
		return -EAGAIN;
	req->io = io;
	req->tag = ++link->n_submitted * FP_LINK_MAX_OUTSTANDING + (uint64_t)(req - link->requests);
	req->deadline_ns = io->deadline_ns ? io->deadline_ns : fp_clock_ns() + link->patience_ns;
	link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
	io->tag = req->tag;
	encode_request(req, io);
	request_move(link, req, REQUEST_WAITING);
	flush(link);
	return 0;
}

static int tcp_poll(struct fp_link *base, struct fp_io **ret_done, unsigned max)
{
	struct tcp_link *link = link_of(base);

	if (link->error == 0 && base->n_done < max) {
		flush(link);
		if (link->error == 0)
			receive_answers(link, max);
		expire(link, fp_clock_ns());
	}
	return fp_link_take_done(base, ret_done, max);
}

/* Nothing to wait for: the link is broken, or has ios that are done, or bytes that it has read
 * ahead. */
static int tcp_pollfd(struct fp_link *base, struct pollfd *ret_pollfd)
{
	struct tcp_link *link = link_of(base);
	bool waits = link->error == 0 && !base->done && link->spill_at == link->spill_end;

	ret_pollfd->fd = waits ? link->fd : -1;
	ret_pollfd->events = (short)(POLLIN | (TAILQ_EMPTY(&link->waiting) ? 0 : POLLOUT));
	return waits;
}

static struct tcp_link *link_new(int fd, unsigned max_outstanding)
{
	struct tcp_link *link = fp_lockedmem_new(sizeof(*link));

	if (!link)
		return NULL;
	link->base.transport = &fp_transport_tcp;
	link->fd = fd;
	link->next_deadline_ns = UINT64_MAX;
	TAILQ_INIT(&link->free);
	TAILQ_INIT(&link->waiting);
	TAILQ_INIT(&link->flying);
	for (unsigned i = 0; i < FP_MIN(max_outstanding, FP_LINK_MAX_OUTSTANDING); i++)
		TAILQ_INSERT_TAIL(&link->free, &link->requests[i], entry);
	return link;
}

static int tcp_link_open(struct fp_session *session, struct fp_link **ret_link)
{
	struct fp_handshake *handshake;
	struct fp_wire_welcome welcome;
	struct tcp_link *link;
	int fd, r = fp_control_open_link(session, &handshake, &welcome);

	if (r < 0)
		return r;
	fd = fp_handshake_take_socket(handshake);
	link = link_new(fd, welcome.max_outstanding);
	if (!link) {
		fp_fd_close(fd);
		return -ENOMEM;
	}
	link->patience_ns = fp_control_deadline_ns(session);
	*ret_link = &link->base;
	return 0;
}

static void tcp_link_close(struct fp_link *base)
{
	struct tcp_link *link = link_of(base);

	fp_fd_close(link->fd);
	fp_lockedmem_free(link, sizeof(*link));
}

static const struct fp_control_ops tcp_control = {.transport = &fp_transport_tcp};

static int tcp_session_open(const struct fp_url *url, const struct fp_session_options *options,
                            struct fp_session **ret_session)
{
	return fp_control_open(&tcp_control, url, options, ret_session);
}

const struct fp_transport fp_transport_tcp = {
    .scheme = "tcp",
    .default_port = FP_WIRE_DEFAULT_PORT,
    .session_open = tcp_session_open,
    FP_CONTROL_OPERATIONS,
    .link_open = tcp_link_open,
    .link_close = tcp_link_close,
    .submit = tcp_submit,
    .poll = tcp_poll,
    .pollfd = tcp_pollfd,
};
