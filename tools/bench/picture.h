/*
 * The option --svg of the benches, and the file that it names. Room: tools/bench.
 */
#ifndef FP_PICTURE_H
#define FP_PICTURE_H

#include <stdio.h>

#include "tool.h"

/*
 * Creates the file at once, so that a wrong path does not waste a long run. A file that exists
 * keeps its bytes until fp_picture_close. The target: FILE *.
 */
fp_option_read fp_picture_option;

/*
 * Ends the file of a picture. r is what the drawing returned. Takes over out. Returns the exit
 * status, 1 after a message.
 */
int fp_picture_close(const struct fp_tool *tool, FILE *out, int r);

#endif
