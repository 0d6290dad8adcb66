/*
 * The signal mask of a program's thread while it runs the agent's code. Room: uffd/kernel.
 *
 * The thread's stack may be far, and its pages may leave between two instructions. So the kernel
 * reads and writes masks in thread-local memory, which is never far. Where threads serve their own
 * faults, SIGBUS stays unblocked. If somebody sends SIGBUS meanwhile, the signal is kept here until
 * the thread leaves the agent: the thread may hold locks, so no handler of the program may run.
 */
#ifndef FP_AGENT_SIGMASK_H
#define FP_AGENT_SIGMASK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Blocks signals and returns the old mask, in the kernel's form. If the parameter all is true, also
 * blocks the C library's own signals. If the parameter faults is true, leaves SIGBUS unblocked, as
 * the thread may fault. Each block needs a restore; pairs may nest.
 */
uint64_t fp_agent_sigmask_block(bool all, bool faults);
void fp_agent_sigmask_restore(uint64_t mask);

/*
 * Called in the handler of SIGBUS. True if somebody sent the signal and it interrupted the agent's
 * code: then the outermost restore sends it again.
 */
bool fp_agent_sigmask_defer(const siginfo_t *info);

/* The number of blocks not yet restored. A child of vfork may be killed inside a block: then
 * fp_agent_sigmask_vforked sets the parent's number back. */
unsigned fp_agent_sigmask_depth(void);
void fp_agent_sigmask_vforked(unsigned depth);

/* Called in a forked child: drops a SIGBUS that was sent to its parent. */
void fp_agent_sigmask_forked(void);

#endif
