/*
 * Handlers of the program where the kernel does not fault on far memory for us. The kernel can't
 * write a signal's frame to a far stack, so it delivers every signal on a local stack of ours
 * (sigstack.h). From there the frame is moved to where the kernel would have made it: on the
 * program's signal stack, or below what was interrupted. The handler runs there. So it may jump
 * away, be taken up again later, or look for pointers on its stack. When it returns, its frame goes
 * back by local memory. Room: preload/signals.
 *
 *     kernel -> frame on our stack -> copy on the program's -> handler -> local copy -> sigreturn
 *               all blocked           all blocked              its mask   all blocked
 */
#ifndef FP_SIGFRAME_H
#define FP_SIGFRAME_H

#include <signal.h>
#include <stdint.h>

/*
 * From the handler that the kernel called, with its arguments, all signals but SIGBUS and SIGSEGV
 * blocked: runs the program's handler under *mask on the stack where it belongs, and does not
 * return. It does return if that is where the caller is.
 */
void fp_sigframe_run(int sig, void *context, const struct sigaction *action, const uint64_t *mask);

#endif
