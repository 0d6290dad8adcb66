/*
 * The tcp transport: each link is one connection with pipelined requests, which the node answers in
 * order. Bytes go straight between the socket and the segments' buffers. Room: transport. control.c
 * has the control side.
 *
 *            submit                whole frame sent              answer received
 *   idle ─────────────► waiting ────────────────────► flying ─────────────────────► idle, io done
 *                          │ first of the queue: being sent │
 *                          └──────────── link broken ───────┴─────────────────────► idle, io done
 *
 * An io that is done belongs to its caller again at once: nothing here may look at it, its segments
 * or its buffers afterwards. An overdue request breaks the link, as on rdma, so that no late answer
 * and no half frame is left. This side refuses every request that the node would refuse. So if the
 * node still refuses one, the link breaks too.
 *
 * All memory is allocated when the link opens. After that: no allocation, lock or log.
 */
#include "transport.h"

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

/* The most calls of recvmsg in one poll. The limit ends the poll even if the stream never ends. */
#define MAX_STEPS 1024

struct tcp_request {
	TAILQ_ENTRY(tcp_request) entry; /* in idle, waiting or flying */
	struct fp_io *io;
	uint64_t tag; /* unique among the requests of the link */
	uint64_t deadline_ns;
	/* Sizes of the two parts of the frame: header and table, then the data of a WRITE. */
	size_t head_bytes, data_bytes;
	size_t answer_bytes; /* payload of the answer if all goes well */
	uint8_t head[FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_TABLE];
};

TAILQ_HEAD(tcp_request_list, tcp_request);

struct tcp_link {
	struct fp_link base;
	int fd;
	int error;                 /* the errno that broke the link; 0 while it works */
	uint64_t patience_ns;      /* how long an io without a deadline may take */
	uint64_t next_deadline_ns; /* no deadline is before this */
	uint64_t n_submitted;
	struct tcp_request_list idle, waiting, flying; /* waiting, flying: oldest first */
	size_t sent_bytes;                             /* bytes sent of the first waiting request's frame */
	struct {
		uint8_t header_bytes[FP_WIRE_HEADER_BYTES];
		size_t header_got;
		size_t payload_got; /* bytes received of the first flying request's payload */
	} in;
	struct tcp_request requests[FP_LINK_MAX_OUTSTANDING];
};

static struct tcp_link *link_of(struct fp_link *link)
{
	return (struct tcp_link *)link;
}

/* Ends a request of a list: its io is the caller's again. */
static void request_end(struct tcp_link *link, struct tcp_request_list *list, struct tcp_request *req,
                        int status)
{
	TAILQ_REMOVE(list, req, entry);
	TAILQ_INSERT_TAIL(&link->idle, req, entry);
	fp_link_io_done(&link->base, req->io, status);
}

static void end_all(struct tcp_link *link, struct tcp_request_list *list, int status)
{
	struct tcp_request *req;

	while ((req = TAILQ_FIRST(list)))
		request_end(link, list, req, status);
}

/* Makes the link unusable: everything outstanding ends now, and later submits end at once. */
static void link_break(struct tcp_link *link, int error)
{
	link->error = error;
	end_all(link, &link->flying, error);
	end_all(link, &link->waiting, error);
	shutdown(link->fd, SHUT_RDWR);
}

static void tcp_link_break(struct fp_link *base)
{
	if (link_of(base)->error == 0)
		link_break(link_of(base), -ECONNRESET);
}

/* Breaks the link if a request is overdue, and notes when to look again. */
static void expire(struct tcp_link *link, uint64_t now_ns)
{
	struct tcp_request *req;

	if (link->error < 0 || now_ns < link->next_deadline_ns)
		return;
	link->next_deadline_ns = UINT64_MAX;
	TAILQ_FOREACH (req, &link->flying, entry)
		link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
	TAILQ_FOREACH (req, &link->waiting, entry)
		link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
	if (link->next_deadline_ns <= now_ns)
		link_break(link, -ETIMEDOUT);
}

/*
 * Lists the buffers of an io without their first `skip` bytes. Returns the number of iovecs (at
 * most io->n_segs).
 */
static int seg_iov(const struct fp_io *io, size_t skip, struct iovec *ret_iov)
{
	int n = 0;

	for (unsigned i = 0; i < io->n_segs; i++) {
		size_t len = io->segs[i].len_bytes;

		if (skip >= len) {
			skip -= len;
			continue;
		}
		ret_iov[n++] = (struct iovec){(char *)io->segs[i].buf + skip, len - skip};
		skip = 0;
	}
	return n;
}

/*
 * Sends as much as it can of the first waiting request's frame. 0: some bytes went out, or a signal
 * came; -EAGAIN: the socket takes no more bytes now. Any other errno breaks the link.
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
		msg.msg_iovlen += (size_t)seg_iov(req->io, skip, iov + msg.msg_iovlen);
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
			TAILQ_REMOVE(&link->waiting, req, entry);
			TAILQ_INSERT_TAIL(&link->flying, req, entry);
		}
	}
}

/*
 * Receives the next bytes of the stream. Returns their number. -EAGAIN: no bytes have come. Any
 * other errno breaks the link.
 */
static ssize_t receive(const struct tcp_link *link, struct iovec *iov, int n_iov)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t)n_iov};
	ssize_t n;

	do
		n = recvmsg(link->fd, &msg, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return -ECONNRESET;
	return n > 0 ? n : -errno;
}

/*
 * Called when the node refuses the oldest request, perhaps before it received all of it. That
 * request ends with the node's error, and the others end because the link breaks.
 */
static int refused(struct tcp_link *link, const struct fp_wire_header *header)
{
	struct tcp_request_list *list = TAILQ_EMPTY(&link->flying) ? &link->waiting : &link->flying;
	struct tcp_request *req = TAILQ_FIRST(list);

	if (!req || req->tag != header->tag)
		return -EPROTO;
	request_end(link, list, req, fp_wire_status_to_errno(header->status));
	return -ECONNRESET;
}

/*
 * Checks a complete header. 0: the answer to the oldest flying request begins here. Otherwise the
 * errno that breaks the link.
 */
static int begin_answer(struct tcp_link *link)
{
	const struct tcp_request *req = TAILQ_FIRST(&link->flying);
	struct fp_wire_header header;
	int r = fp_wire_header_decode(link->in.header_bytes, &header);

	if (r < 0)
		return r;
	if (header.type == FP_WIRE_ERROR)
		return refused(link, &header);
	if (!req || req->tag != header.tag || header.length != req->answer_bytes ||
	    header.type != (req->io->op == FP_IO_READ ? FP_WIRE_DATA : FP_WIRE_WRITTEN))
		return -EPROTO;
	return 0;
}

/*
 * Receives a header. If payload has come too, the same call receives it straight into the buffers
 * of the oldest flying request. The buffers' bytes are undefined until that request is answered.
 */
static int receive_header(struct tcp_link *link)
{
	const struct tcp_request *req = link->in.header_got == 0 ? TAILQ_FIRST(&link->flying) : NULL;
	size_t missing = FP_WIRE_HEADER_BYTES - link->in.header_got;
	struct iovec iov[1 + FP_IO_MAX_SEGS];
	int n_iov = 1;
	ssize_t n;

	iov[0] = (struct iovec){link->in.header_bytes + link->in.header_got, missing};
	if (req && req->answer_bytes > 0)
		n_iov += seg_iov(req->io, 0, iov + 1);
	n = receive(link, iov, n_iov);
	if (n < 0)
		return (int)n;
	link->in.header_got += FP_MIN((size_t)n, missing);
	if (link->in.header_got < FP_WIRE_HEADER_BYTES)
		return 0;
	link->in.payload_got = (size_t)n - missing;
	return begin_answer(link);
}

static int receive_payload(struct tcp_link *link)
{
	struct iovec iov[FP_IO_MAX_SEGS];
	ssize_t n = receive(link, iov, seg_iov(TAILQ_FIRST(&link->flying)->io, link->in.payload_got, iov));

	if (n < 0)
		return (int)n;
	link->in.payload_got += (size_t)n;
	return 0;
}

/*
 * Receives a part of the stream. 0: there may be more; -EAGAIN: no bytes have come. Any other errno
 * breaks the link.
 */
static int receive_some(struct tcp_link *link)
{
	int r = link->in.header_got < FP_WIRE_HEADER_BYTES ? receive_header(link) : receive_payload(link);
	struct tcp_request *req = TAILQ_FIRST(&link->flying);

	if (r == 0 && link->in.header_got == FP_WIRE_HEADER_BYTES &&
	    link->in.payload_got == req->answer_bytes) {
		link->in.header_got = 0;
		request_end(link, &link->flying, req, 0);
	}
	return r;
}

static bool expects_more(const struct tcp_link *link)
{
	return !TAILQ_EMPTY(&link->flying) || link->in.header_got > 0;
}

/* Receives until max ios are done, no more is expected, or nothing has come. */
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
	struct tcp_request *req = TAILQ_FIRST(&link->idle);

	if (link->error < 0 || !fp_control_allows(base->session, io)) {
		fp_link_io_done(&link->base, io, link->error < 0 ? link->error : -EACCES);
		return 0;
	}
	if (!req)
		return -EAGAIN;
	req->io = io;
	req->tag = ++link->n_submitted;
	req->deadline_ns = io->deadline_ns ? io->deadline_ns : fp_clock_ns() + link->patience_ns;
	link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
	io->tag = req->tag;
	encode_request(req, io);
	TAILQ_REMOVE(&link->idle, req, entry);
	TAILQ_INSERT_TAIL(&link->waiting, req, entry);
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

/* If the link is broken or has done ios, there is nothing to wait for: fd is -1. */
static int tcp_pollfd(struct fp_link *base, struct pollfd *ret_pollfd)
{
	struct tcp_link *link = link_of(base);
	bool waits = link->error == 0 && !base->done;

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
	TAILQ_INIT(&link->idle);
	TAILQ_INIT(&link->waiting);
	TAILQ_INIT(&link->flying);
	for (unsigned i = 0; i < FP_MIN(max_outstanding, FP_LINK_MAX_OUTSTANDING); i++)
		TAILQ_INSERT_TAIL(&link->idle, &link->requests[i], entry);
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
    .link_break = tcp_link_break,
    .submit = tcp_submit,
    .poll = tcp_poll,
    .pollfd = tcp_pollfd,
};
