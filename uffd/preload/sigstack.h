/*
 * Signal stacks, where faults are served in the handler of SIGBUS: each thread has one of ours, in local
 * memory, whatever stack it runs on. What the program sets by sigaltstack is kept and told; its handlers that
 * ask for a signal stack run on ours, which is made at least as large. Room: uffd/preload.
 */
#ifndef FP_SIGSTACK_H
#define FP_SIGSTACK_H

#include <stdbool.h>

struct fp_sigstack;

/* For the first thread, before any other, and for those that threads.c starts. 0 or a negative errno. */
int fp_sigstack_open(void);
bool fp_sigstack_is_open(void);

/* Makes a stack for a thread that is about to start: NULL if there is no memory. */
struct fp_sigstack *fp_sigstack_new(void);
void fp_sigstack_free(struct fp_sigstack *stack);
/* The calling thread takes it for its own; it is freed when the thread ends. */
void fp_sigstack_adopt(struct fp_sigstack *stack);

#endif
