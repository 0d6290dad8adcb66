/*
 * Signal stacks, where the kernel does not fault on far memory for us. Each thread has one of ours,
 * in local memory; the kernel delivers every signal on it, whatever stack the thread runs on. What
 * the program sets by sigaltstack is kept and reported back, and its handlers run where it says
 * (sigframe.h). Room: preload/signals.
 */
#ifndef FP_SIGSTACK_H
#define FP_SIGSTACK_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Lies at the upper end of its own memory, and the stack grows below it. Used only by its thread
 * and by that thread's signal handlers. */
struct fp_sigstack {
	char *memory; /* a page that can't be touched, then the stack */
	size_t len;
	stack_t program;                /* as the program set it; flags without SS_ONSTACK */
	uintptr_t entered, entered_end; /* the program's stack that a handler last began on */
	char *back;                     /* frames return to the kernel from here: see sigframe.c */
	size_t back_len;
	volatile unsigned returns;
	unsigned rounds; /* of the thread's destructors */
};

/*
 * For the first thread, before any other, and for threads that threads.c starts. 0 or a negative
 * errno; -ENOTSUP: sigframe.c does not know the frames of this processor.
 */
int fp_sigstack_open(void);
bool fp_sigstack_is_open(void);

/* Makes a stack for a thread that is about to start. NULL if there is no memory. */
struct fp_sigstack *fp_sigstack_new(void);
void fp_sigstack_free(struct fp_sigstack *stack);
/* Makes it the calling thread's own. It is freed when the thread ends. */
void fp_sigstack_adopt(struct fp_sigstack *stack);

/* The calling thread's; NULL: it has none. */
struct fp_sigstack *fp_sigstack_own(void);
/* The stack as the kernel is told of it; for NULL, no stack. */
stack_t fp_sigstack_kernels(const struct fp_sigstack *stack);
/* True if addr is on the stack itself. */
bool fp_sigstack_has(const struct fp_sigstack *stack, uintptr_t addr);
/* True if addr is on the stack that the program has set, by the kernel's rules. */
bool fp_sigstack_is_programs(const struct fp_sigstack *stack, uintptr_t addr);
/* Does the kernel's part of sigaltstack, for a thread whose stack pointer is sp. 0 or a negative
 * errno. */
int fp_sigstack_set(struct fp_sigstack *stack, const stack_t *wanted, uintptr_t sp);

/* True if the caller runs on a signal stack, ours or the program's. */
bool fp_sigstack_in_use(void);

#endif
