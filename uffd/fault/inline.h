/*
 * Inline serving: a thread serves its own faults, in the handler of SIGBUS or before a system call.
 * Room: uffd/fault.
 *
 * There are a few servers (serve.h). A thread takes one by an atomic exchange while its fault
 * lasts, at most for a few milliseconds. Over shm it first evicts pages, if few tokens are free.
 * When it gives the server back, its page, or pages read ahead, may still be on their way. Threads
 * that wait for such a page tend the server; the reclaim thread tends it at intervals.
 */
#ifndef FP_INLINE_H
#define FP_INLINE_H

#include <stdbool.h>
#include <stdint.h>

#include "far.h"

struct fp_inline;
struct fp_layout;

struct fp_inline_options {
	struct fp_far *far;
	const struct fp_layout *layout;
	char *stage; /* FP_STAGE_PAGES accessible pages of the far range, in no mapping; NULL: no evictor */
	unsigned readahead_pages;
};

enum fp_inline_end {
	FP_INLINE_SERVED, /* the fault is over, or no mapping is left that could fault */
	FP_INLINE_BUSY,   /* the page is on its way or owned, or no server was free: wait, then try again */
	FP_INLINE_LOST,   /* no node can give the page back */
};

/* Opens the servers. Returns 0 or a negative errno. */
int fp_inline_start(const struct fp_inline_options *options, struct fp_inline **ret_inline);
/*
 * Called when no thread serves any more. fp_inline_abandon is for the child of a fork. NULL is
 * fine, here and below.
 */
void fp_inline_stop(struct fp_inline *in);
void fp_inline_abandon(struct fp_inline *in);

/* True if the caller shares this process's memory but is none of its threads (handover.h). */
bool fp_inline_has_guest(const struct fp_inline *in);

/*
 * Serves one fault, to its end or for a few milliseconds. Any thread, with all signals blocked,
 * except perhaps SIGBUS. For a guest, an agent thread serves it.
 */
enum fp_inline_end fp_inline_serve(struct fp_inline *in, const struct fp_uffd_fault *fault);
/*
 * Does the same as fp_inline_serve. The caller says whether it is a guest. It knows that from
 * fp_inline_has_guest, and so saves a second system call.
 */
enum fp_inline_end fp_inline_serve_as(struct fp_inline *in, const struct fp_uffd_fault *fault, bool guest);

/*
 * Called by a thread that got FP_INLINE_BUSY for the n-th time in a row. Tends the servers and lets
 * other threads run. Takes at most ten milliseconds, and at most a tenth of the wait so far.
 */
void fp_inline_wait(struct fp_inline *in, unsigned n);

/*
 * Makes the n pages that begin with number page resident, and writable too if the parameter write
 * is set. Unmapped and lost pages stay unmapped and lost. A caller that needs the pages to stay
 * publishes them first (pin.h). Any thread with signals blocked, on a local stack.
 */
void fp_inline_bring(struct fp_inline *in, uint32_t page, uint32_t n, bool write);

/* True if a page with this word is already as fp_inline_bring would make it. */
static inline bool fp_inline_is_ready(uint64_t word, bool write)
{
	return fp_page_state(word) == FP_PAGE_RESIDENT && (!write || (word & FP_PAGE_DIRTY));
}

/*
 * Continues with pages that were left behind in servers that no thread uses now. Any thread. Ends a
 * guest whose process has ended: nobody would bring the page for which it waits.
 */
void fp_inline_tend(struct fp_inline *in);

#endif
