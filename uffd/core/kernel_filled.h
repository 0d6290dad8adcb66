/*
 * Kernel-filled memory: while the budget is ample, the kernel itself fills fresh pages. That costs
 * less than a fault through userfaultfd for each page. Room: uffd/core.
 *
 *                  begin: first touch, ample budget
 *     MANAGED ───────────────────────────────────────► FILLED
 *        ▲            (CONVERTING on the way)             │
 *        └────────────────────────────────────────────────┘
 *           end: a page is to leave, or its mapping ends (CHANGING on the way)
 *
 * A run of ZERO pages, all in one 2 MiB chunk and one mapping, leaves the userfaultfd's range. When
 * the next mapping's pages are touched, they continue the run (CHANGING on the way). Each page has
 * a token. Its word says RESIDENT and DIRTY from then on, touched or not: the kernel may fill it at
 * any moment, with the zeros that such a word promises. These must stay true:
 *
 *   - A page that is not registered is RESIDENT and DIRTY without a slot, or owned (LEAVING,
 *     CLAIMED), or ZERO in no mapping, where nobody can touch it.
 *   - The owner of a page calls fp_kernel_filled_end before it changes the word to anything else.
 */
#ifndef FP_KERNEL_FILLED_H
#define FP_KERNEL_FILLED_H

#include <stdbool.h>
#include <stdint.h>

#include "far.h"
#include "layout.h"

/*
 * Called before the fault threads start, in a forked child too. The userfaultfd is new then: the
 * whole range is registered with it, or soon will be. If the page map can't be read (a process that
 * is not dumpable), there will be no kernel-filled memory.
 */
void fp_kernel_filled_open(struct fp_far *far);

/*
 * Called for a fault on page, which was ZERO and which the caller owns as ARRIVING. True: the page
 * and its neighbours are kernel-filled now, and waiting threads go on. False: nothing has changed.
 * Fault threads; never blocks.
 */
bool fp_kernel_filled_begin(struct fp_far *far, const struct fp_layout *layout, uint32_t page);

/*
 * Makes a new mapping kernel-filled at once, so that no thread must fault first. Only if the
 * mapping is short and the budget is ample. Under the layout lock, signals blocked.
 */
void fp_kernel_filled_begin_mapping(struct fp_far *far, const struct fp_layout *layout, uint32_t start,
                                    uint32_t end);

/*
 * A mapping of at most this many pages leaves its run to the kernel when it ends. Often the next
 * mapping at the same place takes the run over, which needs no system call.
 */
#define FP_KERNEL_FILLED_SHORT 1024u

/*
 * Turns the free pages [start, end), all in one chunk, into pages of piece. If they are
 * kernel-filled, they stay so where the piece and the budget allow it. Otherwise they are
 * registered again. Called under the layout lock, before the pages can be touched. 0, or the
 * kernel's error as from fp_kernel_filled_end.
 */
int fp_kernel_filled_resume(struct fp_far *far, const struct fp_piece *piece, uint32_t start, uint32_t end);

/*
 * Registers the whole chunk of page, which the caller owns. 0, or the kernel's error (-ENOMEM: too
 * many mappings). After an error nothing has changed, and the page must keep its word. Agent
 * threads, and the program's in a layout call.
 */
int fp_kernel_filled_end(struct fp_far *far, uint32_t page);

/*
 * Called for a page that is absent though its word said RESIDENT. Most likely it was kernel-filled
 * before a fork, and so were its neighbours. Makes the absent pages of its chunk ZERO, so that they
 * can be kernel-filled again. Fault threads.
 */
void fp_kernel_filled_forget_absent(struct fp_far *far, uint32_t page);

/*
 * True if the kernel may fill pages of this chunk once they are dropped. Ask before the drop, as
 * the chunk may be registered at any moment. If a page's word allows it (fp_kernel_filled_keeps),
 * the page then keeps its word and token though it is absent. The next fault on the page finds that
 * it is absent.
 */
bool fp_kernel_filled_fills(const struct fp_far *far, uint32_t page);
bool fp_kernel_filled_keeps(uint64_t word);

#endif
