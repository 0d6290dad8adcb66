/* See evict.h. Runs on the fault path, so only fp_evictor_new allocates (law 4). */
#include "evict.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "abi.h"
#include "capture.h"
#include "cleanup.h"
#include "clock.h"
#include "lockedmem.h"
#include "kernel_filled.h"
#include "presence.h"
#include "streamcopy.h"

#define BATCH        FP_BUDGET_BATCH_MAX
#define WRITE_TRIES  3u
#define LANE_BATCHES (FP_STAGE_PAGES / BATCH)

struct fp_evictor {
	struct fp_far *far;
	struct fp_lane *lane;
	_Atomic bool busy; /* a thread is inside fp_evictor_run_on_fault */
	bool trusts;       /* this run began before far->wary was set */
	struct fp_batch *batches;
	unsigned n_batches;
	uint32_t drops[BATCH]; /* the run's clean victims, which are dropped */
	unsigned n_drops;
	uint32_t takes[BATCH]; /* the run's dirty victims, which are captured */
	unsigned n_takes;
	/* Locals of the functions below. A thread that serves its own fault may have a small
	 * stack. */
	struct fp_evict_entry found[BATCH];
	struct iovec runs[BATCH];
	struct fp_leaving *leaving[BATCH];
	struct fp_page_io *out[BATCH];
	uint64_t fresh[BATCH];
};

static size_t batches_bytes(const struct fp_evictor *ev)
{
	return ev->n_batches * sizeof(*ev->batches);
}

static size_t copies_bytes(const struct fp_evictor *ev)
{
	return (size_t)ev->n_batches * BATCH * FP_PAGE_SIZE;
}

int fp_evictor_new(struct fp_far *far, struct fp_lane *lane, char *stage, struct fp_evictor **ret_evictor)
{
	struct fp_evictor *ev = fp_lockedmem_new(sizeof(*ev));
	char *copies;

	if (!ev)
		return -ENOMEM;
	ev->far = far;
	ev->lane = lane;
	ev->n_batches = lane ? LANE_BATCHES : 1;
	ev->batches = fp_lockedmem_new(batches_bytes(ev));
	if (ev->batches && fp_far_moves(far)) /* then few pages need a copy, if any */
		copies = fp_lockedmem_lazy(copies_bytes(ev));
	else
		copies = ev->batches ? fp_lockedmem_new(copies_bytes(ev)) : NULL;
	/*
	 * only the copies are registered, not the stage: MOVE refuses pages that a device has
	 * pinned
	 */
	if (copies && lane)
		(void)fp_lane_register(lane, copies, copies_bytes(ev)); /* only a hint */
	if (!copies) {
		fp_evictor_free(ev);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < ev->n_batches; i++) {
		ev->batches[i].stage = stage + (size_t)i * BATCH * FP_PAGE_SIZE;
		ev->batches[i].copies = copies + (size_t)i * BATCH * FP_PAGE_SIZE;
	}
	*ret_evictor = ev;
	return 0;
}

void fp_evictor_free(struct fp_evictor *ev)
{
	if (!ev)
		return;
	if (ev->batches)
		fp_lockedmem_free(ev->batches[0].copies, copies_bytes(ev));
	fp_lockedmem_free(ev->batches, batches_bytes(ev));
	fp_lockedmem_free(ev, sizeof(*ev));
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/*
 * True if a clean page may be dropped. If the node of its slot no longer answers, the local page is
 * the last copy and must be written to another node (law 2).
 */
static bool may_drop(const struct fp_far *far, uint64_t word)
{
	uint64_t slot = fp_page_slot(word);

	return !slot || fp_store_slot_up(far->store, slot);
}

/*
 * Refuses the pages that a system call has pinned. Moves the others to the start of the array, and
 * returns their number.
 */
static unsigned without_pinned(struct fp_far *far, uint32_t *pages, unsigned n)
{
	unsigned kept = 0;

	for (unsigned first = 0, k; first < n; first += k) {
		uint64_t pinned;

		k = FP_MIN(n - first, FP_PIN_LOOK_MAX);
		pinned = fp_pin_look(&far->pins, pages + first, k);
		for (unsigned i = 0; i < k; i++)
			if (pinned >> i & 1)
				fp_capture_refuse(far, pages[first + i]);
			else
				pages[kept++] = pages[first + i];
	}
	return kept;
}

/* All victims' words already say LEAVING: a call that pins one from now on sees that, and waits. */
static void spare_pinned(struct fp_evictor *ev)
{
	fp_pin_fence();
	ev->n_drops = without_pinned(ev->far, ev->drops, ev->n_drops);
	ev->n_takes = without_pinned(ev->far, ev->takes, ev->n_takes);
}

/*
 * old: the page's word before the step that had this action. If somebody may hold a clean page for
 * reading, it is taken too, as only that proves that nobody does.
 */
static void sort_victim(struct fp_evictor *ev, uint32_t page, enum fp_page_action action, uint64_t old)
{
	if (action == FP_ACT_DROP && may_drop(ev->far, old) && !fp_far_is_wary(ev->far))
		ev->drops[ev->n_drops++] = page;
	else if (action == FP_ACT_CAPTURE && fp_kernel_filled_end(ev->far, page) < 0)
		fp_capture_refuse(ev->far, page);
	else if (action == FP_ACT_DROP || action == FP_ACT_CAPTURE)
		ev->takes[ev->n_takes++] = page;
}

/*
 * Drops all runs by a single call of process_madvise (MADV_DONTNEED). False: the call failed, or
 * the kernel does not let a process give itself this advice (before 6.13).
 */
static bool drop_vectored(const struct fp_far *far, const struct iovec *runs, unsigned n_runs)
{
	size_t want = 0;

	if (far->pidfd < 0)
		return false;
	for (unsigned i = 0; i < n_runs; i++)
		want += runs[i].iov_len;
	return syscall(SYS_process_madvise, far->pidfd, runs, n_runs, MADV_DONTNEED, 0) == (ssize_t)want;
}

static unsigned drop_clean(struct fp_evictor *ev)
{
	struct fp_far *far = ev->far;
	struct iovec *runs = ev->runs;
	unsigned n_runs = 0, left = 0;
	bool all;

	static_assert(sizeof(ev->drops) < 1024, "glibc's qsort sorts it on the stack, without malloc");
	qsort(ev->drops, ev->n_drops, sizeof(ev->drops[0]), by_number);
	for (unsigned i = 0, k; i < ev->n_drops; i += k) {
		k = fp_run_length(ev->drops + i, ev->n_drops - i);
		runs[n_runs].iov_base = fp_far_addr(far, ev->drops[i]);
		runs[n_runs++].iov_len = (size_t)k << FP_PAGE_SHIFT;
	}
	all = n_runs > 0 && drop_vectored(far, runs, n_runs);
	for (unsigned r = 0, i = 0; r < n_runs; r++) {
		unsigned k = (unsigned)(runs[r].iov_len >> FP_PAGE_SHIFT);
		bool dropped = all || fp_far_drop(far, ev->drops[i], k);

		for (; k > 0; k--, i++) {
			/* madvise ends at the first locked page; what lies before it is dropped */
			uint32_t page = ev->drops[i];
			bool gone = dropped || fp_far_drop(far, page, 1) ||
			            fp_presence_is_absent(far->pagemap_fd, fp_far_addr(far, page));

			fp_far_end(far, page, gone ? FP_EV_DROPPED : FP_EV_REFUSED);
			left += gone;
		}
	}
	fp_count(&far->stats->evicted_clean, left);
	fp_count(&far->stats->evict_refused, ev->n_drops - left);
	fp_budget_leave(&far->budget, left);
	ev->n_drops = 0;
	return left;
}

static void batch_close(struct fp_far *far, struct fp_batch *b)
{
	if (b->n_written)
		fp_hist_record(&far->stats->writeback_latency, fp_clock_ns() - b->sent_ns);
	fp_capture_empty_stage(b);
	fp_budget_leave(&far->budget, b->tokens);
	fp_hist_record(&far->stats->evict_latency, fp_clock_ns() - b->begun_ns);
	b->n = b->tokens = b->n_written = 0;
}

static void item_done(struct fp_far *far, struct fp_leaving *l, bool gone)
{
	struct fp_batch *b = l->batch;

	b->tokens += gone;
	if (--b->open == 0)
		batch_close(far, b);
}

/* No node took the page. The captured bytes are its only copy, and go back to their place. */
static void end_unwritten(struct fp_far *far, struct fp_leaving *l)
{
	if (l->io.slot && l->io.slot != l->old_slot)
		fp_store_slot_free(far->store, l->io.slot);
	fp_pager_apply(&far->words[l->page], FP_EV_NOT_WRITTEN, NULL);
	fp_far_put_back(far, l->page, l->io.buf);
	fp_count(&far->stats->evict_refused, 1);
	l->batch->n_back++;
	item_done(far, l, false);
}

/* The page has left. Its bytes are in its slot; without a slot, they are all zero. */
static void end_written(struct fp_far *far, struct fp_leaving *l)
{
	struct fp_page_step s;

	s = l->io.slot ? fp_pager_apply_written(&far->words[l->page], l->io.slot, NULL)
	               : fp_pager_apply(&far->words[l->page], FP_EV_WAS_ZERO, NULL);
	if (l->old_slot && l->old_slot != l->io.slot)
		fp_store_slot_free(far->store, l->old_slot);
	fp_count(l->io.slot ? &far->stats->evicted_dirty : &far->stats->evicted_zero, 1);
	fp_count(&far->stats->written_bytes, l->io.slot ? FP_PAGE_SIZE : 0);
	l->batch->n_written += l->io.slot != 0;
	if (s.action == FP_ACT_PUT_BACK) {
		fp_count(&far->stats->faults[FP_FAULT_RESCUED], 1);
		fp_far_install(far, l->page, 1, l->io.buf, false);
	} else {
		fp_far_settle(far, l->page, s);
	}
	item_done(far, l, s.action != FP_ACT_PUT_BACK);
}

/*
 * True if the page may be written to this slot: the slot's node answers, and no parent or child of
 * this process may read the slot.
 */
static bool can_write_to(const struct fp_far *far, uint64_t slot)
{
	return slot && fp_store_slot_up(far->store, slot) && !fp_store_slot_is_shared(far->store, slot);
}

/* Notes whether more slots are wanted. The reclaim thread then asks for them, and finds out if
 * there are none. */
static void note_slots(struct fp_far *far, bool found)
{
	if (atomic_load_explicit(&far->wants_slots, memory_order_relaxed) == !found)
		return;
	atomic_store_explicit(&far->wants_slots, !found, memory_order_relaxed);
	if (found)
		atomic_store_explicit(&far->full, false, memory_order_relaxed);
	else
		fp_budget_kick(&far->budget);
}

/*
 * True if all bytes of the page are zero: its first word is zero, and the page equals itself
 * shifted by one word. This works on any processor.
 */
static bool is_zero(const char *page)
{
	uint64_t first;

	memcpy(&first, page, sizeof(first));
	return first == 0 && memcmp(page, page + sizeof(first), FP_PAGE_SIZE - sizeof(first)) == 0;
}

/*
 * Chooses where each page is written: to its own slot if that is allowed. All others get fresh
 * slots by one call. Zero pages need none.
 */
static void choose_slots(struct fp_evictor *ev, struct fp_leaving **pages, unsigned n)
{
	unsigned need = 0, got, used = 0, up, cut_off;
	struct fp_far *far = ev->far;

	for (unsigned i = 0; i < n; i++) {
		struct fp_leaving *l = pages[i];

		if (!l->zero && can_write_to(far, l->io.slot))
			continue;
		if (l->io.slot && l->io.slot != l->old_slot)
			fp_store_slot_free(far->store, l->io.slot);
		l->io.slot = 0;
		need += !l->zero;
	}
	if (need == 0)
		return;
	got = fp_store_slot_alloc(far->store, need, ev->fresh);
	for (unsigned i = 0; i < n && used < got; i++)
		if (!pages[i]->io.slot && !pages[i]->zero)
			pages[i]->io.slot = ev->fresh[used++];
	fp_far_count_nodes(far, &up, &cut_off);
	/*
	 * a node that is cut off may have free slots: a thread that needs a token waits for that
	 * node
	 */
	if (got == need || !cut_off)
		note_slots(far, got == need);
}

/* Copies the pages whose slots are mapped. */
static void copy_pages(struct fp_evictor *ev, struct fp_leaving **pages, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct fp_page_io *io = &pages[i]->io, *next = &pages[FP_MIN(i + 1, n - 1)]->io;
		void *direct = io->slot ? fp_store_slot_direct(ev->far->store, io->slot) : NULL;

		pages[i]->copied = direct;
		if (!direct)
			continue;
		fp_stream_copy(direct, io->buf, next->buf, FP_PAGE_SIZE);
		fp_store_slot_count(ev->far->store, io->slot, FP_IO_WRITE);
	}
	fp_stream_end();
}

/*
 * Copies each page whose slot is mapped. The lane sends the others as one request; fp_evictor_reap
 * gets its answers.
 */
static void write_pages(struct fp_evictor *ev, struct fp_leaving **pages, unsigned n)
{
	struct fp_page_io **out = ev->out;
	unsigned n_out = 0;

	choose_slots(ev, pages, n);
	copy_pages(ev, pages, n);
	for (unsigned i = 0; i < n; i++) {
		struct fp_page_io *io = &pages[i]->io;

		if (pages[i]->copied || pages[i]->zero)
			end_written(ev->far, pages[i]);
		else if (!io->slot)
			end_unwritten(ev->far, pages[i]);
		else
			out[n_out++] = io;
	}
	if (n_out && fp_lane_write(ev->lane, out, n_out) < 0)
		for (unsigned i = 0; i < n_out; i++)
			end_unwritten(ev->far, out[i]->user);
}

static void finish(struct fp_evictor *ev, struct fp_leaving *l)
{
	if (l->io.status == 0)
		end_written(ev->far, l);
	else if (++l->tries == WRITE_TRIES)
		end_unwritten(ev->far, l);
	else
		write_pages(ev, &l, 1); /* its node is lost: try another one, if there is any */
}

/* A clean page that was taken has left: its node has the bytes. */
static void end_clean(struct fp_far *far, struct fp_leaving *l)
{
	fp_far_end(far, l->page, FP_EV_DROPPED);
	fp_count(&far->stats->evicted_clean, 1);
	item_done(far, l, true);
}

static void write_batch(struct fp_evictor *ev, struct fp_batch *b)
{
	struct fp_leaving **pages = ev->leaving;
	unsigned n = 0;

	b->open++; /* keeps the batch open during this function */
	for (unsigned i = 0; i < b->n; i++) {
		struct fp_leaving *l = &b->items[i];
		uint64_t word = atomic_load_explicit(&ev->far->words[l->page], memory_order_relaxed);

		l->old_slot = l->io.slot = fp_page_slot(word);
		if (!(word & FP_PAGE_DIRTY) && may_drop(ev->far, word)) {
			end_clean(ev->far, l);
			continue;
		}
		l->zero = is_zero(l->io.buf);
		pages[n++] = l;
	}
	b->sent_ns = fp_clock_ns();
	write_pages(ev, pages, n);
	if (--b->open == 0)
		batch_close(ev->far, b);
}

static struct fp_batch *free_batch(struct fp_evictor *ev)
{
	for (unsigned i = 0; i < ev->n_batches; i++)
		if (ev->batches[i].open == 0)
			return &ev->batches[i];
	return NULL;
}

/* Makes the sorted victims leave. */
static unsigned evict_victims(struct fp_evictor *ev, struct fp_batch *b)
{
	unsigned left, n;

	b->begun_ns = fp_clock_ns();
	spare_pinned(ev);
	left = drop_clean(ev);
	if (ev->n_takes == 0)
		return left;
	qsort(ev->takes, ev->n_takes, sizeof(ev->takes[0]), by_number);
	fp_capture(ev->far, b, ev->takes, ev->n_takes);
	ev->n_takes = 0;
	n = b->n;
	b->n_back = 0;
	if (n)
		write_batch(ev, b);
	return left + n - b->n_back;
}

static void leave(const struct fp_evictor *ev)
{
	atomic_fetch_sub(&ev->far->evicting, ev->trusts ? 1 + FP_FAR_TRUSTS : 1);
}

/*
 * False if a fork has frozen evictions. Sequentially consistent with fp_reclaim_freeze: either the
 * freezing thread sees that we are inside, or we see the freeze. In the same way with
 * fp_far_be_wary.
 */
static bool enter(struct fp_evictor *ev)
{
	struct fp_far *far = ev->far;

	atomic_fetch_add(&far->evicting, 1 + FP_FAR_TRUSTS);
	ev->trusts = !fp_far_is_wary(far);
	if (!ev->trusts)
		atomic_fetch_sub(&far->evicting, FP_FAR_TRUSTS);
	if (!atomic_load(&far->fork_freeze))
		return true;
	leave(ev);
	return false;
}

/* False while no node is up: captured pages would only be put back. */
static bool can_leave(struct fp_evictor *ev)
{
	unsigned up, cut_off;

	if (!ev->lane)
		return true;
	fp_evictor_check_nodes(ev);
	fp_far_count_nodes(ev->far, &up, &cut_off);
	return up > 0;
}

/*
 * Takes the oldest entries of the queue until the evictor has as many victims as want says, or no
 * entry is left. The search does not end earlier: a large munmap may leave tens of thousands of
 * stale entries in a row, and the caller would think that there are no victims. A page that can't
 * leave goes back to the queue. So the search also ends after as many pages as are local.
 */
static void find_victims(struct fp_evictor *ev, unsigned want)
{
	struct fp_evict_entry *entries = ev->found;
	struct fp_far *far = ev->far;
	struct fp_page_step step;
	uint64_t left = atomic_load_explicit(&far->budget.resident, memory_order_relaxed), old;
	unsigned n;

	while (ev->n_drops + ev->n_takes < want && left > 0 &&
	       (n = fp_evict_queue_pop(&far->evict_queue, entries, want - ev->n_drops - ev->n_takes)) > 0)
		for (unsigned i = 0; i < n; i++) {
			uint32_t page = entries[i].page;

			if (!fp_far_has(far, page))
				continue;
			step = fp_pager_apply_evict(&far->words[page], entries[i].past, &old);
			left -= left > 0 && step.action != FP_ACT_NONE;
			sort_victim(ev, page, step.action, old);
		}
}

unsigned fp_evictor_run(struct fp_evictor *ev, unsigned want)
{
	struct fp_batch *b = free_batch(ev);
	unsigned n = 0;

	if (!b || !enter(ev))
		return 0;
	if (can_leave(ev)) {
		find_victims(ev, FP_MIN(want, BATCH));
		n = evict_victims(ev, b);
	}
	leave(ev);
	return n;
}

int fp_evictor_run_on_fault(struct fp_evictor *ev)
{
	unsigned n;

	if (atomic_exchange(&ev->busy, true))
		return -EBUSY;
	n = fp_evictor_run(ev, fp_budget_batch(&ev->far->budget));
	atomic_store(&ev->busy, false);
	fp_count(&ev->far->stats->evicted_on_fault, n);
	return (int)n;
}

unsigned fp_evictor_run_range(struct fp_evictor *ev, uint32_t page, uint32_t n, uint32_t *ret_next)
{
	struct fp_batch *b = free_batch(ev);
	uint32_t end = page + n;
	struct fp_page_step step;
	unsigned left = 0;
	uint64_t old;

	if (b && enter(ev)) {
		if (!can_leave(ev))
			page = end; /* no page can leave: skip the whole range */
		for (; page < end && ev->n_drops + ev->n_takes < BATCH; page++) {
			if (!fp_far_has(ev->far, page)) /* a limit may have shrunk the range */
				continue;
			step = fp_pager_apply(&ev->far->words[page], FP_EV_PAGEOUT, &old);
			sort_victim(ev, page, step.action, old);
		}
		left = evict_victims(ev, b);
		leave(ev);
	}
	*ret_next = page;
	return left;
}

unsigned fp_evictor_reap(struct fp_evictor *ev)
{
	struct fp_page_io *done[BATCH];
	unsigned n, total = 0;

	while (ev->lane && (n = fp_lane_poll(ev->lane, done, BATCH)) > 0) {
		for (unsigned i = 0; i < n; i++)
			finish(ev, done[i]->user);
		total += n;
	}
	return total;
}

void fp_evictor_check_nodes(struct fp_evictor *ev)
{
	if (ev->lane)
		fp_lane_check(ev->lane);
}

bool fp_evictor_busy(const struct fp_evictor *ev)
{
	for (unsigned i = 0; i < ev->n_batches; i++)
		if (ev->batches[i].open)
			return true;
	return false;
}
