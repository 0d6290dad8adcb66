/*
 * The signal mask of a thread of the program that works for the agent. Room: uffd/kernel.
 *
 * The thread's stack may be far, and leave between two instructions. So the kernel reads and writes
 * masks in thread-local memory, which never is far. Where threads serve their own faults, SIGBUS
 * stays unblocked. One that somebody sends meanwhile waits here until the thread leaves the agent:
 * the thread may hold locks, and no handler of the program may run then.
 */
#ifndef FP_AGENT_SIGMASK_H
#define FP_AGENT_SIGMASK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Blocks signals; returns the mask before, in the kernel's form. all: the C library's own signals,
 * too. faults: not SIGBUS, as the thread may fault. Blocks and restores come in pairs and may nest.
 */
uint64_t fp_agent_sigmask_block(bool all, bool faults);
void fp_agent_sigmask_restore(uint64_t mask);

/* In the handler of SIGBUS: true if it was sent, and comes once more at the outermost restore. */
bool fp_agent_sigmask_defer(const siginfo_t *info);

/* How many are blocked and not restored; and back to so many, after a child of vfork that may have
 * been killed between the two. */
unsigned fp_agent_sigmask_depth(void);
void fp_agent_sigmask_vforked(unsigned depth);

/* In a forked child: what was sent to its parent is not for it. */
void fp_agent_sigmask_forked(void);

#endif
