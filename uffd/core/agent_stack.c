/* See ownstack.h. */
#include "agent_stack.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "far.h"

#define BELOW (32u << 10) /* what the agent's own frames take, at most */
#define ABOVE (8u << 10)  /* what callers have of it: masks, ranges */
#define LINES 64u         /* threads begin to look for a place in so many lines */

/* False: the stack is not far. */
static bool to_pages(const struct fp_far *far, uintptr_t frame, struct fp_page_range *ret)
{
	uintptr_t base = (uintptr_t)far->base, limit = base + (far->n_pages << FP_PAGE_SHIFT);

	if (frame < base || frame >= limit)
		return false;
	ret->page = fp_far_page(far, frame - base < BELOW ? base : frame - BELOW);
	ret->n = fp_far_page(far, limit - frame <= ABOVE ? limit - 1 : frame + ABOVE) - ret->page + 1;
	return true;
}

/* Who did not see the hold ends by itself; nobody begins anew. */
static void await_leaving(const struct fp_far *far, const struct fp_page_range *pages)
{
	for (uint32_t p = pages->page; p < pages->page + pages->n; p++)
		while (fp_page_state(atomic_load(&far->words[p])) == FP_PAGE_LEAVING)
			sched_yield();
}

void fp_agent_stack_keep(struct fp_far *far, struct fp_agent_stack *ret_own)
{
	struct fp_page_range pages;

	ret_own->n = 0;
	if (!fp_uffd_needs_holds(&far->uffd) || !to_pages(far, (uintptr_t)__builtin_frame_address(0), &pages))
		return;
	fp_budget_pin(&far->room, pages.n);
	ret_own->place =
	    fp_pin_publish(&far->holds, &pages, 1, (uint32_t)syscall(SYS_gettid) % LINES * FP_PIN_LINE);
	if (ret_own->place == FP_PIN_NO_PLACE) { /* there are more than a process has threads */
		fp_budget_unpin(&far->room, pages.n);
		return;
	}
	ret_own->n = pages.n;
	fp_pin_fence();
	await_leaving(far, &pages);
}

void fp_agent_stack_let_go(struct fp_far *far, struct fp_agent_stack *own)
{
	if (own->n == 0)
		return;
	fp_pin_clear(&far->holds, own->place, 1);
	fp_budget_unpin(&far->room, own->n);
	own->n = 0;
}
