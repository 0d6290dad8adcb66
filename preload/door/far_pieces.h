/*
 * Calls on ranges of addresses that may be partly far. Room: preload/door.
 *
 * Far memory lies in one range of addresses, so each call first asks whether it touches that range.
 * If not, the call goes to the kernel. If only a part is far, the call is cut at the borders.
 */
#ifndef FP_PIECES_H
#define FP_PIECES_H

#include <stdbool.h>
#include <stddef.h>

#include "rawcall.h"
#include "shim.h"

/* How a call treats a far piece and a plain one. Each returns 0 or a negative errno. */
struct fp_call {
	int (*far)(const struct fp_call *call, struct fp_space *space, void *addr, size_t len);
	int (*plain)(const struct fp_call *call, void *addr, size_t len);
	int arg;           /* protection, advice or flags */
	int overflow;      /* the result if the range ends beyond the last address; 0 stands for -EINVAL */
	bool ends_at_hole; /* true: stop at ENOMEM; false: go on, and report ENOMEM at the end */
};

size_t fp_page_round(size_t len);

/*
 * The far space, if [addr, addr + len) touches its range and fp_shim_space() is not NULL; otherwise
 * NULL.
 */
struct fp_space *fp_touched(const void *addr, size_t len);

/*
 * Carries out a call on a range that touches far memory, piece by piece, inside a bracket
 * (local.h).
 */
int fp_for_pieces(struct fp_space *space, void *addr, size_t len, const struct fp_call *call);

/*
 * Makes all pages that [addr, addr + len) touches local, until they are unmapped (fp_space_hold).
 * Returns 0, also if none is far, or the error of fp_space_hold. Any thread of the program, in
 * signal handlers too. Blocks as a fault does. errno stays.
 */
int fp_pieces_hold(const void *addr, size_t len);

#endif
