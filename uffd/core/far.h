/*
 * One far memory, as all its threads share it: the reserved range, its pages' words, the budget,
 * the eviction queue, the store and the counters. Also the few operations on them that several
 * modules need. Room: uffd/core.
 */
#ifndef FP_FAR_H
#define FP_FAR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict_queue.h"
#include "layout.h"
#include "lost.h"
#include "pin.h"
#include "pager.h"
#include "readahead.h"
#include "budget.h"
#include "statspage.h"
#include "store.h"
#include "uffd.h"

#define FP_CHUNK_SHIFT 9 /* a chunk has 512 pages, 2 MiB; far.touched has a bit for each */

/*
 * The number of pages of a stage, in which captured pages wait until they are written. A lane can
 * write this many pages at once.
 */
#define FP_STAGE_PAGES (3 * FP_BUDGET_BATCH_MAX)

/*
 * The first pages of the range are the agent's own: two stages, each followed by its twin for
 * executable memory (capture.h), and the stop page of the fault thread. No mapping uses the rest of
 * their last chunk, so the program's memory begins with a whole chunk (kernel_filled.h).
 */
#define FP_FAR_OWN_USED  (4 * FP_STAGE_PAGES + 1)
#define FP_FAR_OWN_PAGES (((FP_FAR_OWN_USED - 1) | ((1u << FP_CHUNK_SHIFT) - 1)) + 1)

#define FP_FAR_TRUSTS (1u << 16)

struct fp_inline;

struct fp_far {
	char *base;
	uint64_t n_pages;
	_Atomic uint32_t first, last; /* the program's part of the range: all, until a limit shrinks it */
	/*
	 * where calls that have pinned pages may read words: first and last, but narrower while
	 * fp_far_shrink looks for pins
	 */
	_Atomic uint32_t pin_first, pin_last;
	bool low;                        /* true: the range may begin at 4 GiB */
	uint32_t origin;                 /* the search for free addresses starts at this page */
	_Atomic uint64_t *words;         /* one per page; their memory comes on touch */
	_Atomic uint64_t *touched;       /* one bit per chunk; 0: all its pages are ZERO */
	_Atomic uint32_t *filled_chunks; /* one per chunk: see kernel_filled.h */
	struct fp_uffd uffd;
	struct fp_store *store;
	struct fp_statspage *stats;
	struct fp_budget budget;
	struct fp_evict_queue evict_queue;
	/* the pinned ranges; nearly always none, if the kernel can fault on far memory */
	struct fp_pin_table pins;
	struct fp_inline *_Atomic inline_servers; /* NULL: only the fault thread serves */
	uint64_t deadline_ns; /* the longest time of a fault, without the wait for nodes that are cut off */
	bool capture_by_move; /* the kernel has UFFDIO_MOVE: see fp_far_moves */
	/*
	 * Somebody may hold pages without a pin, or clean pages for reading. Then each page is
	 * proved to be held by nobody before it leaves
	 */
	_Atomic bool wary;
	_Atomic bool wants_slots; /* a page that is to leave found no slot on the nodes that are up */
	_Atomic bool full;        /* the nodes have no more slots */
	_Atomic bool sealed;      /* since reclaim last looked, the kernel refused to drop a page (EPERM) */
	int pidfd;                /* this process, for process_madvise; -1: the agent calls madvise instead */
	int mem_fd;               /* /proc/self/mem; -1: it can't be opened, see process_memory.h */
	int stat_fd;              /* /proc/self/stat; -1: there is none */
	int pagemap_fd;           /* /proc/self/pagemap; -1: it can't be read, so nothing is kernel-filled */
	bool may_fill;            /* from now on the kernel may fill pages: see kernel_filled.h */
	/* A child may share pages with us: UFFDIO_MOVE refuses them until they are unshared. */
	_Atomic bool forked;
	_Atomic bool fork_freeze; /* a fork is about to begin or under way: no page may leave */
	/* A fork may wait for a thread that faults, so faults may exceed the budget. */
	_Atomic bool fork_overdraw;
	/* 0 only in a child that a bare call made: the kernel zeroes it in every child. */
	_Atomic uint32_t *family;
	/* how many threads are inside an evictor's run; FP_FAR_TRUSTS for each that began before
	 * wary */
	_Atomic unsigned evicting;
	_Atomic unsigned copying;  /* how many threads copy a page of open memory: see fp_capture_pause */
	_Atomic unsigned closing;  /* how many threads are about to close such memory */
	_Atomic unsigned bringing; /* how many threads bring in a page without holding the layout lock */
	struct fp_lost lost;
	/*
	 * The program's mappings, and the lock of their protections. Agent threads only try to take
	 * it. NULL: there are none, all is writable.
	 */
	const struct fp_layout *layout;
	pthread_mutex_t *layout_lock;
};

static inline char *fp_far_addr(const struct fp_far *far, uint32_t page)
{
	return far->base + ((uint64_t)page << FP_PAGE_SHIFT);
}

static inline uint32_t fp_far_page(const struct fp_far *far, uint64_t addr)
{
	return (uint32_t)((addr - (uintptr_t)far->base) >> FP_PAGE_SHIFT);
}

/*
 * False if a limit took the page out of the range. The eviction queue may still name such a page.
 * So a thread that takes entries from the queue is counted in far->evicting, and asks here first.
 */
static inline bool fp_far_has(const struct fp_far *far, uint32_t page)
{
	return page >= far->first && page < far->last;
}

static inline bool fp_far_is_wary(const struct fp_far *far)
{
	return atomic_load(&far->wary);
}

/*
 * From the return on, all pages leave in the wary way. Waits for the threads that are in an
 * evictor's run and have not seen it, but not for those that begin one. So it ends, and no time is
 * set for it.
 */
void fp_far_be_wary(struct fp_far *far);

/* True if pages leave by UFFDIO_MOVE, which sees pins, but no other references. */
static inline bool fp_far_moves(const struct fp_far *far)
{
	return far->capture_by_move && !fp_far_is_wary(far);
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
 * Reserves address space and tables, and registers the range. Halves the size while the limits
 * (RLIMIT_AS, overcommit) refuse it. far->uffd must be open. Returns 0 or a negative errno. Release
 * with fp_far_unreserve.
 */
int fp_far_reserve(struct fp_far *far);
void fp_far_unreserve(struct fp_far *far);

/* How large the range may be under a limit of this kind: RLIMIT_AS or RLIMIT_DATA. */
uint64_t fp_far_fitting_bytes(int kind, uint64_t limit);
#define FP_FAR_MIN_BYTES (1ull << 28)

/*
 * Gives the range and its part of the tables back to the kernel, except [first, last) and the
 * agent's own pages. The parts that go must be whole chunks, in which nothing is mapped. A range
 * that was shrunk is never unreserved. Returns 0, or -EBUSY if a page of those parts is pinned:
 * then nothing was changed.
 */
int fp_far_shrink(struct fp_far *far, uint32_t first, uint32_t last);

/* Empties the eviction queue in a forked child, before it has any other thread. 0 or a negative
 * errno. */
int fp_far_renew_queue(struct fp_far *far);

/* Drops n pages by madvise(MADV_DONTNEED). False: they stay, and errno is the kernel's. */
bool fp_far_drop(struct fp_far *far, uint32_t page, uint32_t n);

/*
 * Sets whether children that are made from now on inherit n pages of the range. The parameter
 * inherit is true only while a fork of ours is under way, because only such a child gets an agent.
 * A child of a bare call inherits no far memory, so it can't read zeros by mistake.
 */
void fp_far_inherit(struct fp_far *far, uint32_t page, uint32_t n, bool inherit);
/* Marks the process as a child of a fork of ours. Called in that child. */
void fp_far_join_family(struct fp_far *far);
/* True in a child that a bare call made. Any thread, signal handlers too. */
static inline bool fp_far_is_stray(const struct fp_far *far)
{
	return far->family && !atomic_load_explicit(far->family, memory_order_relaxed);
}
/*
 * Ends a child that a bare call made, with a message and status 125. Called before such a child can
 * use anything of its parent's agent.
 */
void fp_far_check_family(const struct fp_far *far);

/* Follows a step that ended an owned state: queues the page and wakes its waiters. */
void fp_far_settle(struct fp_far *far, uint32_t page, struct fp_page_step step);

/* Ends an owned state by an event that has only one outcome, and settles the page. */
void fp_far_end(struct fp_far *far, uint32_t page, enum fp_page_event event);

/*
 * Installs n pages, the first of which is page, from src (local memory, present), writable or
 * write-protected. This ends their state ARRIVING: each page is installed, found present, gone (its
 * token is given back) or lost. Blocks until the deadline at most. A page that the kernel has not
 * taken by then goes back to ZERO or REMOTE, and its waiters fault again. Returns how many pages
 * are resident now. Agent threads; in fault mode inline, the faulting thread too.
 */
unsigned fp_far_install(struct fp_far *far, uint32_t page, unsigned n, const void *src, bool writable);

/*
 * Installs a page, writable, whose only copy is src. The page has no other state to go back to. So
 * this function blocks until the kernel takes the page or its mapping is gone.
 */
void fp_far_put_back(struct fp_far *far, uint32_t page, const void *src);

/*
 * Reads messages as fp_uffd_read does. If a bare call ended or moved a mapping of the range, ends
 * the process with a message: the program may map other memory at these addresses, which the agent
 * must not touch.
 */
int fp_far_read(struct fp_far *far, struct fp_uffd_fault *ret_faults, unsigned max);
_Noreturn void fp_far_refuse_bare_call(const char *call, const void *addr);
/*
 * Ends the process as fp_far_read does, if a bare call is changing a mapping of the range. For
 * callers that want no messages.
 */
void fp_far_check_bare_calls(struct fp_far *far);

/*
 * True if a step that failed with error may still succeed before until_ns: the kernel is busy with
 * the page, or has no memory at this moment. Waits a little before it returns.
 */
bool fp_far_may_pass(struct fp_far *far, ssize_t error, uint64_t until_ns);

/*
 * Lifts a page's write protection and wakes the threads that wait for it. Returns 0, -ENOENT if the
 * page is not mapped, or -EAGAIN if a mapping was still being changed at the deadline.
 */
int fp_far_unprotect(struct fp_far *far, uint32_t page);

/*
 * True if the page belongs to a file or to shared memory inside the range: its faults are not ours,
 * and its word says ZERO. Exception: a bare mremap may have grown such a mapping into a hole. The
 * pages in the hole are registered with us, and we handle their faults. Any thread.
 */
bool fp_far_is_foreign(struct fp_far *far, uint32_t page);

/* Counts the nodes that are up (without one, nothing can leave) and those that are cut off and may
 * come back. Any thread. */
void fp_far_count_nodes(const struct fp_far *far, unsigned *ret_up, unsigned *ret_cut_off);

/* How long to wait for nodes that are cut off and may come back; 0: there is none. Any thread. */
uint64_t fp_far_patience_ns(const struct fp_far *far);

/*
 * Why no page leaves for so long: a negative errno. 0: the resident pages are pinned, and only a
 * larger budget helps. Any thread.
 */
int fp_far_why_stuck(const struct fp_far *far);

/* Zeros for the longest install; never written. */
extern char fp_zeros[(FP_READAHEAD_MAX + 1) * FP_PAGE_SIZE];

#endif
