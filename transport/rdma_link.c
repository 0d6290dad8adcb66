/*
 * The data path of rdma. Room: transport; see rdma_link.h.
 *
 *            submit            all its work posted             all its work complete
 *   free ─────────────► waiting ─────────────────► flying ─────────────────────────► free, io done
 *
 * A request is carried out piece by piece, with a work request and a slot for each. A segment that
 * the device can reach in place is one piece. Any other segment is cut into pieces of at most a
 * bounce page. Waiting requests are served in order. They wait while no slot is free, or while the
 * device allows no further READ. All that can begin goes out as one chain with one doorbell.
 *
 * Only some pieces ask for a completion: the last of a request, the last of a chain, and now and
 * then a READ in between. A completed READ means that all earlier work is done. A completed WRITE
 * means only that the earlier WRITEs are done. (InfiniBand would promise the READs too; soft iWARP
 * reports a WRITE before an earlier READ.) On iWARP a completed WRITE has merely been sent. So on
 * iWARP each request that writes ends with a READ of its last byte. The peer answers that READ only
 * after it has placed all earlier bytes (RFC 5040, 5.5, and RFC 5041, 5.3: delivery in order).
 *
 * Soft RoCE (rxe_completer of Linux 6.12) may report a READ as done although it could not parse the
 * answer. It puts the queue pair into its error state only afterwards. This happens when the peer's
 * interface goes down and comes back. So we write a mark at the end of a READ's destination, where
 * the device writes last. If the mark is still there afterwards, the READ has failed. Each mark
 * differs from the last one. So if the read bytes equal the mark by chance, the next try succeeds.
 *
 * A device cannot forget a single work request. So an overdue request breaks the link, like any
 * error: the queue pair enters its error state. Each io ends when all its work has come back,
 * because only then nothing touches its buffers any more.
 *
 * All memory is allocated and registered when the link opens. After that: no allocation, lock or
 * log.
 */
#include "rdma_link.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "clock.h"
#include "control.h"
#include "fdutil.h"
#include "lockedmem.h"
#include "wire.h"

#define POLL_CHUNK 32u
/*
 * Chunks of completions taken in one call. The limit ends the call even if completions come without
 * end.
 */
#define MAX_POLLS        32u
#define SMALL_READ_BYTES 128u
#define CHECK_EVERY_NS   (10 * FP_NSEC_PER_MSEC)
/*
 * An ack timeout of 4.096 µs << 16 is 268 ms; eight tries take 2.1 s. Devices may wait up to four
 * times as long.
 */
#define ACK_TIMEOUT_DEFAULT 16
/* After this time we expect no more flushed work to come back. */
#define DRAIN_NS (200 * FP_NSEC_PER_MSEC)

struct rdma_request {
	TAILQ_ENTRY(rdma_request) entry;
	struct fp_io *io; /* NULL: free */
	uint64_t deadline_ns;
	unsigned seg;      /* where its next piece begins: segment... */
	uint32_t at;       /* ...and byte in it */
	bool posted;       /* no piece is left to post */
	unsigned n_flying; /* pieces in flight */
	int status;        /* the first error */
};
TAILQ_HEAD(rdma_request_list, rdma_request);

/* A work request in flight. Slot i owns page i of the bounce pool. */
struct slot {
	TAILQ_ENTRY(slot) entry;
	struct rdma_request *req; /* NULL: free */
	enum fp_verbs_op op;
	void *copy_to;  /* READ through the bounce page: the buffer to copy to; else NULL */
	uint8_t *local; /* the bytes that the device reads or writes */
	uint64_t mark;  /* READ of at least 8 bytes: the last 8 hold this value until the READ is done */
	uint32_t len_bytes;
};
TAILQ_HEAD(slot_list, slot);

struct rdma_link {
	struct fp_link base;
	struct fp_rdma_link_options options;
	struct fp_rdma_memory memory; /* page i is slot i's */
	struct fp_verbs_conn *conn;   /* NULL: destroyed, as its work did not come back in time */
	pid_t opener;
	bool confirms; /* iWARP: a WRITE is done only when the READ behind it is */
	unsigned max_reads;
	int error;                 /* the errno that broke the link; 0 while it works */
	uint64_t drain_until_ns;   /* once the link is broken: when to destroy the queue pair */
	uint64_t next_deadline_ns; /* no deadline is before this */
	uint64_t next_check_ns;    /* when to check again that the peer is there */
	uint64_t mark;             /* mark of the READ posted last */
	struct rdma_request_list idle, waiting, flying;
	struct slot_list free, busy; /* busy: in the order posted */
	unsigned n_reads;            /* READs in the list busy */
	unsigned n_silent_reads;     /* READs after the last one that asked for a completion */
	/* work to post next; kept while the queue has no room for it */
	struct fp_verbs_work chain[FP_VERBS_CHAIN_MAX];
	unsigned n_chain;
	struct rdma_request requests[FP_LINK_MAX_OUTSTANDING];
	struct slot slots[]; /* options.n_slots of them */
};

struct fp_verbs_conn_options fp_rdma_link_conn_options(const struct fp_rdma_options *rdma)
{
	struct fp_verbs_conn_options options = fp_rdma_conn_options(rdma);

	if (!options.ack_timeout)
		options.ack_timeout = ACK_TIMEOUT_DEFAULT;
	return options;
}

static struct rdma_link *link_of(struct fp_link *link)
{
	return (struct rdma_link *)link;
}

/* ---- ends ---- */

/* Ends a request with nothing in flight: its io is the caller's again. */
static void request_end(struct rdma_link *link, struct rdma_request *req)
{
	assert(req->n_flying == 0);
	TAILQ_REMOVE(req->posted ? &link->flying : &link->waiting, req, entry);
	TAILQ_INSERT_HEAD(&link->idle, req, entry);
	fp_link_io_done(&link->base, fp_take_ptr(req->io), req->status);
}

/* Ends a request if all its work is done; on a broken link, if none of it is in flight. */
static void request_settle(struct rdma_link *link, struct rdma_request *req)
{
	if (req->n_flying > 0 || !(req->posted || link->error < 0))
		return;
	if (!req->posted && req->status == 0)
		req->status = link->error;
	request_end(link, req);
}

static uint8_t *mark_of(const struct slot *slot)
{
	bool has = slot->op == FP_VERBS_READ && slot->len_bytes >= sizeof(slot->mark);

	return has ? slot->local + slot->len_bytes - sizeof(slot->mark) : NULL;
}

/* Marks the destination of a READ before it is posted. */
static void mark(struct rdma_link *link, struct slot *slot)
{
	slot->mark = link->mark += 0x9e3779b97f4a7c15u;
	if (mark_of(slot))
		memcpy(mark_of(slot), &slot->mark, sizeof(slot->mark));
}

/* The status of a piece that the device reports as done. An untouched mark is an error. */
static int look_at_mark(const struct slot *slot, int status)
{
	const uint8_t *at = status == 0 ? mark_of(slot) : NULL;

	return at && memcmp(at, &slot->mark, sizeof(slot->mark)) == 0 ? -ECONNRESET : status;
}

/* Ends a piece. The device does not use its slot any more. */
static void slot_end(struct rdma_link *link, struct slot *slot, int said)
{
	struct rdma_request *req = fp_take_ptr(slot->req);
	int status = look_at_mark(slot, said);

	TAILQ_REMOVE(&link->busy, slot, entry);
	TAILQ_INSERT_HEAD(&link->free, slot, entry);
	if (slot->op == FP_VERBS_READ)
		link->n_reads--;
	if (status == 0 && slot->copy_to)
		memcpy(slot->copy_to, slot->local, slot->len_bytes);
	if (status < 0 && req->status == 0)
		req->status = status;
	req->n_flying--;
	request_settle(link, req);
}

/* Ends all pieces: the dead queue pair will not report them. */
static void drop_all(struct rdma_link *link)
{
	struct slot *slot;

	while ((slot = TAILQ_FIRST(&link->busy)))
		slot_end(link, slot, link->error);
}

/*
 * Destroys the queue pair, so that the device touches no buffers any more. Destroying takes long,
 * so this is the last resort.
 */
static void destroy(struct rdma_link *link)
{
	fp_verbs_conn_close(fp_take_ptr(link->conn));
	drop_all(link);
}

/*
 * Makes the link unusable. Requests that have not begun end now. The others end when the device
 * returns their work. Later submits end at once.
 */
static void link_break(struct rdma_link *link, int error)
{
	struct rdma_request *req, *next;

	if (link->error < 0)
		return;
	link->error = error;
	link->drain_until_ns = fp_clock_ns() + DRAIN_NS;
	for (unsigned i = 0; i < link->n_chain; i++) /* these were never posted */
		slot_end(link, &link->slots[link->chain[i].id], error);
	link->n_chain = 0;
	for (req = TAILQ_FIRST(&link->waiting); req; req = next) {
		next = TAILQ_NEXT(req, entry);
		request_settle(link, req);
	}
	if (fp_verbs_conn_flush(link->conn) < 0)
		link->drain_until_ns = 0; /* the next progress() destroys the queue pair */
}

void fp_rdma_link_break(struct fp_link *base)
{
	link_break(link_of(base), -ECONNRESET);
}

/* ---- completions ---- */

/*
 * Ends the older pieces that this completion covers: see the top of the file. If this piece failed,
 * the older pieces end with its error: some of them may have succeeded, but nothing proves it.
 */
static void end_older(struct rdma_link *link, const struct slot *than, int status)
{
	struct slot *slot, *next;

	for (slot = TAILQ_FIRST(&link->busy); slot && slot != than; slot = next) {
		next = TAILQ_NEXT(slot, entry);
		if (than->op == FP_VERBS_READ || slot->op == than->op)
			slot_end(link, slot, status < 0 ? -ECONNRESET : 0);
	}
}

static void take_completion(struct rdma_link *link, const struct fp_verbs_completion *completion)
{
	struct slot *slot = completion->id < link->options.n_slots ? &link->slots[completion->id] : NULL;
	int status = completion->status;

	if (!slot || !slot->req) {
		link_break(link, -ECONNRESET);
		return;
	}
	/* flushed: another request failed, or the peer is gone */
	status = status == -ECANCELED ? -ECONNRESET : look_at_mark(slot, status);
	if (completion->status < 0 && completion->status != -ECANCELED && link->error == 0)
		link->base.why = fp_verbs_status_text(completion->wc_status);
	end_older(link, slot, status);
	slot_end(link, slot, status);
	if (status < 0)
		link_break(link, -ECONNRESET);
}

static void take_completions(struct rdma_link *link)
{
	struct fp_verbs_completion completions[POLL_CHUNK];
	int n = POLL_CHUNK;

	for (unsigned i = 0; n == POLL_CHUNK && i < MAX_POLLS; i++) {
		n = fp_verbs_poll(link->conn, completions, POLL_CHUNK);
		for (int k = 0; k < n; k++)
			take_completion(link, &completions[k]);
	}
	if (n < 0) {
		link_break(link, -ECONNRESET);
		destroy(link);
	}
}

/* ---- work ---- */

/* The op of the next piece. If a request needs a confirmation, a READ follows its last WRITE. */
static enum fp_verbs_op next_op(const struct rdma_request *req)
{
	return req->io->op == FP_IO_READ || req->seg == req->io->n_segs ? FP_VERBS_READ : FP_VERBS_WRITE;
}

/* Sets the remote key of work, and its remote address: byte `at` of the segment. */
static void aim(const struct rdma_link *link, const struct fp_seg *seg, uint32_t at,
                struct fp_verbs_work *work)
{
	const struct fp_lease *lease = link->options.find_lease(link->options.session, seg->lease_id);

	assert(lease); /* no lease is released while an io uses it */
	work->rkey = lease->remote_key;
	work->remote = lease->remote_address + seg->offset_bytes + at;
}

/* A READ of the last byte that the request wrote; its value is not used. */
static void confirm_piece(const struct rdma_link *link, const struct rdma_request *req, size_t page,
                          struct fp_verbs_work *work)
{
	const struct fp_seg *seg = &req->io->segs[req->io->n_segs - 1];

	aim(link, seg, seg->len_bytes - 1, work);
	fp_rdma_memory_choose(&link->memory, page, NULL, 1, work);
}

/*
 * Soft iWARP (siw_try_1seg of Linux 6.12) garbles the answer to a READ of up to some 30 bytes that
 * crosses the end of a page. So on iWARP a short piece ends where the page ends.
 */
static uint32_t readable_bytes(const struct rdma_link *link, const struct rdma_request *req, uint64_t remote,
                               uint32_t len)
{
	uint32_t to_page_end = FP_WIRE_LEASE_ALIGN - (uint32_t)(remote % FP_WIRE_LEASE_ALIGN);

	if (!link->confirms || req->io->op != FP_IO_READ || len > SMALL_READ_BYTES)
		return len;
	return FP_MIN(len, to_page_end);
}

static void data_piece(const struct rdma_link *link, struct rdma_request *req, struct slot *slot,
                       struct fp_verbs_work *work)
{
	const struct fp_seg *seg = &req->io->segs[req->seg];
	uint8_t *buf = (uint8_t *)seg->buf + req->at;

	aim(link, seg, req->at, work);
	if (fp_rdma_memory_choose(&link->memory, work->id, buf,
	                          readable_bytes(link, req, work->remote, seg->len_bytes - req->at), work))
		slot->copy_to = buf;
	req->at += work->len_bytes;
	if (req->at == seg->len_bytes) {
		req->seg++;
		req->at = 0;
	}
}

/* Whether the piece made last was the last one of the request. */
static bool is_posted(const struct rdma_link *link, const struct rdma_request *req, enum fp_verbs_op last_op)
{
	return req->seg == req->io->n_segs &&
	       (req->io->op == FP_IO_READ || !link->confirms || last_op == FP_VERBS_READ);
}

/*
 * Whether a READ must ask for a completion. In a long row of READs without completions, finished
 * requests would end too late.
 */
static bool wants_completion(struct rdma_link *link, const struct rdma_request *req, enum fp_verbs_op op)
{
	if (op != FP_VERBS_READ)
		return req->posted;
	if (!req->posted && ++link->n_silent_reads < FP_MAX(link->max_reads / 2, 1u))
		return false;
	link->n_silent_reads = 0;
	return true;
}

static void add_piece(struct rdma_link *link, struct rdma_request *req)
{
	struct fp_verbs_work *work = &link->chain[link->n_chain++];
	struct slot *slot = TAILQ_FIRST(&link->free);

	slot->req = req;
	slot->copy_to = NULL;
	slot->op = next_op(req);
	*work = (struct fp_verbs_work){.op = slot->op, .id = (uint64_t)(slot - link->slots)};
	if (req->seg == req->io->n_segs)
		confirm_piece(link, req, work->id, work);
	else
		data_piece(link, req, slot, work);
	slot->local = work->local;
	slot->len_bytes = work->len_bytes;
	mark(link, slot);
	TAILQ_REMOVE(&link->free, slot, entry);
	TAILQ_INSERT_TAIL(&link->busy, slot, entry);
	link->n_reads += slot->op == FP_VERBS_READ;
	req->n_flying++;
	req->posted = is_posted(link, req, slot->op);
	work->signalled = wants_completion(link, req, slot->op);
	if (req->posted) {
		TAILQ_REMOVE(&link->waiting, req, entry);
		TAILQ_INSERT_TAIL(&link->flying, req, entry);
	}
}

static bool has_room(const struct rdma_link *link, const struct rdma_request *req)
{
	return link->n_chain < FP_VERBS_CHAIN_MAX && !TAILQ_EMPTY(&link->free) &&
	       (next_op(req) != FP_VERBS_READ || link->n_reads < link->max_reads);
}

/* The last piece of each op must ask for a completion, because no later piece reports it. */
static void signal_last(struct rdma_link *link)
{
	struct fp_verbs_work *work = &link->chain[link->n_chain - 1];

	work->signalled = true;
	while (work->op != FP_VERBS_READ && work > link->chain)
		work--;
	if (work->op == FP_VERBS_READ) {
		work->signalled = true;
		link->n_silent_reads = 0;
	}
}

static void build_chain(struct rdma_link *link)
{
	struct rdma_request *req;

	while ((req = TAILQ_FIRST(&link->waiting)) && has_room(link, req))
		add_piece(link, req);
	if (link->n_chain > 0)
		signal_last(link);
}

/* Posts all that can be posted. Keeps the chain while the queue has no space for it. */
static void push(struct rdma_link *link)
{
	while (link->error == 0) {
		int r;

		if (link->n_chain == 0)
			build_chain(link);
		if (link->n_chain == 0)
			return;
		r = fp_verbs_post(link->conn, link->chain, link->n_chain);
		if (r == -EAGAIN)
			return;
		/* Also after an error, because a part of the chain may be in flight. */
		link->n_chain = 0;
		if (r < 0)
			link_break(link, -ECONNRESET);
	}
}

/* ---- progress ---- */

/* Breaks the link if a request is overdue, else notes when to look again. */
static void expire(struct rdma_link *link, uint64_t now_ns)
{
	struct rdma_request_list *lists[] = {&link->flying, &link->waiting};
	bool overdue = false;

	if (now_ns < link->next_deadline_ns || link->error < 0)
		return;
	link->next_deadline_ns = UINT64_MAX;
	for (size_t i = 0; i < FP_ARRAY_LEN(lists); i++) {
		struct rdma_request *req;

		TAILQ_FOREACH (req, lists[i], entry) {
			if (req->deadline_ns > now_ns) {
				link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
				continue;
			}
			req->status = req->status ? req->status : -ETIMEDOUT;
			overdue = true;
		}
	}
	if (overdue)
		link_break(link, -ECONNRESET);
}

static bool has_hung_up(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLRDHUP};

	return fd >= 0 && poll(&p, 1, 0) == 1;
}

/*
 * Looks whether the peer is gone. A queue pair without work never notices a lost peer, and one with
 * work only after its retries. rdma_cm knows earlier; without rdma_cm, the socket of the LINK
 * connection does.
 */
static void check_peer(struct rdma_link *link, uint64_t now_ns)
{
	if (link->error < 0 || now_ns < link->next_check_ns)
		return;
	link->next_check_ns = now_ns + CHECK_EVERY_NS;
	if (fp_verbs_conn_stirs(link->conn) || has_hung_up(link->options.fd))
		link_break(link, -ECONNRESET);
}

static void progress(struct rdma_link *link)
{
	uint64_t now_ns;

	if (!link->conn || TAILQ_EMPTY(&link->busy)) /* nothing is in flight, so no request waits either */
		return;
	take_completions(link);
	push(link);
	now_ns = fp_clock_ns();
	expire(link, now_ns);
	check_peer(link, now_ns);
	if (link->error < 0 && link->conn && !TAILQ_EMPTY(&link->busy) && now_ns >= link->drain_until_ns)
		destroy(link);
}

/* Checks all segments before a byte moves, as a node does for tcp. */
static bool is_allowed(const struct rdma_link *link, const struct fp_io *io)
{
	for (unsigned i = 0; i < io->n_segs; i++) {
		const struct fp_seg *seg = &io->segs[i];
		const struct fp_lease *lease = link->options.find_lease(link->options.session, seg->lease_id);
		struct fp_wire_seg wire = {seg->lease_id, seg->len_bytes, seg->offset_bytes};

		if (!lease || !fp_wire_seg_fits(&wire, lease->size_bytes) ||
		    (io->op == FP_IO_WRITE && lease->read_only))
			return false;
	}
	return true;
}

int fp_rdma_link_submit(struct fp_link *base, struct fp_io *io)
{
	struct rdma_link *link = link_of(base);
	struct rdma_request *req = TAILQ_FIRST(&link->idle);

	if (link->error < 0 || !is_allowed(link, io)) {
		if (base->n_done >= FP_LINK_MAX_OUTSTANDING)
			return -EAGAIN;
		fp_link_io_done(&link->base, io, link->error < 0 ? link->error : -EACCES);
		return 0;
	}
	if (!req)
		return -EAGAIN;
	*req = (struct rdma_request){.entry = req->entry, .io = io};
	req->deadline_ns = io->deadline_ns ? io->deadline_ns : fp_clock_ns() + link->options.patience_ns;
	link->next_deadline_ns = FP_MIN(link->next_deadline_ns, req->deadline_ns);
	TAILQ_REMOVE(&link->idle, req, entry);
	TAILQ_INSERT_TAIL(&link->waiting, req, entry);
	push(link);
	return 0;
}

int fp_rdma_link_poll(struct fp_link *base, struct fp_io **ret_done, unsigned max)
{
	struct rdma_link *link = link_of(base);

	if (base->n_done < max)
		progress(link);
	return fp_link_take_done(base, ret_done, max);
}

/* Work that came back just before the arming raises no event. So look once more after it. */
int fp_rdma_link_pollfd(struct fp_link *base, struct pollfd *ret_pollfd)
{
	struct rdma_link *link = link_of(base);
	int r;

	ret_pollfd->fd = -1;
	if (link->error < 0 || base->done || link->n_chain > 0)
		return 0;
	check_peer(link, fp_clock_ns());
	r = link->error < 0 ? link->error : fp_verbs_arm(link->conn, ret_pollfd);
	if (r < 0)
		link_break(link, -ECONNRESET);
	else
		progress(link);
	if (link->error < 0 || base->done || link->n_chain > 0) {
		ret_pollfd->fd = -1;
		return 0;
	}
	return 1;
}

/* ---- opening and closing ---- */

int fp_rdma_link_register(struct fp_link *link, void *mem, size_t len_bytes)
{
	return fp_rdma_memory_register(&link_of(link)->memory, mem, len_bytes);
}

static void link_init(struct rdma_link *link, struct fp_verbs_conn *conn)
{
	link->opener = getpid();
	link->mark = fp_clock_ns() ^ (uintptr_t)link;
	link->max_reads = fp_verbs_conn_max_reads(conn);
	link->confirms = fp_verbs_domain_limits(link->memory.domain)->iwarp;
	link->next_deadline_ns = UINT64_MAX;
	TAILQ_INIT(&link->idle);
	TAILQ_INIT(&link->waiting);
	TAILQ_INIT(&link->flying);
	TAILQ_INIT(&link->free);
	TAILQ_INIT(&link->busy);
	for (unsigned i = 0; i < FP_LINK_MAX_OUTSTANDING; i++)
		TAILQ_INSERT_TAIL(&link->idle, &link->requests[i], entry);
	for (unsigned i = 0; i < link->options.n_slots; i++)
		TAILQ_INSERT_TAIL(&link->free, &link->slots[i], entry);
}

static size_t link_bytes(unsigned n_slots)
{
	return sizeof(struct rdma_link) + n_slots * sizeof(struct slot);
}

/* Frees everything but the connection. The link may be only half made. */
static void link_free(struct rdma_link *link)
{
	fp_rdma_memory_free(&link->memory, link->opener == getpid());
	fp_lockedmem_free(link, link_bytes(link->options.n_slots));
}

int fp_rdma_link_new(struct fp_verbs_conn *conn, const struct fp_rdma_link_options *options,
                     struct fp_link **ret_link)
{
	struct rdma_link *link = fp_lockedmem_new(link_bytes(options->n_slots));
	int r;

	if (!link)
		return -ENOMEM;
	link->base.transport = options->transport;
	link->options = *options;
	r = fp_rdma_memory_init(&link->memory, conn, options->protocol, options->n_slots);
	link_init(link, conn);
	if (r == 0 && link->max_reads == 0)
		r = -EPROTO; /* a peer that does not answer a READ is not a memory node */
	if (r < 0) {
		link_free(link);
		return r;
	}
	link->conn = conn;
	*ret_link = &link->base;
	return 0;
}

/*
 * A forked child has copies of the descriptors of its parent's queue pair. If it destroyed its
 * copy, it would destroy the parent's queue pair.
 */
void fp_rdma_link_close(struct fp_link *base)
{
	struct rdma_link *link = link_of(base);

	if (link->opener == getpid())
		fp_verbs_conn_close(link->conn);
	fp_fd_close(link->options.fd);
	link_free(link);
}
