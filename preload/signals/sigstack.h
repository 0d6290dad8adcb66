/*
 * Signal stacks, where the kernel does not fault on far memory for us. Room: preload/signals. Each
 * thread has one of ours, in local memory. The kernel delivers every signal on it, whatever stack
 * the thread runs on. We keep the stack that the program sets by sigaltstack, report it back, and
 * run the program's handlers on it (sigframe.h).
 */
#ifndef FP_SIGSTACK_H
#define FP_SIGSTACK_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A signal stack of ours. This struct lies at the upper end of the mapped memory, the stack itself
 * below it. Used only by its thread and by that thread's signal handlers.
 */
struct fp_sigstack {
	char *memory; /* begins with an inaccessible page, then the stack */
	size_t len;
	stack_t program;                /* the signal stack that the program has set; without SS_ONSTACK */
	uintptr_t entered, entered_end; /* bounds of the program's signal stack that a handler last entered */
	char *back;                     /* memory from which frames return to the kernel: see sigframe.c */
	size_t back_len;
	volatile unsigned returns;
	unsigned rounds; /* how many rounds of the thread's destructors have run */
};

/*
 * From now on each thread gets such a stack: the calling thread, which must be the only one, and
 * all that threads.c starts. Returns 0 or a negative errno: -ENOTSUP if sigframe.c does not know
 * the frames of this processor.
 */
int fp_sigstack_open(void);
bool fp_sigstack_is_open(void);

/* Makes a stack for a thread that is about to start. NULL if there is no memory. */
struct fp_sigstack *fp_sigstack_new(void);
void fp_sigstack_free(struct fp_sigstack *stack);
/* Makes the stack the calling thread's own. It is freed when the thread ends. */
void fp_sigstack_adopt(struct fp_sigstack *stack);

/* Returns the calling thread's stack of ours, or NULL if the thread has none. */
struct fp_sigstack *fp_sigstack_own(void);
/*
 * Returns the stack in the form of sigaltstack(2), for the kernel. If the parameter stack is NULL,
 * the result says "no stack" (SS_DISABLE).
 */
stack_t fp_sigstack_kernels(const struct fp_sigstack *stack);
/* True if addr is on this stack of ours. */
bool fp_sigstack_has(const struct fp_sigstack *stack, uintptr_t addr);
/* True if addr is on the signal stack that the program has set, by the kernel's rules. */
bool fp_sigstack_is_programs(const struct fp_sigstack *stack, uintptr_t addr);
/*
 * Does the kernel's part of sigaltstack, for a thread whose stack pointer is sp. Returns 0 or a
 * negative errno.
 */
int fp_sigstack_set(struct fp_sigstack *stack, const stack_t *wanted, uintptr_t sp);

/* True if the caller runs on a signal stack, ours or the program's. */
bool fp_sigstack_in_use(void);

#endif
