/* See local_stack.h. */
#include "local_stack.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "agent_sigmask.h"
#include "cleanup.h"
#include "end.h"
#include "lockedmem.h"

#define STACK_BYTES (256u << 10)
#define GUARD_BYTES 4096u
#define KEPT        16u     /* how many free stacks are kept */
#define TRIES       100000u /* how often to try again if there is no memory for a stack */

/* Far memory lies in [low, high). */
static _Atomic uintptr_t low = UINTPTR_MAX, high;
static atomic_bool has_faults;
static _Atomic(char *) kept[KEPT];

/* ---- stacks ---- */

static bool keep(char *stack)
{
	for (unsigned i = 0; i < KEPT; i++) {
		char *none = NULL;

		if (atomic_compare_exchange_strong(&kept[i], &none, stack))
			return true;
	}
	return false;
}

static char *take_kept(void)
{
	for (unsigned i = 0; i < KEPT; i++) {
		char *stack = atomic_load_explicit(&kept[i], memory_order_relaxed);

		if (stack && (stack = atomic_exchange(&kept[i], NULL)))
			return stack;
	}
	return NULL;
}

/*
 * Maps a stack. The caller's stack is far: pass no part of it to the kernel here. MAP_STACK makes
 * the new one local.
 */
static char *stack_new(void)
{
	char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

	if (stack == MAP_FAILED)
		return NULL;
	(void)mprotect(stack, GUARD_BYTES, PROT_NONE);
	return stack;
}

static char *take(void)
{
	for (unsigned i = 0; i < TRIES; i++) {
		char *stack = take_kept();

		if (stack || (stack = stack_new()))
			return stack;
		sched_yield();
	}
	fp_end_refused("stack", "a thread whose stack is in far memory needs a local one for a call, and "
	                        "there is no memory for it (ulimit -v, vm.max_map_count): it can't go on");
}

static void give_back(char *stack)
{
	if (keep(stack))
		return;
	munmap(stack, STACK_BYTES);
}

/* ---- ranges ---- */

static void include(uintptr_t start, uintptr_t end)
{
	uintptr_t was_low = atomic_load(&low), was_high = atomic_load(&high);

	while (start < was_low && !atomic_compare_exchange_weak(&low, &was_low, start))
		;
	while (end > was_high && !atomic_compare_exchange_weak(&high, &was_high, end))
		;
}

int fp_local_stack_open(const void *base, size_t len_bytes, bool faults)
{
	char *first = stack_new();

	if (!first)
		return -ENOMEM;
	fp_lockedmem_lock(first + GUARD_BYTES, STACK_BYTES - GUARD_BYTES, true);
	give_back(first);
	if (faults)
		atomic_store(&has_faults, true);
	include((uintptr_t)base, (uintptr_t)base + len_bytes);
	return 0;
}

static bool is_far(uintptr_t frame)
{
	return frame >= atomic_load_explicit(&low, memory_order_relaxed) &&
	       frame < atomic_load_explicit(&high, memory_order_relaxed);
}

bool fp_local_stack_is_far(void)
{
	return is_far((uintptr_t)__builtin_frame_address(0));
}

/* ---- the switch ---- */

long fp_local_stack_switch(long a, long b, long c, long d, long e, long f, fp_local_fn *fn, char *top);

/*
 * Switches stacks and calls fn. The arguments are already where fn expects them. An unwinder finds
 * the caller by the frame pointer.
 */
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl fp_local_stack_switch\n"
        ".hidden fp_local_stack_switch\n"
        ".type fp_local_stack_switch, @function\n"
        "fp_local_stack_switch:\n"
        "	.cfi_startproc\n"
        "	push %rbp\n"
        "	.cfi_def_cfa_offset 16\n"
        "	.cfi_offset %rbp, -16\n"
        "	mov %rsp, %rbp\n"
        "	.cfi_def_cfa_register %rbp\n"
        "	mov 16(%rbp), %rax\n" /* fn */
        "	mov 24(%rbp), %rsp\n" /* top */
        "	call *%rax\n"
        "	leave\n"
        "	.cfi_def_cfa %rsp, 8\n"
        "	ret\n"
        "	.cfi_endproc\n"
        ".size fp_local_stack_switch, .-fp_local_stack_switch\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl fp_local_stack_switch\n"
        ".hidden fp_local_stack_switch\n"
        ".type fp_local_stack_switch, %function\n"
        "fp_local_stack_switch:\n"
        "	.cfi_startproc\n"
        "	stp x29, x30, [sp, #-16]!\n"
        "	.cfi_def_cfa_offset 16\n"
        "	.cfi_offset x29, -16\n"
        "	.cfi_offset x30, -8\n"
        "	mov x29, sp\n"
        "	.cfi_def_cfa_register x29\n"
        "	mov sp, x7\n"
        "	blr x6\n"
        "	mov sp, x29\n"
        "	ldp x29, x30, [sp], #16\n"
        "	ret\n"
        "	.cfi_endproc\n"
        ".size fp_local_stack_switch, .-fp_local_stack_switch\n");
#else
long fp_local_stack_switch(long a, long b, long c, long d, long e, long f, fp_local_fn *fn, char *top)
{
	fp_end_refused("stack", "a call on a stack in far memory is not possible on this processor yet: keep "
	                        "stacks out of far memory (--heap none)");
}
#endif

static long run_far(long a, long b, long c, long d, long e, long f, fp_local_fn *fn)
{
	uint64_t mask = fp_agent_sigmask_block(false, atomic_load(&has_faults));
	char *stack = take();
	long r = fp_local_stack_switch(a, b, c, d, e, f, fn, stack + STACK_BYTES);

	give_back(stack);
	fp_agent_sigmask_restore(mask);
	return r;
}

long fp_local_stack_run(long a, long b, long c, long d, long e, long f, fp_local_fn *fn)
{
	return fp_local_stack_is_far() ? run_far(a, b, c, d, e, f, fn) : fn(a, b, c, d, e, f);
}
