/* See reclaim.h. */
#include "reclaim.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "affinity.h"
#include "cleanup.h"
#include "clock.h"
#include "evict.h"
#include "lastthread.h"
#include "lockedmem.h"
#include "log.h"
#include "lost.h"
#include "kernel_filled.h"
#include "thread.h"

#define TICK_NS      (50 * FP_NSEC_PER_MSEC)
#define MANY_THREADS 64u /* assumed number of threads if it is not known */
#define REVIVE_NS    FP_NSEC_PER_SEC
/*
 * How long to pause while no page can leave (all are pinned, or no node takes pages): STUCK_NS at
 * first, then doubled up to STUCK_MAX times.
 */
#define STUCK_NS      FP_NSEC_PER_MSEC
#define STUCK_MAX     6u
#define STUCK_GRANTED 2u
#define POLL_US       50
#define ADOPTING_NS   (2 * FP_NSEC_PER_MSEC)

struct fp_reclaim {
	struct fp_far *far;
	struct fp_lane *lane; /* for write-backs; NULL: all nodes are mapped */
	struct fp_evictor *evictor;
	bool told_of_seal;
	/* Held for one pageout; only the program's threads take it, with signals blocked. */
	pthread_mutex_t turn;
	struct {
		_Atomic bool wanted; /* while it is set, the reclaim thread owns the other fields */
		uint32_t page, n;
	} pageout;
	uint64_t next_extend_ns, next_revive_ns;
	/*
	 * true: slots are wanted, but a session must open first. In each turn the thread then waits
	 * for that, ADOPTING_NS at most
	 */
	bool adopting;
	_Atomic bool resting; /* no page is leaving, and none will while far->fork_freeze is set */
	struct fp_affinity *affinity;
	void (*tend)(void *arg);
	void *arg;
	bool reads;        /* there is no fault thread: this thread reads the messages (of bare calls only) */
	unsigned stuck;    /* tries in a row that wanted tokens and evicted nothing */
	uint64_t retry_ns; /* if stuck > 0: when to try again */
	struct fp_lastthread lastthread;
	_Atomic bool stopping;
	struct fp_thread thread;
};

/* ---- evictions ---- */

/*
 * Serves the request of a pageout. The request ends when all pages of the range have left or were
 * refused, and the writes under way have been reaped.
 */
static void run_pageout(struct fp_reclaim *rc)
{
	uint32_t next;

	while (atomic_load(&rc->pageout.wanted)) {
		fp_evictor_run_range(rc->evictor, rc->pageout.page, rc->pageout.n, &next);
		if (next == rc->pageout.page && rc->pageout.n)
			return; /* all batches are under way */
		rc->pageout.n -= next - rc->pageout.page;
		rc->pageout.page = next;
		if (rc->pageout.n == 0 && fp_evictor_busy(rc->evictor))
			return;
		if (rc->pageout.n == 0)
			atomic_store(&rc->pageout.wanted, false);
	}
}

/* Evicts while there is too little room. False if tokens are wanted and no eviction could begin. */
static bool run_evictions(struct fp_reclaim *rc)
{
	unsigned n, sum = 0;

	while (fp_budget_is_low(&rc->far->budget)) {
		n = fp_evictor_run(rc->evictor, fp_budget_batch(&rc->far->budget));
		if (n == 0)
			return sum || fp_evictor_busy(rc->evictor);
		sum += n;
	}
	return true;
}

/*
 * Takes more leases when a page that is to leave found no slot. Pages without a reservation get
 * their slots only when they leave.
 */
static void extend_store(struct fp_reclaim *rc)
{
	uint64_t now = fp_clock_ns();
	int r;

	rc->adopting = false;
	if (!atomic_load(&rc->far->wants_slots) || now < rc->next_extend_ns)
		return;
	if (atomic_load(&rc->far->fork_freeze))
		return; /* a child must not inherit a control call that is under way */
	rc->adopting = fp_store_adopts(rc->far->store, ADOPTING_NS);
	if (rc->adopting)
		return;
	r = fp_store_extend(rc->far->store);
	if (r == 0)
		atomic_store(&rc->far->wants_slots, false);
	else
		rc->next_extend_ns = now + TICK_NS;
	if (r != -EBUSY)
		atomic_store(&rc->far->full, r < 0);
}

static void tell_of_seal(struct fp_reclaim *rc)
{
	if (rc->told_of_seal || !fp_log_takes_text())
		return;
	rc->told_of_seal = true;
	fp_log(
	    FP_LOG_WARNING, "pager",
	    "the kernel does not let far memory go: it is sealed (mseal), a filter forbids madvise or "
	    "mprotect, executable memory may not be written, or there are too many mappings "
	    "(vm.max_map_count). It stays local, beyond the local memory if it must: keep that mapping local "
	    "by FARPAGE_MIN_MAPPING or a rule");
}

/* True if an evictor met pages that can never leave, since the last call of this function. */
static bool met_seal(struct fp_reclaim *rc)
{
	if (!atomic_exchange(&rc->far->sealed, false))
		return false;
	tell_of_seal(rc);
	return true;
}

/*
 * Keeps tokens free. While no page can leave, tries less and less often; the thread's other work
 * goes on.
 */
static void keep_room(struct fp_reclaim *rc)
{
	if (rc->stuck && fp_clock_ns() < rc->retry_ns)
		return;
	/* some pages may leave while others can't: then the field sealed is true */
	if (run_evictions(rc) && !atomic_load(&rc->far->sealed)) {
		rc->stuck = 0;
		return;
	}
	if (fp_far_why_stuck(rc->far) == 0 && fp_budget_tried_in_vain(&rc->far->budget, met_seal(rc)))
		rc->stuck = FP_MIN(rc->stuck, STUCK_GRANTED); /* the next batch may be wanted soon */
	rc->retry_ns = fp_clock_ns() + (STUCK_NS << FP_MIN(rc->stuck, STUCK_MAX));
	rc->stuck++;
}

static_assert((int)FP_STATS_NODE_UP == (int)FP_BREAKER_CLOSED &&
                  (int)FP_STATS_NODE_OPEN == (int)FP_BREAKER_OPEN &&
                  (int)FP_STATS_NODE_HALF_OPEN == (int)FP_BREAKER_HALF_OPEN &&
                  (int)FP_STATS_NODE_LOST == (int)FP_BREAKER_LOST,
              "the states of the file are the store's");

static enum fp_stats_node_state node_state(const struct fp_store_node *info)
{
	bool is_unasked = info->adopting && !info->up && info->state != FP_BREAKER_LOST && !info->last_error;

	return is_unasked ? FP_STATS_NODE_UNASKED : (enum fp_stats_node_state)info->state;
}

static void publish_node(const struct fp_store *store, unsigned node, struct fp_stats_node *stats)
{
	struct fp_store_node info;

	fp_store_node_info(store, node, &info);
	atomic_store(&stats->up, info.up);
	atomic_store(&stats->state, (uint32_t)node_state(&info));
	atomic_store(&stats->degraded, info.degraded);
	atomic_store(&stats->spent, info.spent);
	atomic_store(&stats->leased_bytes, info.leased_bytes);
	atomic_store(&stats->read_bytes, info.read_bytes);
	atomic_store(&stats->written_bytes, info.written_bytes);
	atomic_store(&stats->reconnects, info.reconnects);
	atomic_store(&stats->failures, info.failures);
	atomic_store(&stats->heartbeat_ns, info.heartbeat_ns);
}

void fp_reclaim_publish(const struct fp_far *far)
{
	struct fp_statspage *stats = far->stats;
	const struct fp_budget *budget = &far->budget;

	atomic_store(&stats->budget_bytes, atomic_load(&budget->pages) << FP_PAGE_SHIFT);
	atomic_store(&stats->resident_bytes, atomic_load(&budget->resident) << FP_PAGE_SHIFT);
	atomic_store(&stats->remote_bytes, fp_store_slots_used(far->store) << FP_PAGE_SHIFT);
	for (unsigned i = 0; i < fp_store_n_nodes(far->store); i++)
		publish_node(far->store, i, &stats->node[i]);
}

/*
 * Publishes the gauges, and copies the URL in use of each node. The URL is text, so only this one
 * thread may write it.
 */
static void publish(struct fp_reclaim *rc)
{
	struct fp_statspage *stats = rc->far->stats;
	struct fp_store_node info;

	for (unsigned i = 0; i < fp_store_n_nodes(rc->far->store); i++) {
		fp_store_node_info(rc->far->store, i, &info);
		if (strncmp(stats->node[i].way, info.url, sizeof(stats->node[i].way) - 1) != 0)
			snprintf(stats->node[i].way, sizeof(stats->node[i].way), "%s", info.url);
	}
	fp_reclaim_publish(rc->far);
}

/*
 * Makes pages available again that were lost to an outage. Sequentially consistent with a fork's
 * freeze, as evictions are: no page is claimed while a fork is made.
 */
static void revive_pages(struct fp_reclaim *rc, uint64_t now_ns)
{
	struct fp_far *far = rc->far;

	if (now_ns < rc->next_revive_ns)
		return;
	rc->next_revive_ns = now_ns + REVIVE_NS;
	atomic_fetch_add(&far->evicting, 1);
	if (!atomic_load(&far->fork_freeze))
		fp_lost_revive(far);
	atomic_fetch_sub(&far->evicting, 1);
}

static void housekeep(struct fp_reclaim *rc, uint64_t *next_tick_ns)
{
	uint64_t now = fp_clock_ns();

	if (now < *next_tick_ns)
		return;
	*next_tick_ns = now + TICK_NS;
	fp_evictor_check_nodes(rc->evictor);
	fp_store_check_sessions(rc->far->store);
	fp_store_sweep(rc->far->store);
	revive_pages(rc, now);
	publish(rc);
	fp_affinity_tick(rc->affinity);
	fp_lastthread_look(&rc->lastthread, rc->far->stat_fd, now);
	fp_budget_see_threads(&rc->far->budget,
	                      rc->lastthread.n_threads ? rc->lastthread.n_threads : MANY_THREADS);
}

/* ---- the thread ---- */

static void wait_for_work(struct fp_reclaim *rc, uint64_t until)
{
	struct pollfd fds[2 + FP_STORE_MAX_NODES] = {{.fd = rc->far->budget.kick_fd, .events = POLLIN}};
	uint64_t now = fp_clock_ns(), lane_ns;
	unsigned n = 1;
	struct timespec ts;
	eventfd_t ignored;

	if (rc->reads)
		fds[n++] = (struct pollfd){.fd = rc->far->uffd.fd, .events = POLLIN};
	if (rc->lane) {
		n += fp_lane_pollfds(rc->lane, fds + n, FP_STORE_MAX_NODES, &lane_ns);
		until = FP_MIN(until, lane_ns);
	}
	fp_clock_sleep(until);
	until = until > now ? until - now : 0;
	ts = (struct timespec){.tv_sec = (time_t)(until / FP_NSEC_PER_SEC),
	                       .tv_nsec = (long)(until % FP_NSEC_PER_SEC)};
	ppoll(fds, n, &ts, NULL);
	fp_clock_wake();
	/*
	 * in this order: otherwise a kick that comes in between would count as given, but its
	 * signal would be lost
	 */
	eventfd_read(rc->far->budget.kick_fd, &ignored);
	atomic_store(&rc->far->budget.kicked, false);
}

/* The time of the next look for work, if nothing wakes the thread before. */
static uint64_t next_turn(const struct fp_reclaim *rc, uint64_t next_tick_ns)
{
	if (rc->adopting)
		return 0;
	return rc->stuck ? FP_MIN(next_tick_ns, rc->retry_ns) : next_tick_ns;
}

static void *run(void *arg)
{
	struct fp_reclaim *rc = arg;
	uint64_t next_tick_ns = 0;

	fp_affinity_join(rc->affinity);
	while (!atomic_load(&rc->stopping)) {
		wait_for_work(rc, next_turn(rc, next_tick_ns));
		if (rc->reads)
			fp_far_check_bare_calls(rc->far);
		fp_evictor_reap(rc->evictor);
		rc->tend(rc->arg);
		fp_lost_report(rc->far);
		extend_store(rc);
		run_pageout(rc);
		keep_room(rc);
		atomic_store(&rc->resting,
		             atomic_load(&rc->far->fork_freeze) && !fp_evictor_busy(rc->evictor));
		housekeep(rc, &next_tick_ns);
	}
	publish(rc);
	return NULL;
}

/* ---- calls of other threads ---- */

void fp_reclaim_pageout(struct fp_reclaim *rc, uint32_t page, uint32_t n)
{
	pthread_mutex_lock(&rc->turn);
	rc->pageout.page = page;
	rc->pageout.n = n;
	atomic_store(&rc->pageout.wanted, true);
	while (atomic_load(&rc->pageout.wanted)) {
		fp_budget_kick(&rc->far->budget);
		usleep(POLL_US);
	}
	pthread_mutex_unlock(&rc->turn);
}

void fp_reclaim_freeze(struct fp_reclaim *rc)
{
	atomic_store(&rc->resting, false); /* the old value may be from an earlier freeze */
	atomic_store(&rc->far->fork_freeze, true);
	while (!atomic_load(&rc->resting) || atomic_load(&rc->far->evicting)) {
		fp_budget_kick(&rc->far->budget);
		usleep(POLL_US);
	}
}

void fp_reclaim_thaw(struct fp_reclaim *rc)
{
	atomic_store(&rc->far->fork_overdraw, false);
	atomic_store(&rc->far->fork_freeze, false);
	fp_budget_kick(&rc->far->budget);
}

/* ---- life ---- */

static void reclaim_free(struct fp_reclaim *rc)
{
	fp_evictor_free(rc->evictor);
	fp_lane_close(rc->lane);
	pthread_mutex_destroy(&rc->turn);
	fp_lockedmem_free(rc, sizeof(*rc));
}

static int open_path(struct fp_reclaim *rc, char *stage)
{
	int r = 0;

	if (!fp_store_is_direct(rc->far->store))
		r = fp_lane_open(rc->far->store, FP_STAGE_PAGES, &rc->lane);
	return r < 0 ? r : fp_evictor_new(rc->far, rc->lane, stage, &rc->evictor);
}

int fp_reclaim_start(const struct fp_reclaim_options *options, struct fp_reclaim **ret_reclaim)
{
	struct fp_reclaim *rc = fp_lockedmem_new(sizeof(*rc));
	int r;

	if (!rc)
		return -ENOMEM;
	rc->far = options->far;
	rc->affinity = options->affinity;
	rc->tend = options->tend;
	rc->arg = options->arg;
	fp_lost_forget(rc->far); /* a forked child begins without reports */
	rc->reads = rc->far->uffd.sigbus;
	pthread_mutex_init(&rc->turn, NULL);
	/* a blocking userfaultfd makes poll report an error */
	r = rc->reads ? fp_uffd_set_nonblock(&rc->far->uffd, true) : 0;
	if (r == 0)
		r = open_path(rc, options->stage);
	if (r == 0)
		r = fp_thread_start(&rc->thread, "farpage-reclaim", run, rc);
	if (r < 0) {
		reclaim_free(rc);
		return r;
	}
	*ret_reclaim = rc;
	return 0;
}

void fp_reclaim_stop(struct fp_reclaim *rc)
{
	if (!rc)
		return;
	atomic_store(&rc->stopping, true);
	atomic_store(&rc->far->budget.kicked, false);
	fp_budget_kick(&rc->far->budget);
	fp_thread_join(&rc->thread);
	reclaim_free(rc);
}

void fp_reclaim_abandon(struct fp_reclaim *rc)
{
	if (!rc)
		return;
	fp_thread_abandon(&rc->thread);
	reclaim_free(rc);
}

const struct fp_thread *fp_reclaim_thread(const struct fp_reclaim *rc)
{
	return &rc->thread;
}
