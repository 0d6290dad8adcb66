/*
 * RLIMIT_AS and RLIMIT_DATA of the program: its numbers, while the kernel's leave the agent the
 * room that it needs. Room: preload/memory; see doc/architecture.md.
 */
#ifndef FP_RLIMITS_H
#define FP_RLIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>

/*
 * At the start, before and after the agent has mapped what it needs: marks the numbers that are
 * there, where that is permitted, and notes what is not the program's. In a bracket. The same two
 * in the child of a fork, around its agent's start.
 */
void fp_limits_begin(void);
void fp_limits_open(void);

/* True if there is any such limit now. */
bool fp_limits_are_low(void);

/* True if so much more would be beyond the program's limit, as the kernel would count. Any thread;
 * false for those of the agent. */
bool fp_limits_refuse(size_t len, int prot, int flags);

#endif
