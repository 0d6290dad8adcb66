/*
 * RLIMIT_AS and RLIMIT_DATA of the program: the numbers that it sees, while the kernel's leave the
 * agent the memory that it needs. Room: preload/memory; see doc/architecture.md.
 */
#ifndef FP_RLIMITS_H
#define FP_RLIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>

/*
 * Called at the start, before and after the agent maps what it needs. They mark the numbers that
 * are set, where that is permitted, and note what is not the program's. In a bracket. The child of
 * a fork calls both again around its agent's start.
 */
void fp_limits_begin(void);
void fp_limits_open(void);

/* True if there is any such limit now. */
bool fp_limits_are_low(void);

/* True if so much more would exceed the program's limit, as the kernel would count. Any thread;
 * always false for threads of the agent. */
bool fp_limits_refuse(size_t len, int prot, int flags);

#endif
