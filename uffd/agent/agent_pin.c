/*
 * Pins: where the kernel can't fault on far memory itself, makes the memory of a system call
 * resident and keeps it so. Room: uffd/agent. See agent.h for the calls and pin.h for the protocol.
 * Runs on the program's threads and in their signal handlers: no lock, no allocation. All signals
 * are blocked while a page is served.
 *
 * If a page's word says RESIDENT, the kernel must be able to read the page. If the word also says
 * DIRTY, the kernel must be able to write the page. So the page's protection is lifted before its
 * word is set.
 */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent_priv.h"
#include "cleanup.h"
#include "inline.h"
#include "agent_sigmask.h"
#include "local_stack.h"

#define RANGES_MAX  1024u /* at most so many ranges in one pin: the kernel takes no more iovecs */
#define NESTED_MAX  8u    /* how many pins are noted for each thread */
#define QUARTER_MIN 4u    /* pages that may be pinned whatever the budget is */
#define LINES       64u   /* each thread begins its search for places at one of so many lines, in turn */

/*
 * The pins of this thread, the outermost first. A longjmp may leave a pin behind. The next call of
 * fp_agent_pin notices that: its own frame is at a higher address than the pin's, or it gets the
 * same struct fp_pin. Written by this thread and its signal handlers, which may interrupt each
 * other.
 */
static __thread struct {
	unsigned depth;
	uint32_t hint;   /* 1 + the place that this thread took last; 0: none yet */
	uint64_t serial; /* of its last pin */
	struct {
		uintptr_t frame; /* the frame of fp_agent_pin; its callers' are at higher addresses */
		const struct fp_pin *hold;
		struct fp_agent *agent;
		uint32_t place, n;
		uint64_t serial; /* that of the hold */
	} held[NESTED_MAX];
} own __attribute__((tls_model("initial-exec")));

bool fp_agent_needs_pins(const struct fp_agent *agent)
{
	return fp_uffd_needs_pins(&agent->far.uffd);
}

/* ---- which pages ---- */

static char *first_addr(const struct fp_far *far)
{
	return fp_far_addr(far, FP_MAX(far->first, FP_FAR_OWN_PAGES));
}

static bool to_pages_within(const struct fp_far *far, const struct fp_pin_range *range, uint32_t first,
                            uint32_t last, struct fp_page_range *ret)
{
	uintptr_t start = (uintptr_t)range->addr, end;

	if (__builtin_add_overflow(start, range->len_bytes, &end))
		end = UINTPTR_MAX;
	start = FP_MAX(start, (uintptr_t)fp_far_addr(far, FP_MAX(first, FP_FAR_OWN_PAGES)));
	end = FP_MIN(end, (uintptr_t)fp_far_addr(far, last));
	if (range->len_bytes == 0 || start >= end)
		return false;
	ret->page = fp_far_page(far, start);
	ret->n = fp_far_page(far, end - 1) - ret->page + 1;
	return true;
}

/*
 * Finds the far pages of a range; the agent's own pages do not count. Returns false if there are
 * none.
 */
static bool to_pages(const struct fp_far *far, const struct fp_pin_range *range, struct fp_page_range *ret)
{
	return to_pages_within(far, range, far->first, far->last, ret);
}

/* The same after publish: finds only pages whose words may be read. All of them were published. */
static bool to_pinned(const struct fp_far *far, const struct fp_pin_range *range, struct fp_page_range *ret)
{
	return to_pages_within(far, range, far->pin_first, far->pin_last, ret);
}

static uint64_t quarter(const struct fp_far *far)
{
	return FP_MAX(atomic_load_explicit(&far->budget.pages, memory_order_relaxed) / 4,
	              (uint64_t)QUARTER_MIN);
}

/*
 * How many bytes a range has from its start to the end of its first n far pages. Called for a range
 * that has more than n far pages.
 */
static size_t fitting_bytes(const struct fp_far *far, const struct fp_pin_range *range, uint64_t n)
{
	uintptr_t base = (uintptr_t)first_addr(far), start = (uintptr_t)range->addr;
	uintptr_t first = FP_MAX(start, base) & ~(uintptr_t)(FP_PAGE_SIZE - 1);

	return n == 0 && start >= base ? 0 : first + (n << FP_PAGE_SHIFT) - start;
}

/*
 * Adds a range of pages. Joins it with the last one if they are neighbours, as the vectors of a
 * call often are.
 */
static void add(struct fp_page_range *pages, uint32_t *n, struct fp_page_range more)
{
	struct fp_page_range *last = *n ? &pages[*n - 1] : NULL;
	uint64_t last_end = last ? (uint64_t)last->page + last->n : 0;

	if (last && more.page >= last->page && more.page <= last_end) {
		last->n = (uint32_t)(FP_MAX(last_end, (uint64_t)more.page + more.n) - last->page);
		return;
	}
	pages[(*n)++] = more;
}

/*
 * Turns ranges of bytes into *ret_n ranges of pages. Returns 0, or -E2BIG if they are too many.
 * Then *hold says which part of them would fit.
 */
static int collect(const struct fp_far *far, const struct fp_pin_range *ranges, unsigned n,
                   struct fp_page_range *ret_pages, uint32_t *ret_n, struct fp_pin *hold)
{
	uint64_t left = quarter(far);
	struct fp_page_range more;

	*ret_n = 0;
	for (unsigned i = 0; i < n; i++) {
		if (!to_pages(far, &ranges[i], &more))
			continue;
		if (more.n > left || *ret_n == RANGES_MAX) {
			hold->fit_ranges = i;
			hold->fit_bytes = *ret_n < RANGES_MAX ? fitting_bytes(far, &ranges[i], left) : 0;
			return -E2BIG;
		}
		left -= more.n;
		add(ret_pages, ret_n, more);
	}
	return 0;
}

/* ---- bringing pages in ---- */

static bool all_ready(const struct fp_far *far, struct fp_page_range r, bool write)
{
	for (uint32_t p = r.page; p < r.page + r.n; p++)
		if (!fp_inline_is_ready(atomic_load_explicit(&far->words[p], memory_order_relaxed), write))
			return false;
	return true;
}

void fp_agent_pin_bring(struct fp_agent *agent, struct fp_page_range r, bool write)
{
	/* blocks signals first: a handler that jumps away would skip fp_agent_leave_local */
	uint64_t mask = fp_agent_sigmask_block(true, agent->far.uffd.sigbus);
	int saved = errno;

	fp_agent_enter_local(agent);
	FP_ON_LOCAL_STACK(fp_inline_bring, atomic_load(&agent->far.inline_servers), r.page, r.n, write, 0, 0);
	fp_agent_leave_local(agent);
	errno = saved;
	fp_agent_sigmask_restore(mask);
}

/* ---- the thread's own record ---- */

static uint32_t hint(void)
{
	static _Atomic uint32_t line;

	if (own.hint == 0)
		own.hint = atomic_fetch_add(&line, 1) % LINES * FP_PIN_LINE + 1;
	return own.hint - 1;
}

static void let_go(struct fp_agent *agent, uint32_t place, uint32_t n)
{
	uint64_t pages = 0;

	for (uint32_t i = 0; i < n; i++)
		pages += fp_pin_at(&agent->far.pins, place + i).n;
	fp_pin_clear(&agent->far.pins, place, n);
	fp_budget_unpin(&agent->far.budget, pages);
}

/* Removes the notes from index depth on, and releases their pins. */
static void drop_notes(unsigned depth)
{
	while (own.depth > depth) {
		unsigned i = --own.depth;

		if (i < NESTED_MAX && own.held[i].n)
			let_go(own.held[i].agent, own.held[i].place, own.held[i].n);
		if (i < NESTED_MAX)
			own.held[i].n = 0;
	}
}

/*
 * True if the caller is a signal handler that runs on a signal stack. The frames that the handler
 * interrupted are on another stack and still alive. So a comparison of addresses does not tell
 * which frames have ended.
 */
static bool on_signal_stack(const struct fp_agent *agent)
{
	stack_t ss;

	if (agent->options.on_signal_stack)
		return agent->options.on_signal_stack();
	return syscall(SYS_sigaltstack, NULL, &ss) == 0 && (ss.ss_flags & SS_ONSTACK);
}

/* Releases the pins of frames that have ended. */
static void drop_dead(const struct fp_agent *agent, uintptr_t frame, const struct fp_pin *hold)
{
	unsigned live = FP_MIN(own.depth, NESTED_MAX);

	while (live > 0 && (own.held[live - 1].frame < frame || own.held[live - 1].hold == hold))
		live--;
	if (live < FP_MIN(own.depth, NESTED_MAX) && !on_signal_stack(agent))
		drop_notes(live);
}

/* No other pin of the process has this number. A handler that interrupts it may skip some. */
static uint64_t next_serial(void)
{
	static _Atomic uint32_t n_threads;

	if (!own.serial)
		own.serial = (uint64_t)(atomic_fetch_add(&n_threads, 1) + 1) << 32;
	return ++own.serial;
}

/*
 * Notes the frame of a pin before the pin has places in the table. If a signal handler comes in
 * between, it finds a note without places.
 */
static uint32_t note(struct fp_agent *agent, uintptr_t frame, struct fp_pin *hold)
{
	unsigned i = own.depth;

	hold->serial = next_serial();
	if (i < NESTED_MAX) {
		own.held[i].n = 0;
		own.held[i].serial = hold->serial;
		own.held[i].frame = frame;
		own.held[i].hold = hold;
		own.held[i].agent = agent;
	}
	atomic_signal_fence(memory_order_seq_cst);
	own.depth = i + 1;
	atomic_signal_fence(memory_order_seq_cst);
	return i;
}

static void fill_note(const struct fp_pin *hold)
{
	if (hold->depth >= NESTED_MAX)
		return;
	own.held[hold->depth].place = hold->place;
	atomic_signal_fence(memory_order_seq_cst);
	own.held[hold->depth].n = hold->n;
}

/*
 * True if the pin was released already. A coroutine may leave a call in a callback, and other calls
 * of the thread, on other stacks, then take its pin for dead. If another thread goes on with it,
 * the first one releases the pin at its next.
 */
static bool was_released(const struct fp_pin *hold)
{
	unsigned i = hold->depth;

	return i < NESTED_MAX && (i >= own.depth || own.held[i].serial != hold->serial);
}

/* ---- the calls ---- */

/*
 * After this, the caller asks to_pinned which pages the range still has, and only then reads their
 * words. So no limit takes these words away meanwhile: see fp_far_shrink.
 */
static int publish(struct fp_agent *agent, const struct fp_page_range *pages, uint32_t n, struct fp_pin *hold)
{
	uint64_t total = 0;

	for (uint32_t i = 0; i < n; i++)
		total += pages[i].n;
	fp_budget_pin(&agent->far.budget, total);
	hold->place = fp_pin_publish(&agent->far.pins, pages, n, hint());
	if (hold->place == FP_PIN_NO_PLACE) {
		fp_budget_unpin(&agent->far.budget, total);
		return -ENOMEM;
	}
	hold->n = n;
	own.hint = hold->place + 1;
	fp_pin_fence();
	return 0;
}

static void bring_all(struct fp_agent *agent, const struct fp_pin_range *ranges, unsigned n)
{
	struct fp_page_range r;

	for (unsigned i = 0; i < n; i++)
		if (to_pinned(&agent->far, &ranges[i], &r) && !all_ready(&agent->far, r, ranges[i].write))
			fp_agent_pin_bring(agent, r, ranges[i].write);
}

static bool any_far(const struct fp_far *far, const struct fp_pin_range *ranges, unsigned n)
{
	struct fp_page_range r;

	for (unsigned i = 0; i < n; i++)
		if (to_pages(far, &ranges[i], &r))
			return true;
	return false;
}

static int hold_pages(struct fp_agent *agent, const struct fp_page_range *pages, uint32_t n,
                      struct fp_pin *ret_hold, uintptr_t frame)
{
	int r;

	if (own.depth)
		drop_dead(agent, frame, ret_hold);
	ret_hold->depth = note(agent, frame, ret_hold);
	r = publish(agent, pages, n, ret_hold);
	if (r < 0)
		drop_notes(ret_hold->depth);
	else
		fill_note(ret_hold);
	return r;
}

/* Takes no more stack than this call needs, as threads may have small stacks. */
static __attribute__((noinline)) int hold_ranges(struct fp_agent *agent, const struct fp_pin_range *ranges,
                                                 unsigned n, struct fp_pin *ret_hold, uintptr_t frame)
{
	struct fp_page_range *pages = __builtin_alloca(FP_MIN(n, RANGES_MAX) * sizeof(*pages));
	uint32_t n_pages;
	int r = collect(&agent->far, ranges, n, pages, &n_pages, ret_hold);

	return r < 0 ? r : hold_pages(agent, pages, n_pages, ret_hold, frame);
}

int fp_agent_pin(struct fp_agent *agent, const struct fp_pin_range *ranges, unsigned n,
                 struct fp_pin *ret_hold)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
	int r;

	ret_hold->n = 0;
	if (!fp_agent_needs_pins(agent) || !any_far(&agent->far, ranges, n))
		return 0;
	r = hold_ranges(agent, ranges, n, ret_hold, frame);
	if (r == 0)
		bring_all(agent, ranges, n);
	return r;
}

void fp_agent_unpin(struct fp_agent *agent, struct fp_pin *hold)
{
	if (hold->n == 0)
		return;
	if (was_released(hold)) {
		hold->n = 0;
		return;
	}
	drop_notes(hold->depth + 1);
	if (hold->depth < NESTED_MAX)
		own.held[hold->depth].n = 0;
	let_go(agent, hold->place, hold->n);
	own.depth = FP_MIN(own.depth, hold->depth);
	hold->n = 0;
}

unsigned fp_agent_pin_depth(void)
{
	return own.depth;
}

void fp_agent_pin_vforked(unsigned depth)
{
	drop_notes(depth);
}

void fp_agent_thread_ends(struct fp_agent *agent)
{
	drop_notes(0);
}

void fp_agent_pin_forked(struct fp_agent *agent)
{
	struct fp_page_range keep[NESTED_MAX] = {0};
	uint64_t pages = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < FP_MIN(own.depth, NESTED_MAX); i++)
		if (own.held[i].n && own.held[i].agent == agent)
			keep[n++] = (struct fp_page_range){own.held[i].place, own.held[i].n};
	fp_pin_forked(&agent->far.pins, keep, n);
	for (unsigned i = 0; i < n; i++)
		for (uint32_t k = 0; k < keep[i].n; k++)
			pages += fp_pin_at(&agent->far.pins, keep[i].page + k).n;
	fp_budget_pin(&agent->far.budget, pages);
}
