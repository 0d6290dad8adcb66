/*
 * `farpage hist --live` on a terminal. Room: tools.
 */
#ifndef FP_HISTLIVE_H
#define FP_HISTLIVE_H

#include "histset.h"

/*
 * Shows set each second until the user quits: first the histogram of that phase, or of that kind of
 * faults if kind is not 0; keys choose others. Blocks. Call it only if fp_screen_possible. 0 or a
 * negative errno after a message.
 */
int fp_histlive_run(struct fp_histset *set, unsigned phase, unsigned kind);

#endif
