/*
 * The signal mask of a thread of the program that works for the agent. Its stack may be far, and a
 * system call may find there what left between two instructions; so masks go to the kernel and come
 * from it by thread-local memory, which never is. And where threads serve their own faults, SIGBUS
 * is not blocked with the others: one that was sent waits here until the thread is out of the agent
 * again. Room: uffd.
 */
#ifndef FP_AGENT_SIGMASK_H
#define FP_AGENT_SIGMASK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Blocks signals; returns the mask before, in the kernel's form. all: also those that the C
 * library's own functions would not block. faults: but for SIGBUS, as the thread may fault. Blocked
 * and restored in pairs, the last first; a program's handler that jumps away in between would leave
 * the pair open, and none runs there.
 */
uint64_t fp_agent_sigmask_block(bool all, bool faults);
void fp_agent_sigmask_restore(uint64_t mask);

/* In the handler of SIGBUS: true if it was sent, and comes once more when what is blocked is
 * restored. */
bool fp_agent_sigmask_defer(const siginfo_t *info);

/* How many are blocked and not restored; and back to so many, after a child of vfork that may have
 * been killed between the two. */
unsigned fp_agent_sigmask_depth(void);
void fp_agent_sigmask_vforked(unsigned depth);

/* In a forked child, for whom nothing was sent. */
void fp_agent_sigmask_forked(void);

#endif
