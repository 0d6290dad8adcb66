/*
 * Signal stacks, where the kernel does not fault on far memory for us: each thread has one of ours,
 * in local memory, on which the kernel delivers every signal, whatever stack the thread runs on.
 * What the program sets by sigaltstack is kept and told, and its handlers run where it says
 * (sigframe.h). Room: preload.
 */
#ifndef FP_SIGSTACK_H
#define FP_SIGSTACK_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At the upper end of its own memory, below which the stack grows. Its thread's and its signal
 * handlers'. */
struct fp_sigstack {
	char *memory; /* a page that can't be touched, then the stack */
	size_t len;
	stack_t program;                /* as the program set it; flags without SS_ONSTACK */
	uintptr_t entered, entered_end; /* the program's that a handler began on last */
	char *back;                     /* where frames return to the kernel from: see sigframe.c */
	size_t back_len;
	volatile unsigned returns;
	unsigned rounds; /* of the thread's destructors */
};

/*
 * For the first thread, before any other, and for those that threads.c starts. 0 or a negative
 * errno; -ENOTSUP: sigframe.c does not know the frames of this processor.
 */
int fp_sigstack_open(void);
bool fp_sigstack_is_open(void);

/* Makes a stack for a thread that is about to start: NULL if there is no memory. */
struct fp_sigstack *fp_sigstack_new(void);
void fp_sigstack_free(struct fp_sigstack *stack);
/* The calling thread takes it for its own; it is freed when the thread ends. */
void fp_sigstack_adopt(struct fp_sigstack *stack);

/* The calling thread's; NULL: it has none. */
struct fp_sigstack *fp_sigstack_own(void);
/* What the kernel knows of it; of NULL: that there is none. */
stack_t fp_sigstack_kernels(const struct fp_sigstack *stack);
/* True if addr is on the stack itself. */
bool fp_sigstack_has(const struct fp_sigstack *stack, uintptr_t addr);
/* True if addr is on what the program has set, as the kernel sees it. */
bool fp_sigstack_is_programs(const struct fp_sigstack *stack, uintptr_t addr);
/* The kernel's part of sigaltstack, for a thread whose stack pointer is sp. 0 or a negative
 * errno. */
int fp_sigstack_set(struct fp_sigstack *stack, const stack_t *wanted, uintptr_t sp);

/* True if the caller runs on a signal stack, ours or the program's. */
bool fp_sigstack_in_use(void);

#endif
