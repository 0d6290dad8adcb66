/* See budget.h. */
#include "budget.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "fdutil.h"
#include "store.h"

#define BATCH_PART       16u   /* a batch is this part of a small budget */
#define THREAD_NEEDS     8u    /* pages per thread: four for an instruction, four for a signal handler */
#define THREADS_NEED_MAX 4096u /* pages */

static void signal_fd(int fd)
{
	eventfd_write(fd, 1); /* fails only by overflow: then the reader has a signal already */
}

int fp_budget_init(struct fp_budget *budget, uint64_t budget_pages)
{
	*budget = (struct fp_budget){.starved_fd = -1, .kick_fd = -1};
	atomic_store(&budget->pages, budget_pages);
	budget->starved_fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	budget->kick_fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	return budget->starved_fd < 0 || budget->kick_fd < 0 ? -errno : 0;
}

void fp_budget_done(struct fp_budget *budget)
{
	fp_fd_close(budget->starved_fd);
	fp_fd_close(budget->kick_fd);
	budget->starved_fd = budget->kick_fd = -1;
}

static bool raise_to(_Atomic uint64_t *word, uint64_t value)
{
	uint64_t before = atomic_load_explicit(word, memory_order_relaxed);

	while (value > before)
		if (atomic_compare_exchange_weak(word, &before, value))
			return true;
	return false;
}

/* Publishes the peak whenever it grows, as many programs end or are killed soon after it. */
static void note_peak(struct fp_budget *budget, uint64_t resident)
{
	if (raise_to(&budget->peak, resident) && budget->peak_bytes)
		raise_to(budget->peak_bytes, resident << FP_PAGE_SHIFT);
}

void fp_budget_show_peak(struct fp_budget *budget, _Atomic uint64_t *bytes)
{
	budget->peak_bytes = bytes;
	if (bytes)
		raise_to(bytes, atomic_load(&budget->peak) << FP_PAGE_SHIFT);
}

/*
 * The most pages that may be resident: max(budget, pinned + max(budget / 2, need)) + granted.
 * Pinned pages can't leave, so half of the budget, or what the threads need, is kept free beside
 * them. Pages are granted when no page can leave (fp_budget_grant).
 */
static uint64_t limit(const struct fp_budget *budget)
{
	uint64_t pages = atomic_load_explicit(&budget->pages, memory_order_relaxed);
	uint64_t pinned = atomic_load_explicit(&budget->pinned, memory_order_relaxed);
	uint64_t need = atomic_load_explicit(&budget->need, memory_order_relaxed);

	return FP_MAX(pages, pinned + FP_MAX(pages / 2, need)) +
	       atomic_load_explicit(&budget->excess, memory_order_relaxed);
}

void fp_budget_pin(struct fp_budget *budget, uint64_t n)
{
	atomic_fetch_add_explicit(&budget->pinned, n, memory_order_relaxed);
}

void fp_budget_unpin(struct fp_budget *budget, uint64_t n)
{
	atomic_fetch_sub_explicit(&budget->pinned, n, memory_order_relaxed);
}

unsigned fp_budget_take(struct fp_budget *budget, unsigned n)
{
	uint64_t max = limit(budget);
	uint64_t resident = atomic_load(&budget->resident);
	uint64_t take;

	do {
		take = resident < max ? FP_MIN((uint64_t)n, max - resident) : 0;
		if (take == 0)
			break;
	} while (!atomic_compare_exchange_weak(&budget->resident, &resident, resident + take));
	note_peak(budget, resident + take);
	if (resident + take + fp_budget_batch(budget) > max)
		fp_budget_kick(budget);
	return (unsigned)take;
}

void fp_budget_overdraw(struct fp_budget *budget, unsigned n)
{
	note_peak(budget, atomic_fetch_add(&budget->resident, n) + n);
	fp_budget_kick(budget);
}

void fp_budget_give(struct fp_budget *budget, unsigned n)
{
	if (n == 0)
		return;
	atomic_fetch_sub(&budget->resident, n);
	/*
	 * sequentially consistent: the waiter sets starved first, then tries again to take a token
	 */
	if (atomic_load(&budget->starved) && atomic_exchange(&budget->starved, false))
		signal_fd(budget->starved_fd);
}

void fp_budget_grant(struct fp_budget *budget)
{
	atomic_fetch_add(&budget->excess, 1);
}

bool fp_budget_tried_in_vain(struct fp_budget *budget, bool for_good)
{
	if ((!for_good && !atomic_load(&budget->excess)) || fp_budget_free(budget))
		return false;
	atomic_fetch_add(&budget->excess, fp_budget_batch(budget));
	if (atomic_load(&budget->starved) && atomic_exchange(&budget->starved, false))
		signal_fd(budget->starved_fd);
	return true;
}

static void end_grants(struct fp_budget *budget, unsigned n)
{
	uint64_t excess = atomic_load_explicit(&budget->excess, memory_order_relaxed);

	while (excess &&
	       !atomic_compare_exchange_weak(&budget->excess, &excess, excess - FP_MIN((uint64_t)n, excess)))
		;
}

void fp_budget_leave(struct fp_budget *budget, unsigned n)
{
	end_grants(budget, n);
	fp_budget_give(budget, n);
}

void fp_budget_see_threads(struct fp_budget *budget, unsigned n_threads)
{
	unsigned need = FP_MIN(n_threads, THREADS_NEED_MAX / THREAD_NEEDS) * THREAD_NEEDS;

	atomic_store_explicit(&budget->need, need > atomic_load(&budget->pages) ? need : 0,
	                      memory_order_relaxed);
}

bool fp_budget_is_scarce(const struct fp_budget *budget)
{
	return atomic_load_explicit(&budget->need, memory_order_relaxed) > 0;
}

uint64_t fp_budget_free(const struct fp_budget *budget)
{
	uint64_t max = limit(budget);
	uint64_t resident = atomic_load_explicit(&budget->resident, memory_order_relaxed);

	return resident < max ? max - resident : 0;
}

bool fp_budget_keeps_half(const struct fp_budget *budget, unsigned n)
{
	return fp_budget_free(budget) >= n + atomic_load_explicit(&budget->pages, memory_order_relaxed) / 2;
}

uint64_t fp_budget_overdrawn(const struct fp_budget *budget)
{
	uint64_t max = limit(budget);
	uint64_t resident = atomic_load_explicit(&budget->resident, memory_order_relaxed);

	return resident > max ? resident - max : 0;
}

unsigned fp_budget_batch(const struct fp_budget *budget)
{
	uint64_t part = atomic_load_explicit(&budget->pages, memory_order_relaxed) / BATCH_PART;

	return part < 1 ? 1 : (unsigned)FP_MIN(part, (uint64_t)FP_BUDGET_BATCH_MAX);
}

bool fp_budget_is_low(const struct fp_budget *budget)
{
	unsigned batch = fp_budget_batch(budget);

	return fp_budget_free(budget) < batch + (batch + 1) / 2;
}

void fp_budget_kick(struct fp_budget *budget)
{
	/* sequentially consistent: the reclaim thread clears kicked first, then looks for work */
	if (!atomic_load(&budget->kicked) && !atomic_exchange(&budget->kicked, true))
		signal_fd(budget->kick_fd);
}
