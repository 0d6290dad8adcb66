/*
 * A lane: one thread's data paths to all nodes. It gathers pages into requests and hands every page
 * back once. Room: store. Only its owner thread runs it, on memory taken when the lane is opened,
 * without locks, logs or calls that block.
 *
 *   page ─> open request of its node ─> waiting ─> submitted to the link ─> done ─> fp_lane_poll
 *      │                                   ▲                │
 *      │                                   └─ link broken ──┘ if it may still wait
 *      └──── copied at once (load/store), or refused (node lost or spent) ────────────┘
 *
 * A deadline limits one try. A try that passes its deadline breaks the link, and a read is then
 * tried again. The patience of a read limits all its tries together.
 *
 * A link of a node that is cut off is stale: nothing more is submitted to it. The lane breaks the
 * stale link. The requests on it then wait again, and nothing touches their buffers any more. Then
 * the lane gives the link to the reconnect thread, which closes it. Only then the lane takes a
 * fresh link. So no answer on an old link can end a request on a new one.
 */
#include <errno.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "page_list.h"
#include "cleanup.h"
#include "clock.h"
#include "lockedmem.h"
#include "store_internal.h"
#include "retry.h"

#define POLL_CHUNK     16
#define BUSY_LOOK_NS   (100 * FP_NSEC_PER_MSEC)
#define BROKEN_LOOK_NS (10 * FP_NSEC_PER_MSEC)

static_assert(FP_BATCH_MAX <= FP_IO_MAX_SEGS, "each page of a request may need its own segment");

struct page_request {
	struct fp_io io;
	TAILQ_ENTRY(page_request) queue; /* in idle or waiting */
	TAILQ_ENTRY(page_request) age;   /* in active */
	uint64_t number;                 /* in the order in which the requests began */
	struct fp_retry tries;
	bool submitted;
	unsigned node_idx;
	unsigned n_pages;
	struct fp_page_list pages;
	struct fp_seg segs[FP_IO_MAX_SEGS];
};

TAILQ_HEAD(page_request_queue, page_request);

struct path {
	struct fp_session_epoch_link *link; /* NULL: none now, or the node is load_store */
	bool blocked;                       /* this path counts in the node's n_blocked */
	uint64_t blocked_ns;                /* since when */
	struct page_request *open;          /* still being filled */
	struct page_request_queue waiting;  /* waiting for a link, or for space on it; sorted by number */
	unsigned n_submitted;
};

struct fp_lane {
	struct fp_lane_shared shared;
	struct fp_store *store;
	size_t len_bytes;
	pthread_t owner; /* the thread that first used the lane, or took it over */
	bool owned;
	bool brief; /* see fp_lane_be_brief */
	unsigned max_outstanding;
	unsigned n_outstanding; /* pages between submit and poll */
	uint64_t n_begun;       /* requests */
	struct fp_page_list done;
	struct page_request_queue idle;
	TAILQ_HEAD(, page_request) active; /* oldest first: the nearest deadline is at the head */
	struct path paths[FP_STORE_MAX_NODES];
	struct page_request requests[]; /* one for each page, as each page may need its own request */
};

static void owner_check(struct fp_lane *lane)
{
	if (!lane->owned) {
		lane->owner = pthread_self();
		lane->owned = true;
	}
	assert(pthread_equal(lane->owner, pthread_self()));
}

static void page_end(struct fp_lane *lane, struct fp_page_io *page, int status)
{
	page->status = status;
	fp_page_list_append(&lane->done, page);
}

/* The only way out of a request: hands its pages back as done. */
static void request_end(struct fp_lane *lane, struct page_request *req, int status)
{
	struct fp_page_io *page;

	assert(!req->submitted);
	if (status == 0)
		fp_node_count(&lane->store->nodes[req->node_idx], req->io.op,
		              (uint64_t)req->n_pages * FP_PAGE_SIZE);
	while ((page = fp_page_list_pop(&req->pages)))
		page_end(lane, page, status);
	TAILQ_REMOVE(&lane->active, req, age);
	TAILQ_INSERT_HEAD(&lane->idle, req, queue);
}

/* How long a request to the node may wait, all tries together. */
static uint64_t wait_ns(const struct fp_lane *lane, const struct fp_node *node, enum fp_io_op op)
{
	if (op == FP_IO_WRITE || lane->brief || !node->resumable)
		return lane->store->deadline_ns;
	return fp_store_patience_ns(lane->store, node);
}

static struct page_request *request_begin(struct fp_lane *lane, unsigned node_idx, enum fp_io_op op,
                                          uint64_t now_ns)
{
	struct page_request *req = TAILQ_FIRST(&lane->idle);
	uint64_t deadline_ns, all_ns = wait_ns(lane, &lane->store->nodes[node_idx], op);

	assert(req); /* there is a request for each page that may be outstanding */
	TAILQ_REMOVE(&lane->idle, req, queue);
	TAILQ_INSERT_TAIL(&lane->active, req, age);
	deadline_ns = fp_retry_begin(&req->tries, now_ns, lane->store->deadline_ns, all_ns);
	req->io = (struct fp_io){.op = op, .segs = req->segs, .deadline_ns = deadline_ns, .user = req};
	req->number = ++lane->n_begun;
	req->node_idx = node_idx;
	req->n_pages = 0;
	req->pages = (struct fp_page_list){0};
	return req;
}

/*
 * In a hurry (fp_store_hurry), a request waits at most the length of one deadline for a node that
 * is cut off. It still waits longer for a node that is merely slow.
 */
static bool is_over(const struct fp_lane *lane, const struct path *path, const struct page_request *req,
                    uint64_t now_ns)
{
	uint64_t hurried_ns = atomic_load_explicit(&lane->store->hurried_ns, memory_order_relaxed);

	return now_ns >= req->tries.until_ns ||
	       (hurried_ns && path->blocked &&
	        now_ns >= FP_MAX(hurried_ns, path->blocked_ns) + lane->store->deadline_ns);
}

static void request_renew(const struct fp_lane *lane, struct page_request *req, uint64_t now_ns)
{
	req->io.deadline_ns =
	    fp_retry_next(&req->tries, now_ns, lane->store->deadline_ns, req->io.deadline_ns);
}

/* Puts a request into the waiting queue, before all that began after it. */
static void request_wait(const struct fp_lane *lane, struct path *path, struct page_request *req)
{
	struct page_request *next;

	request_renew(lane, req, fp_clock_ns());
	TAILQ_FOREACH (next, &path->waiting, queue)
		if (next->number > req->number)
			break;
	if (next)
		TAILQ_INSERT_BEFORE(next, req, queue);
	else
		TAILQ_INSERT_TAIL(&path->waiting, req, queue);
}

static struct fp_node *node_of(struct fp_lane *lane, const struct path *path)
{
	return &lane->store->nodes[path - lane->paths];
}

static struct fp_exchange *exchange_of(struct fp_lane *lane, const struct path *path)
{
	return &lane->shared.exchange[path - lane->paths];
}

static bool is_stale(const struct path *path, uint64_t breaker)
{
	return fp_breaker_state(breaker) != FP_BREAKER_CLOSED ||
	       path->link->epoch->number != fp_breaker_epoch(breaker);
}

/* ---- links in and out ---- */

/*
 * Breaks a stale link. Gives the link to the reconnect thread, but not while a request is under way
 * on it. The reconnect thread must also have closed the last link that it was given.
 */
static void path_give(struct fp_lane *lane, struct path *path)
{
	struct fp_session_epoch_link *none = NULL;

	if (path->n_submitted) {
		fp_link_break(path->link->link);
		return;
	}
	if (!atomic_compare_exchange_strong(&exchange_of(lane, path)->given, &none, path->link))
		return;
	path->link = NULL;
	fp_node_wake(node_of(lane, path));
}

static void path_take_fresh(struct fp_lane *lane, struct path *path)
{
	struct fp_exchange *exchange = exchange_of(lane, path);

	if (!atomic_load_explicit(&exchange->fresh, memory_order_relaxed))
		return;
	/* no new link is used until all old requests have ended or wait again */
	assert(!path->link && path->n_submitted == 0);
	path->link = atomic_exchange(&exchange->fresh, NULL);
}

/*
 * Gives up a stale link and takes a fresh one, depending on the breaker. True if there is a link to
 * submit to.
 */
static bool path_settle(struct fp_lane *lane, struct path *path)
{
	struct fp_node *node = node_of(lane, path);

	if (!node->resumable)
		return path->link && fp_node_up(node);
	if (path->link && is_stale(path, fp_node_breaker(node)))
		path_give(lane, path);
	if (!path->link && fp_node_up(node))
		path_take_fresh(lane, path);
	return path->link && !is_stale(path, fp_node_breaker(node));
}

/* ---- requests ---- */

/*
 * Marks the node's breaker as spent (fp_breaker_spent) if the patience of a read is over. Writes,
 * and reads of a brief lane (fp_lane_be_brief), have no patience.
 */
static void note_patience(struct fp_lane *lane, struct fp_node *node, const struct page_request *req)
{
	if (req->io.op == FP_IO_READ && !lane->brief && fp_clock_ns() >= req->tries.until_ns)
		fp_node_step(node, FP_BREAKER_WAITED, 0);
}

/* Called when a request has waited for a link, or for space on a link, until its deadline. */
static void request_expire(struct fp_lane *lane, struct path *path, struct page_request *req)
{
	struct fp_node *node = node_of(lane, path);
	uint64_t now_ns = fp_clock_ns();

	if (path->link && !is_stale(path, fp_node_breaker(node)))
		fp_node_report(node, path->link->epoch->number, -ETIMEDOUT, NULL);
	else
		note_patience(lane, node, req);
	if (node->resumable && !is_over(lane, path, req, now_ns)) {
		request_renew(lane, req, now_ns);
		return;
	}
	TAILQ_REMOVE(&path->waiting, req, queue);
	request_end(lane, req, -ETIMEDOUT);
}

/* Gives a waiting request to the link. False if the link takes no more now. */
static bool path_submit(struct fp_lane *lane, struct path *path, struct page_request *req)
{
	struct fp_node *node = node_of(lane, path);
	int r = fp_link_submit(path->link->link, &req->io);

	if (r == -EAGAIN)
		return false;
	if (r < 0 && fp_node_is_fatal(r)) {
		fp_node_report(node, path->link->epoch->number, r, fp_link_why(path->link->link));
		if (node->resumable)
			return false; /* the request waits for the next link */
	}
	TAILQ_REMOVE(&path->waiting, req, queue);
	if (r == 0) {
		req->submitted = true;
		path->n_submitted++;
	} else {
		request_end(lane, req, r);
	}
	return true;
}

/* Updates the node's count of lanes whose pages wait until the node is up again. */
static void path_note_blocked(struct path *path, struct fp_node *node)
{
	bool waits = path->n_submitted || !TAILQ_EMPTY(&path->waiting);
	bool blocked = waits && node->resumable && !fp_node_up(node);

	if (blocked == path->blocked)
		return;
	path->blocked = blocked;
	path->blocked_ns = fp_clock_ns();
	atomic_fetch_add(&node->n_blocked, blocked ? 1u : -1u);
}

/* Ends requests that waited too long, or whose node is lost. Submits the others, in order, until
 * the link is full. */
static void path_push(struct fp_lane *lane, struct path *path)
{
	struct fp_node *node = node_of(lane, path);
	bool settled = path_settle(lane, path);
	struct page_request *req;

	while ((req = TAILQ_FIRST(&path->waiting))) {
		if (fp_breaker_state(fp_node_breaker(node)) == FP_BREAKER_LOST) {
			TAILQ_REMOVE(&path->waiting, req, queue);
			request_end(lane, req, -EHOSTDOWN);
		} else if (settled && !is_stale(path, fp_node_breaker(node)) &&
		           path_submit(lane, path, req)) {
			continue;
		} else if (fp_clock_ns() >= req->io.deadline_ns || is_over(lane, path, req, fp_clock_ns())) {
			request_expire(lane, path, req);
		} else {
			break;
		}
	}
	path_note_blocked(path, node);
}

/* Sends the open request: no more pages join it. */
static void path_flush(struct fp_lane *lane, struct path *path)
{
	if (!path->open)
		return;
	TAILQ_INSERT_TAIL(&path->waiting, path->open, queue);
	path->open = NULL;
	path_push(lane, path);
}

/* True if a page directly follows the last segment, in its lease and in local memory. */
static bool seg_continues(const struct page_request *req, const struct fp_seg *seg)
{
	const struct fp_seg *last;

	if (req->io.n_segs == 0)
		return false;
	last = &req->segs[req->io.n_segs - 1];
	return last->lease_id == seg->lease_id && last->offset_bytes + last->len_bytes == seg->offset_bytes &&
	       (char *)last->buf + last->len_bytes == (char *)seg->buf &&
	       last->len_bytes + seg->len_bytes <= FP_SEG_MAX_BYTES;
}

static void request_add(struct page_request *req, const struct fp_slots *slots, struct fp_page_io *page)
{
	struct fp_seg seg = {
	    .lease_id = slots->lease_id,
	    .len_bytes = FP_PAGE_SIZE,
	    .offset_bytes = fp_store_offset_of(page->slot),
	    .buf = page->buf,
	};

	if (seg_continues(req, &seg))
		req->segs[req->io.n_segs - 1].len_bytes += seg.len_bytes;
	else
		req->segs[req->io.n_segs++] = seg;
	fp_page_list_append(&req->pages, page);
	req->n_pages++;
}

static void page_copy(enum fp_io_op op, char *remote, char *local)
{
	if (op == FP_IO_READ)
		memcpy(local, remote, FP_PAGE_SIZE);
	else
		memcpy(remote, local, FP_PAGE_SIZE);
}

/* True if a page must not wait: its node is lost, or was cut off for longer than the patience. */
static bool refuses(uint64_t breaker)
{
	return fp_breaker_state(breaker) == FP_BREAKER_LOST || fp_breaker_spent(breaker);
}

static void page_start(struct fp_lane *lane, enum fp_io_op op, struct fp_page_io *page, uint64_t now_ns)
{
	const struct fp_slots *slots = fp_store_lease_of(lane->store, page->slot);
	struct fp_node *node = &lane->store->nodes[slots->node];
	struct path *path = &lane->paths[slots->node];

	if (refuses(fp_node_breaker(node))) {
		page_end(lane, page, -EHOSTDOWN);
	} else if (slots->base) {
		page_copy(op, slots->base + fp_store_offset_of(page->slot), page->buf);
		fp_node_count(node, op, FP_PAGE_SIZE);
		page_end(lane, page, 0);
	} else {
		if (!path->open) {
			fp_adoption_want(lane->store, node);
			path->open = request_begin(lane, slots->node, op, now_ns);
		}
		request_add(path->open, slots, page);
		if (path->open->n_pages == FP_BATCH_MAX)
			path_flush(lane, path);
	}
}

static int lane_start(struct fp_lane *lane, enum fp_io_op op, struct fp_page_io *const *pages, unsigned n)
{
	uint64_t now_ns = lane->store->direct ? 0 : fp_clock_ns();

	owner_check(lane);
	if (n > lane->max_outstanding - lane->n_outstanding)
		return -EAGAIN;
	lane->n_outstanding += n;
	for (unsigned i = 0; i < n; i++)
		page_start(lane, op, pages[i], now_ns);
	for (unsigned i = 0; i < lane->store->n_nodes; i++)
		path_flush(lane, &lane->paths[i]);
	return 0;
}

int fp_lane_read(struct fp_lane *lane, struct fp_page_io *const *pages, unsigned n)
{
	return lane_start(lane, FP_IO_READ, pages, n);
}

int fp_lane_write(struct fp_lane *lane, struct fp_page_io *const *pages, unsigned n)
{
	return lane_start(lane, FP_IO_WRITE, pages, n);
}

/* A request has left its link: it ends, or waits for the next link. */
static void request_done(struct fp_lane *lane, struct path *path, struct page_request *req, int status)
{
	struct fp_node *node = node_of(lane, path);
	bool in_vain = is_stale(path, fp_node_breaker(node));

	req->submitted = false;
	path->n_submitted--;
	if (status < 0 && fp_node_is_fatal(status)) {
		fp_node_report(node, path->link->epoch->number, status, fp_link_why(path->link->link));
		if (node->resumable && !is_over(lane, path, req, fp_clock_ns())) {
			request_wait(lane, path, req);
			return;
		}
		if (in_vain)
			note_patience(lane, node, req);
		if (node->resumable)
			status = -ETIMEDOUT;
	}
	request_end(lane, req, status);
}

/* Collects the requests that a link has completed, then submits those that wait for space on it. */
static void path_poll(struct fp_lane *lane, struct path *path)
{
	struct fp_io *done[POLL_CHUNK];
	int n = POLL_CHUNK;

	while (path->link && path->n_submitted && n == POLL_CHUNK) {
		n = fp_link_poll(path->link->link, done, POLL_CHUNK);
		for (int i = 0; i < n; i++)
			request_done(lane, path, done[i]->user, done[i]->status);
	}
	path_push(lane, path);
}

unsigned fp_lane_poll(struct fp_lane *lane, struct fp_page_io **ret_done, unsigned max)
{
	struct fp_page_io *page;
	unsigned n = 0;

	owner_check(lane);
	if (!TAILQ_EMPTY(&lane->active))
		for (unsigned i = 0; i < lane->store->n_nodes; i++)
			path_poll(lane, &lane->paths[i]);
	while (n < max && (page = fp_page_list_pop(&lane->done)))
		ret_done[n++] = page;
	lane->n_outstanding -= n;
	return n;
}

void fp_lane_check(struct fp_lane *lane)
{
	owner_check(lane);
	for (unsigned i = 0; i < lane->store->n_nodes; i++) {
		struct path *path = &lane->paths[i];
		struct pollfd fd;

		if (!path_settle(lane, path) || path->n_submitted || !fp_link_pollfd(path->link->link, &fd))
			continue;
		fd.events = POLLRDHUP;
		if (poll(&fd, 1, 0) == 1)
			fp_node_report(&lane->store->nodes[i], path->link->epoch->number, -ECONNRESET, NULL);
	}
}

void fp_lane_hand_over(struct fp_lane *lane)
{
	lane->owned = false;
	for (unsigned i = 0; i < lane->store->n_nodes; i++)
		if (lane->paths[i].link)
			fp_link_hand_over(lane->paths[i].link->link);
}

unsigned fp_lane_outstanding(const struct fp_lane *lane)
{
	return lane->n_outstanding;
}

/*
 * How long the owner may sleep before it looks at a path again, even if the path's descriptor is
 * silent. The reconnect thread closes links, opens the breaker and hands out links without telling
 * the owner.
 */
static uint64_t path_look_ns(struct fp_lane *lane, const struct path *path)
{
	if (!node_of(lane, path)->resumable)
		return UINT64_MAX;
	if (!path->n_submitted && !TAILQ_EMPTY(&path->waiting))
		return BROKEN_LOOK_NS;
	if (path->n_submitted && is_stale(path, fp_node_breaker(node_of(lane, path))))
		return BROKEN_LOOK_NS;
	return path->n_submitted ? BUSY_LOOK_NS : UINT64_MAX;
}

unsigned fp_lane_pollfds(struct fp_lane *lane, struct pollfd *ret_fds, unsigned max,
                         uint64_t *ret_deadline_ns)
{
	const struct page_request *oldest = TAILQ_FIRST(&lane->active);
	uint64_t deadline_ns = oldest ? oldest->io.deadline_ns : UINT64_MAX, look_ns = UINT64_MAX;
	unsigned n = 0;

	owner_check(lane);
	for (unsigned i = 0; i < lane->store->n_nodes; i++) {
		struct path *path = &lane->paths[i];
		uint64_t path_ns = path_look_ns(lane, path);

		look_ns = FP_MIN(look_ns, path_ns);
		if (!path->n_submitted || !path->link)
			continue;
		if (n < max && fp_link_pollfd(path->link->link, &ret_fds[n]))
			n++;
		else
			deadline_ns = 0; /* nothing to wait on: poll again */
	}
	if (look_ns != UINT64_MAX && deadline_ns) {
		look_ns += fp_clock_ns();
		deadline_ns = FP_MIN(deadline_ns, look_ns);
	}
	*ret_deadline_ns = lane->done.head ? 0 : deadline_ns;
	return n;
}

/* ---- opening and closing ---- */

/* Keeps which limit of the node a link met, for whoever reports that the lane can't be opened. */
static void keep_refusal(struct fp_node *node)
{
	struct fp_refusal refusal;

	fp_session_refusal(node->epoch->session, &refusal);
	fp_node_set_refusal(node, &refusal);
}

static int paths_open(struct fp_lane *lane)
{
	for (unsigned i = 0; i < lane->store->n_nodes; i++) {
		struct fp_node *node = &lane->store->nodes[i];
		int r = 0;

		if (!node->load_store && fp_node_up(node)) /* else the reconnect thread brings one later */
			r = fp_session_epoch_link_open(node->epoch, &lane->shared, &lane->paths[i].link);
		if (r == -EUSERS)
			keep_refusal(node);
		if (r < 0)
			return r;
	}
	return 0;
}

int fp_lane_open(struct fp_store *store, unsigned max_outstanding, struct fp_lane **ret_lane)
{
	unsigned n_requests = store->direct ? 0 : max_outstanding;
	size_t len_bytes = sizeof(struct fp_lane) + n_requests * sizeof(struct page_request);
	struct fp_lane *lane;
	int r;

	if (max_outstanding == 0)
		return -EINVAL;
	lane = fp_lockedmem_new(len_bytes);
	if (!lane)
		return -ENOMEM;
	lane->store = store;
	lane->len_bytes = len_bytes;
	lane->max_outstanding = max_outstanding;
	TAILQ_INIT(&lane->idle);
	TAILQ_INIT(&lane->active);
	for (unsigned i = 0; i < store->n_nodes; i++)
		TAILQ_INIT(&lane->paths[i].waiting);
	for (unsigned i = 0; i < n_requests; i++)
		TAILQ_INSERT_TAIL(&lane->idle, &lane->requests[i], queue);
	fp_store_lanes_lock(store); /* no node may be resumed between the two steps */
	LIST_INSERT_HEAD(&store->lanes, &lane->shared, entry);
	r = paths_open(lane);
	fp_store_lanes_unlock(store);
	if (r < 0) {
		fp_lane_close(lane);
		return r;
	}
	*ret_lane = lane;
	return 0;
}

void fp_lane_be_brief(struct fp_lane *lane)
{
	lane->brief = true;
}

int fp_lane_register(struct fp_lane *lane, void *base, size_t len_bytes)
{
	struct fp_lane_shared *shared = &lane->shared;
	int r = -ENOSPC;

	fp_store_lanes_lock(lane->store);
	if (shared->n_regions < FP_LANE_MAX_REGIONS) {
		shared->regions[shared->n_regions].base = base;
		shared->regions[shared->n_regions++].len_bytes = len_bytes;
		for (unsigned i = 0; i < lane->store->n_nodes; i++) {
			struct fp_session_epoch_link *fresh = atomic_load(&shared->exchange[i].fresh);

			if (lane->paths[i].link)
				fp_link_register(lane->paths[i].link->link, base, len_bytes);
			if (fresh) /* we may touch this link: the owner does not run yet */
				fp_link_register(fresh->link, base, len_bytes);
		}
		r = 0;
	}
	fp_store_lanes_unlock(lane->store);
	return r;
}

void fp_lane_close(struct fp_lane *lane)
{
	if (!lane)
		return;
	fp_store_lanes_lock(lane->store);
	LIST_REMOVE(&lane->shared, entry);
	for (unsigned i = 0; i < lane->store->n_nodes; i++) {
		struct fp_node *node = &lane->store->nodes[i];
		struct fp_exchange *exchange = &lane->shared.exchange[i];
		struct fp_session_epoch_link *given = atomic_exchange(&exchange->given, NULL);

		if (lane->paths[i].blocked && lane->store->opener == getpid())
			atomic_fetch_sub(&node->n_blocked, 1);
		/*
		 * the same link is in both if the process forked while its owner was in path_give
		 */
		if (given != lane->paths[i].link)
			fp_session_epoch_link_close(given);
		fp_session_epoch_link_close(lane->paths[i].link);
		fp_session_epoch_link_close(atomic_exchange(&exchange->fresh, NULL));
	}
	fp_store_lanes_unlock(lane->store);
	fp_lockedmem_free(lane, lane->len_bytes);
}
