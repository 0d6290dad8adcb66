/*
 * A local stack for a thread whose own stack is far memory: a coroutine's, or a signal stack from
 * malloc. Room: uffd/kernel.
 *
 *     the program's stack (far)              a stack of ours (local)
 *     ─────────────────────────              ───────────────────────
 *     mmap, munmap, ..., malloc
 *     fork, pthread_create, a pin, far_map
 *        FP_ON_LOCAL_STACK ── blocks signals, switches ──►  the agent's function
 *                                                             layout lock, ioctls, fork
 *        ◄── switches back, lets signals through ───────────  returns
 *
 * So the agent's code may assume that its stack is local: the buffers that it hands to the kernel
 * are present, and a touch of its own frames is never a fault. If the stack is local already, the
 * call costs one compare.
 *
 *   - Signals are blocked on a local stack. Otherwise the kernel could not tell that a handler runs
 *     on the program's signal stack, and would begin the next handler on top of it. So calls do not
 *     nest, no longjmp leaves one, and each is as short as the agent's functions.
 *   - Where threads serve their own faults, SIGBUS stays open. Its handler runs on a signal stack,
 *     which is local.
 *   - A stack belongs to one call, not to a thread: calls take one that is free. A child of vfork
 *     that is killed in a call keeps its stack; nothing else is lost.
 *   - The child of a fork runs on its copy of the stack, and gives that copy back. So it needs no
 *     far memory until its agent runs.
 *   - A call that waits with signals open (read, poll) stays on the program's stack. Its buffers
 *     are pinned or copied: see preload/syscalls.
 */
#ifndef FP_LOCAL_STACK_H
#define FP_LOCAL_STACK_H

#include <stdbool.h>
#include <stddef.h>

typedef long fp_local_fn(long a, long b, long c, long d, long e, long f);

/*
 * From now on, a thread whose stack lies in [base, base + len_bytes) changes stacks when it enters
 * the agent. If the parameter faults is true, threads serve their own faults in this range, by
 * SIGBUS. Returns 0 or -ENOMEM. Called once for each range, before its first use.
 */
int fp_local_stack_open(const void *base, size_t len_bytes, bool faults);

/* True if the caller's stack is far. True, too, for a stack that lies between two far ranges. */
bool fp_local_stack_is_far(void);

/*
 * Calls fn on a local stack and returns its result. Any thread, signal handlers too. errno is as fn
 * leaves it.
 */
long fp_local_stack_run(long a, long b, long c, long d, long e, long f, fp_local_fn *fn);

/*
 * fp_local_stack_run for any function of up to six integers and pointers that returns one of these,
 * or nothing. The upper half of an int result is undefined: cast it.
 */
#define FP_ON_LOCAL_STACK(fn, a, b, c, d, e, f)                                                              \
	fp_local_stack_run((long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f),                 \
	                   (fp_local_fn *)(void (*)(void))(fn))

#endif
