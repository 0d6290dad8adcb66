/*
 * libfarpage: the public API over an agent of its own. Room: uffd/libfarpage. It uses agent.h and
 * space.h only. All far memories of the process are in one list, by which fork gives the child
 * agents of its own.
 */
#include "farpage/farpage.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent.h"
#include "agent_sigmask.h"
#include "cleanup.h"
#include "clock.h"
#include "local_stack.h"
#include "rdma_options.h"
#include "readahead.h"
#include "space.h"
#include "transport.h"

#define DEADLINE_MAX_MS 3600000u
#define PATIENCE_MAX_MS (24ull * 3600000u)

struct far_memory {
	struct fp_agent *agent;
	struct far_memory *next;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct far_memory *list;

/*
 * Exported by the preload shim, if the program runs under it. Between these two calls, the
 * allocations of our agent stay out of the far memory of the shim's agent.
 */
extern void fp_shim_enter_local(void) __attribute__((weak, visibility("default")));
extern void fp_shim_leave_local(void) __attribute__((weak, visibility("default")));

static void enter_local(void)
{
	if (fp_shim_enter_local)
		fp_shim_enter_local();
}

static void leave_local(void)
{
	if (fp_shim_leave_local)
		fp_shim_leave_local();
}

/* ---- fork ---- */

/*
 * The signal mask of the thread that holds the lock. Signals are blocked during a fork: a handler
 * that forks would wait for the fork that it interrupted. SIGBUS stays open, as it may be a fault.
 */
static uint64_t fork_mask;

static void fork_prepare(void)
{
	uint64_t mask = fp_agent_sigmask_block(false, true);

	pthread_mutex_lock(&list_lock);
	fork_mask = mask;
	for (struct far_memory *m = list; m; m = m->next)
		fp_agent_fork_quiet(m->agent);
	for (struct far_memory *m = list; m; m = m->next)
		fp_agent_fork_prepare(m->agent);
}

static void end_fork(void (*call)(struct fp_agent *))
{
	uint64_t mask = fork_mask;

	for (struct far_memory *m = list; m; m = m->next)
		call(m->agent);
	pthread_mutex_unlock(&list_lock);
	fp_agent_sigmask_restore(mask);
}

static void fork_parent(void)
{
	end_fork(fp_agent_fork_parent);
}

/*
 * Starts the child's agents. They release the devices that the child inherited from its parent. If
 * there is no agent, this function releases these devices: the child may open a far memory later.
 */
static void fork_child(void)
{
	if (!list)
		fp_transport_forked();
	end_fork(fp_agent_fork_child);
}

static void watch_forks(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

static void list_add(struct far_memory *memory)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&list_lock);
	memory->next = list;
	list = memory;
	pthread_mutex_unlock(&list_lock);
}

static void list_remove(struct far_memory *memory)
{
	struct far_memory **at = &list;

	pthread_mutex_lock(&list_lock);
	while (*at != memory)
		at = &(*at)->next;
	*at = memory->next;
	pthread_mutex_unlock(&list_lock);
}

/* ---- open, close ---- */

/*
 * Copies the caller's struct, which may be older (shorter) or newer than ours. Fields that we do
 * not know must be 0.
 */
static int copy_options(const struct far_options *from, struct far_options *ret_options)
{
	const char *bytes = (const char *)from;

	for (size_t i = sizeof(*ret_options); i < from->size; i++)
		if (bytes[i])
			return -E2BIG;
	memcpy(ret_options, from, FP_MIN(from->size, sizeof(*ret_options)));
	return 0;
}

static unsigned count(const char *const *list_of_texts)
{
	unsigned n = 0;

	while (list_of_texts && list_of_texts[n])
		n++;
	return n;
}

static unsigned readahead_pages(uint32_t wanted)
{
	return wanted == 0 ? FP_READAHEAD_DEFAULT : wanted == 1 ? 0 : wanted;
}

static int check_options(const struct far_options *o, struct fp_agent_error *error)
{
	const char *wrong = o->deadline_ms > DEADLINE_MAX_MS   ? "deadline_ms: at most 3600000, an hour"
	                    : o->patience_ms > PATIENCE_MAX_MS ? "patience_ms: at most 86400000, a day"
	                    : o->fault_mode > FAR_FAULT_INLINE ? "fault_mode: one of enum far_fault_mode"
	                    : o->on_loss > FAR_ON_LOSS_WAIT    ? "on_loss: one of enum far_on_loss"
	                    : o->rdma_device_port > UINT8_MAX  ? "rdma_device_port: at most 255"
	                                                       : NULL;

	if (wrong)
		snprintf(error->text, sizeof(error->text), "%s", wrong);
	return wrong ? -EINVAL : 0;
}

static int start(const struct far_options *o, struct far_memory *memory, struct fp_agent_error *error)
{
	struct fp_rdma_options rdma = fp_rdma_defaults;
	const struct fp_agent_options options = {
	    .local_bytes = o->local_bytes,
	    .urls = o->nodes,
	    .n_urls = count(o->nodes),
	    .secret = o->secret,
	    .rdma = &rdma,
	    .deadline_ns = o->deadline_ms * FP_NSEC_PER_MSEC,
	    .patience_ns = o->patience_ms * FP_NSEC_PER_MSEC,
	    .on_loss = o->on_loss == FAR_ON_LOSS_WAIT ? FP_ON_LOSS_WAIT : FP_ON_LOSS_SIGBUS,
	    .overcommit = o->overcommit != 0,
	    .readahead_pages = readahead_pages(o->readahead_pages),
	    .stats_path = o->stats_file,
	    .fault_mode = o->fault_mode == FAR_FAULT_INLINE ? FP_FAULT_MODE_INLINE : FP_FAULT_MODE_THREAD,
	    .affinity = FP_AFFINITY_BOUND, /* nothing would release held threads before they start others */
	    .pins = o->fault_mode == FAR_FAULT_INLINE,
	    .enter_local = enter_local,
	    .leave_local = leave_local,
	};
	int r = check_options(o, error);

	if (r < 0)
		return r;
	rdma.device = (char *)o->rdma_device;
	rdma.device_port = o->rdma_device_port;
	enter_local();
	r = fp_agent_start(&options, &memory->agent, error);
	leave_local();
	return r;
}

int far_open(const struct far_options *options, char *error_text, size_t error_len,
             struct far_memory **ret_memory)
{
	fp_autofree struct far_memory *memory = calloc(1, sizeof(*memory));
	struct fp_agent_error error = {.text = "no memory"};
	struct far_options known = {0};
	int r = memory ? 0 : -ENOMEM;

	if (r == 0 && (r = copy_options(options, &known)) < 0)
		snprintf(error.text, sizeof(error.text),
		         "options that this version of libfarpage does not know are set");
	if (r == 0)
		r = start(&known, memory, &error);
	if (r < 0) {
		if (error_text && error_len)
			snprintf(error_text, error_len, "%s", error.text);
		return r;
	}
	list_add(memory);
	*ret_memory = fp_take_ptr(memory);
	return 0;
}

void far_close(struct far_memory *memory)
{
	if (!memory)
		return;
	list_remove(memory);
	enter_local();
	fp_agent_stop(memory->agent);
	leave_local();
	free(memory);
}

/* ---- ranges ---- */

static size_t round_up(size_t bytes)
{
	return (bytes + FP_PAGE_SIZE - 1) & ~(size_t)(FP_PAGE_SIZE - 1);
}

int far_map(struct far_memory *memory, size_t length, void **ret_address)
{
	uint64_t mask;
	int r;

	if (length == 0)
		return -EINVAL;
	if (round_up(length) < length)
		return -ENOMEM;
	mask = fp_agent_enter(memory->agent);
	r = (int)FP_ON_LOCAL_STACK(fp_space_map, fp_agent_space(memory->agent), round_up(length), 0,
	                           PROT_READ | PROT_WRITE, 0, ret_address);
	fp_agent_leave(memory->agent, mask);
	return r;
}

int far_unmap(struct far_memory *memory, void *address, size_t length)
{
	uint64_t mask;
	int r;

	if (length == 0 || round_up(length) < length)
		return -EINVAL;
	mask = fp_agent_enter(memory->agent);
	r = (int)FP_ON_LOCAL_STACK(fp_space_unmap, fp_agent_space(memory->agent), address, round_up(length),
	                           0, 0, 0);
	fp_agent_leave(memory->agent, mask);
	return r;
}

static int advise(struct fp_space *space, uintptr_t start, uintptr_t end, enum far_advice advice)
{
	void *address = (void *)start;

	if (start >= end)
		return 0;
	switch (advice) {
	case FAR_ADVICE_WILLNEED:
		return fp_space_advise(space, address, end - start, MADV_WILLNEED);
	case FAR_ADVICE_COLD:
		return fp_space_advise(space, address, end - start, MADV_PAGEOUT);
	case FAR_ADVICE_DISCARD:
		return fp_space_advise(space, address, end - start, MADV_DONTNEED);
	}
	return -EINVAL;
}

int far_advise(struct far_memory *memory, void *address, size_t length, enum far_advice advice)
{
	uintptr_t start = (uintptr_t)address, end = start + length;
	const uintptr_t mask = ~(uintptr_t)(FP_PAGE_SIZE - 1);
	uint64_t signals;
	int r;

	if (end < start)
		return -EINVAL;
	if (advice == FAR_ADVICE_DISCARD) {
		start = round_up(start);
		end &= mask;
	} else {
		start &= mask;
		end = round_up(end);
	}
	signals = fp_agent_enter(memory->agent);
	r = (int)FP_ON_LOCAL_STACK(advise, fp_agent_space(memory->agent), start, end, advice, 0, 0);
	fp_agent_leave(memory->agent, signals);
	return r;
}

/* ---- pins ---- */

static_assert(sizeof(struct fp_pin) <= sizeof(((struct far_hold *)NULL)->reserved), "it lies in there");

int far_hold(struct far_memory *memory, const void *address, size_t length, int write, struct far_hold *hold)
{
	const struct fp_pin_range range = {address, length, write != 0};
	struct fp_pin *inner = (struct fp_pin *)hold->reserved;
	int r = fp_agent_pin(memory->agent, &range, 1, inner);

	if (r == -E2BIG)
		hold->fit_bytes = inner->fit_bytes;
	return r;
}

void far_unhold(struct far_memory *memory, struct far_hold *hold)
{
	fp_agent_unpin(memory->agent, (struct fp_pin *)hold->reserved);
}

/* ---- statistics ---- */

int far_get_stats(struct far_memory *memory, struct far_stats *stats)
{
	const struct fp_statspage *page = fp_agent_stats(memory->agent);
	fp_autofree struct fp_hist *latency = calloc(1, sizeof(*latency)); /* large for a thread's stack */
	struct far_stats all = {
	    .size = stats->size,
	    .mapped_bytes = atomic_load(&page->mapped_bytes),
	    .resident_bytes = atomic_load(&page->resident_bytes),
	    .remote_bytes = atomic_load(&page->remote_bytes),
	    .fetched_bytes = atomic_load(&page->fetched_bytes),
	    .written_bytes = atomic_load(&page->written_bytes),
	    .lost_pages = atomic_load(&page->lost_pages),
	    .zero_faults = atomic_load(&page->faults[FP_FAULT_ZERO]),
	    .read_faults = atomic_load(&page->faults[FP_FAULT_READ]),
	    .write_faults = atomic_load(&page->faults[FP_FAULT_WRITE]),
	    .protect_faults = atomic_load(&page->faults[FP_FAULT_PROTECT]),
	    .rescued_faults = atomic_load(&page->faults[FP_FAULT_RESCUED]),
	    .present_faults = atomic_load(&page->faults[FP_FAULT_PRESENT]),
	    .prefetched_pages = atomic_load(&page->prefetched_pages),
	};

	if (stats->size < sizeof(stats->size))
		return -EINVAL;
	if (!latency)
		return -ENOMEM;
	for (unsigned i = 0; i < FP_FAULT_KINDS; i++)
		all.faults += atomic_load(&page->faults[i]);
	fp_statspage_sum_kinds(page, latency);
	all.fault_p50_ns = fp_hist_quantile(latency, 0.5);
	all.fault_p99_ns = fp_hist_quantile(latency, 0.99);
	memcpy(stats, &all, FP_MIN(stats->size, sizeof(all)));
	return 0;
}

const char *far_version(void)
{
	return FP_VERSION;
}
