/*
 * The fault loop. See fault.h.
 *
 * There are two ways to wait. If every node's memory is mapped, a fault is finished before the next
 * is read: the thread blocks in read, the fastest way to be woken. Otherwise fetches are in flight,
 * and the thread polls the userfaultfd, the lanes and the budget at once.
 */
#include "fault.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "affinity.h"
#include "cleanup.h"
#include "clock.h"
#include "end.h"
#include "evict.h"
#include "lockedmem.h"
#include "serve.h"
#include "spin.h"
#include "thread.h"

#define ROOM_WAIT_NS (FP_NSEC_PER_MSEC / 2)
/*
 * A read of several messages costs more than a read of one. So the thread reads several only after
 * this many full reads in a row.
 */
#define FULL_READS 4
#define SPIN_LOOKS 32u /* how many looks for answers come between two looks for messages */

struct fp_fault_loop {
	struct fp_server server;
	struct fp_evictor *evictor; /* NULL: over a wire */
	struct fp_affinity *affinity;
	char *stop_page;
	struct fp_spin spin;
	unsigned n_full;   /* full reads in a row */
	uint32_t last_tid; /* the thread of the last fault */
	bool answered;     /* pages were installed since the thread last yielded in linger */
	bool stopped;      /* the stop page was touched: the thread must end */
	struct fp_thread thread;
};

/* ---- the loop ---- */

/*
 * How many messages to read: as many as the thread can begin to serve. The rest waits in the
 * kernel.
 */
static unsigned may_read(const struct fp_fault_loop *fl)
{
	return FP_MIN(fl->server.n_free, FP_READ_FAULTS);
}

/*
 * The agent's own pages lie below the stop page. A fault there means that captured bytes are gone:
 * the process ends rather than read wrong bytes.
 */
static void stop_or_abort(struct fp_fault_loop *fl, uint64_t addr)
{
	if (addr != (uintptr_t)fl->stop_page)
		fp_end_aborted("pager",
		               "a captured page vanished from the staging area, and its bytes with "
		               "it: something else dropped or remapped that memory. Please report this");
	fl->stopped = fp_uffd_copy(&fl->server.far->uffd, fl->stop_page, fp_zeros, FP_PAGE_SIZE, false) > 0;
	if (!fl->stopped) /* failed: let the page fault again */
		fp_uffd_wake(&fl->server.far->uffd, fl->stop_page, FP_PAGE_SIZE);
}

static int read_messages(struct fp_fault_loop *fl, struct fp_uffd_fault *ret_faults)
{
	unsigned max = FP_MIN(may_read(fl), fl->n_full < FULL_READS ? 1u : FP_READ_FAULTS);
	int n = fp_far_read(fl->server.far, ret_faults, max);

	fl->n_full = n == (int)max ? fl->n_full + 1 : 0;
	return n;
}

static void serve_message(struct fp_fault_loop *fl, const struct fp_uffd_fault *fault, uint64_t now)
{
	const struct fp_far *far = fl->server.far;

	/* outside the range: a bare mremap has moved far memory there, and its event comes next */
	if (fault->addr - (uintptr_t)far->base >= far->n_pages << FP_PAGE_SHIFT)
		return;
	if (fault->addr <= (uintptr_t)fl->stop_page) {
		stop_or_abort(fl, fault->addr);
		return;
	}
	if (fault->tid != fl->last_tid) {
		fl->last_tid = fault->tid;
		fp_count(&far->stats->thread_changes, 1);
	}
	fp_affinity_fault(fl->affinity, fault->tid);
	fp_serve(&fl->server, fault, now);
}

static void serve_messages(struct fp_fault_loop *fl)
{
	struct fp_uffd_fault faults[FP_READ_FAULTS];
	int n = read_messages(fl, faults);
	uint64_t now = fp_clock_ns();

	for (int i = 0; i < n; i++)
		serve_message(fl, &faults[i], now);
}

static int timeout_ms(uint64_t deadline_ns)
{
	uint64_t now = fp_clock_ns();

	if (deadline_ns == UINT64_MAX)
		return -1;
	return deadline_ns <= now ? 0 : (int)FP_MIN((deadline_ns - now) / FP_NSEC_PER_MSEC + 1, 1000u);
}

static unsigned reap(struct fp_fault_loop *fl)
{
	unsigned n = fp_serve_reap(&fl->server, false);

	fl->answered |= n > 0;
	return n;
}

/*
 * After the last answer, lets the program run before anything else. On this CPU it often reaches
 * its next fault before this thread runs again: then no thread sleeps, and no thread has to be
 * woken. True if it yielded.
 */
static bool linger(struct fp_fault_loop *fl)
{
	if (!fl->answered || fl->server.starved_head || fp_serve_is_fetching(&fl->server))
		return false;
	fl->answered = false;
	sched_yield();
	return true;
}

/* Looks for answers for a while. True if one came. */
static bool spin(struct fp_fault_loop *fl)
{
	uint64_t until_ns;

	if (!fp_serve_is_fetching(&fl->server) || fl->server.starved_head || !fp_spin_begin(&fl->spin))
		return false;
	until_ns = fp_clock_ns() + FP_SPIN_NS;
	do {
		for (unsigned i = 0; i < SPIN_LOOKS; i++) {
			if (reap(fl) == 0)
				continue;
			fp_spin_end(&fl->spin, true);
			(void)linger(fl);
			return true;
		}
		if (may_read(fl))
			serve_messages(fl);
		sched_yield(); /* a soft device's worker or a node may need this CPU to answer */
	} while (fp_clock_ns() < until_ns && !fl->stopped);
	fp_spin_end(&fl->spin, false);
	return false;
}

/*
 * Waits for messages, tokens and answers. If all nodes are mapped, waits only for tokens, because
 * then the thread waits for messages in read.
 */
static void wait_for_any(struct fp_fault_loop *fl)
{
	struct fp_budget *budget = &fl->server.far->budget;
	struct pollfd fds[2 + 2 * FP_STORE_MAX_NODES];
	bool reads = fl->server.lane && may_read(fl);
	uint64_t deadline_ns;
	eventfd_t ignored;
	unsigned n = 2;

	fds[0] = (struct pollfd){.fd = reads ? fl->server.far->uffd.fd : -1, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = budget->starved_fd, .events = POLLIN};
	n += fp_serve_pollfds(&fl->server, fds + n, &deadline_ns);
	if (fl->server.starved_head) {
		atomic_store(&budget->starved, true);
		fp_budget_kick(budget);
		fp_serve_starved(&fl->server); /* for tokens that came before `starved` was set */
		deadline_ns = fl->server.starved_head ? FP_MIN(deadline_ns, fp_clock_ns() + ROOM_WAIT_NS) : 0;
	}
	poll(fds, n, timeout_ms(deadline_ns));
	if (fds[1].revents)
		eventfd_read(budget->starved_fd, &ignored);
}

static void *run_direct(void *arg)
{
	struct fp_fault_loop *fl = arg;

	fp_affinity_join(fl->affinity);
	while (!fl->stopped) {
		if (fl->server.starved_head) {
			fp_far_check_bare_calls(fl->server.far); /* no page can leave during a bare call */
			wait_for_any(fl);
			fp_serve_starved(&fl->server);
		} else {
			serve_messages(fl);
		}
	}
	return NULL;
}

static void *run_over_wire(void *arg)
{
	struct fp_fault_loop *fl = arg;

	fp_affinity_join(fl->affinity);
	while (!fl->stopped) {
		if (!spin(fl) && !linger(fl))
			wait_for_any(fl);
		if (may_read(fl))
			serve_messages(fl);
		else
			fp_far_check_bare_calls(fl->server.far);
		reap(fl);
		fp_serve_starved(&fl->server);
	}
	return NULL;
}

/* ---- life ---- */

static void loop_free(struct fp_fault_loop *fl)
{
	fp_server_close(&fl->server);
	fp_evictor_free(fl->evictor);
	fp_lockedmem_free(fl, sizeof(*fl));
}

int fp_fault_loop_start(const struct fp_fault_options *options, struct fp_fault_loop **ret_loop)
{
	struct fp_server_options server = {
	    .far = options->far,
	    .layout = options->layout,
	    .readahead_pages = options->readahead_pages,
	    .n_fetches = FP_FETCHES,
	};
	struct fp_fault_loop *fl = fp_lockedmem_new(sizeof(*fl));
	bool direct = fp_store_is_direct(options->far->store);
	int r;

	if (!fl)
		return -ENOMEM;
	fl->stop_page = options->stop_page;
	fl->affinity = options->affinity;
	r = direct ? fp_evictor_new(options->far, NULL, options->stage, &fl->evictor)
	           : fp_uffd_set_nonblock(&options->far->uffd, true);
	server.evictor = fl->evictor;
	if (r == 0)
		r = fp_server_open(&fl->server, &server);
	if (r == 0)
		r = fp_thread_start(&fl->thread, "farpage-fault", direct ? run_direct : run_over_wire, fl);
	if (r < 0) {
		loop_free(fl);
		return r;
	}
	*ret_loop = fl;
	return 0;
}

void fp_fault_loop_stop(struct fp_fault_loop *fl)
{
	if (!fl)
		return;
	(void)*(volatile char *)
	    fl->stop_page; /* a fault like any other, which wakes the thread in both ways of waiting */
	fp_thread_join(&fl->thread);
	loop_free(fl);
}

void fp_fault_loop_abandon(struct fp_fault_loop *fl)
{
	if (!fl)
		return;
	fp_thread_abandon(&fl->thread);
	loop_free(fl);
}
