/*
 * Serving faults. See serve.h. From top to bottom a fault goes this way:
 *
 *   message  fp_serve        the word's step says what the kernel's message means
 *   word     begin_missing   the page is ARRIVING, and an arrival stands for it
 *   budget   take_token      a token; without one the arrival starves (fp_serve_starved)
 *   bytes    serve_mapped    zeros, or the slot's own memory: ends here and now
 *            serve_wire      zeros, or a fetch: ends when its answer is reaped (fp_serve_reap)
 *   install  fp_far_install  or the page is lost
 *   count    end_arrival     statistics; the arrival is free again
 */
#include "serve.h"

#include <assert.h>
#include <errno.h>

#include "cleanup.h"
#include "clock.h"
#include "evict.h"
#include "kernel_filled.h"
#include "layout.h"
#include "lockedmem.h"

/* Of the copies from mapped memory, one in TIMED_COPIES is timed: to time all costs 2 to 3 %. */
#define TIMED_COPIES  8u
#define FORK_OVERDRAW 1024u /* pages */
#define ALONG_MAX     7u    /* at most so many pages are read ahead in the request of a fault */
#define AHEAD_BATCH   8u    /* read-ahead pages that are installed between two looks for faults */
#define PASSED_MAX    64u   /* read-ahead passes over so many local pages at most */
#define FRESH_AHEAD   15u   /* so many fresh pages come with one that continues no stream */
#define WAITS         1

static void begin_missing(struct fp_server *sv, const struct fp_uffd_fault *f, bool zero, uint64_t old,
                          uint64_t now);
static unsigned take_room(struct fp_server *sv, unsigned n);
static bool take_token(struct fp_server *sv, struct fp_arrival *a);
static void serve_mapped(struct fp_server *sv, struct fp_arrival *a);
static void copy_mapped(struct fp_server *sv, struct fp_arrival *a);
static void serve_wire(struct fp_server *sv, struct fp_arrival *a);
static void dispatch(struct fp_server *sv, struct fp_lane *lane, struct fp_arrival **arrivals, unsigned n);
static void finish(struct fp_server *sv, struct fp_arrival *a, const void *bytes);
static void lose(struct fp_server *sv, struct fp_arrival *a, bool has_token);
static void end_arrival(struct fp_server *sv, struct fp_arrival *a);
static void free_arrival(struct fp_server *sv, struct fp_arrival *a);

/* ---- message ---- */

/*
 * Called if the word says resident, but the kernel says missing. Most likely this is the second
 * message of a fault that has ended, and the install finds the page present. If not, a bare call
 * dropped the page, and it must read zeros.
 */
static void verify(struct fp_server *sv, uint32_t page)
{
	struct fp_far *far = sv->far;
	uint64_t until_ns = fp_clock_ns() + far->deadline_ns;
	ssize_t r;

	do {
		r = fp_uffd_copy(&far->uffd, fp_far_addr(far, page), fp_zeros, FP_PAGE_SIZE, false);
	} while (r == -EAGAIN && fp_far_may_pass(far, r, until_ns));
	/*
	 * after any failure but EEXIST the page is missing: the thread is woken and faults on it
	 * again. From here on the page counts as written, so it must be writable
	 */
	if (r == -EEXIST && fp_uffd_needs_pins(&far->uffd))
		(void)fp_far_unprotect(far, page);
	fp_far_end(far, page, FP_EV_INSTALLED_RW);
	fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	fp_count(&far->stats->faults[FP_FAULT_PRESENT], 1);
	if (r > 0)
		fp_kernel_filled_forget_absent(far, page);
}

static void unprotect(struct fp_server *sv, uint32_t page, uint64_t now)
{
	struct fp_far *far = sv->far;
	int r = fp_far_unprotect(far, page);

	if (r < 0) /* the mapping has ended: let the thread fault again */
		fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	fp_far_end(far, page, FP_EV_INSTALLED_RW);
	fp_count(&far->stats->faults[r < 0 ? FP_FAULT_DROPPED : FP_FAULT_PROTECT], 1);
	if (r == 0)
		fp_hist_record(&far->stats->kind_latency[FP_FAULT_PROTECT], fp_clock_ns() - now);
}

void fp_serve(struct fp_server *sv, const struct fp_uffd_fault *f, uint64_t now)
{
	struct fp_far *far = sv->far;
	uint32_t page = fp_far_page(far, f->addr);
	enum fp_page_event event = f->wp ? FP_EV_FAULT_WP : f->write ? FP_EV_FAULT_WRITE : FP_EV_FAULT_READ;
	struct fp_page_step s;
	uint64_t old;

	fp_far_touch(far, page);
	s = fp_pager_apply(&far->words[page], event, &old);
	switch (s.action) {
	case FP_ACT_ZERO:
	case FP_ACT_FETCH:
		begin_missing(sv, f, s.action == FP_ACT_ZERO, old, now);
		break;
	case FP_ACT_VERIFY:
		verify(sv, page);
		break;
	case FP_ACT_UNPROTECT:
		unprotect(sv, page, now);
		break;
	case FP_ACT_WAKE:
		fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
		fp_count(&far->stats->faults[FP_FAULT_PRESENT], 1);
		break;
	case FP_ACT_POISON:
		fp_lost_end(far, page, true);
		break;
	default: /* the page's owner will wake the thread */
		break;
	}
}

/* ---- word ---- */

static struct fp_arrival *new_arrival(struct fp_server *sv, uint32_t page, uint64_t old, bool zero)
{
	struct fp_arrival *a = sv->free;

	assert(a); /* is not NULL: may_read (fault.c) reads no more messages than there are arrivals */
	sv->free = a->next;
	sv->n_free--;
	a->next = NULL;
	a->page = page;
	a->zero = zero;
	a->waited = false;
	a->writable = !zero && fp_page_expects_write(old);
	a->io.slot = fp_page_slot(old);
	a->io.status = 0;
	return a;
}

static void begin_missing(struct fp_server *sv, const struct fp_uffd_fault *f, bool zero, uint64_t old,
                          uint64_t now)
{
	uint32_t page = fp_far_page(sv->far, f->addr);
	struct fp_arrival *a = new_arrival(sv, page, old, zero);

	a->demanded = true;
	a->begun_ns = now;
	a->writable |= f->write;
	a->kind = zero ? FP_FAULT_ZERO : f->write ? FP_FAULT_WRITE : FP_FAULT_READ;
	if (zero && !sv->starved_head && fp_kernel_filled_begin(sv->far, sv->layout, page)) {
		end_arrival(sv, a);
	} else if (!take_token(sv, a)) {
		*sv->starved_tail = a;
		sv->starved_tail = &a->next;
		if (a->io.slot)
			atomic_fetch_add(&sv->far->budget.n_waiting, 1);
	} else if (sv->lane) {
		serve_wire(sv, a);
	} else {
		serve_mapped(sv, a);
	}
}

/* ---- budget ---- */

static unsigned take_room(struct fp_server *sv, unsigned n)
{
	struct fp_budget *budget = &sv->far->budget;
	unsigned got;

	while ((got = fp_budget_take(budget, n)) == 0)
		if (!sv->evictor || fp_evictor_run_on_fault(sv->evictor) <= 0)
			return 0;
	return got;
}

/* A token for the page of a. If none is free, the fault waits: for an eviction now, or later. */
static bool take_token(struct fp_server *sv, struct fp_arrival *a)
{
	if (!sv->starved_head && fp_budget_take(&sv->far->budget, 1))
		return true;
	a->waited = true;
	fp_count(&sv->far->stats->waits_for_room, 1);
	return !sv->starved_head && take_room(sv, 1);
}

/*
 * True if it is useless to wait for a token. There are two such cases:
 *   - The nodes are full, and the page has a slot. Then the page may come, because it can leave
 *     again. A page without a slot waits.
 *   - A fork stops evictions, and may wait for this very thread. Then up to FORK_OVERDRAW pages
 *     come at once, and others after their deadline.
 */
static bool must_overdraw(const struct fp_far *far, const struct fp_arrival *a, uint64_t now_ns)
{
	if (a->io.slot && atomic_load(&far->full))
		return true;
	return atomic_load(&far->fork_overdraw) && (fp_budget_overdrawn(&far->budget) < FORK_OVERDRAW ||
	                                            now_ns >= a->begun_ns + far->deadline_ns);
}

/* True if a token would not help: the page's node is lost, or cut off for so long that no thread
 * waits for it any more. */
static bool is_beyond_reach(const struct fp_far *far, const struct fp_arrival *a)
{
	struct fp_store_node node;

	if (!a->io.slot || fp_store_slot_up(far->store, a->io.slot))
		return false;
	fp_store_node_info(far->store, fp_store_slot_node(far->store, a->io.slot), &node);
	return node.state == FP_BREAKER_LOST || node.spent;
}

/*
 * Decides about an arrival that gets no token. WAITS: it waits on. 0: it is served without a token.
 * An error: it is lost. A page is not lost for lack of tokens alone: it waits while a node may come
 * back and take local pages. If the page can be read, it is never lost here.
 */
static int fate_of_starved(struct fp_far *far, const struct fp_arrival *a)
{
	uint64_t now_ns = fp_clock_ns(), patience_ns;
	int r;

	if (is_beyond_reach(far, a))
		return -EHOSTDOWN;
	if (must_overdraw(far, a, now_ns))
		return 0;
	if (now_ns < a->begun_ns + far->deadline_ns)
		return WAITS;
	patience_ns = fp_far_patience_ns(far);
	r = a->io.slot && fp_store_slot_up(far->store, a->io.slot) ? 0 : fp_far_why_stuck(far);
	/* patience is asked a second time: between two looks a node may be cut off or come back */
	patience_ns = FP_MAX(patience_ns, fp_far_patience_ns(far));
	if (r == -EHOSTDOWN && now_ns < fp_clock_after(a->begun_ns, patience_ns))
		return WAITS;
	if (r == 0)
		fp_budget_grant(&far->budget);
	return r;
}

/* Serves or loses an arrival that waits no more. It has a token, or overdraws. */
static void end_starving(struct fp_server *sv, struct fp_arrival *a, bool has_token)
{
	bool counted = a->io.slot != 0;

	if (a->io.status < 0) {
		lose(sv, a, false);
	} else {
		if (!has_token)
			fp_budget_overdraw(&sv->far->budget, 1);
		if (sv->lane)
			dispatch(sv, sv->lane, &a, 1);
		else
			copy_mapped(sv, a);
	}
	if (counted) /* only now, so that a fork sees the page here or in the store */
		atomic_fetch_sub(&sv->far->budget.n_waiting, 1);
}

void fp_serve_starved(struct fp_server *sv)
{
	struct fp_arrival *a;

	while ((a = sv->starved_head)) {
		bool has_token = take_room(sv, 1) > 0;

		a->io.status = has_token ? 0 : fate_of_starved(sv->far, a);
		if (a->io.status == WAITS)
			return;
		sv->starved_head = a->next;
		a->next = NULL;
		end_starving(sv, a, has_token);
	}
	sv->starved_tail = &sv->starved_head;
}

/* ---- read-ahead ---- */

/*
 * How many pages to read ahead of a fault: as many as its stream suggests, within its mapping.
 * While half of the budget is free, a fresh page begins a stream: zeros cost less than a fault.
 */
static unsigned may_read_ahead(struct fp_server *sv, const struct fp_arrival *a,
                               struct fp_stream **ret_stream)
{
	unsigned want = fp_readahead_fault(&sv->readahead, a->page, ret_stream);

	if (want == 0 && a->zero && fp_budget_keeps_half(&sv->far->budget, FRESH_AHEAD))
		want = fp_readahead_begin(&sv->readahead, *ret_stream, FRESH_AHEAD);
	if (want == 0 || fp_budget_is_scarce(&sv->far->budget))
		return 0;
	return fp_layout_mapped_ahead(sv->layout, a->page, (*ret_stream)->step, want);
}

static bool is_local(const struct fp_far *far, uint32_t page)
{
	return fp_page_state(atomic_load_explicit(&far->words[page], memory_order_relaxed)) ==
	       FP_PAGE_RESIDENT;
}

/* A page that is read ahead, and its former word. */
struct ahead {
	uint32_t page;
	uint64_t old;
};

/*
 * Takes up to n pages that follow the fault's page in its stream, for read-ahead. Passes over pages
 * that are local: the stream goes on behind them. Stops at the first page that is of another kind
 * (ZERO or REMOTE), or owned. The caller has taken n tokens; tokens that are not needed go back.
 * Returns how many pages were taken.
 */
static unsigned take_ahead(struct fp_server *sv, const struct fp_arrival *a, struct fp_stream *stream,
                           unsigned n, struct ahead *ret_ahead)
{
	enum fp_page_event event = a->zero ? FP_EV_PREZERO : FP_EV_PREFETCH;
	unsigned steps = fp_layout_mapped_ahead(sv->layout, a->page, stream->step, n + PASSED_MAX);
	struct fp_far *far = sv->far;
	unsigned k = 0, got = 0;

	for (; k < steps; k++) {
		uint32_t page = a->page + (uint32_t)stream->step * (k + 1);

		if (is_local(far, page))
			continue;
		if (got == n)
			break;
		fp_far_touch(far, page);
		if (fp_pager_apply(&far->words[page], event, &ret_ahead[got].old).action == FP_ACT_NONE)
			break;
		ret_ahead[got++].page = page;
	}
	fp_budget_give(&far->budget, n - got);
	fp_readahead_fetched(stream, k);
	return got;
}

/* ---- bytes: the store is mapped ---- */

static const char *mapped_bytes(struct fp_server *sv, uint64_t slot)
{
	fp_store_slot_count(sv->far->store, slot, FP_IO_READ);
	return fp_store_slot_direct(sv->far->store, slot);
}

/* Pages installed by one call: neighbours in memory and, unless they are zeros, in the store. */
struct run {
	uint32_t page;
	unsigned n;
	const char *bytes;
	bool zero;
	bool writable;
};

/* When the copy of a's page begins; 0: it is not timed. */
static uint64_t copy_begins(struct fp_server *sv, const struct fp_arrival *a)
{
	return a->zero || sv->n_copies++ % TIMED_COPIES ? 0 : fp_clock_ns();
}

static void install_run(struct fp_server *sv, struct run *run)
{
	if (run->n)
		fp_far_install(sv->far, run->page, run->n, run->bytes, run->writable);
	run->n = 0;
}

static void add_to_run(struct fp_server *sv, struct run *run, uint32_t page, const char *bytes, bool writable)
{
	bool joins = run->n && page == run->page + run->n && run->writable == writable &&
	             (run->zero || bytes == run->bytes + (size_t)run->n * FP_PAGE_SIZE);

	if (!joins) {
		install_run(sv, run);
		run->page = page;
		run->bytes = bytes;
		run->writable = writable;
	}
	run->n++;
}

/* Installs one page. */
static void copy_mapped(struct fp_server *sv, struct fp_arrival *a)
{
	a->sent_ns = copy_begins(sv, a);
	finish(sv, a, a->zero ? fp_zeros : mapped_bytes(sv, a->io.slot));
}

/* Adds a page of the same kind as a's. */
static void add_ahead(struct fp_server *sv, struct run *run, const struct fp_arrival *a,
                      const struct ahead *ahead)
{
	if (a->zero)
		add_to_run(sv, run, ahead->page, fp_zeros, a->writable);
	else
		add_to_run(sv, run, ahead->page, mapped_bytes(sv, fp_page_slot(ahead->old)),
		           fp_page_expects_write(ahead->old));
}

/*
 * Installs the page and those that are read ahead: neighbours by one call. A walk backwards has its
 * neighbours below the page, so they are added first.
 */
static void serve_mapped(struct fp_server *sv, struct fp_arrival *a)
{
	struct run run = {.zero = a->zero};
	struct ahead ahead[FP_READAHEAD_MAX];
	struct fp_stream *stream;
	unsigned want = may_read_ahead(sv, a, &stream);
	unsigned n = want ? take_ahead(sv, a, stream, take_room(sv, want), ahead) : 0;
	unsigned below = stream->step == -1 ? n : 0;

	a->sent_ns = copy_begins(sv, a);
	for (unsigned i = below; i > 0; i--)
		add_ahead(sv, &run, a, &ahead[i - 1]);
	add_to_run(sv, &run, a->page, a->zero ? fp_zeros : mapped_bytes(sv, a->io.slot), a->writable);
	for (unsigned i = below; i < n; i++)
		add_ahead(sv, &run, a, &ahead[i]);
	install_run(sv, &run);
	if (n) /* all threads share the counter's cache line */
		fp_count(&sv->far->stats->prefetched_pages, n);
	if (!a->zero)
		fp_count(&sv->far->stats->fetched_bytes, (n + 1ull) * FP_PAGE_SIZE);
	end_arrival(sv, a);
}

/* ---- bytes: the store is behind a wire ---- */

/*
 * Sends arrivals that have tokens on one lane. Those that need zeros end here, the others when
 * their bytes have come.
 */
static void dispatch(struct fp_server *sv, struct fp_lane *lane, struct fp_arrival **arrivals, unsigned n)
{
	struct fp_page_io *ios[FP_BATCH_MAX];
	unsigned n_ios = 0;

	for (unsigned i = 0; i < n; i++) {
		struct fp_arrival *a = arrivals[i];

		if (a->zero) {
			finish(sv, a, fp_zeros);
			continue;
		}
		a->sent_ns = fp_clock_ns();
		ios[n_ios++] = &a->io;
	}
	if (n_ios && fp_lane_read(lane, ios, n_ios) < 0)
		for (unsigned i = 0; i < n_ios; i++) {
			/* can't happen: a lane takes as many requests as there are arrivals */
			ios[i]->status = -EBUSY;
			lose(sv, ios[i]->user, true);
		}
}

static unsigned arrive_ahead(struct fp_server *sv, const struct fp_arrival *first, struct fp_stream *stream,
                             unsigned want, struct fp_arrival **ret_arrivals)
{
	unsigned n = FP_MIN(want, sv->n_free > FP_READ_FAULTS ? sv->n_free - FP_READ_FAULTS : 0);
	struct ahead ahead[FP_READAHEAD_MAX];

	n = take_ahead(sv, first, stream, n ? fp_budget_take(&sv->far->budget, n) : 0, ahead);
	for (unsigned i = 0; i < n; i++) {
		ret_arrivals[i] = new_arrival(sv, ahead[i].page, ahead[i].old, first->zero);
		if (first->zero)
			ret_arrivals[i]->writable = first->writable;
	}
	return n;
}

/*
 * Sends several fetches together; each fetch ends on its own. Pages that are read ahead use a lane
 * of their own, with links of its own. So a page that a thread waits for does not queue behind
 * pages that no thread asked for.
 */
static void serve_wire(struct fp_server *sv, struct fp_arrival *a)
{
	struct fp_arrival *arrivals[FP_BATCH_MAX];
	struct fp_stream *stream;
	unsigned ahead = may_read_ahead(sv, a, &stream), n = 0, along;

	arrivals[0] = a;
	if (ahead &&
	    (a->zero || fp_store_slot_up(sv->far->store, a->io.slot))) /* else they wait, with tokens */
		n = arrive_ahead(sv, a, stream, ahead, arrivals + 1);
	along = FP_MIN(n, ALONG_MAX);
	dispatch(sv, sv->lane, arrivals, 1 + along);
	dispatch(sv, sv->ahead, arrivals + 1 + along, n - along);
}

/*
 * Gives up a page that was only read ahead: it stays in its slot. A thread may wait for the page by
 * now: then that thread faults again.
 */
static void forgo(struct fp_server *sv, struct fp_arrival *a)
{
	struct fp_far *far = sv->far;

	fp_budget_give(&far->budget, 1);
	fp_far_end(far, a->page, FP_EV_NOT_INSTALLED);
	free_arrival(sv, a);
}

static void fetched(struct fp_server *sv, struct fp_arrival *a)
{
	if (a->io.status < 0) {
		if (a->demanded)
			lose(sv, a, true);
		else
			forgo(sv, a);
		return;
	}
	fp_count(&sv->far->stats->fetched_bytes, FP_PAGE_SIZE);
	if (a->demanded)
		fp_hist_record(&sv->far->stats->fetch_latency, fp_clock_ns() - a->sent_ns);
	finish(sv, a, a->io.buf);
}

/* Looks for pages read ahead only if no page has come that a thread waits for. */
static unsigned reap_some(struct fp_server *sv)
{
	struct fp_page_io *done[FP_BATCH_MAX];
	unsigned n = fp_lane_poll(sv->lane, done, FP_BATCH_MAX);

	if (n == 0)
		n = fp_lane_poll(sv->ahead, done, AHEAD_BATCH);
	for (unsigned i = 0; i < n; i++)
		fetched(sv, done[i]->user);
	return n;
}

unsigned fp_serve_reap(struct fp_server *sv, bool once)
{
	unsigned n, total = 0;

	do {
		n = reap_some(sv);
		total += n;
	} while (n > 0 && !once);
	return total;
}

unsigned fp_serve_pollfds(const struct fp_server *sv, struct pollfd *ret_fds, uint64_t *ret_deadline_ns)
{
	uint64_t ahead_ns;
	unsigned n;

	*ret_deadline_ns = UINT64_MAX;
	if (!sv->lane)
		return 0;
	n = fp_lane_pollfds(sv->lane, ret_fds, FP_STORE_MAX_NODES, ret_deadline_ns);
	n += fp_lane_pollfds(sv->ahead, ret_fds + n, FP_STORE_MAX_NODES, &ahead_ns);
	*ret_deadline_ns = FP_MIN(*ret_deadline_ns, ahead_ns);
	return n;
}

bool fp_serve_is_fetching(const struct fp_server *sv)
{
	return fp_lane_outstanding(sv->lane) + fp_lane_outstanding(sv->ahead) > 0;
}

/* ---- install, count ---- */

static void finish(struct fp_server *sv, struct fp_arrival *a, const void *bytes)
{
	fp_far_install(sv->far, a->page, 1, bytes, a->writable);
	end_arrival(sv, a);
}

static void record(struct fp_statspage *stats, const struct fp_arrival *a, uint64_t now_ns)
{
	fp_hist_record(&stats->kind_latency[a->kind], now_ns - a->begun_ns);
	if (a->waited)
		fp_hist_record(&stats->waited_latency, now_ns - a->begun_ns);
}

/* No node can give the page back: hands it over to be reported and poisoned. */
static void lose(struct fp_server *sv, struct fp_arrival *a, bool has_token)
{
	if (has_token)
		fp_budget_leave(&sv->far->budget, 1);
	fp_lost_add(sv->far, a->page, a->io.slot, a->io.status);
	if (a->demanded)
		record(sv->far->stats, a, fp_clock_ns());
	free_arrival(sv, a);
}

static void count_fault(struct fp_server *sv, const struct fp_arrival *a)
{
	struct fp_statspage *stats = sv->far->stats;
	uint64_t now_ns = fp_clock_ns();

	fp_count(&stats->faults[a->kind], 1);
	record(stats, a, now_ns);
	if (!sv->lane && !a->zero && a->sent_ns) /* over a wire, see fetched */
		fp_hist_record(&stats->fetch_latency, now_ns - a->sent_ns);
}

static void end_arrival(struct fp_server *sv, struct fp_arrival *a)
{
	if (a->demanded)
		count_fault(sv, a);
	else
		fp_count(&sv->far->stats->prefetched_pages, 1);
	free_arrival(sv, a);
}

static void free_arrival(struct fp_server *sv, struct fp_arrival *a)
{
	a->demanded = false;
	a->next = sv->free;
	sv->free = a;
	sv->n_free++;
}

/* ---- life ---- */

static size_t bounce_bytes(const struct fp_server *sv)
{
	return (size_t)sv->n_fetches * FP_PAGE_SIZE;
}

static int open_wire(struct fp_server *sv)
{
	int r;

	sv->bounce = fp_lockedmem_new(bounce_bytes(sv));
	if (!sv->bounce)
		return -ENOMEM;
	for (unsigned i = 0; i < sv->n_fetches; i++)
		sv->arrivals[i].io.buf = sv->bounce + (size_t)i * FP_PAGE_SIZE;
	r = fp_lane_open(sv->far->store, sv->n_fetches, &sv->lane);
	if (r == 0)
		r = fp_lane_open(sv->far->store, sv->n_fetches, &sv->ahead);
	if (r < 0)
		return r;
	fp_lane_be_brief(sv->ahead); /* read-ahead must not occupy arrivals for long: faults need them, too */
	/* hints, so that bytes land where UFFDIO_COPY takes them from */
	(void)fp_lane_register(sv->lane, sv->bounce, bounce_bytes(sv));
	(void)fp_lane_register(sv->ahead, sv->bounce, bounce_bytes(sv));
	return 0;
}

int fp_server_open(struct fp_server *sv, const struct fp_server_options *options)
{
	sv->far = options->far;
	sv->layout = options->layout;
	sv->evictor = options->evictor;
	sv->readahead.max_pages = FP_MIN(options->readahead_pages, FP_READAHEAD_MAX);
	sv->starved_tail = &sv->starved_head;
	sv->n_fetches = options->n_fetches;
	sv->arrivals = fp_lockedmem_new(sv->n_fetches * sizeof(*sv->arrivals));
	if (!sv->arrivals)
		return -ENOMEM;
	for (unsigned i = 0; i < sv->n_fetches; i++) {
		sv->arrivals[i].io.user = &sv->arrivals[i];
		free_arrival(sv, &sv->arrivals[i]);
	}
	return fp_store_is_direct(sv->far->store) ? 0 : open_wire(sv);
}

void fp_server_close(struct fp_server *sv)
{
	fp_lane_close(sv->lane);
	fp_lane_close(sv->ahead);
	fp_lockedmem_free(sv->arrivals, sv->n_fetches * sizeof(*sv->arrivals));
	fp_lockedmem_free(sv->bounce, bounce_bytes(sv));
}
