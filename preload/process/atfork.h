/*
 * The handlers of fork register themselves: see atfork.c. Room: preload/process.
 */
#ifndef FP_ATFORK_H
#define FP_ATFORK_H

/* Called once, when the agent's first threads have started. */
void fp_atfork_open(void);

#endif
