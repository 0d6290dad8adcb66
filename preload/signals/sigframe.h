/*
 * Runs the program's handlers where the kernel does not fault on far memory for us. The kernel
 * can't write a signal's frame to a far stack, so it delivers every signal on a local stack of ours
 * (sigstack.h). From there we move the frame to where the kernel would have made it: on the
 * program's signal stack, or below the interrupted frame. The handler runs there. So it may jump
 * away, be resumed later, or look for pointers on its stack. When it returns, its frame goes back
 * through local memory. Room: preload/signals.
 *
 *     kernel -> frame on our stack -> copy on the program's -> handler -> local copy -> sigreturn
 *               all blocked           all blocked              its mask   all blocked
 */
#ifndef FP_SIGFRAME_H
#define FP_SIGFRAME_H

#include <signal.h>
#include <stdint.h>

/*
 * Called from the handler that the kernel called, with its arguments, while all signals but SIGBUS
 * and SIGSEGV are blocked. Runs the program's handler under *mask, on the stack where it belongs,
 * and does not return. Exception: it returns if the caller already runs on that stack.
 */
void fp_sigframe_run(int sig, void *context, const struct sigaction *action, const uint64_t *mask);

#endif
