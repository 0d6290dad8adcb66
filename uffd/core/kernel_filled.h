/*
 * Kernel-filled memory: while there is ample room, the kernel itself fills fresh pages, at its own
 * price, instead of by a fault of ours each. Room: uffd, inside.
 *
 *                  begin: first touch, ample room
 *     MANAGED ───────────────────────────────────────► FILLED
 *        ▲            (CONVERTING on the way)             │
 *        └────────────────────────────────────────────────┘
 *           end: a page is to leave, or its mapping ends (CHANGING on the way)
 *
 * A run of ZERO pages of one 2 MiB chunk, all within one mapping, is taken out of the userfaultfd's
 * range. Pages of a mapping next to it continue the run when they are touched (CHANGING on the
 * way). Each of its pages has a token, and its word says RESIDENT and DIRTY from then on, whether
 * it was touched or not: the kernel may fill it at any moment, and what it reads then is what the
 * word promises. What must stay true:
 *
 *   - A page that is not registered is RESIDENT and DIRTY without a slot, or owned (LEAVING,
 *     CLAIMED), or ZERO in no mapping, where nobody can touch it.
 *   - Who owns a page and wants its word to say anything else calls fp_kernel_filled_end first.
 */
#ifndef FP_KERNEL_FILLED_H
#define FP_KERNEL_FILLED_H

#include <stdbool.h>
#include <stdint.h>

#include "far.h"
#include "layout.h"

/*
 * The userfaultfd is new: it has all of the range, or will have. Before the fault threads start, in
 * a forked child too. Without a page map to read (a process that is not dumpable) there will be no
 * kernel-filled memory.
 */
void fp_kernel_filled_open(struct fp_far *far);

/*
 * A fault on page, which the caller owns as ARRIVING and which was ZERO. True: it ended, with its
 * neighbours; threads that waited go on. False: nothing has changed, as always once there was an
 * event (events.h): while the registration is changed the kernel tells of none. Fault threads;
 * never blocks.
 */
bool fp_kernel_filled_begin(struct fp_far *far, const struct fp_layout *layout, uint32_t page);

/*
 * The same for a mapping just made, so that no thread must fault first: as far as it is short, and
 * there is room. Under the layout lock, signals blocked.
 */
void fp_kernel_filled_begin_mapping(struct fp_far *far, const struct fp_layout *layout, uint32_t start,
                                    uint32_t end);

/*
 * A mapping of at most so many pages leaves its run to the kernel when it ends. The next one there
 * often takes it over, which needs no system call.
 */
#define FP_KERNEL_FILLED_SHORT 1024u

/*
 * The free pages [start, end), of one chunk, become those of piece. Where the kernel fills them, it
 * goes on if that suits the piece and there is room; else they are registered again. Before they
 * can be touched, under the layout lock. 0, or the kernel's error as fp_kernel_filled_end.
 */
int fp_kernel_filled_resume(struct fp_far *far, const struct fp_piece *piece, uint32_t start, uint32_t end);

/*
 * Makes sure that page, which the caller owns, is registered: its whole chunk is. 0, or the
 * kernel's error (-ENOMEM: too many mappings): then nothing has changed, and the page must keep its
 * word. Pages of the chunk whose mapping a system call ended behind our back are left alone. Any
 * thread of the agent's, and the program's in a layout call.
 */
int fp_kernel_filled_end(struct fp_far *far, uint32_t page);
/* The same where the caller owns the pages [start, end) of one chunk: these are not looked at. */
int fp_kernel_filled_end_held(struct fp_far *far, uint32_t start, uint32_t end);

/*
 * A page proved to be absent though its word said RESIDENT: most likely it was kernel-filled before
 * a fork, and so were its neighbours. Those of its chunk that are absent become ZERO, so that they
 * can be kernel-filled again. Fault threads.
 */
void fp_kernel_filled_forget_absent(struct fp_far *far, uint32_t page);

/*
 * Whether the kernel may fill pages of this chunk once they are dropped: to be asked before they
 * are, as the chunk may be registered at any moment. A page whose word says that it may be
 * kernel-filled (fp_kernel_filled_keeps) then keeps its word, and its token, though it is absent: a
 * fault on it finds out.
 */
bool fp_kernel_filled_fills(const struct fp_far *far, uint32_t page);
bool fp_kernel_filled_keeps(uint64_t word);

#endif
