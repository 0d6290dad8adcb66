/*
 * What all threads of the compute side share: the reserved range, the words of its pages, the room
 * they may take, the eviction queue, the store and the counters; and the few operations on them
 * that more than one module needs. Room: uffd, inside.
 */
#ifndef FP_FAR_H
#define FP_FAR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "events.h"
#include "evict_queue.h"
#include "lost.h"
#include "pin.h"
#include "pager.h"
#include "budget.h"
#include "statspage.h"
#include "store.h"
#include "thrash.h"
#include "uffd.h"

#define FP_CHUNK_SHIFT 9 /* pages of one bit in far.touched: 2 MiB */

/* Where captured pages wait for their write: so many batches can be on their way at once over a
 * lane. */
#define FP_STAGE_PAGES (4 * FP_BUDGET_BATCH_MAX)

/*
 * The first pages of the range are the agent's own: two stages and the stop page of the fault
 * thread. The rest of their chunk is in no mapping: the program's memory begins with a whole one
 * (kernel_filled.h).
 */
#define FP_FAR_OWN_USED  (2 * FP_STAGE_PAGES + 1)
#define FP_FAR_OWN_PAGES (((FP_FAR_OWN_USED - 1) | ((1u << FP_CHUNK_SHIFT) - 1)) + 1)

struct fp_inline;

struct fp_far {
	char *base;
	uint64_t n_pages;
	bool low;                        /* the range may begin at 4 GiB */
	uint32_t origin;                 /* page from which on mappings are placed that ask for no place */
	_Atomic uint64_t *words;         /* one a page, reserved lazily */
	_Atomic uint64_t *touched;       /* one bit a chunk: some page of it may be other than ZERO */
	_Atomic uint32_t *filled_chunks; /* one a chunk: see kernel_filled.h */
	struct fp_uffd uffd;
	struct fp_events events;
	struct fp_store *store;
	struct fp_statspage *stats;
	struct fp_budget budget;
	struct fp_evict_queue evict_queue;
	struct fp_pin_table pins;                 /* empty where the kernel can fault on far memory */
	struct fp_inline *_Atomic inline_servers; /* NULL: only the fault thread serves */
	uint64_t deadline_ns; /* of whatever a fault does, but for waiting for nodes that are cut off */
	bool capture_by_move;
	_Atomic bool wants_slots; /* a page that was to leave found no slot on the nodes that are up */
	_Atomic bool full;        /* and no more slots are to be had */
	_Atomic bool sealed;      /* the kernel refused to drop a page (EPERM) since reclaim last looked */
	int pidfd;                /* of this process, for process_madvise; -1: not to be had */
	int mem_fd;               /* /proc/self/mem; -1: see process_memory.h */
	int stat_fd;              /* /proc/self/stat; -1: there is none */
	int pagemap_fd;           /* /proc/self/pagemap; -1: it can't be read, no kernel-filled memory */
	bool may_fill;            /* what the kernel fills later need not be held: see kernel_filled.h */
	_Atomic bool
	    forked; /* pages may be shared with a child: UFFDIO_MOVE refuses those until they are unshared */
	_Atomic bool fork_freeze; /* a fork is about to be made, or is: nothing leaves */
	_Atomic bool
	    fork_overdraw; /* it is: the budget may be overdrawn, as it may wait for who needs room */
	_Atomic uint32_t
	    *family; /* not 0, but in a child that no fork of ours made: the kernel wipes it there */
	_Atomic unsigned evicting; /* threads that are inside an evictor's run */
	struct fp_thrash thrash;
	struct fp_lost lost;
};

static inline char *fp_far_addr(const struct fp_far *far, uint32_t page)
{
	return far->base + ((uint64_t)page << FP_PAGE_SHIFT);
}

static inline uint32_t fp_far_page(const struct fp_far *far, uint64_t addr)
{
	return (uint32_t)((addr - (uintptr_t)far->base) >> FP_PAGE_SHIFT);
}

static inline void fp_far_touch(struct fp_far *far, uint32_t page)
{
	uint64_t chunk = page >> FP_CHUNK_SHIFT, bit = 1ull << (chunk & 63);

	if (!(atomic_load_explicit(&far->touched[chunk / 64], memory_order_relaxed) & bit))
		atomic_fetch_or(&far->touched[chunk / 64], bit);
}

static inline void fp_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/*
 * Reserves address space and tables, halving the size while the limits (RLIMIT_AS, overcommit)
 * refuse, and registers it. far->uffd is open. 0 or a negative errno; release with
 * fp_far_unreserve.
 */
int fp_far_reserve(struct fp_far *far);
void fp_far_unreserve(struct fp_far *far);

/* madvise(MADV_DONTNEED) of n pages, to have them leave. False: they stay. errno is the
 * kernel's. */
bool fp_far_drop(struct fp_far *far, uint32_t page, uint32_t n);

/*
 * Whether a child that is made now has n pages of the range as well: only while a fork of ours is
 * under way, as only that gives the child an agent. A child that a bare system call makes has no
 * far memory: it can't read zeros.
 */
void fp_far_inherit(struct fp_far *far, uint32_t page, uint32_t n, bool inherit);
/* In the child of a fork of ours. */
void fp_far_join_family(struct fp_far *far);
/* True in a child that a bare system call made. Any thread, signal handlers too. */
static inline bool fp_far_is_stray(const struct fp_far *far)
{
	return far->family && !atomic_load_explicit(far->family, memory_order_relaxed);
}
/* Ends the process if it is such a child, with a message and status 125: before it touches what its
 * parent's agent alone may touch. */
void fp_far_check_family(const struct fp_far *far);

/* Carries out what a step that ended an owned state asks of anyone: the queue entry and the
 * wake-up. */
void fp_far_settle(struct fp_far *far, uint32_t page, struct fp_page_step step);

/*
 * Ends the ARRIVING of n pages from page on by installing n * 4 KiB from src (local memory,
 * present), writable or write-protected. Every page ends: installed, found present, or gone (its
 * token is given back). Never blocks longer than the deadline: what the kernel does not take until
 * then, as a system call is changing the layout all that time, goes back to where it was (ZERO,
 * REMOTE), and who waits faults again. Returns how many pages are resident now. Agent threads.
 */
unsigned fp_far_install(struct fp_far *far, uint32_t page, unsigned n, const void *src, bool writable);

/*
 * The same, writable, for a page of which src is the only copy: it has nowhere to go back to.
 * Blocks until the kernel takes it, or its mapping is gone: as long as a system call takes to
 * change the layout.
 */
void fp_far_put_back(struct fp_far *far, uint32_t page, const void *src);

/*
 * True if what failed with error may yet work, until a deadline: a system call is changing the
 * layout, or the kernel has no memory at this moment. Waits a little. Not in a shared section
 * (events.h).
 */
bool fp_far_may_pass(struct fp_far *far, ssize_t error, uint64_t until_ns);

/* Lifts a page's write protection and wakes; waits for who is changing the layout. 0; -ENOENT: no
 * mapping. */
int fp_far_unprotect(struct fp_far *far, uint32_t page);

/* How many nodes are up: without one nothing can leave; and how many are cut off, and may be up
 * again. Any thread. */
void fp_far_count_nodes(const struct fp_far *far, unsigned *ret_up, unsigned *ret_cut_off);

/* How long to wait for the nodes that are cut off, and may be up again; 0: there is none. Any
 * thread. */
uint64_t fp_far_patience_ns(const struct fp_far *far);

/* Why nothing leaves for so long. 0: what is resident is pinned, and only overdrawing helps. Any
 * thread. */
int fp_far_why_stuck(const struct fp_far *far);

/* A sheet of zeros as long as the longest install; never written. */
extern char fp_zeros[FP_BUDGET_BATCH_MAX * FP_PAGE_SIZE];

#endif
