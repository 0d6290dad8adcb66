/*
 * RLIMIT_AS and RLIMIT_DATA of the program: they limit far memory, too. Room: preload/memory; see
 * doc/limits.md.
 */
#ifndef FP_RLIMITS_H
#define FP_RLIMITS_H

/* The calling process has an agent from now on. Called at the start, and in the child of a fork. */
void fp_limits_open(void);

#endif
