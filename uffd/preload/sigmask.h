/*
 * The threads' signal masks, where SIGBUS is how faults are served: the kernel never has it blocked, as it
 * would end a process that faults then. What the program blocks and asks for is kept by thread, as far as
 * SIGBUS goes. Room: uffd/preload.
 */
#ifndef FP_SIGMASK_H
#define FP_SIGMASK_H

#include <signal.h>
#include <stdbool.h>

/* From now on SIGBUS is ours; unblocks it on the calling thread, the only one there is. */
void fp_sigmask_open(void);
bool fp_sigmask_is_open(void);

/* Takes SIGBUS out of a mask, in the kernel's form or the C library's; nothing if it is not ours. */
void fp_sigmask_strip(void *mask);

/* What the calling thread has blocked, as it believes; and what a new thread inherits, which it calls first.
 */
bool fp_sigmask_blocks(void);
void fp_sigmask_inherit(bool blocks);

/* A SIGBUS that was sent, not raised by a fault: true if the thread has it blocked and gets it later. */
bool fp_sigmask_defer(void);

/* Sets the kernel's mask of the calling thread alone, for a handler that is about to run; sigreturn undoes
 * it.
 */
void fp_sigmask_enter(const sigset_t *mask);

/* sigaction of a signal that is not taken (signals.h), without SIGBUS in the mask of its handler. */
int fp_sigmask_action(int sig, const struct sigaction *action, struct sigaction *ret_old);

#endif
