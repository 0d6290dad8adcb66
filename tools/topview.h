/*
 * `farpage top` on a terminal. Room: tools.
 */
#ifndef FP_TOPVIEW_H
#define FP_TOPVIEW_H

/*
 * Shows the programs until the user quits: as many columns as the terminal has room for, a row for
 * each program, sorted by the column that a key names. 0, or a negative errno after a message. Call
 * only if fp_screen_possible.
 */
int fp_topview_run(void);

#endif
