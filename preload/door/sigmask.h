/*
 * Signal masks in fault mode inline, where SIGBUS is how faults are served. Room: preload/door.
 *
 * The rule: SIGBUS is to masks what SIGKILL is. It is silently left out of every mask that the
 * program gives to the kernel, so no thread ever has it blocked. The kernel would end a process
 * that faults while it is. So a SIGBUS that somebody sends is delivered at once: the program's
 * handler runs, or the default action ends the program, or the program ignores it. Nothing is kept.
 *
 * One exception: a thread that works for the agent may hold locks. It gets the signal when it
 * leaves the agent (agent_sigmask.h).
 */
#ifndef FP_SIGMASK_H
#define FP_SIGMASK_H

#include <stdbool.h>

/* The C library's own: of cancellation, and of setuid. */
#define FP_SIGCANCEL 32
#define FP_SIGSETXID 33

/* From now on SIGBUS is ours. Unblocks it on the calling thread, the only one there is. */
void fp_sigmask_open(void);
bool fp_sigmask_is_open(void);

/* Takes SIGBUS out of a mask, in the kernel's form or the C library's. Not in other modes. */
void fp_sigmask_strip(void *mask);

/* For a new thread: the attributes of its creator may have a mask with SIGBUS in it. */
void fp_sigmask_thread_begins(void);

#endif
