/*
 * The pager: the state machine of one page, as a pure function from (word, event) to (word,
 * action). Room: uffd, its heart. No file descriptor, clock, thread or memory but the word that it
 * is given, so that tests can drive every interleaving.
 *
 * A page's whole state is one 64-bit atomic word. Whoever has something happen to a page computes
 * the next word and installs it by compare-and-swap (fp_pager_apply); who wins carries out the
 * action, then reports how it ended by a further event. ARRIVING, LEAVING and CLAIMED are owned:
 * only the thread whose event led there may end them. All others leave FP_PAGE_WAIT behind, which
 * makes the owner wake the address when it is done: the kernel keeps the list of waiting threads,
 * we keep none.
 */
#ifndef FP_PAGER_H
#define FP_PAGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 *  63          24 23      9  8       7    6  5       4     3      2     0
 * +--------------+---------+-------+------+-------+------+-------+-------+
 * |     slot     |  zero   | moved | hist |queued | wait | dirty | state |
 * +--------------+---------+-------+------+-------+------+-------+-------+
 */
enum fp_page_state {
	FP_PAGE_ZERO,     /* never written: reads zeros, has no slot */
	FP_PAGE_RESIDENT, /* in local memory; clean (write-protected, same as its slot or zeros) unless DIRTY
	                   */
	FP_PAGE_LEAVING,  /* owned by an evictor */
	FP_PAGE_REMOTE,   /* only in its slot */
	FP_PAGE_ARRIVING, /* owned by whoever is installing it */
	FP_PAGE_CLAIMED,  /* owned by a layout call (munmap, madvise, mremap) */
	FP_PAGE_LOST,     /* poisoned. Its node could not give it back, or there was no room for a fresh one:
	                   * its slot, if any, stays for FP_EV_REVIVE. DIRTY: lost for good */
};

#define FP_PAGE_STATE_MASK 7ull
#define FP_PAGE_DIRTY      (1ull << 3) /* writable since it was installed: may differ from its slot */
#define FP_PAGE_WAIT       (1ull << 4) /* a thread waits in the kernel for the owner to finish */
#define FP_PAGE_QUEUED     (1ull << 5) /* has an entry in the eviction queue */
#define FP_PAGE_HIST_SHIFT 6           /* how often more a read fault shall be installed writable */
#define FP_PAGE_HIST_MASK  (3ull << FP_PAGE_HIST_SHIFT)
#define FP_PAGE_HIST_MAX   2ull
#define FP_PAGE_MOVED      (1ull << 8) /* CLAIMED by a layout call that has its bytes elsewhere already */
#define FP_PAGE_SLOT_SHIFT 24

enum fp_page_event {
	FP_EV_FAULT_READ,    /* missing page, read access */
	FP_EV_FAULT_WRITE,   /* missing page, write access */
	FP_EV_FAULT_WP,      /* write to a write-protected page */
	FP_EV_PREFETCH,      /* wanted ahead of need, only if it is remote */
	FP_EV_PREZERO,       /* wanted ahead of need, only if it is zero */
	FP_EV_ADOPT,         /* wanted as it is, only if it is resident, dirty, and without a slot */
	FP_EV_INSTALLED,     /* ARRIVING ends: present, write-protected */
	FP_EV_INSTALLED_RW,  /* ARRIVING ends: present, writable */
	FP_EV_NOT_INSTALLED, /* ARRIVING ends: the mapping is gone, or it was only wanted ahead; as it was
	                        before */
	FP_EV_FETCH_FAILED,  /* ARRIVING ends: nobody can give it back; it is poisoned already */
	FP_EV_EVICT,         /* a victim, taken from the eviction queue */
	FP_EV_PAGEOUT,       /* a victim, named by the program; its queue entry stays behind */
	FP_EV_DROPPED,       /* LEAVING ends: was clean, is gone locally */
	FP_EV_WAS_ZERO,      /* LEAVING ends: captured, all bytes zero; needs no slot */
	FP_EV_WRITTEN, /* LEAVING ends, or a waiter gets it back: captured, and all required replicas have it
	                */
	FP_EV_NOT_WRITTEN, /* captured, but no node took it: must be put back */
	FP_EV_REFUSED,     /* LEAVING ends: it can't be captured now (pinned for I/O); stays as it was */
	FP_EV_CLAIM,       /* a layout call wants the page to hold still */
	FP_EV_REVIVE,      /* its node is back: wanted only if it is lost, and not for good */
	FP_EV_UNQUEUE,     /* its entry in the eviction queue is looked at: drop it if the page is away */
};

enum fp_page_action {
	FP_ACT_NONE,      /* nothing: the owner of the page will wake the faulting thread */
	FP_ACT_ZERO,      /* now ARRIVING: install zeros */
	FP_ACT_FETCH,     /* now ARRIVING: read the slot and install it */
	FP_ACT_VERIFY,    /* now ARRIVING: install zeros if it is really missing, or find it present */
	FP_ACT_UNPROTECT, /* now ARRIVING: lift the write protection and wake; it ends INSTALLED_RW */
	FP_ACT_WAKE,      /* wake the threads that wait for this address */
	FP_ACT_POISON,    /* now ARRIVING: make touches raise SIGBUS; it ends FETCH_FAILED */
	FP_ACT_DROP,      /* now LEAVING: the remote copy is identical, drop the local one */
	FP_ACT_CAPTURE,   /* now LEAVING: capture it and write it back */
	FP_ACT_PUT_BACK,  /* now ARRIVING: install what was captured; a clean copy if the write succeeded */
	FP_ACT_CLAIMED,   /* now CLAIMED: the old word is the claimer's to restore or replace */
	FP_ACT_BUSY,      /* in transit: try again (CLAIM); here or in transit: keep the entry (UNQUEUE) */
};

struct fp_page_step {
	uint64_t word;              /* the next word */
	enum fp_page_action action; /* for whoever installs it */
	bool enqueue;               /* it became resident without an entry in the eviction queue: add one */
};

static inline enum fp_page_state fp_page_state(uint64_t word)
{
	return (enum fp_page_state)(word & FP_PAGE_STATE_MASK);
}

static inline uint64_t fp_page_slot(uint64_t word)
{
	return word >> FP_PAGE_SLOT_SHIFT;
}

static inline uint64_t fp_page_with_slot(uint64_t word, uint64_t slot)
{
	return (word & ((1ull << FP_PAGE_SLOT_SHIFT) - 1)) | slot << FP_PAGE_SLOT_SHIFT;
}

/* True if a read fault on this page shall be installed writable, because it was written soon after
 * the last times. */
static inline bool fp_page_expects_write(uint64_t word)
{
	return (word & FP_PAGE_HIST_MASK) != 0;
}

/*
 * What event does to a page in word. Pure. An event that can't happen in that state (only its owner
 * could send it) fails an assertion: it would be our bug.
 */
struct fp_page_step fp_pager_step(uint64_t word, enum fp_page_event event);

/* The same for FP_EV_WRITTEN with the slot that now holds the page. */
struct fp_page_step fp_pager_step_written(uint64_t word, uint64_t slot);

/*
 * Ends a CLAIMED: settled is the word of a settled state that the page shall have now; QUEUED and
 * WAIT are taken from the present word. Action: WAKE if somebody waits, else NONE.
 */
struct fp_page_step fp_pager_step_release(uint64_t word, uint64_t settled);

/*
 * Applies event to *page by compare-and-swap. Lock-free; any thread. *ret_old (may be NULL) is the
 * word that was replaced. Acquire and release: what the owner did before it ended its state is seen
 * by who comes next.
 */
struct fp_page_step fp_pager_apply(_Atomic uint64_t *page, enum fp_page_event event, uint64_t *ret_old);
struct fp_page_step fp_pager_apply_written(_Atomic uint64_t *page, uint64_t slot, uint64_t *ret_old);
struct fp_page_step fp_pager_apply_release(_Atomic uint64_t *page, uint64_t settled);

#endif
