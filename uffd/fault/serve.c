/* Serving faults: from the message to the page's end. See serve.h. */
#include "serve.h"

#include <assert.h>
#include <errno.h>

#include "cleanup.h"
#include "clock.h"
#include "evict.h"
#include "layout.h"
#include "lockedmem.h"
#include "kernel_filled.h"

#define FORK_OVERDRAW 1024u /* pages */

static struct fp_arrival *arrival_get(struct fp_server *sv)
{
	struct fp_arrival *a = sv->free;

	if (!a)
		return NULL;
	sv->free = a->next;
	sv->n_free--;
	a->next = NULL;
	return a;
}

void fp_arrival_put(struct fp_server *sv, struct fp_arrival *a)
{
	sv->n_demanded -= a->demanded && !a->left;
	a->demanded = a->left = false;
	a->next = sv->free;
	sv->free = a;
	sv->n_free++;
}

void fp_serve_count(struct fp_server *sv, const struct fp_arrival *a)
{
	struct fp_statspage *stats = sv->far->stats;

	if (!a->demanded) {
		fp_count(&stats->prefetched_pages, 1);
		return;
	}
	fp_count(&stats->faults[a->kind], 1);
	fp_hist_record(&stats->fault_latency, fp_clock_ns() - a->begun_ns);
}

struct fp_arrival *fp_arrive(struct fp_server *sv, uint32_t page, uint64_t old, bool zero)
{
	struct fp_arrival *a = arrival_get(sv);

	if (!a)
		return NULL;
	a->page = page;
	a->zero = zero;
	a->io.slot = fp_page_slot(old);
	a->io.status = 0;
	a->demanded = false;
	a->writable = fp_page_expects_write(old);
	return a;
}

/* ---- room ---- */

/* Reclaim fell behind. False if nothing can be done here: the evictor is busy, or nothing can leave. */
static bool make_room(struct fp_server *sv)
{
	unsigned n;

	if (!sv->evictor || (sv->evict_turn && atomic_exchange(sv->evict_turn, true)))
		return false;
	n = fp_evictor_run(sv->evictor, fp_budget_batch(&sv->far->room));
	if (sv->evict_turn)
		atomic_store(sv->evict_turn, false);
	return n > 0;
}

unsigned fp_serve_room(struct fp_server *sv, unsigned n)
{
	struct fp_budget *room = &sv->far->room;
	unsigned got;

	while ((got = fp_budget_take(room, n)) == 0)
		if (!make_room(sv))
			return 0;
	return got;
}

static void starve(struct fp_server *sv, struct fp_arrival *a)
{
	*sv->starved_tail = a;
	sv->starved_tail = &a->next;
	fp_count(&sv->far->stats->waits_for_room, 1);
}

/* ---- ends ---- */

void fp_serve_lose(struct fp_server *sv, struct fp_arrival *a, bool has_token)
{
	if (has_token)
		fp_budget_leave(&sv->far->room, 1);
	fp_lost_add(sv->far, a->page, a->io.slot, a->io.status);
	if (a->demanded)
		fp_hist_record(&sv->far->stats->fault_latency, fp_clock_ns() - a->begun_ns);
	fp_arrival_put(sv, a);
}

void fp_serve_finish(struct fp_server *sv, struct fp_arrival *a, const void *bytes)
{
	fp_far_install(sv->far, a->page, 1, bytes, a->writable);
	fp_serve_count(sv, a);
	fp_arrival_put(sv, a);
}

/* ---- what waits for room ---- */

/*
 * True if waiting for room is of no use: a fork holds back what could leave, or it has a home, and only what
 * has none stays. A fork may wait for the very thread that faults: so what comes late comes anyway, but no
 * more than FORK_OVERDRAW at once.
 */
static bool must_overdraw(const struct fp_far *far, const struct fp_arrival *a, uint64_t now_ns)
{
	if (a->io.slot && atomic_load(&far->full))
		return true;
	return atomic_load(&far->fork_overdraw) &&
	       (fp_budget_overdrawn(&far->room) < FORK_OVERDRAW || now_ns >= a->begun_ns + far->deadline_ns);
}

/* True if no room helps: the page's node is lost, or cut off for so long that it is not waited for any more.
 */
static bool is_beyond_reach(const struct fp_far *far, const struct fp_arrival *a)
{
	struct fp_store_node node;

	if (!a->io.slot || fp_store_slot_up(far->store, a->io.slot))
		return false;
	fp_store_node_info(far->store, fp_store_slot_node(far->store, a->io.slot), &node);
	return node.state == FP_STORE_LOST || node.spent;
}

#define WAITS 1

/*
 * What becomes of it, for which there is no room: WAITS; 0: it comes all the same; or why it is lost. The
 * want of room alone loses nothing: it waits while a node may come back that could take what is here. One
 * that can be read is not lost for want of room.
 */
static int fate_of_starved(struct fp_far *far, const struct fp_arrival *a)
{
	uint64_t now_ns = fp_clock_ns();
	int r;

	if (is_beyond_reach(far, a))
		return -EHOSTDOWN;
	if (must_overdraw(far, a, now_ns))
		return 0;
	if (now_ns < a->begun_ns + far->deadline_ns)
		return WAITS;
	r = a->io.slot && fp_store_slot_up(far->store, a->io.slot) ? 0 : fp_far_why_stuck(far);
	if (r == -EHOSTDOWN && now_ns < fp_clock_after(a->begun_ns, fp_far_patience_ns(far)))
		return WAITS;
	if (r == 0)
		fp_budget_grant(&far->room);
	return r;
}

void fp_serve_starved(struct fp_server *sv)
{
	struct fp_arrival *a;

	while ((a = sv->starved_head)) {
		if (fp_serve_room(sv, 1) == 0) {
			int fate = fate_of_starved(sv->far, a);

			if (fate == WAITS)
				return;
			a->io.status = fate;
			if (fate < 0) {
				sv->starved_head = a->next;
				fp_serve_lose(sv, a, false);
				continue;
			}
			fp_budget_overdraw(&sv->far->room, 1);
		}
		sv->starved_head = a->next;
		a->next = NULL;
		if (sv->lane)
			fp_serve_dispatch(sv, sv->lane, &a, 1);
		else
			fp_serve_finish(sv, a, a->zero ? fp_zeros : fp_serve_direct_bytes(sv, a->io.slot));
	}
	sv->starved_tail = &sv->starved_head;
}

unsigned fp_serve_ahead(struct fp_server *sv, uint32_t page, struct fp_stream **ret_stream)
{
	bool sequential = fp_layout_is_sequential(sv->layout, page);
	unsigned want = fp_readahead_fault(&sv->readahead, page, sequential, ret_stream);

	if (want == 0 || fp_budget_is_thrashing(&sv->far->room))
		return 0;
	return fp_layout_mapped_from(sv->layout, page + 1, want);
}

void fp_serve_leave(struct fp_server *sv)
{
	for (unsigned i = 0; i < sv->n_fetches; i++)
		sv->arrivals[i].left = sv->arrivals[i].demanded;
	sv->n_demanded = 0;
}

/* ---- messages ---- */

static void look_for_thrashing(struct fp_far *far, uint32_t thread, uint32_t page)
{
	uint32_t need = fp_thrash_fault(&far->thrash, thread, page);

	if (need)
		fp_budget_need(&far->room, need);
}

static void missing(struct fp_server *sv, const struct fp_uffd_fault *f, bool zero, uint64_t old,
                    uint64_t now)
{
	uint32_t page = fp_far_page(sv->far, f->addr);
	struct fp_arrival *a = fp_arrive(sv, page, old, zero);
	bool write = f->write;

	look_for_thrashing(sv->far, f->tid, page);
	assert(a); /* only as many messages are read as there are arrivals: see may_read */
	a->demanded = true;
	sv->n_demanded++;
	a->begun_ns = now;
	a->writable |= write;
	a->kind = zero ? FP_FAULT_ZERO : write ? FP_FAULT_WRITE : FP_FAULT_READ;
	if (zero)
		a->writable = write;
	if (zero && !sv->starved_head && fp_kernel_filled_begin(sv->far, sv->layout, page)) {
		fp_serve_count(sv, a);
		fp_arrival_put(sv, a);
	} else if (sv->starved_head || fp_serve_room(sv, 1) == 0) {
		starve(sv, a);
	} else if (sv->lane) {
		fp_serve_wire(sv, a);
	} else {
		fp_serve_direct(sv, a);
	}
}

/*
 * The word says resident, the kernel says missing: most likely this is the second message of a fault that has
 * ended, and the install finds the page present. If not, a raw system call dropped the page, and zeros are
 * what it must read.
 */
static void verify(struct fp_server *sv, uint32_t page)
{
	struct fp_far *far = sv->far;
	uint64_t until_ns = fp_clock_ns() + far->deadline_ns;
	ssize_t r;

	do {
		r = fp_uffd_copy(&far->uffd, fp_far_addr(far, page), fp_zeros, FP_PAGE_SIZE, false);
	} while (r == -EAGAIN && fp_far_may_pass(far, r, until_ns));
	/* Any failure but EEXIST leaves the page missing: then the thread, woken, faults on it again. It
	 * counts as written from here on, so nothing may keep it from being so. */
	if (r == -EEXIST && fp_uffd_needs_holds(&far->uffd))
		(void)fp_far_unprotect(far, page);
	fp_far_settle(far, page, fp_pager_apply(&far->words[page], FP_EV_INSTALLED_RW, NULL));
	fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	fp_count(&far->stats->faults[FP_FAULT_PRESENT], 1);
	if (r > 0)
		fp_kernel_filled_forget_absent(far, page);
}

static void unprotect(struct fp_server *sv, uint32_t page, uint64_t now)
{
	struct fp_far *far = sv->far;
	int r = fp_far_unprotect(far, page);

	if (r < 0) /* no mapping any more: let the thread fault again */
		fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	fp_far_settle(far, page, fp_pager_apply(&far->words[page], FP_EV_INSTALLED_RW, NULL));
	fp_count(&far->stats->faults[r < 0 ? FP_FAULT_DROPPED : FP_FAULT_PROTECT], 1);
	fp_hist_record(&far->stats->fault_latency, fp_clock_ns() - now);
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
		missing(sv, f, s.action == FP_ACT_ZERO, old, now);
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
		fp_lost_end_again(far, page);
		break;
	default: /* its owner will wake the thread */
		break;
	}
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
	fp_lane_be_brief(sv->ahead); /* it keeps arrivals from those that somebody waits for */
	/* hints, so that bytes land where UFFDIO_COPY takes them from */
	(void)fp_lane_register(sv->lane, sv->bounce, bounce_bytes(sv));
	(void)fp_lane_register(sv->ahead, sv->bounce, bounce_bytes(sv));
	return 0;
}

static int open_direct(struct fp_server *sv, const struct fp_server_options *options)
{
	sv->evictor = options->evictor;
	sv->evict_turn = options->evict_turn;
	return options->stage ? fp_evictor_new(sv->far, NULL, options->stage, &sv->evictor) : 0;
}

int fp_server_open(struct fp_server *sv, const struct fp_server_options *options)
{
	sv->far = options->far;
	sv->layout = options->layout;
	sv->readahead.max_pages = FP_MIN(options->readahead_pages, FP_READAHEAD_MAX);
	sv->starved_tail = &sv->starved_head;
	sv->n_fetches = options->n_fetches;
	sv->arrivals = fp_lockedmem_new(sv->n_fetches * sizeof(*sv->arrivals));
	if (!sv->arrivals)
		return -ENOMEM;
	for (unsigned i = 0; i < sv->n_fetches; i++) {
		sv->arrivals[i].io.user = &sv->arrivals[i];
		fp_arrival_put(sv, &sv->arrivals[i]);
	}
	return fp_store_is_direct(sv->far->store) ? open_direct(sv, options) : open_wire(sv);
}

void fp_server_close(struct fp_server *sv)
{
	fp_lane_close(sv->lane);
	fp_lane_close(sv->ahead);
	if (!sv->evict_turn)
		fp_evictor_free(sv->evictor);
	fp_lockedmem_free(sv->arrivals, sv->n_fetches * sizeof(*sv->arrivals));
	fp_lockedmem_free(sv->bounce, bounce_bytes(sv));
}
