/*
 * Capture: takes the bytes of pages that are to leave, so that no thread changes them while they
 * are written to a node. Room: uffd/evict. It stands between the evictor, which chooses and writes,
 * and the kernel. On the fault path, so nothing here allocates (law 4).
 *
 * Capture has two ways. In both, a write that comes too late waits in the kernel, and the captured
 * bytes are the only copy.
 *   - MOVE takes the page out of the program's mapping by UFFDIO_MOVE, atomically. The kernel
 *     refuses pages that are pinned for I/O. It moves between mappings of equal protection only,
 *     which must be writable. So executable memory has a stage of its own (the twin). A page that
 *     the program can only read, or only write, is opened while it is moved. It is write-protected
 *     by userfaultfd before that. So a write waits, and then the kernel refuses it as before.
 *   - COPY write-protects the page, copies it, and drops it by fp_unheld_take, which proves that
 *     nobody holds it. It serves where MOVE is not there (kernels before 6.8), where MOVE is not
 *     enough (far->wary), and for memory that the program can't access: if it was opened, a thread
 *     could read it meanwhile.
 * A page that is neither moved nor proved to be held by nobody stays where it is.
 */
#ifndef FP_CAPTURE_H
#define FP_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "far.h"

/* One page on its way to its slot. */
struct fp_leaving {
	struct fp_page_io io; /* the slot; buf: the captured bytes */
	uint32_t page;
	uint32_t tries;
	bool zero;         /* all its bytes are zero */
	bool copied;       /* they are in its slot: the node's memory is mapped */
	uint64_t old_slot; /* the slot that the page had before; 0: none */
	struct fp_batch *batch;
};

/* Pages that were captured together. The stage is emptied when the last of them is done. */
struct fp_batch {
	struct fp_leaving items[FP_BUDGET_BATCH_MAX];
	unsigned n;         /* captured pages */
	unsigned open;      /* pages that are not done yet; 0: the batch is free */
	unsigned tokens;    /* tokens of pages that have left; given back when the stage is emptied */
	unsigned n_back;    /* pages that were put back since the batch was captured */
	unsigned n_written; /* pages that are at a node now */
	char *stage;        /* FP_BUDGET_BATCH_MAX pages of the far range, FP_STAGE_PAGES before its twin */
	bool twin_open;     /* the twin is executable */
	bool twin_used;     /* it has pages */
	char *copies;       /* FP_BUDGET_BATCH_MAX pages of plain memory */
	uint64_t begun_ns;
	uint64_t sent_ns; /* when the write of its pages to their nodes began */
};

/* The length of the run of neighbours that starts at pages[0]. */
static inline unsigned fp_run_length(const uint32_t *pages, unsigned n)
{
	unsigned k = 1;

	while (k < n && pages[k] == pages[0] + k)
		k++;
	return k;
}

/*
 * Captures n pages, LEAVING and in ascending order, into the batch, which has space for them. If
 * the kernel does not give a page now, the page is settled: refused, or found to be absent.
 */
void fp_capture(struct fp_far *far, struct fp_batch *batch, const uint32_t *pages, unsigned n);

/* The page can't be captured now: it stays resident, and gets a new entry in the eviction queue. */
void fp_capture_refuse(struct fp_far *far, uint32_t page);

/*
 * From fp_capture_pause to fp_capture_resume, no page is copied that is readable and writable. A
 * page that somebody holds can be kept only while it is so: see fp_unheld_touch. So whoever closes
 * memory first waits for those that copy. Called with the layout's lock. What waits for that lock,
 * or for a page, is not waited for.
 */
void fp_capture_pause(struct fp_far *far);
void fp_capture_resume(struct fp_far *far);

/*
 * After a fork, the process and its child share a page until one of them writes to it, and
 * UFFDIO_MOVE refuses it. Makes the kernel write to a present page of writable memory, to get a
 * copy of our own; no byte changes. The page is not write-protected then. Returns 0 or -EBUSY.
 */
int fp_capture_unshare(struct fp_far *far, uint32_t page);

/* Empties the stage of a batch that is done. */
void fp_capture_empty_stage(struct fp_batch *batch);

#endif
