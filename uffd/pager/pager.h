/*
 * The pager: the state machine of one page, as a pure function from (word, event) to (word,
 * action). Room: uffd/pager. It uses no file descriptor, clock or thread, and no memory but the
 * given word, so tests can drive every interleaving.
 *
 * A page's whole state is one 64-bit atomic word. A thread that has an event for a page computes
 * the next word and installs it by compare-and-swap (fp_pager_apply). The winner carries out the
 * action, then reports its end by a further event. ARRIVING, LEAVING and CLAIMED are owned: only
 * the thread whose event led there may end them. Other threads set FP_PAGE_WAIT, which makes the
 * owner wake the address at the end. The kernel keeps the list of waiting threads; we keep none.
 */
#ifndef FP_PAGER_H
#define FP_PAGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "evict_queue.h"

/*
 *  63          24 23      9  8       7    6  5       4     3      2     0
 * +--------------+---------+-------+------+-------+------+-------+-------+
 * |     slot     |  past   | moved | hist |queued | wait | dirty | state |
 * +--------------+---------+-------+------+-------+------+-------+-------+
 */
enum fp_page_state {
	FP_PAGE_ZERO,     /* never written: reads zeros, has no slot */
	FP_PAGE_RESIDENT, /* local; clean (write-protected, equal to its slot or zeros) unless DIRTY */
	FP_PAGE_LEAVING,  /* owned by an evictor */
	FP_PAGE_REMOTE,   /* its bytes are only in its slot */
	FP_PAGE_ARRIVING, /* owned by the thread that installs it */
	FP_PAGE_CLAIMED,  /* owned by a layout call (munmap, madvise, mremap) */
	/*
	 * poisoned: its node can't give it back, or a fresh page got no token. A slot that it has
	 * stays for FP_EV_REVIVE. DIRTY: lost for good
	 */
	FP_PAGE_LOST,
};

#define FP_PAGE_STATE_MASK 7ull
#define FP_PAGE_DIRTY      (1ull << 3) /* was writable since its install, so it may differ from its slot */
#define FP_PAGE_WAIT       (1ull << 4) /* a thread waits in the kernel for the owner to finish */
#define FP_PAGE_QUEUED     (1ull << 5) /* has an entry in the eviction queue */
#define FP_PAGE_HIST_SHIFT 6           /* a count N: the next N read faults install the page writable */
#define FP_PAGE_HIST_MASK  (3ull << FP_PAGE_HIST_SHIFT)
#define FP_PAGE_HIST_MAX   2ull
#define FP_PAGE_MOVED      (1ull << 8) /* CLAIMED, and the layout call has already moved its bytes */
#define FP_PAGE_PAST_SHIFT 9           /* of a page that left: what the eviction queue said of it then */
#define FP_PAGE_PAST_MASK  (((1ull << FP_EVICT_PAST_BITS) - 1) << FP_PAGE_PAST_SHIFT)
#define FP_PAGE_SLOT_SHIFT 24

enum fp_page_event {
	FP_EV_FAULT_READ,    /* a fault by a read of a missing page */
	FP_EV_FAULT_WRITE,   /* a fault by a write to a missing page */
	FP_EV_FAULT_WP,      /* a fault by a write to a write-protected page */
	FP_EV_PREFETCH,      /* ahead of a fault: fetch the page, only if it is REMOTE */
	FP_EV_PREZERO,       /* ahead of a fault: fill the page with zeros, only if it is ZERO */
	FP_EV_ADOPT,         /* own a page as it is, only if it is RESIDENT, DIRTY and without a slot */
	FP_EV_INSTALLED,     /* ARRIVING ends: the page is present, write-protected */
	FP_EV_INSTALLED_RW,  /* ARRIVING ends: the page is present, writable */
	FP_EV_NOT_INSTALLED, /* ARRIVING ends: the page is unmapped or not wanted; ZERO or REMOTE again */
	FP_EV_FETCH_FAILED,  /* ARRIVING ends: no node can give the page back, and it is poisoned now */
	FP_EV_EVICT,         /* its entry was taken from the eviction queue: it is to leave, if it is local */
	FP_EV_PAGEOUT,       /* a victim that the program named: it is to leave; its queue entry stays */
	FP_EV_DROPPED,       /* LEAVING ends: the page was clean, and is dropped now */
	FP_EV_WAS_ZERO,      /* LEAVING ends: the captured bytes are all zero, and need no slot */
	FP_EV_WRITTEN,       /* all replicas have the bytes: LEAVING ends, or a waiter gets the page */
	FP_EV_NOT_WRITTEN,   /* the page was captured, but no node took it: put it back */
	FP_EV_REFUSED,       /* LEAVING ends: the page can't be captured now (pinned for I/O), and stays */
	FP_EV_CLAIM,         /* a layout call takes the page */
	FP_EV_REVIVE,        /* its node is back: take the page, only if it is lost, and not for good */
};

enum fp_page_action {
	FP_ACT_NONE,      /* the owner of the page will wake the faulting thread */
	FP_ACT_ZERO,      /* now ARRIVING: install zeros */
	FP_ACT_FETCH,     /* now ARRIVING: read the slot and install it */
	FP_ACT_VERIFY,    /* now ARRIVING: look whether it is present; if not, install zeros */
	FP_ACT_UNPROTECT, /* now ARRIVING: lift the write protection and wake; end by INSTALLED_RW */
	FP_ACT_WAKE,      /* wake the threads that wait for this address */
	FP_ACT_POISON,    /* now ARRIVING: make touches raise SIGBUS; end by FETCH_FAILED */
	FP_ACT_DROP,      /* now LEAVING: the remote copy is identical, drop the local one */
	FP_ACT_CAPTURE,   /* now LEAVING: capture the page and write it back */
	FP_ACT_PUT_BACK,  /* now ARRIVING: install the captured copy; it is clean if the write succeeded */
	FP_ACT_CLAIMED,   /* now CLAIMED: the claimer sets the old word again, or a new one */
	FP_ACT_BUSY,      /* after CLAIM: in transit, try again */
};

struct fp_page_step {
	uint64_t word;              /* the page's next word */
	enum fp_page_action action; /* for the thread that installs the word */
	bool enqueue;               /* became resident without an entry in the eviction queue: add one */
	uint32_t past;              /* if enqueue: for fp_evict_queue_push */
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

/*
 * True if a read fault on this page is to install it writable: after the last read faults, a write
 * came soon.
 */
static inline bool fp_page_expects_write(uint64_t word)
{
	return (word & FP_PAGE_HIST_MASK) != 0;
}

/*
 * The step of a page with this word at this event. Pure. An assertion fails if the event can't
 * happen in the word's state: only the owner could send it, so it is our bug.
 */
struct fp_page_step fp_pager_step(uint64_t word, enum fp_page_event event);

/* The step of FP_EV_WRITTEN; slot is where the page's bytes are now. */
struct fp_page_step fp_pager_step_written(uint64_t word, uint64_t slot);

/* The step of FP_EV_EVICT; past is what the queue said of the page. */
struct fp_page_step fp_pager_step_evict(uint64_t word, uint32_t past);

/*
 * Ends CLAIMED. settled is the page's new word, in a settled state; QUEUED and WAIT are taken from
 * the present word. The action is WAKE if a thread waits, else NONE.
 */
struct fp_page_step fp_pager_step_release(uint64_t word, uint64_t settled);

/*
 * Applies event to *page by compare-and-swap. Lock-free; any thread. *ret_old (may be NULL): the
 * replaced word. Acquire and release: the next owner of the page sees all that the previous owner
 * did.
 */
struct fp_page_step fp_pager_apply(_Atomic uint64_t *page, enum fp_page_event event, uint64_t *ret_old);
struct fp_page_step fp_pager_apply_written(_Atomic uint64_t *page, uint64_t slot, uint64_t *ret_old);
struct fp_page_step fp_pager_apply_evict(_Atomic uint64_t *page, uint32_t past, uint64_t *ret_old);
struct fp_page_step fp_pager_apply_release(_Atomic uint64_t *page, uint64_t settled);

#endif
