/* See lost.h. */
#include "lost.h"

#include <errno.h>
#include <sys/mman.h>

#include "abi.h"
#include "clock.h"
#include "end.h"
#include "far.h"
#include "node_notice.h"

void fp_lost_poison(struct fp_far *far, uint32_t page)
{
	uint64_t until_ns = fp_clock_ns() + far->deadline_ns;
	int r;

	do {
		r = fp_uffd_poison(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	} while (fp_far_may_pass(far, r, until_ns));
	if (r == -EOPNOTSUPP && !far->uffd.sigbus) /* with sigbus, the thread finds LOST in the page's word */
		fp_end_aborted("pager", "a page is lost, and this kernel (before 6.6) can't make its touches "
		                        "fail. Use Linux 6.6 or later, or fault mode inline");
	fp_uffd_wake(&far->uffd, fp_far_addr(far, page), FP_PAGE_SIZE);
	fp_count(&far->stats->faults[FP_FAULT_POISONED], 1);
}

/* ---- ends ---- */

/*
 * Called for a page that is LOST. Notes whether fp_lost_revive may bring the page back: either its
 * node may return, or the page has no slot and only needs a free one.
 */
static void look_again(struct fp_far *far, uint64_t word)
{
	uint64_t slot = fp_page_slot(word);
	struct fp_store_node info = {.state = FP_BREAKER_CLOSED};

	if (slot)
		fp_store_node_info(far->store, fp_store_slot_node(far->store, slot), &info);
	if (!(word & FP_PAGE_DIRTY) && info.state != FP_BREAKER_LOST)
		atomic_store(&far->lost.may_return, true);
}

void fp_lost_end(struct fp_far *far, uint32_t page, bool again)
{
	uint64_t old;

	fp_lost_poison(far, page);
	fp_far_settle(far, page, fp_pager_apply(&far->words[page], FP_EV_FETCH_FAILED, &old));
	look_again(far, old); /* after the change of the word: fp_lost_revive reads the word */
	fp_count(&far->stats->lost_pages, !again);
}

/* ---- reports ---- */

void fp_lost_add(struct fp_far *far, uint32_t page, uint64_t slot, int status)
{
	struct fp_lost *lost = &far->lost;
	uint32_t i = atomic_load(&lost->in);

	do { /* the queue is never full: it has far more entries than there are threads here */
		if (atomic_load(&lost->queue[i % FP_LOST_MAX].ready)) {
			fp_lost_end(far, page, false);
			return;
		}
	} while (!atomic_compare_exchange_weak(&lost->in, &i, i + 1));
	lost->queue[i % FP_LOST_MAX].page = page;
	lost->queue[i % FP_LOST_MAX].slot = slot;
	lost->queue[i % FP_LOST_MAX].status = status;
	atomic_store(&lost->queue[i % FP_LOST_MAX].ready, true);
	fp_budget_kick(&far->budget);
}

/*
 * The node to blame: that of the page's slot. If the page has no slot, the node that takes no
 * pages.
 */
static unsigned node_to_blame(const struct fp_store *store, uint64_t slot)
{
	struct fp_store_node info;
	unsigned i = 0;

	if (slot)
		return fp_store_slot_node(store, slot);
	for (; i + 1 < fp_store_n_nodes(store); i++) {
		fp_store_node_info(store, i, &info);
		if (!info.up || info.adopting)
			break;
	}
	return i;
}

static void report_page(struct fp_far *far, uint32_t page, uint64_t slot, int status)
{
	struct fp_store_node info;
	char why[FP_NODE_NOTICE_REASON_LEN];

	if (!fp_log_allowed(&far->lost.limit, 10))
		return;
	if (status == -ENOSPC) {
		fp_log(FP_LOG_ERROR, "pager",
		       "page %p finds no room: the nodes are full, and so is local memory; SIGBUS follows",
		       (void *)fp_far_addr(far, page));
		return;
	}
	fp_store_node_info(far->store, node_to_blame(far->store, slot), &info);
	if (status == -EHOSTDOWN && info.last_error)
		status = info.last_error; /* the first cause; status is only a consequence */
	fp_log(FP_LOG_ERROR, "pager", "page %p %s: node %s: %s; SIGBUS follows%s",
	       (void *)fp_far_addr(far, page), slot ? "is lost" : "finds no room", info.url,
	       fp_node_notice_reason(&info, status, why, sizeof(why)),
	       slot && info.state != FP_BREAKER_LOST ? " until the node is back" : "");
}

void fp_lost_report(struct fp_far *far)
{
	struct fp_lost *lost = &far->lost;

	for (uint32_t i; atomic_load(&lost->queue[i = lost->out % FP_LOST_MAX].ready); lost->out++) {
		report_page(far, lost->queue[i].page, lost->queue[i].slot, lost->queue[i].status);
		fp_lost_end(far, lost->queue[i].page, false);
		atomic_store(&lost->queue[i].ready, false);
	}
}

void fp_lost_forget(struct fp_far *far)
{
	for (unsigned i = 0; i < FP_LOST_MAX; i++)
		atomic_store(&far->lost.queue[i].ready, false);
	far->lost.out = atomic_load(&far->lost.in);
}

/* ---- return ---- */

static void revive(struct fp_far *far, uint32_t page)
{
	uint64_t word, old;
	bool dropped;

	if (!fp_far_has(far, page)) /* a limit may have shrunk the range */
		return;
	word = atomic_load_explicit(&far->words[page], memory_order_relaxed);
	if (fp_page_state(word) != FP_PAGE_LOST || (word & FP_PAGE_DIRTY))
		return;
	if (fp_page_slot(word) ? !fp_store_slot_up(far->store, fp_page_slot(word))
	                       : fp_far_why_stuck(far) < 0) {
		look_again(far, word);
		return;
	}
	if (fp_pager_apply(&far->words[page], FP_EV_REVIVE, &old).action != FP_ACT_CLAIMED)
		return;
	dropped = madvise(fp_far_addr(far, page), FP_PAGE_SIZE, MADV_DONTNEED_LOCKED) == 0;
	if (dropped)
		old = (old & ~FP_PAGE_STATE_MASK) | (fp_page_slot(old) ? FP_PAGE_REMOTE : FP_PAGE_ZERO);
	else
		look_again(far, old);
	fp_far_settle(far, page, fp_pager_apply_release(&far->words[page], old));
}

void fp_lost_revive(struct fp_far *far)
{
	/* cleared before the look: a page that is lost during the look sets it again */
	if (!atomic_exchange(&far->lost.may_return, false))
		return;
	for (uint64_t chunk = 0; chunk < far->n_pages >> FP_CHUNK_SHIFT; chunk++) {
		uint64_t bits = atomic_load_explicit(&far->touched[chunk / 64], memory_order_relaxed);

		if (!bits)
			chunk |= 63;
		else if (bits >> (chunk & 63) & 1)
			for (uint32_t i = 0; i < 1u << FP_CHUNK_SHIFT; i++)
				revive(far, (uint32_t)(chunk << FP_CHUNK_SHIFT) + i);
	}
}
