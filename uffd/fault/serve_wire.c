/*
 * Faults where the store is behind a wire: fetches go out together and end one by one. Faults go
 * out on one lane and what is read ahead on another, whose links are others too: nobody who waits
 * queues behind what nobody asked for. See serve.h.
 */
#include "serve.h"

#include <errno.h>

#include "cleanup.h"
#include "clock.h"

#define ALONG_MAX   7u /* pages read ahead that go along with their fault: one small request */
#define AHEAD_BATCH 8u /* pages read ahead that are installed before faults are looked at again */

/* ---- out ---- */

void fp_serve_dispatch(struct fp_server *sv, struct fp_lane *lane, struct fp_arrival **arrivals, unsigned n)
{
	struct fp_page_io *ios[FP_BATCH_MAX];
	unsigned n_ios = 0;

	for (unsigned i = 0; i < n; i++) {
		struct fp_arrival *a = arrivals[i];

		if (a->zero) {
			fp_serve_finish(sv, a, fp_zeros);
			continue;
		}
		a->sent_ns = fp_clock_ns();
		ios[n_ios++] = &a->io;
	}
	if (n_ios && fp_lane_read(lane, ios, n_ios) < 0)
		for (unsigned i = 0; i < n_ios; i++) {
			ios[i]->status = -EBUSY; /* can't be: a lane takes as many as there are arrivals */
			fp_serve_lose(sv, ios[i]->user, true);
		}
}

static unsigned arrive_ahead(struct fp_server *sv, const struct fp_arrival *first, unsigned want,
                             struct fp_arrival **ret_arrivals)
{
	struct fp_far *far = sv->far;
	unsigned n = 0, tokens;

	want = FP_MIN(want, sv->n_free > FP_READ_FAULTS ? sv->n_free - FP_READ_FAULTS : 0);
	tokens = want ? fp_budget_take(&far->room, want) : 0;
	while (n < tokens) {
		uint32_t p = first->page + 1 + n;
		uint64_t old;

		fp_far_touch(far, p);
		if (fp_pager_apply(&far->words[p], first->zero ? FP_EV_PREZERO : FP_EV_PREFETCH, &old)
		        .action == FP_ACT_NONE)
			break;
		ret_arrivals[n] = fp_arrive(sv, p, old, first->zero);
		if (first->zero)
			ret_arrivals[n]->writable = first->writable;
		n++;
	}
	fp_budget_give(&far->room, tokens - n);
	return n;
}

void fp_serve_wire(struct fp_server *sv, struct fp_arrival *a)
{
	struct fp_arrival *arrivals[FP_BATCH_MAX];
	struct fp_stream *stream;
	unsigned ahead = fp_serve_ahead(sv, a->page, &stream), n = 0, along;

	arrivals[0] = a;
	if (ahead &&
	    (a->zero || fp_store_slot_up(sv->far->store, a->io.slot))) { /* else they wait, with room */
		n = arrive_ahead(sv, a, ahead, arrivals + 1);
		fp_readahead_fetched(stream, a->page, n);
	}
	along = FP_MIN(n, ALONG_MAX);
	fp_serve_dispatch(sv, sv->lane, arrivals, 1 + along);
	fp_serve_dispatch(sv, sv->ahead, arrivals + 1 + along, n - along);
}

/* ---- in ---- */

/* It was only wanted ahead: it stays where it is, and whoever waits for it by now asks for
 * itself. */
static void forgo(struct fp_server *sv, struct fp_arrival *a)
{
	struct fp_far *far = sv->far;

	fp_budget_give(&far->room, 1);
	fp_far_settle(far, a->page, fp_pager_apply(&far->words[a->page], FP_EV_NOT_INSTALLED, NULL));
	fp_arrival_put(sv, a);
}

static void fetched(struct fp_server *sv, struct fp_arrival *a)
{
	if (a->io.status < 0) {
		if (a->demanded)
			fp_serve_lose(sv, a, true);
		else
			forgo(sv, a);
		return;
	}
	fp_count(&sv->far->stats->fetched_bytes, FP_PAGE_SIZE);
	fp_hist_record(&sv->far->stats->fetch_latency, fp_clock_ns() - a->sent_ns);
	fp_serve_finish(sv, a, a->io.buf);
}

unsigned fp_serve_reap(struct fp_server *sv)
{
	struct fp_page_io *done[FP_BATCH_MAX];
	unsigned n, total = 0;

	do {
		n = fp_lane_poll(sv->lane, done, FP_BATCH_MAX);
		if (n == 0)
			n = fp_lane_poll(sv->ahead, done, AHEAD_BATCH);
		for (unsigned i = 0; i < n; i++)
			fetched(sv, done[i]->user);
		total += n;
	} while (n > 0);
	return total;
}

unsigned fp_serve_reap_demanded(struct fp_server *sv)
{
	struct fp_page_io *done[FP_BATCH_MAX];
	unsigned n = fp_lane_poll(sv->lane, done, FP_BATCH_MAX);

	if (n == 0)
		n = fp_lane_poll(sv->ahead, done, AHEAD_BATCH);
	for (unsigned i = 0; i < n; i++)
		fetched(sv, done[i]->user);
	return n;
}

bool fp_serve_is_fetching(const struct fp_server *sv)
{
	return fp_lane_outstanding(sv->lane) + fp_lane_outstanding(sv->ahead) > 0;
}
