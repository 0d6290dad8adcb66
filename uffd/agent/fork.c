/*
 * fork: the child sees exactly the parent's bytes at the moment of the fork. It costs no more than
 * a fork: no page is fetched. See agent.h, fp_agent_fork_*, and doc/architecture.md. Room:
 * uffd/agent.
 *
 *     parent                                 child
 *     quiet: no control call is under way,
 *       nothing leaves, reconnector paused
 *     prepare: layout locked, slots shared
 *     fork ────────────────────────────────► own userfaultfd and threads; a look at each word; returns
 *     thaw, unlock, reconnector resumed           reconnector: own sessions, which adopt the parent's leases
 *
 * Faults of the parent's other threads go on meanwhile. The pages that they bring in may overdraw
 * the budget. While the kernel copies the page tables, it installs no page. A page's word says
 * ARRIVING before the page is there, and RESIDENT only after that. So the child can rely on each
 * word; for ARRIVING it asks the kernel.
 */
#include "agent_priv.h"

#include <assert.h>
#include <errno.h>
#include <langinfo.h>
#include <link.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "end.h"
#include "fdutil.h"
#include "inline.h"
#include "lastthread.h"
#include "local_stack.h"
#include "log.h"
#include "agent_sigmask.h"
#include "thread.h"

#define CHILD_LEASE_BYTES (8ull << 20)
#define CHUNK_PAGES       (1u << FP_CHUNK_SHIFT)
#define NODE_LOOK_US      1000u
#define ALONE_LOOKS       20u
#define ALONE_LOOK_US     1000u

#define LIBRARY_RECORD_BYTES 2048 /* more than the C library keeps for one library */
#define LIBRARIES_MAX        65536u

/*
 * Calls `act` once for each stretch of far memory that has no foreign piece: foreign pieces are
 * skipped. Returns 0, or the error that `act` returned.
 */
static int each_stretch(struct fp_agent *agent,
                        int (*act)(struct fp_agent *agent, uint32_t start, uint32_t end))
{
	const struct fp_layout *layout = &agent->space.layout;
	uint32_t start = 0, end = (uint32_t)agent->far.n_pages;
	const struct fp_piece *p;
	int r = 0;

	for (p = fp_layout_next(layout, 0); p && r == 0; p = fp_layout_next(layout, p->end)) {
		if (!(p->flags & FP_PIECE_FOREIGN))
			continue;
		if (p->start > start)
			r = act(agent, start, p->start);
		start = p->end;
	}
	return r < 0 || start == end ? r : act(agent, start, end);
}

static int let_inherit(struct fp_agent *agent, uint32_t start, uint32_t end)
{
	fp_far_inherit(&agent->far, start, end - start, true);
	return 0;
}

static int keep_out(struct fp_agent *agent, uint32_t start, uint32_t end)
{
	fp_far_inherit(&agent->far, start, end - start, false);
	return 0;
}

bool fp_agent_is_alone(const struct fp_agent *agent)
{
	bool alone;

	for (unsigned i = 0; !(alone = fp_lastthread_count(agent->far.stat_fd) == 1) && i < ALONE_LOOKS; i++)
		usleep(ALONE_LOOK_US);
	return alone;
}

/* ---- room for the copies ---- */

/* How many pages a child has: all far ones, except those that it drops or that begin as zeros. */
static uint64_t count_inherited(struct fp_agent *agent)
{
	const uint32_t apart = FP_PIECE_AGENT | FP_PIECE_DONTFORK | FP_PIECE_WIPEONFORK;
	const struct fp_layout *layout = &agent->space.layout;
	uint64_t n = 0;

	fp_space_lock(&agent->space);
	for (const struct fp_piece *p = fp_layout_after(layout, 0); p; p = fp_layout_after(layout, p->end))
		n += p->flags & apart ? 0 : p->end - p->start;
	fp_space_unlock(&agent->space);
	return n;
}

int fp_agent_fork_room(struct fp_agent *agent)
{
	uint64_t n_resident = atomic_load(&agent->far.budget.resident);

	if (agent->space.overcommit)
		return 0;
	return fp_store_fork_room(agent->far.store, n_resident, count_inherited(agent)) < 0 ? -ENOMEM : 0;
}

/* ---- before the fork ---- */

/* glibc's list of all open streams: exported since 2.2.5, but declared in no header. */
extern FILE *_IO_list_all __attribute__((weak));
extern void _IO_list_lock(void) __attribute__((weak));
extern void _IO_list_unlock(void) __attribute__((weak));

static void bring_in(struct fp_agent *agent, const volatile void *addr, size_t len)
{
	struct fp_inline *servers = atomic_load(&agent->far.inline_servers);
	uint32_t page = fp_far_page(&agent->far, (uintptr_t)addr);

	if (!servers) /* the fault thread serves this touch */
		(void)*(const volatile char *)addr;
	else if (fp_space_overlaps(&agent->space, (const void *)addr, len))
		fp_inline_bring(servers, page, fp_far_page(&agent->far, (uintptr_t)addr + len - 1) - page + 1,
		                false);
}

/*
 * Brings in all open streams. In the child, the C library resets the streams' locks before our
 * handler runs. If a stream's memory were remote, the C library would read zeros there. No page
 * leaves until the fork is over.
 */
static void touch_streams(struct fp_agent *agent)
{
	if (!&_IO_list_all || !_IO_list_lock || !_IO_list_unlock)
		return; /* another C library, which does not reset these locks */
	_IO_list_lock();
	for (FILE *f = _IO_list_all; f; f = f->_chain) {
		bring_in(agent, f, sizeof(*f));
		if (f->_lock)
			bring_in(agent, f->_lock, 1);
	}
	_IO_list_unlock();
}

/*
 * Copies memory of the program, up to the first byte that can't be read: other threads may change
 * the environment meanwhile. Brings in far pages. Returns the number of bytes copied.
 */
static size_t peek(struct fp_agent *agent, const void *from, void *to, size_t len)
{
	struct iovec local = {.iov_base = to, .iov_len = len};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)from, .iov_len = len};
	ssize_t n;

	if (atomic_load(&agent->far.inline_servers)) /* a touch by the kernel does not reach us as a fault */
		bring_in(agent, from, len);
	n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
	return n < 0 ? 0 : (size_t)n;
}

/*
 * Brings in the environment, which a program may have moved into far memory, to change its title in
 * ps. The child's reconnector uses libraries that read the environment. Such a read must not fault,
 * as the fault would wait for the reconnector.
 */
static void touch_environment(struct fp_agent *agent)
{
	char *some[64], *const *at = environ, first;
	size_t n = 0;

	for (size_t i = 0; at; i++) {
		if (i == n) {
			n = peek(agent, at, some, sizeof(some)) / sizeof(some[0]);
			at += n;
			i = 0;
		}
		if (n == 0 || !some[i])
			return;
		if (fp_space_owns(&agent->space, some[i]))
			(void)peek(agent, some[i], &first, sizeof(first));
	}
}

static bool any_cut_off(const struct fp_agent *agent)
{
	struct fp_store_node info;

	for (unsigned i = 0; i < fp_store_n_nodes(agent->far.store); i++) {
		fp_store_node_info(agent->far.store, i, &info);
		if (!info.up && info.state != FP_BREAKER_LOST && !info.spent && !info.adopting)
			return true;
	}
	return false;
}

/*
 * True if some fault waits for a node that is cut off: for a page that the node has, or first for a
 * token, because no page can leave while all nodes are cut off. A fault gets its token first, and
 * then waits for the page. So this looks at tokens first: otherwise it could miss a fault between
 * the two.
 */
static bool faults_wait(const struct fp_agent *agent)
{
	const struct fp_far *far = &agent->far;
	bool for_token = atomic_load(&far->budget.n_waiting) > 0;

	return fp_store_is_blocked(far->store) ||
	       (for_token && any_cut_off(agent) && fp_far_why_stuck(far) == -EHOSTDOWN);
}

/*
 * Waits for nodes that are cut off, until the deadline. After the deadline, waits only while some
 * fault waits for such a node: the fork may need that page, or a lock of the thread that waits for
 * it. Called before the reconnector is paused, because no link is resumed during a pause.
 */
static void await_nodes(const struct fp_agent *agent)
{
	uint64_t until_ns = fp_clock_ns() + agent->far.deadline_ns;

	while (faults_wait(agent) || (any_cut_off(agent) && fp_clock_ns() < until_ns))
		usleep(NODE_LOOK_US);
}

static void come_to_rest(struct fp_agent *agent)
{
	fp_space_stop_backing(&agent->space);
	fp_reclaim_freeze(agent->reclaim);
	fp_reconnector_pause(agent->reconnector);
}

static void go_on(struct fp_agent *agent)
{
	fp_reconnector_resume(agent->reconnector);
	fp_reclaim_thaw(agent->reclaim);
	fp_space_allow_backing(&agent->space);
}

/*
 * Ends the process if the stack is far: the child would run on this stack before it has an agent.
 * The shim's own fork has changed to a local stack by now.
 */
static void check_stack(void)
{
	if (fp_local_stack_is_far())
		fp_end_refused("fork",
		               "a fork on a stack in far memory, past the preload library's fork, can't be "
		               "followed: the child would read wrong bytes there. Fork on another stack, or "
		               "use posix_spawn");
}

/*
 * Brings in what a starting thread reads of the C library's records: the description of each
 * library, and the classes of characters of the locale. In the child, the agent's threads start
 * before anybody serves their faults. Other allocators than ours may have put these records into
 * far memory. The loader's lock can't be taken here, so the list may change: see peek.
 */
static void touch_library_records(struct fp_agent *agent)
{
	const struct link_map *map = _r_debug.r_map;
	locale_t own = uselocale(LC_GLOBAL_LOCALE);
	char copy[LIBRARY_RECORD_BYTES];

	(void)*(volatile const char *)nl_langinfo(_NL_CTYPE_CLASS);
	uselocale(own);
	for (unsigned i = 0; map && i < LIBRARIES_MAX; i++) {
		struct link_map seen;

		if (peek(agent, map, copy, sizeof(copy)) < sizeof(seen))
			return;
		memcpy(&seen, copy, sizeof(seen));
		map = seen.l_next;
	}
}

/*
 * Stops all work of the agent that allocates, before fork takes the locks of the allocator. Waits
 * for another thread's fork, for calls that take leases, for write-backs and for the reconnector.
 * The budget may be overdrawn only after that: from then on the fork waits for nothing else.
 */
void fp_agent_fork_quiet(struct fp_agent *agent)
{
	fp_far_check_family(&agent->far);
	check_stack();
	pthread_mutex_lock(&agent->fork_turn);
	await_nodes(agent);
	come_to_rest(agent);
	while (faults_wait(agent)) {
		go_on(agent);
		await_nodes(agent);
		come_to_rest(agent);
	}
	fp_store_hurry(agent->far.store, true);
	atomic_store(&agent->far.fork_overdraw, true);
}

void fp_agent_fork_prepare(struct fp_agent *agent)
{
	fp_affinity_forking(&agent->affinity);
	fp_space_lock(&agent->space);
	touch_streams(agent);
	touch_environment(agent);
	if (agent->options.foreign_malloc)
		touch_library_records(agent);
	atomic_store(&agent->far.forked, true);
	(void)fp_store_fork_prepare(agent->far.store); /* on failure, the child gets the error and ends */
	each_stretch(agent, let_inherit);
}

/* ---- the parent ---- */

void fp_agent_fork_parent(struct fp_agent *agent)
{
	each_stretch(agent, keep_out);
	fp_store_fork_parent(agent->far.store, true); /* the store itself sees if there is no child */
	fp_store_hurry(agent->far.store, false);
	go_on(agent);
	pthread_mutex_unlock(&agent->fork_turn);
	fp_space_unlock(&agent->space);
}

/* ---- the child ---- */

static void refuse(const char *why)
{
	fp_end_refused("fork",
	               "the child can't get its own far memory (%s); it ends here rather than read wrong "
	               "bytes. Use posix_spawn, or keep this program's memory local (--heap none)",
	               why);
}

/* Drops the state of the parent's threads. Sends nothing to the threads or the nodes. */
static void drop_inherited(struct fp_agent *agent)
{
	struct fp_far *far = &agent->far;

	fp_fault_loop_abandon(agent->fault_loop);
	fp_inline_abandon(atomic_exchange(&far->inline_servers, NULL));
	fp_reclaim_abandon(agent->reclaim);
	fp_reconnector_abandon(agent->reconnector);
	fp_fdguard_abandon(&agent->guard);
	agent->fault_loop = NULL;
	agent->reclaim = NULL;
	agent->reconnector = NULL;
	fp_budget_show_peak(&far->budget, NULL);
	fp_agent_stats_close(agent);
	fp_agent_close_kernel(agent);
}

static int renew_budget(struct fp_far *far)
{
	uint64_t budget = atomic_load(&far->budget.pages);
	int r = fp_far_renew_queue(far);

	fp_budget_done(&far->budget);
	atomic_store(&far->lost.may_return, false);
	atomic_store(&far->evicting, 0);
	atomic_store(&far->copying, 0);
	atomic_store(&far->closing, 0);
	atomic_store(&far->bringing, 0);
	return r < 0 ? r : fp_budget_init(&far->budget, budget);
}

static int take_over(struct fp_agent *agent, uint32_t start, uint32_t end)
{
	return fp_uffd_register(&agent->far.uffd, fp_far_addr(&agent->far, start),
	                        (size_t)(end - start) << FP_PAGE_SHIFT);
}

static int renew_stats(struct fp_agent *agent, uint64_t mapped_peak_bytes, struct fp_agent_error *error)
{
	struct fp_far *far = &agent->far;
	int r = fp_agent_stats_open(agent, error);

	if (r < 0)
		return r;
	atomic_store(&far->stats->mapped_bytes, agent->space.layout.mapped << FP_PAGE_SHIFT);
	atomic_store(&far->stats->mapped_peak_bytes, mapped_peak_bytes);
	atomic_store(&far->stats->budget_bytes, atomic_load(&far->budget.pages) << FP_PAGE_SHIFT);
	return 0;
}

/* ---- the child's pages ---- */

/*
 * True if the page is in memory or in swap. To find out, installs a page there. If that succeeds,
 * the page was absent, and the new one is dropped.
 */
static bool is_present(const struct fp_far *far, uint32_t page)
{
	void *addr = fp_far_addr(far, page);
	ssize_t r = fp_uffd_copy(&far->uffd, addr, fp_zeros, FP_PAGE_SIZE, false);

	if (r == -EEXIST)
		return true;
	if (r != (ssize_t)FP_PAGE_SIZE || madvise(addr, FP_PAGE_SIZE, MADV_DONTNEED) < 0)
		refuse("which of its pages are there can't be asked");
	return false;
}

static void free_slot_of(struct fp_far *far, uint64_t word)
{
	if (fp_page_slot(word))
		fp_store_slot_free(far->store, fp_page_slot(word));
}

/*
 * True if the parent lost the page, but not for good. The child then asks its nodes for the page
 * again.
 */
static bool may_revive(const struct fp_far *far, uint32_t page, uint64_t word)
{
	return !(word & FP_PAGE_DIRTY) &&
	       madvise(fp_far_addr(far, page), FP_PAGE_SIZE, MADV_DONTNEED) == 0; /* removes the poison */
}

/*
 * Sets the word that a page has in the child. A resident page counts as written and loses its slot:
 * the child's page table has lost the write protection. For a page that was arriving at the fork,
 * the kernel says whether it is present. If it is absent and was being fetched, it is remote.
 */
static unsigned adopt(struct fp_far *far, uint32_t page, uint64_t old)
{
	enum fp_page_state state = fp_page_state(old);
	uint64_t history = old & FP_PAGE_HIST_MASK, word = FP_PAGE_ZERO;
	bool arrives = state == FP_PAGE_ARRIVING && !fp_far_is_foreign(far, page);

	assert(state != FP_PAGE_LEAVING && state != FP_PAGE_CLAIMED); /* frozen reclaim, locked layout */
	if (state == FP_PAGE_RESIDENT || (arrives && is_present(far, page))) {
		free_slot_of(far, old);
		word = FP_PAGE_RESIDENT | FP_PAGE_DIRTY | FP_PAGE_QUEUED | history;
		fp_evict_queue_push(&far->evict_queue, page, 0);
	} else if (state == FP_PAGE_LOST && !may_revive(far, page, old)) {
		free_slot_of(far, old);
		word = FP_PAGE_LOST | FP_PAGE_DIRTY;
	} else if (fp_page_slot(old) && !(old & FP_PAGE_DIRTY)) {
		word = fp_page_with_slot(FP_PAGE_REMOTE | history | (old & FP_PAGE_PAST_MASK),
		                         fp_page_slot(old));
	} else {
		free_slot_of(far, old);
	}
	if (word != old)
		atomic_store_explicit(&far->words[page], word, memory_order_relaxed);
	return fp_page_state(word) == FP_PAGE_RESIDENT;
}

/*
 * Calls act for the pages of [start, end) in touched chunks; all other pages are ZERO. Reads
 * far->touched word by word, 64 chunks at once, because the range has millions of chunks. Returns
 * the sum of act's results.
 */
static unsigned each_touched(struct fp_far *far, uint32_t start, uint32_t end,
                             unsigned (*act)(struct fp_far *far, uint32_t page))
{
	unsigned sum = 0;

	for (uint64_t p = start; p < end;) {
		uint64_t chunk = p >> FP_CHUNK_SHIFT;
		uint64_t word = atomic_load_explicit(&far->touched[chunk / 64], memory_order_relaxed);
		uint64_t chunk_end = (chunk + 1) << FP_CHUNK_SHIFT;

		if (!word)
			p = (chunk / 64 + 1) << (FP_CHUNK_SHIFT + 6);
		else if (!(word >> (chunk & 63) & 1))
			p = chunk_end;
		else
			for (; p < FP_MIN((uint64_t)end, chunk_end); p++)
				sum += act(far, (uint32_t)p);
	}
	return sum;
}

static unsigned adopt_page(struct fp_far *far, uint32_t page)
{
	uint64_t old = atomic_load_explicit(&far->words[page], memory_order_relaxed);

	/*
	 * the word may say QUEUED, even if the page is not mapped: the page is in the parent's
	 * queue then, as the child's own queue is empty
	 */
	return old == FP_PAGE_ZERO ? 0 : adopt(far, page, old);
}

static unsigned forget_page(struct fp_far *far, uint32_t page)
{
	free_slot_of(far, atomic_load_explicit(&far->words[page], memory_order_relaxed));
	atomic_store_explicit(&far->words[page], FP_PAGE_ZERO, memory_order_relaxed);
	return 1;
}

/* ---- the child's layout ---- */

static int forget_pages(struct fp_far *far, uint32_t start, uint32_t end)
{
	each_touched(far, start, end, forget_page);
	return madvise(fp_far_addr(far, start), (size_t)(end - start) << FP_PAGE_SHIFT, MADV_DONTNEED) < 0
	           ? -errno
	           : 0;
}

/*
 * Follows the advice of MADV_DONTFORK (drops the pages) and MADV_WIPEONFORK (zeroes them) in the
 * child.
 */
static int follow_advice(struct fp_agent *agent)
{
	struct fp_layout *layout = &agent->space.layout;
	struct fp_far *far = &agent->far;
	const struct fp_piece *p;
	uint64_t reserved;
	int r = 0;

	for (p = fp_layout_after_with(layout, 0, FP_PIECE_WIPEONFORK); p && r == 0;
	     p = fp_layout_after_with(layout, p->end, FP_PIECE_WIPEONFORK))
		r = forget_pages(far, p->start, p->end);
	while (r == 0 && (p = fp_layout_after_with(layout, 0, FP_PIECE_DONTFORK))) {
		uint32_t start = p->start, end = p->end;

		r = forget_pages(far, start, end);
		if (r == 0 &&
		    mprotect(fp_far_addr(far, start), (size_t)(end - start) << FP_PAGE_SHIFT, PROT_NONE) < 0)
			r = -errno;
		if (r == 0)
			r = fp_layout_remove(layout, start, end, &reserved);
	}
	return r;
}

/* From now on no inherited memory has reserved slots in the child. */
static int ease_layout(struct fp_layout *layout)
{
	const struct fp_piece_change ease = {.prot = -1, .ease = true};

	return fp_layout_change(layout, 0, layout->end, &ease);
}

/* ---- the child begins ---- */

static int renew_kernel(struct fp_agent *agent, struct fp_agent_error *error)
{
	struct fp_far *far = &agent->far;
	int r = fp_agent_open_kernel(agent, error);

	if (r < 0)
		return r;
	snprintf(error->text, sizeof(error->text), "registering its range with userfaultfd failed");
	/* drops what the parent's threads had staged, and the stop page, which must be absent */
	madvise(far->base, (size_t)FP_FAR_OWN_PAGES << FP_PAGE_SHIFT, MADV_DONTNEED);
	r = each_stretch(agent, take_over);
	return r < 0 ? r : renew_budget(far);
}

static int adopt_pages(struct fp_agent *agent)
{
	struct fp_far *far = &agent->far;
	int r = follow_advice(agent);
	unsigned n_resident;

	if (r == 0)
		r = ease_layout(&agent->space.layout);
	if (r < 0)
		return r;
	n_resident = each_touched(far, FP_MAX(far->first, FP_FAR_OWN_PAGES), far->last, adopt_page);
	if (n_resident)
		fp_budget_overdraw(&far->budget, n_resident);
	return 0;
}

/* Opens the child's store with small leases: most children write little, and there may be many. */
static int renew_store(struct fp_agent *agent)
{
	struct fp_store_options options = fp_agent_store_options(agent);

	options.lease_bytes = CHILD_LEASE_BYTES;
	return fp_store_fork_child(agent->far.store, &options);
}

static void start_over(struct fp_agent *agent)
{
	uint64_t mapped_peak = atomic_load(&agent->far.stats->mapped_peak_bytes);
	struct fp_agent_error error;
	int r;

	drop_inherited(agent);
	r = renew_kernel(agent, &error);
	if (r < 0)
		refuse(error.text);
	r = renew_store(agent);
	if (r == 0)
		r = adopt_pages(agent);
	if (r < 0)
		refuse(strerror(-r));
	r = renew_stats(agent, mapped_peak, &error);
	if (r < 0)
		refuse(error.text);
	fp_agent_pin_forked(agent);
	r = fp_agent_start_threads(agent, &error);
	if (r < 0)
		refuse(error.text);
	fp_reclaim_thaw(agent->reclaim);
}

void fp_agent_fork_child(struct fp_agent *agent)
{
	fp_clock_forked();
	fp_fd_forked();
	fp_agent_enter_local(agent);
	each_stretch(agent, keep_out);
	fp_far_join_family(&agent->far);
	agent->is_child = true;
	fp_affinity_forked(&agent->affinity);
	fp_agent_affinity_init(agent, agent->options.affinity);
	pthread_mutex_init(&agent->fork_turn, NULL);
	pthread_mutex_init(&agent->space.lock, NULL);
	fp_space_allow_backing(&agent->space);
	start_over(agent);
	fp_agent_leave_local(agent);
	fp_agent_sigmask_forked();
}
