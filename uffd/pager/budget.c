/* See room.h. */
#include "budget.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "fdutil.h"
#include "store.h"

#define MARGIN_MAX 256u
#define CALM_LOOKS 20u /* then the budget holds again: a second */

static void signal_fd(int fd)
{
	eventfd_write(fd, 1); /* can only fail by overflow: then the reader has its signal already */
}

int fp_budget_init(struct fp_budget *room, uint64_t budget_pages)
{
	*room = (struct fp_budget){.starved_fd = -1, .kick_fd = -1};
	atomic_store(&room->budget, budget_pages);
	room->starved_fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	room->kick_fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	return room->starved_fd < 0 || room->kick_fd < 0 ? -errno : 0;
}

void fp_budget_done(struct fp_budget *room)
{
	fp_fd_close(room->starved_fd);
	fp_fd_close(room->kick_fd);
	room->starved_fd = room->kick_fd = -1;
}

static bool raise_to(_Atomic uint64_t *word, uint64_t value)
{
	uint64_t before = atomic_load_explicit(word, memory_order_relaxed);

	while (value > before)
		if (atomic_compare_exchange_weak(word, &before, value))
			return true;
	return false;
}

/* Shown as it grows: many a program is over before anybody's next look, or is killed. */
static void note_peak(struct fp_budget *room, uint64_t resident)
{
	if (raise_to(&room->peak, resident) && room->peak_bytes)
		raise_to(room->peak_bytes, resident << FP_PAGE_SHIFT);
}

void fp_budget_show_peak(struct fp_budget *room, _Atomic uint64_t *bytes)
{
	room->peak_bytes = bytes;
	if (bytes)
		raise_to(bytes, atomic_load(&room->peak) << FP_PAGE_SHIFT);
}

/* The budget, what calls hold of it and beyond, what threads need at once, and what was granted on
 * top. */
static uint64_t limit(const struct fp_budget *room)
{
	uint64_t budget = atomic_load_explicit(&room->budget, memory_order_relaxed);
	uint64_t pinned = atomic_load_explicit(&room->pinned, memory_order_relaxed);
	uint64_t need = atomic_load_explicit(&room->need, memory_order_relaxed);

	return FP_MAX(budget, pinned + FP_MAX(budget / 2, need)) +
	       atomic_load_explicit(&room->excess, memory_order_relaxed);
}

void fp_budget_pin(struct fp_budget *room, uint64_t n)
{
	atomic_fetch_add_explicit(&room->pinned, n, memory_order_relaxed);
}

void fp_budget_unpin(struct fp_budget *room, uint64_t n)
{
	atomic_fetch_sub_explicit(&room->pinned, n, memory_order_relaxed);
}

unsigned fp_budget_take(struct fp_budget *room, unsigned n)
{
	uint64_t budget = limit(room);
	uint64_t resident = atomic_load(&room->resident);
	uint64_t take;

	do {
		take = resident < budget ? FP_MIN((uint64_t)n, budget - resident) : 0;
		if (take == 0)
			break;
	} while (!atomic_compare_exchange_weak(&room->resident, &resident, resident + take));
	note_peak(room, resident + take);
	if (resident + take + fp_budget_margin(room) > budget)
		fp_budget_kick(room);
	return (unsigned)take;
}

void fp_budget_overdraw(struct fp_budget *room, unsigned n)
{
	note_peak(room, atomic_fetch_add(&room->resident, n) + n);
	fp_budget_kick(room);
}

void fp_budget_give(struct fp_budget *room, unsigned n)
{
	if (n == 0)
		return;
	atomic_fetch_sub(&room->resident, n);
	/* sequentially consistent against the waiter, who sets starved and then tries to take once
	 * more */
	if (atomic_load(&room->starved) && atomic_exchange(&room->starved, false))
		signal_fd(room->starved_fd);
}

void fp_budget_grant(struct fp_budget *room)
{
	atomic_fetch_add(&room->excess, 1);
}

bool fp_budget_tried_in_vain(struct fp_budget *room, bool for_good)
{
	if ((!for_good && !atomic_load(&room->excess)) || fp_budget_free(room))
		return false;
	atomic_fetch_add(&room->excess, fp_budget_batch(room));
	if (atomic_load(&room->starved) && atomic_exchange(&room->starved, false))
		signal_fd(room->starved_fd);
	return true;
}

static void end_grants(struct fp_budget *room, unsigned n)
{
	uint64_t excess = atomic_load_explicit(&room->excess, memory_order_relaxed);

	while (excess &&
	       !atomic_compare_exchange_weak(&room->excess, &excess, excess - FP_MIN((uint64_t)n, excess)))
		;
}

void fp_budget_leave(struct fp_budget *room, unsigned n)
{
	end_grants(room, n);
	fp_budget_give(room, n);
}

void fp_budget_need(struct fp_budget *room, uint32_t n)
{
	uint32_t before = atomic_load_explicit(&room->need, memory_order_relaxed);

	if (fp_budget_free(room) > limit(room) / 2)
		return; /* nothing was evicted: the program discards what it touches again */
	atomic_store_explicit(&room->calm, 0, memory_order_relaxed);
	while (n > before && !atomic_compare_exchange_weak(&room->need, &before, n))
		;
}

void fp_budget_calm(struct fp_budget *room)
{
	if (fp_budget_is_thrashing(room) && atomic_fetch_add(&room->calm, 1) + 1 >= CALM_LOOKS)
		atomic_store(&room->need, 0);
}

bool fp_budget_is_thrashing(const struct fp_budget *room)
{
	return atomic_load_explicit(&room->need, memory_order_relaxed) > 0;
}

uint64_t fp_budget_free(const struct fp_budget *room)
{
	uint64_t budget = limit(room);
	uint64_t resident = atomic_load_explicit(&room->resident, memory_order_relaxed);

	return resident < budget ? budget - resident : 0;
}

uint64_t fp_budget_overdrawn(const struct fp_budget *room)
{
	uint64_t budget = limit(room);
	uint64_t resident = atomic_load_explicit(&room->resident, memory_order_relaxed);

	return resident > budget ? resident - budget : 0;
}

uint64_t fp_budget_margin(const struct fp_budget *room)
{
	uint64_t margin = atomic_load_explicit(&room->budget, memory_order_relaxed) / 16;

	return margin < 1 ? 1 : FP_MIN(margin, (uint64_t)MARGIN_MAX);
}

unsigned fp_budget_batch(const struct fp_budget *room)
{
	return (unsigned)FP_MIN(fp_budget_margin(room), (uint64_t)FP_BUDGET_BATCH_MAX);
}

void fp_budget_kick(struct fp_budget *room)
{
	/* sequentially consistent against the reclaim thread, who clears kicked and then looks for
	 * work */
	if (!atomic_load(&room->kicked) && !atomic_exchange(&room->kicked, true))
		signal_fd(room->kick_fd);
}
