/*
 * Handlers of the program where the kernel does not fault on far memory for us. The kernel delivers
 * every signal on a stack of ours (sigstack.h), since it could not write to a far one; from there
 * the frame is moved to where it would have been made without us: on the program's signal stack, or
 * below what was interrupted. There the handler runs, and may do whatever handlers do. When it
 * returns, its frame goes back by our memory. Room: preload.
 *
 *     kernel ──► frame on our stack ──► copy on the program's ──► handler ──► copy in our memory ──►
 * sigreturn all signals blocked                  its mask            all signals blocked
 */
#ifndef FP_SIGFRAME_H
#define FP_SIGFRAME_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* From now on handlers are run so. 0; -ENOTSUP: not on this processor, whose frames nobody here
 * knows. */
int fp_sigframe_open(void);
bool fp_sigframe_is_open(void);

/*
 * From the handler that the kernel called, with its arguments, all signals but SIGBUS and SIGSEGV
 * blocked: runs the program's handler under mask (SIGBUS as the program sees it) on the stack where
 * it belongs, and does not return. It does return if that is where the caller is.
 */
void fp_sigframe_run(int sig, void *context, const struct sigaction *action, uint64_t mask);

/* True if context is that of a system call which waited under the mask that lies at mask, or that
 * is named by what pselect6 takes at mask, and which the signal has ended. NULL: never. */
bool fp_sigframe_waited_under(const void *context, const void *mask);

#endif
