/* The start of the shim, and what it asks of its parts. Room: preload/process. */
#ifndef FP_START_H
#define FP_START_H

/* Watches for children that bare calls make: they end with a message at their first touch of far
 * memory. Called once the agent is there. 0 or a negative errno. */
int fp_shim_watch_strays(void);

#endif
