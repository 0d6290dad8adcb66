/*
 * Capture: takes the bytes of pages that are to leave, so that no thread changes them while they
 * are written to a node. Room: uffd/evict. It stands between the evictor, which chooses and writes,
 * and the kernel. On the fault path, so nothing here allocates (law 4).
 *
 * Capture has two ways. In both, a write that comes too late waits in the kernel.
 *   - MOVE takes the page out of the program's mapping by UFFDIO_MOVE, atomically. The kernel
 *     refuses pages that are pinned for I/O.
 *   - PROTECT is for kernels before 6.8, and for mappings that are not writable. It write-protects
 *     the page, copies it, and drops the original once the copy is safe.
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
	bool moved;        /* buf is the page itself, in the stage; false: buf is a copy */
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
	char *stage;        /* FP_BUDGET_BATCH_MAX pages of the far range */
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
 * Drops the original of a page that was copied. Called before the page's word says that it has
 * left. False: the original stays (mlock).
 */
bool fp_capture_drop_original(struct fp_far *far, const struct fp_leaving *leaving);

/* Empties the stage of a batch that is done. */
void fp_capture_empty_stage(const struct fp_batch *batch);

#endif
