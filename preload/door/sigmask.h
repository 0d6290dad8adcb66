/*
 * Signal masks in fault mode inline, where the handler of SIGBUS serves faults. Room: preload/door.
 *
 * The rule: like SIGKILL, SIGBUS can't be blocked. We silently leave it out of every mask that the
 * program gives to the kernel. Otherwise the kernel would end a process that faults while SIGBUS is
 * blocked. So a SIGBUS that somebody sends is delivered at once: the program's handler runs, or the
 * default action ends the program, or the program ignores it. It never stays pending.
 *
 * One exception: a thread that works for the agent may hold locks. It gets the signal when it
 * leaves the agent (agent_sigmask.h).
 */
#ifndef FP_SIGMASK_H
#define FP_SIGMASK_H

#include <stdbool.h>

/* The two signals that the C library uses itself: one for cancellation, one for setuid. */
#define FP_SIGCANCEL 32
#define FP_SIGSETXID 33

/* From now on SIGBUS is ours. Unblocks it on the calling thread, which must be the only one. */
void fp_sigmask_open(void);
bool fp_sigmask_is_open(void);

/*
 * Takes SIGBUS out of a mask, in the kernel's form or the C library's. Does nothing outside of
 * fault mode inline.
 */
void fp_sigmask_strip(void *mask);

/* Called by a new thread: a mask in its attributes may contain SIGBUS, which is unblocked here. */
void fp_sigmask_thread_begins(void);

#endif
