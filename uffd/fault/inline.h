/*
 * Inline serving: faults that are brought to their end by whatever thread met them, in the handler
 * of SIGBUS or ahead of a system call. Room: uffd. There are a few servers (serve.h); a thread
 * takes one by an atomic exchange for as long as its fault lasts, but for a few milliseconds at
 * most. Its page, or what it had read ahead, may still be on its way when it gives the server back.
 * Whoever waits for such a page looks after it, and so does the reclaim thread, now and then.
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
	char *stage; /* FP_STAGE_PAGES pages of the far range, opened, in no mapping; NULL: no evictor */
	unsigned readahead_pages;
};

enum fp_inline_end {
	FP_INLINE_SERVED, /* the fault is over; or there is nothing any more that could fault */
	FP_INLINE_BUSY, /* the page is on its way or somebody else's, or no server was free: wait, then again
	                 */
	FP_INLINE_LOST, /* nobody can give the page back */
};

/* Opens the servers. 0 or a negative errno. */
int fp_inline_start(const struct fp_inline_options *options, struct fp_inline **ret_inline);
/* Nobody may be serving any more. abandon: in the child of a fork. NULL is fine, here and below. */
void fp_inline_stop(struct fp_inline *in);
void fp_inline_abandon(struct fp_inline *in);

/* True if the caller is none of this process's threads, but shares its memory (handover.h). */
bool fp_inline_has_guest(const struct fp_inline *in);

/*
 * Serves one fault to its end, or as long as that takes milliseconds. Any thread, with all signals
 * blocked (SIGBUS need not be). A guest has it served by the agent.
 */
enum fp_inline_end fp_inline_serve(struct fp_inline *in, const struct fp_uffd_fault *fault);
/* The same, where fp_inline_has_guest has been asked: it is a system call. */
enum fp_inline_end fp_inline_serve_as(struct fp_inline *in, const struct fp_uffd_fault *fault, bool guest);

/*
 * What a thread does that met FP_INLINE_BUSY for the n-th time in a row: looks after what is on its
 * way, and lets others run. At most ten milliseconds, and a tenth of what it has waited so far.
 */
void fp_inline_wait(struct fp_inline *in, unsigned n);

/*
 * Makes n pages from page on resident, and writable if write, as far as they can be: what is
 * unmapped or lost stays so. Who wants them to stay publishes them first (pin.h). Any thread with
 * signals blocked, on a local stack.
 */
void fp_inline_bring(struct fp_inline *in, uint32_t page, uint32_t n, bool write);

/* True if a page with this word is as fp_inline_bring would make it. */
static inline bool fp_inline_is_ready(uint64_t word, bool write)
{
	return fp_page_state(word) == FP_PAGE_RESIDENT && (!write || (word & FP_PAGE_DIRTY));
}

/*
 * Looks after pages that were left behind in servers which nobody uses at the moment. Any thread.
 */
void fp_inline_tend(struct fp_inline *in);

#endif
