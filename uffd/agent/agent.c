/* See agent.h. */
#include "agent.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <fcntl.h>

#include "agent_priv.h"
#include "abi.h"
#include "process_memory.h"
#include "cleanup.h"
#include "clock.h"
#include "evict.h"
#include "fdutil.h"
#include "inline.h"
#include "log.h"
#include "log_writer.h"
#include "kernel_filled.h"
#include "agent_sigmask.h"
#include "local_stack.h"
#include "rdma_options.h"
#include "secret.h"
#include "sigbus.h"
#include "thread.h"

#define DEADLINE_DEFAULT_NS (5000000000ull)
#define PERCENT_FLOOR_BYTES (16ull << 20)

static int fail(struct fp_agent_error *error, int r, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct fp_agent_error *error, int r, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return r;
}

void fp_agent_enter_local(const struct fp_agent *agent)
{
	if (agent->options.enter_local)
		agent->options.enter_local();
}

void fp_agent_leave_local(const struct fp_agent *agent)
{
	if (agent->options.leave_local)
		agent->options.leave_local();
}

uint64_t fp_agent_enter(const struct fp_agent *agent)
{
	uint64_t mask = fp_agent_sigmask_block(false, agent->far.uffd.sigbus);

	fp_agent_enter_local(agent);
	return mask;
}

void fp_agent_leave(const struct fp_agent *agent, uint64_t mask)
{
	fp_agent_leave_local(agent);
	fp_agent_sigmask_restore(mask);
}

static void await_adoption(struct fp_store *store)
{
	while (fp_store_adopts(store, FP_NSEC_PER_SEC))
		;
}

void fp_agent_await_sessions(struct fp_agent *agent)
{
	int saved = errno;
	uint64_t mask;

	if (!fp_store_lacks_sessions(agent->far.store) || fp_agent_is_stray(agent))
		return;
	mask = fp_agent_sigmask_block(true, agent->far.uffd.sigbus);
	FP_ON_LOCAL_STACK(await_adoption, agent->far.store, 0, 0, 0, 0, 0);
	errno = saved;
	fp_agent_sigmask_restore(mask);
}

bool fp_agent_needs_network(const struct fp_agent *agent)
{
	return !fp_store_is_direct(agent->far.store);
}

struct fp_space *fp_agent_space(struct fp_agent *agent)
{
	return &agent->space;
}

struct fp_statspage *fp_agent_stats(struct fp_agent *agent)
{
	return agent->far.stats;
}

void fp_agent_be_wary(struct fp_agent *agent)
{
	fp_far_be_wary(&agent->far);
}

bool fp_agent_is_stray(const struct fp_agent *agent)
{
	return fp_far_is_stray(&agent->far);
}

void fp_agent_stop_stray(const struct fp_agent *agent)
{
	fp_far_check_family(&agent->far);
}

bool fp_agent_is_own_thread(void)
{
	return fp_thread_is_own();
}

void fp_agent_affinity_init(struct fp_agent *agent, enum fp_affinity_mode mode)
{
	fp_affinity_init(&agent->affinity, mode != FP_AFFINITY_OFF);
	agent->affinity.only_bound = mode == FP_AFFINITY_BOUND;
}

void fp_agent_affinity_release(struct fp_agent *agent, bool anyone)
{
	fp_affinity_release(&agent->affinity, anyone);
}

int fp_agent_check_kernel(struct fp_agent_error *error)
{
	struct fp_uffd uffd;
	int r = fp_uffd_open(0, &uffd);

	if (r < 0) {
		fp_uffd_explain(r, error->text, sizeof(error->text));
		return r;
	}
	fp_uffd_close(&uffd);
	return 0;
}

/* ---- the budget ---- */

static void apply_budget(struct fp_agent *agent, uint64_t bytes)
{
	uint64_t pages = bytes >> FP_PAGE_SHIFT;

	fp_evict_queue_set_budget(&agent->far.evict_queue, pages);
	atomic_store(&agent->far.budget.pages, pages);
	atomic_store(&agent->far.stats->budget_bytes, pages << FP_PAGE_SHIFT);
	fp_budget_kick(&agent->far.budget);
}

static void on_growth(void *arg, uint64_t mapped_bytes)
{
	struct fp_agent *agent = arg;

	if (agent->local_percent)
		apply_budget(agent, FP_MAX(mapped_bytes / 100 * agent->local_percent, PERCENT_FLOOR_BYTES));
}

/* ---- start ---- */

int fp_agent_open_kernel(struct fp_agent *agent, struct fp_agent_error *error)
{
	enum fp_capture_mode capture = agent->options.capture;
	bool is_inline = agent->options.fault_mode == FP_FAULT_MODE_INLINE;
	unsigned flags = (is_inline ? FP_UFFD_SIGBUS : 0) | (agent->options.pins ? FP_UFFD_USER_ONLY : 0);
	struct fp_far *far = &agent->far;
	int r = fp_uffd_open(flags, &far->uffd);

	if (r < 0) {
		fp_uffd_explain(r, error->text, sizeof(error->text));
		return r;
	}
	if (capture == FP_CAPTURE_MOVE && !far->uffd.has_move)
		return fail(error, -EOPNOTSUPP,
		            "capture: this kernel has no UFFDIO_MOVE (Linux 6.8): use auto or protect");
	far->capture_by_move = far->uffd.has_move && capture != FP_CAPTURE_PROTECT;
	far->mem_fd = FP_FD_OPEN(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
	r = far->mem_fd < 0 ? fp_process_memory_check() : 0;
	if (r < 0)
		return fail(error, r,
		            "there is no /proc/self/mem, and process_vm_readv is refused (%s): mount "
		            "/proc where the program has its root folder",
		            strerror(-r));
	far->stat_fd = FP_FD_OPEN(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
	far->pagemap_fd = FP_FD_OPEN(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	far->pidfd = FP_FD_OPEN((int)syscall(SYS_pidfd_open, getpid(), 0));
	return 0;
}

void fp_agent_close_kernel(struct fp_agent *agent)
{
	struct fp_far *far = &agent->far;

	fp_uffd_close(&far->uffd);
	fp_fd_close(far->pidfd);
	fp_fd_close(far->mem_fd);
	fp_fd_close(far->stat_fd);
	fp_fd_close(far->pagemap_fd);
	far->pidfd = far->mem_fd = far->stat_fd = far->pagemap_fd = -1;
}

/*
 * Finds out whether process_madvise lets a process give itself any advice. A kernel before 6.13
 * refuses most advice. There the agent calls madvise, once for each run of pages.
 */
static void probe_process_madvise(struct fp_far *far)
{
	struct iovec run = {.iov_base = far->base, .iov_len = FP_PAGE_SIZE};

	if (far->pidfd >= 0 &&
	    syscall(SYS_process_madvise, far->pidfd, &run, 1, MADV_DONTNEED, 0) != (ssize_t)run.iov_len) {
		fp_fd_close(far->pidfd);
		far->pidfd = -1;
	}
}

static void on_notice(void *user, enum fp_log_level level, const char *text)
{
	fp_log(level, "store", "%s", text);
}

struct fp_store_options fp_agent_store_options(const struct fp_agent *agent)
{
	const struct fp_agent_options *options = &agent->options;

	return (struct fp_store_options){
	    .urls = options->urls,
	    .n_urls = options->n_urls,
	    .secret = options->secret,
	    .rdma = options->rdma,
	    .deadline_ns = agent->far.deadline_ns,
	    .patience_ns = options->on_loss == FP_ON_LOSS_WAIT ? UINT64_MAX : options->patience_ns,
	    .connect_ns = options->connect_ns,
	    .heartbeat_ns = options->heartbeat_ns,
	    .reconnect = options->reconnect,
	    .notice = on_notice,
	};
}

static int open_store(struct fp_agent *agent, struct fp_agent_error *error)
{
	struct fp_store_options store = fp_agent_store_options(agent);
	struct fp_refusal refusal = {.cause = FP_REFUSAL_NONE};
	const char *failed = NULL;
	char reason[FP_EXPLAIN_LEN];
	int r;

	store.refusal = &refusal;
	r = fp_store_open(&store, &agent->far.store, &failed);
	if (r < 0)
		return fail(error, r, "node %s: %s", failed ? failed : "?",
		            fp_session_explain(r, &refusal, store.rdma, reason, sizeof(reason)));
	return 0;
}

/* The first pages of the range are the agent's own: stages and the stop page. */
static int open_internal(struct fp_agent *agent)
{
	struct fp_piece piece = {.start = 0,
	                         .end = FP_FAR_OWN_PAGES,
	                         .prot = PROT_READ | PROT_WRITE,
	                         .flags = FP_PIECE_AGENT,
	                         .lazy = true};
	int r = fp_layout_add(&agent->space.layout, piece);

	if (r < 0)
		return r;
	agent->space.layout.mapped = 0;
	if (mprotect(agent->far.base, (size_t)FP_FAR_OWN_USED << FP_PAGE_SHIFT, piece.prot) < 0)
		return -errno;
	return 0;
}

static int start_reconnector(struct fp_agent *agent)
{
	const struct fp_reconnector_options options = {
	    .store = agent->far.store,
	    .enter_local = agent->options.enter_local,
	    .leave_local = agent->options.leave_local,
	    .keeps_names = agent->options.foreign_malloc,
	};

	return fp_reconnector_start(&options, &agent->reconnector);
}

/*
 * Starts the servers of inline faults and of pins. These servers get the stage only if there is no
 * fault thread, because a fault thread uses the stage itself.
 */
static int start_inline(struct fp_agent *agent, const struct fp_fault_options *fault)
{
	const struct fp_inline_options options = {
	    .far = &agent->far,
	    .layout = fault->layout,
	    .stage = agent->far.uffd.sigbus ? fault->stage : NULL,
	    .readahead_pages = fault->readahead_pages,
	};
	struct fp_inline *servers;
	int r = fp_inline_start(&options, &servers);

	if (r == 0)
		atomic_store(&agent->far.inline_servers, servers);
	return r;
}

/*
 * The last step before the program runs: by now all vital descriptors are open. The descriptors of
 * links are not vital. If the program closes one, the agent logs that, and no byte becomes wrong.
 */
static int start_guard(struct fp_agent *agent, struct fp_agent_error *error)
{
	const struct fp_far *far = &agent->far;
	const int own[] = {far->uffd.fd,       far->pidfd,      far->mem_fd,
	                   far->stat_fd,       far->pagemap_fd, far->budget.starved_fd,
	                   far->budget.kick_fd};
	static _Atomic uint8_t n_guards; /* atomic, as several far memories may start at once */
	int r;

	agent->guard.mark = atomic_fetch_add(&n_guards, 1);
	for (unsigned i = 0; i < FP_ARRAY_LEN(own); i++)
		fp_fd_make_vital(own[i], agent->guard.mark);
	fp_store_mark_vital_fds(far->store, agent->guard.mark);
	r = fp_fdguard_start(&agent->guard, fp_reclaim_thread(agent->reclaim));
	if (r < 0)
		return fail(error, r, "the thread that guards descriptors can't be started: %s",
		            strerror(-r));
	r = fp_fdguard_wait(&agent->guard);
	if (r < 0)
		return fail(
		    error, r,
		    "a thread of ours gets no descriptor table of its own: close_range with "
		    "CLOSE_RANGE_UNSHARE: %s. It needs Linux 5.9, and a filter of system calls (seccomp) "
		    "must allow it",
		    strerror(-r));
	return 0;
}

/* A node may be the reason, by a limit or because it is cut off: each thread needs a link to each
 * node. */
static int fail_threads(const struct fp_agent *agent, struct fp_agent_error *error, int r)
{
	char reason[FP_REFUSAL_TEXT_LEN];
	struct fp_store_node info;

	for (unsigned i = 0; r == -EUSERS && i < fp_store_n_nodes(agent->far.store); i++) {
		fp_store_node_info(agent->far.store, i, &info);
		if (info.refusal.cause != FP_REFUSAL_NONE)
			return fail(error, r, "node %s: %s", info.url,
			            fp_refusal_explain(&info.refusal, reason, sizeof(reason)));
	}
	if (r == -ETIMEDOUT || r == -ECONNREFUSED || r == -ECONNRESET || r == -EPIPE) {
		fp_store_node_info(agent->far.store, 0, &info);
		return fail(error, r, "node %s%s: a link can't be opened: %s", info.url,
		            fp_store_n_nodes(agent->far.store) > 1 ? " or another" : "", strerror(-r));
	}
	return fail(error, r, "the fault threads can't be started: %s", strerror(-r));
}

static void tend(void *arg)
{
	struct fp_agent *agent = arg;

	fp_inline_tend(atomic_load(&agent->far.inline_servers));
	fp_agent_stats_tend(agent);
}

int fp_agent_start_threads(struct fp_agent *agent, struct fp_agent_error *error)
{
	struct fp_reclaim_options reclaim = {
	    .far = &agent->far,
	    .stage = agent->far.base,
	    .affinity = &agent->affinity,
	    .tend = tend,
	    .arg = agent,
	};
	struct fp_fault_options fault = {
	    .far = &agent->far,
	    .stage = fp_far_addr(&agent->far, 2 * FP_STAGE_PAGES),
	    .stop_page = fp_far_addr(&agent->far, 4 * FP_STAGE_PAGES),
	    .readahead_pages = agent->options.readahead_pages,
	    .layout = &agent->space.layout,
	    .affinity = &agent->affinity,
	};
	int r;

	if (!fp_agent_needs_pins(agent)) /* kernel-filled pages can't be pinned */
		fp_kernel_filled_open(&agent->far);
	atomic_store(&agent->far.stats->far_start, (uintptr_t)agent->far.base);
	atomic_store(&agent->far.stats->far_end,
	             (uintptr_t)agent->far.base + (agent->far.n_pages << FP_PAGE_SHIFT));
	fp_budget_show_peak(&agent->far.budget, &agent->far.stats->resident_peak_bytes);
	r = fp_log_writer_start();
	agent->has_log_writer = r == 0;
	if (r == 0)
		r = fp_reclaim_start(&reclaim, &agent->reclaim);
	if (r < 0)
		return fail_threads(agent, error, r);
	agent->space.reclaim = agent->reclaim;
	if (fp_agent_needs_pins(agent))
		r = start_inline(agent, &fault);
	if (r == 0 && !agent->far.uffd.sigbus)
		r = fp_fault_loop_start(&fault, &agent->fault_loop);
	if (r == 0)
		r = start_reconnector(agent);
	return r < 0 ? fail_threads(agent, error, r) : start_guard(agent, error);
}

static int reserve_memory(struct fp_agent *agent)
{
	uint64_t bytes = agent->options.local_bytes ? agent->options.local_bytes : PERCENT_FLOOR_BYTES;
	int r = fp_far_reserve(&agent->far);

	if (r == 0)
		r = fp_budget_init(&agent->far.budget, bytes >> FP_PAGE_SHIFT);
	if (r == 0)
		r = fp_pin_table_init(&agent->far.pins);
	if (r == 0)
		r = fp_space_init(&agent->space, &agent->far, NULL);
	if (r < 0)
		return r;
	apply_budget(agent, bytes);
	return open_internal(agent);
}

static int open_all(struct fp_agent *agent, struct fp_agent_error *error)
{
	int r = fp_agent_open_kernel(agent, error);

	if (r == 0)
		r = open_store(agent, error);
	return r < 0 ? r : fp_agent_stats_open(agent, error);
}

static int check_options(const struct fp_agent_options *options, struct fp_agent_error *error)
{
	if (options->n_urls == 0 || options->n_urls > FP_STORE_MAX_NODES)
		return fail(error, -EINVAL, "nodes: between 1 and %d are needed", FP_STORE_MAX_NODES);
	if (options->local_bytes == 0 && (options->local_percent == 0 || options->local_percent > 100))
		return fail(error, -EINVAL, "local memory: a size, or 1%% to 100%%");
	if (options->local_bytes && options->local_bytes >> FP_PAGE_SHIFT < FP_BUDGET_MIN_PAGES)
		return fail(
		    error, -EINVAL, "local memory: %llu bytes is too little, at least %u KiB is needed",
		    (unsigned long long)options->local_bytes, FP_BUDGET_MIN_PAGES * FP_PAGE_SIZE / 1024);
	assert(options->fault_mode != FP_FAULT_MODE_INLINE || options->pins);
#if !defined(__x86_64__)
	if (options->fault_mode == FP_FAULT_MODE_INLINE) /* this mode's code is for x86-64 only */
		return fail(error, -ENOTSUP, "fault mode inline needs an x86-64 processor: use thread");
#endif
	return 0;
}

static void free_options(struct fp_agent_options *options)
{
	for (unsigned i = 0; options->urls && i < options->n_urls; i++)
		free((char *)options->urls[i]);
	free((void *)options->urls);
	fp_secret_free((char *)options->secret);
	fp_rdma_options_free((struct fp_rdma_options *)options->rdma);
	free((char *)options->stats_path);
	free((char *)options->stats_dir);
}

static int copy_options(struct fp_agent_options *to, const struct fp_agent_options *from)
{
	const char **urls = calloc(from->n_urls, sizeof(*urls));
	bool complete = urls;

	*to = *from;
	to->urls = urls;
	to->secret = from->secret ? strdup(from->secret) : NULL;
	to->rdma = from->rdma ? fp_rdma_options_dup(from->rdma) : NULL;
	to->stats_path = from->stats_path ? strdup(from->stats_path) : NULL;
	to->stats_dir = from->stats_dir ? strdup(from->stats_dir) : NULL;
	for (unsigned i = 0; urls && i < from->n_urls; i++)
		complete &= (urls[i] = strdup(from->urls[i])) != NULL;
	complete &= !from->secret == !to->secret && !from->rdma == !to->rdma &&
	            !from->stats_path == !to->stats_path && !from->stats_dir == !to->stats_dir;
	return complete ? 0 : -ENOMEM;
}

static int configure(struct fp_agent *agent, const struct fp_agent_options *options)
{
	agent->far = (struct fp_far){.uffd.fd = -1,
	                             .pidfd = -1,
	                             .mem_fd = -1,
	                             .stat_fd = -1,
	                             .pagemap_fd = -1,
	                             .budget.starved_fd = -1,
	                             .budget.kick_fd = -1};
	agent->far.deadline_ns = options->deadline_ns ? options->deadline_ns : DEADLINE_DEFAULT_NS;
	agent->local_percent = options->local_bytes ? 0 : options->local_percent;
	agent->far.low = options->low;
	agent->space.overcommit = options->overcommit;
	agent->space.on_growth = on_growth;
	agent->space.on_growth_arg = agent;
	fp_agent_affinity_init(agent, options->affinity);
	return copy_options(&agent->options, options);
}

static int take_signal(struct fp_agent *agent)
{
	int r = fp_sigbus_add(agent, (uintptr_t)agent->far.base, agent->far.n_pages << FP_PAGE_SHIFT);

	return r < 0 || agent->options.own_handler ? r : fp_sigbus_install();
}

static int start(struct fp_agent *agent, const struct fp_agent_options *options, struct fp_agent_error *error)
{
	int r = configure(agent, options);

	if (r < 0)
		return fail(error, r, "no memory");
	r = open_all(agent, error);
	if (r < 0)
		return r;
	if (agent->far.uffd.user_only)
		fp_log(FP_LOG_INFO, "uffd",
		       "only user-mode faults are permitted to this user: see farpage-run(1)");
	r = reserve_memory(agent);
	if (r < 0)
		return fail(
		    error, r,
		    "no address space for far memory: %s. If it is limited, `ulimit -v unlimited` lifts that",
		    strerror(-r));
	probe_process_madvise(&agent->far);
	r = agent->far.uffd.sigbus ? take_signal(agent) : 0;
	if (r < 0)
		return fail(error, r, "the handler of SIGBUS can't be installed: %s", strerror(-r));
	return fp_agent_start_threads(agent, error);
}

int fp_agent_start(const struct fp_agent_options *options, struct fp_agent **ret_agent,
                   struct fp_agent_error *error)
{
	struct fp_agent *agent;
	int r = check_options(options, error);

	if (r < 0)
		return r;
	agent = fp_lockedmem_new(sizeof(*agent));
	if (!agent)
		return fail(error, -ENOMEM, "no memory");
	pthread_mutex_init(&agent->fork_turn, NULL);
	if (options->enter_local)
		options->enter_local();
	r = start(agent, options, error);
	if (options->leave_local)
		options->leave_local();
	if (r < 0) {
		fp_agent_stop(agent);
		return r;
	}
	*ret_agent = agent;
	return 0;
}

/* ---- end ---- */

void fp_agent_exiting(struct fp_agent *agent)
{
	if (!fp_agent_is_stray(agent))
		fp_reclaim_publish(&agent->far);
	fp_agent_stats_exit(agent);
}

/*
 * Also stops agents that started only in part. The fault thread ends first, as its last fault may
 * need the reclaim thread. Both may need the reconnector, so the reconnector ends after them.
 */
void fp_agent_stop(struct fp_agent *agent)
{
	if (!agent)
		return;
	fp_agent_enter_local(agent);
	fp_affinity_done(&agent->affinity);
	fp_fdguard_stop(&agent->guard);
	fp_fault_loop_stop(agent->fault_loop);
	fp_reclaim_stop(agent->reclaim);
	fp_sigbus_remove(agent);
	fp_inline_stop(atomic_load(&agent->far.inline_servers));
	fp_reconnector_stop(agent->reconnector);
	if (agent->has_log_writer)
		fp_log_writer_stop();
	fp_store_close(agent->far.store);
	fp_budget_show_peak(&agent->far.budget, NULL);
	fp_agent_stats_exit(agent);
	fp_agent_stats_close(agent);
	fp_space_done(&agent->space);
	fp_budget_done(&agent->far.budget);
	fp_agent_close_kernel(agent);
	fp_pin_table_done(&agent->far.pins);
	fp_far_unreserve(&agent->far);
	free_options(&agent->options);
	fp_agent_leave_local(agent);
	fp_lockedmem_free(agent, sizeof(*agent));
}
