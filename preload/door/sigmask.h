/*
 * Signal masks in fault mode inline, where SIGBUS is how faults are served. Room: preload/door.
 *
 * The rule: SIGBUS is to masks what SIGKILL is. We silently leave it out of every mask that the
 * program gives to the kernel, so no thread ever blocks it. The kernel would end a process that
 * faults while it is blocked. So a SIGBUS that somebody sends is delivered at once: the program's
 * handler runs, or the default action ends the program, or the program ignores it. Nothing is kept.
 *
 * One exception: a thread that works for the agent may hold locks. It gets the signal when it
 * leaves the agent (agent_sigmask.h).
 */
#ifndef FP_SIGMASK_H
#define FP_SIGMASK_H

#include <stdbool.h>

/* The signals that the C library uses itself, for cancellation and for setuid. */
#define FP_SIGCANCEL 32
#define FP_SIGSETXID 33

/* From now on SIGBUS is ours. Unblocks it on the calling thread, which must be the only one. */
void fp_sigmask_open(void);
bool fp_sigmask_is_open(void);

/* Takes SIGBUS out of a mask, in the kernel's form or the C library's. No effect in other modes. */
void fp_sigmask_strip(void *mask);

/* Called by a new thread: its creator's attributes may hold a mask with SIGBUS in it. */
void fp_sigmask_thread_begins(void);

#endif
