/* See leavers.h. */
#include "exiting_threads.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "far.h"
#include "inline.h"
#include "agent_sigmask.h"

#define TABLE_BYTES (FP_PIN_MAX * sizeof(_Atomic pid_t))
#define LINES       64u /* threads begin to look for a place in so many lines */
#define MANY        32u /* so many are told to the reclaim thread; fewer wait for its next turn */
#define AWAY_MAX    16u /* more often than a page that is held can be found away right after a touch */

int fp_exiting_threads_init(struct fp_exiting_threads *leavers)
{
	void *p = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	               -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	*leavers = (struct fp_exiting_threads){.tid = p, .pid = getpid()};
	return 0;
}

void fp_exiting_threads_done(struct fp_exiting_threads *leavers)
{
	if (leavers->tid)
		munmap(leavers->tid, TABLE_BYTES);
	leavers->tid = NULL;
}

/* False: nothing of it is far. */
static bool to_pages(const struct fp_far *far, const void *record, size_t len, struct fp_page_range *ret)
{
	uintptr_t start = (uintptr_t)record, base = (uintptr_t)far->base;

	if (start < base || start - base + len > far->n_pages << FP_PAGE_SHIFT)
		return false;
	ret->page = fp_far_page(far, start);
	ret->n = fp_far_page(far, start + len - 1) - ret->page + 1;
	return true;
}

/*
 * Until the page is here, writable, and whoever was about to take it has seen the hold. One that stays away
 * by its word, and yet can be touched, is the kernel's own: something that is not far was mapped there.
 */
static void bring(const struct fp_far *far, uint32_t page)
{
	_Atomic unsigned char *byte = (_Atomic unsigned char *)fp_far_addr(far, page);

	for (unsigned away = 0; away < AWAY_MAX;) {
		uint64_t word;

		(void)atomic_fetch_or(byte, 0);
		word = atomic_load(&far->words[page]);
		if (fp_inline_is_ready(word, true))
			return;
		away += fp_page_state(word) == FP_PAGE_ZERO || fp_page_state(word) == FP_PAGE_REMOTE;
		sched_yield();
	}
}

/*
 * With signals blocked: in a child that a handler forks in between, the place that was published would be
 * free.
 */
static void add(struct fp_far *far, const struct fp_page_range *pages)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);
	uint32_t place;

	fp_budget_pin(&far->room, pages->n);
	place = fp_pin_publish(&far->holds, pages, 1, (uint32_t)tid % LINES * FP_PIN_LINE);
	if (place == FP_PIN_NO_PLACE) { /* there are more places than a process has threads */
		fp_budget_unpin(&far->room, pages->n);
		return;
	}
	fp_pin_fence();
	for (uint32_t p = pages->page; p < pages->page + pages->n; p++)
		bring(far, p);
	if (atomic_fetch_add(&far->leavers.n, 1) >= MANY)
		fp_budget_kick(&far->room);
	atomic_store(&far->leavers.tid[place], tid);
}

void fp_exiting_threads_add(struct fp_far *far, const void *record, size_t len_bytes)
{
	struct fp_page_range pages;
	uint64_t mask;

	if (fp_uffd_needs_holds(&far->uffd) || !to_pages(far, record, len_bytes, &pages))
		return;
	mask = fp_agent_sigmask_block(true, far->uffd.sigbus);
	add(far, &pages);
	fp_agent_sigmask_restore(mask);
}

/*
 * All that the kernel does for a thread at its end is done before nobody can find it. Another thread that has
 * its number by now keeps the page until it is gone as well.
 */
static bool is_gone(const struct fp_exiting_threads *leavers, pid_t tid)
{
	return syscall(SYS_tgkill, leavers->pid, tid, 0) < 0 && errno == ESRCH;
}

static void let_go(struct fp_far *far, uint32_t place)
{
	uint32_t n = fp_pin_at(&far->holds, place).n;

	atomic_store(&far->leavers.tid[place], 0);
	fp_pin_clear(&far->holds, place, 1);
	fp_budget_unpin(&far->room, n);
	atomic_fetch_sub(&far->leavers.n, 1);
}

void fp_exiting_threads_sweep(struct fp_far *far)
{
	uint32_t top = atomic_load(&far->leavers.n) ? atomic_load(&far->holds.top) : 0;

	for (uint32_t i = 0; i < top; i++) {
		pid_t tid = atomic_load_explicit(&far->leavers.tid[i], memory_order_relaxed);

		if (tid && is_gone(&far->leavers, tid))
			let_go(far, i);
	}
}

void fp_exiting_threads_forked(struct fp_far *far)
{
	uint32_t top = atomic_load(&far->holds.top);

	for (uint32_t i = 0; i < top; i++)
		if (atomic_load_explicit(&far->leavers.tid[i], memory_order_relaxed))
			atomic_store(&far->leavers.tid[i], 0);
	atomic_store(&far->leavers.n, 0);
	far->leavers.pid = getpid();
}
