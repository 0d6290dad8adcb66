/*
 * The pager's transitions. Room: uffd/pager; pure (see pager.h). doc/architecture.md has the
 * drawing.
 */
#include "pager.h"

#include <assert.h>
#include <stddef.h>

static struct fp_page_step step(uint64_t word, enum fp_page_action action)
{
	return (struct fp_page_step){.word = word, .action = action};
}

static uint64_t with_state(uint64_t word, enum fp_page_state state)
{
	return (word & ~FP_PAGE_STATE_MASK) | state;
}

static uint64_t with_hist(uint64_t word, uint64_t hist)
{
	return (word & ~FP_PAGE_HIST_MASK) | hist << FP_PAGE_HIST_SHIFT;
}

/* Ends an owned state. Waiting threads are woken, and fault again if they still need to. */
static struct fp_page_step settle(uint64_t word, enum fp_page_state state)
{
	enum fp_page_action action = word & FP_PAGE_WAIT ? FP_ACT_WAKE : FP_ACT_NONE;

	return step(with_state(word & ~FP_PAGE_WAIT, state), action);
}

static uint64_t without_past(uint64_t word)
{
	return word & ~FP_PAGE_PAST_MASK;
}

/* The queue learns from the past of a page once: when the page is queued again. */
static struct fp_page_step settle_resident(uint64_t word, bool writable)
{
	struct fp_page_step s = settle(without_past(word), FP_PAGE_RESIDENT);

	s.word = writable ? s.word | FP_PAGE_DIRTY : s.word & ~FP_PAGE_DIRTY;
	s.enqueue = !(word & FP_PAGE_QUEUED);
	s.past = (uint32_t)((word & FP_PAGE_PAST_MASK) >> FP_PAGE_PAST_SHIFT);
	s.word |= FP_PAGE_QUEUED;
	return s;
}

static struct fp_page_step settle_away(uint64_t word)
{
	return settle(word & ~FP_PAGE_DIRTY, fp_page_slot(word) ? FP_PAGE_REMOTE : FP_PAGE_ZERO);
}

static struct fp_page_step on_missing(uint64_t word, bool write)
{
	switch (fp_page_state(word)) {
	case FP_PAGE_ZERO:
		return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_ZERO);
	case FP_PAGE_REMOTE: {
		uint64_t hist = (word & FP_PAGE_HIST_MASK) >> FP_PAGE_HIST_SHIFT;

		if (!write && hist)
			word = with_hist(word, hist - 1);
		return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_FETCH);
	}
	case FP_PAGE_RESIDENT:
		/*
		 * Either this is a second message about a fault that has ended, or the page was
		 * dropped without an event.
		 */
		return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_VERIFY);
	case FP_PAGE_LOST:
		/*
		 * ARRIVING, so that this thread owns the page: otherwise FP_EV_REVIVE could bring
		 * it back before it is poisoned, and the poison would stay
		 */
		return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_POISON);
	default:
		return step(word | FP_PAGE_WAIT, FP_ACT_NONE);
	}
}

static struct fp_page_step on_protected(uint64_t word)
{
	switch (fp_page_state(word)) {
	case FP_PAGE_RESIDENT:
		if (!(word & FP_PAGE_DIRTY))
			word = with_hist(word | FP_PAGE_DIRTY, FP_PAGE_HIST_MAX);
		/*
		 * owned until the protection is lifted: an evictor that protected the page
		 * meanwhile would miss a write
		 */
		return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_UNPROTECT);
	case FP_PAGE_ZERO:
	case FP_PAGE_REMOTE:
	case FP_PAGE_LOST:
		return step(word,
		            FP_ACT_WAKE); /* it left meanwhile: let the thread fault again on the page */
	default:
		return step(word | FP_PAGE_WAIT, FP_ACT_NONE);
	}
}

static struct fp_page_step on_ahead(uint64_t word, enum fp_page_state wanted)
{
	return fp_page_state(word) == wanted ? on_missing(word, false) : step(word, FP_ACT_NONE);
}

/*
 * The owner ends the state by INSTALLED_RW. If the page turns out to be absent, the owner ends it
 * by NOT_INSTALLED: there is no other copy.
 */
static struct fp_page_step on_adopt(uint64_t word)
{
	if (fp_page_state(word) != FP_PAGE_RESIDENT || !(word & FP_PAGE_DIRTY) || fp_page_slot(word))
		return step(word, FP_ACT_NONE);
	return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_VERIFY);
}

static struct fp_page_step on_evict(uint64_t word)
{
	if (fp_page_state(word) != FP_PAGE_RESIDENT)
		return step(word, FP_ACT_NONE);
	return step(with_state(word, FP_PAGE_LEAVING), word & FP_PAGE_DIRTY ? FP_ACT_CAPTURE : FP_ACT_DROP);
}

/* The page never left, so it has no past. */
static struct fp_page_step on_refused(uint64_t word)
{
	return settle_resident(without_past(word), (word & FP_PAGE_DIRTY) != 0);
}

/* The write failed, so the captured copy is the only one. It goes back, still dirty, whether a
 * thread waits or not. */
static struct fp_page_step on_not_written(uint64_t word)
{
	return step(with_state(without_past(word) | FP_PAGE_DIRTY, FP_PAGE_ARRIVING), FP_ACT_PUT_BACK);
}

static struct fp_page_step on_claim(uint64_t word)
{
	switch (fp_page_state(word)) {
	case FP_PAGE_ZERO:
	case FP_PAGE_RESIDENT:
	case FP_PAGE_REMOTE:
	case FP_PAGE_LOST:
		return step(with_state(word, FP_PAGE_CLAIMED), FP_ACT_CLAIMED);
	default:
		return step(word, FP_ACT_BUSY);
	}
}

static struct fp_page_step on_revive(uint64_t word)
{
	if (fp_page_state(word) != FP_PAGE_LOST || (word & FP_PAGE_DIRTY))
		return step(word, FP_ACT_NONE);
	return step(with_state(word, FP_PAGE_CLAIMED), FP_ACT_CLAIMED);
}

static void assert_owned(uint64_t word, enum fp_page_event event)
{
	enum fp_page_state state = fp_page_state(word);

	if (event >= FP_EV_INSTALLED && event <= FP_EV_FETCH_FAILED)
		assert(state == FP_PAGE_ARRIVING);
	if (event >= FP_EV_DROPPED && event <= FP_EV_REFUSED)
		assert(state == FP_PAGE_LEAVING);
}

struct fp_page_step fp_pager_step(uint64_t word, enum fp_page_event event)
{
	assert_owned(word, event);
	switch (event) {
	case FP_EV_FAULT_READ:
	case FP_EV_FAULT_WRITE:
		return on_missing(word, event == FP_EV_FAULT_WRITE);
	case FP_EV_FAULT_WP:
		return on_protected(word);
	case FP_EV_INSTALLED:
	case FP_EV_INSTALLED_RW:
		return settle_resident(word, event == FP_EV_INSTALLED_RW);
	case FP_EV_NOT_INSTALLED:
		return settle_away(word);
	case FP_EV_FETCH_FAILED:
		return settle(word, FP_PAGE_LOST);
	case FP_EV_PAGEOUT:
		return on_evict(word);
	case FP_EV_DROPPED:
		return settle_away(word);
	case FP_EV_WAS_ZERO:
		return settle_away(fp_page_with_slot(word, 0));
	case FP_EV_NOT_WRITTEN:
		return on_not_written(word);
	case FP_EV_REFUSED:
		return on_refused(word);
	case FP_EV_PREFETCH:
		return on_ahead(word, FP_PAGE_REMOTE);
	case FP_EV_PREZERO:
		return on_ahead(word, FP_PAGE_ZERO);
	case FP_EV_ADOPT:
		return on_adopt(word);
	case FP_EV_CLAIM:
		return on_claim(word);
	case FP_EV_REVIVE:
		return on_revive(word);
	case FP_EV_EVICT:
	case FP_EV_WRITTEN:
		break;
	}
	assert(!"the event has a function of its own");
	return step(word, FP_ACT_NONE);
}

struct fp_page_step fp_pager_step_written(uint64_t word, uint64_t slot)
{
	assert(fp_page_state(word) == FP_PAGE_LEAVING && slot);
	word = fp_page_with_slot(word & ~FP_PAGE_DIRTY, slot);
	if (word & FP_PAGE_WAIT)
		return step(with_state(word, FP_PAGE_ARRIVING), FP_ACT_PUT_BACK);
	return settle(word, FP_PAGE_REMOTE);
}

/* The entry of a page that is not local was stale: the page gets a new one when it comes back. */
struct fp_page_step fp_pager_step_evict(uint64_t word, uint32_t past)
{
	struct fp_page_step s = on_evict(word & ~FP_PAGE_QUEUED);

	if (s.action != FP_ACT_NONE)
		s.word = without_past(s.word) | (uint64_t)past << FP_PAGE_PAST_SHIFT;
	return s;
}

struct fp_page_step fp_pager_step_release(uint64_t word, uint64_t settled)
{
	struct fp_page_step s = settle(word, fp_page_state(settled));

	assert(fp_page_state(word) == FP_PAGE_CLAIMED);
	s.word = (settled & ~(FP_PAGE_WAIT | FP_PAGE_QUEUED)) | (s.word & FP_PAGE_QUEUED);
	if (fp_page_state(settled) == FP_PAGE_RESIDENT && !(s.word & FP_PAGE_QUEUED)) {
		s.word |= FP_PAGE_QUEUED;
		s.enqueue = true;
	}
	return s;
}

#define APPLY(page, ret_old, compute)                                                                        \
	do {                                                                                                 \
		uint64_t old_ = atomic_load_explicit(page, memory_order_acquire);                            \
		struct fp_page_step s_;                                                                      \
		do {                                                                                         \
			uint64_t word = old_;                                                                \
			s_ = (compute);                                                                      \
		} while (s_.word != old_ &&                                                                  \
		         !atomic_compare_exchange_weak_explicit(page, &old_, s_.word, memory_order_acq_rel,  \
		                                                memory_order_acquire));                      \
		if (ret_old)                                                                                 \
			*(uint64_t *)(ret_old) = old_;                                                       \
		return s_;                                                                                   \
	} while (0)

struct fp_page_step fp_pager_apply(_Atomic uint64_t *page, enum fp_page_event event, uint64_t *ret_old)
{
	APPLY(page, ret_old, fp_pager_step(word, event));
}

struct fp_page_step fp_pager_apply_written(_Atomic uint64_t *page, uint64_t slot, uint64_t *ret_old)
{
	APPLY(page, ret_old, fp_pager_step_written(word, slot));
}

struct fp_page_step fp_pager_apply_evict(_Atomic uint64_t *page, uint32_t past, uint64_t *ret_old)
{
	APPLY(page, ret_old, fp_pager_step_evict(word, past));
}

struct fp_page_step fp_pager_apply_release(_Atomic uint64_t *page, uint64_t settled)
{
	APPLY(page, NULL, fp_pager_step_release(word, settled));
}
