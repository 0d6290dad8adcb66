/*
 * sigsetjmp and siglongjmp: the C library saves and restores the thread's mask by a system call on
 * the program's buffer, and ignores its error. If the buffer is far, the mask would be lost. So
 * here we make that system call ourselves. Room: preload/signals.
 *
 * The C library still saves the registers, as it knows how. We call its function, so it saves the
 * stack pointer and the address of that call. Afterwards we put our caller's in their place. The
 * C library has mangled both with a secret: it is exclusive-or, then a rotation. So the difference
 * of two addresses, rotated, is the difference of what is stored.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdint.h>
#include <signal.h>
#include <sys/syscall.h>

#include "call_args.h"
#include "calls.h"
#include "far_pieces.h"
#include "local.h"
#include "shim.h"
#include "sigmask.h"

#if defined(__x86_64__)

#define STACK_AT 6 /* in __jmpbuf: where the C library keeps the stack pointer */
#define CODE_AT  7 /* and where it keeps the address */
#define ROTATION 17

typedef struct __jmp_buf_tag jump_buffer;
typedef void jump_fn(jump_buffer *env, int value);

extern const char fp_jumps_inside[] __attribute__((visibility("hidden")));

/* How the assembler below goes on: it jumps to real, or calls it and then fp_jumps_finish. */
struct fp_jumps_way {
	void *real;
	long saves_mask;
};
struct fp_jumps_way fp_jumps_way_of(const jump_buffer *env, int saves_mask);
int fp_jumps_finish(jump_buffer *env, uintptr_t *stack);

/* True if the kernel would not fault on the buffer, in a call that libc makes. */
static bool is_awkward(const jump_buffer *env)
{
	return fp_calls_hold() && !fp_local_is_agent() && fp_call_args_far(env, sizeof(*env));
}

/* With a shadow stack the buffer holds one more address, which we don't know. */
static bool has_shadow_stack(void)
{
	uintptr_t shadow = 0;

	__asm__ volatile("rdsspq %0" : "+r"(shadow)); /* without such a stack it does nothing */
	return shadow != 0;
}

static void *real_sigsetjmp(void)
{
	static _Atomic(void *) known;

	return fp_shim_next(&known, "__sigsetjmp");
}

__attribute__((used)) struct fp_jumps_way fp_jumps_way_of(const jump_buffer *env, int saves_mask)
{
	struct fp_jumps_way way = {.real = real_sigsetjmp()};

	way.saves_mask = saves_mask && is_awkward(env) && !has_shadow_stack();
	return way;
}

/*
 * Asks for the thread's mask, or sets it. The mask may lie in far memory, or on a far stack. Then
 * another attempt is needed if it leaves between its touch and the call.
 */
static void exchange_mask(bool set, volatile uint64_t *mask)
{
	long r;

	do {
		*mask = *mask;
		r = set ? FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, mask, NULL, sizeof(*mask), 0, 0)
		        : FP_RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, mask, sizeof(*mask), 0, 0);
	} while (r == -EFAULT);
}

static void replace_address(long *stored, uintptr_t is, uintptr_t wanted)
{
	uint64_t difference = is ^ wanted;

	*stored ^= (long)(difference << ROTATION | difference >> (64 - ROTATION));
}

/*
 * Called after the C library has saved the registers. stack is where our caller's address lies; the
 * call was made with one more word on the stack. Returns what sigsetjmp returns.
 */
__attribute__((used)) int fp_jumps_finish(jump_buffer *env, uintptr_t *stack)
{
	replace_address(&env->__jmpbuf[STACK_AT], (uintptr_t)(stack - 1), (uintptr_t)(stack + 1));
	replace_address(&env->__jmpbuf[CODE_AT], (uintptr_t)fp_jumps_inside, *stack);
	exchange_mask(false, (uint64_t *)&env->__saved_mask);
	env->__mask_was_saved = 1;
	return 0;
}

__asm__(".text\n"
        ".globl setjmp, __sigsetjmp\n"
        ".type setjmp, @function\n"
        ".type __sigsetjmp, @function\n"
        "setjmp:\n"
        "	mov $1, %esi\n"
        "__sigsetjmp:\n"
        "	.cfi_startproc\n"
        "	push %rdi\n"
        "	push %rsi\n"
        "	sub $8, %rsp\n"
        "	.cfi_adjust_cfa_offset 24\n"
        "	call fp_jumps_way_of\n"
        "	add $8, %rsp\n"
        "	pop %rsi\n"
        "	pop %rdi\n"
        "	.cfi_adjust_cfa_offset -24\n"
        "	test %rdx, %rdx\n"
        "	jnz 1f\n"
        "	jmp *%rax\n"
        "1:	push %rdi\n"
        "	.cfi_adjust_cfa_offset 8\n"
        "	xor %esi, %esi\n"
        "	call *%rax\n"
        ".hidden fp_jumps_inside\n"
        "fp_jumps_inside:\n"
        "	mov (%rsp), %rdi\n"
        "	lea 8(%rsp), %rsi\n"
        "	call fp_jumps_finish\n"
        "	add $8, %rsp\n"
        "	.cfi_adjust_cfa_offset -8\n"
        "	ret\n"
        "	.cfi_endproc\n"
        ".size setjmp, .-setjmp\n"
        ".size __sigsetjmp, .-__sigsetjmp\n");

/* ---- back ---- */

enum { LONGJMP, OLD_LONGJMP, SIGLONGJMP, CHECKED, N_CALLS };

static jump_fn *real(unsigned call)
{
	static const char *const names[N_CALLS] = {"longjmp", "_longjmp", "siglongjmp", "__longjmp_chk"};
	static _Atomic(void *) known[N_CALLS];

	return (jump_fn *)fp_shim_next(&known[call], names[call]);
}

/* A signal handler may not look functions up, so that is done before. */
__attribute__((constructor)) static void look_up(void)
{
	for (unsigned call = 0; call < N_CALLS; call++)
		real(call);
	(void)real_sigsetjmp();
}

/* The C library gets a copy of the buffer that has no mask. */
static void jump(jump_buffer *env, int value, unsigned call)
{
	jump_buffer copy;

	if (env->__mask_was_saved && is_awkward(env)) {
		copy = *env;
		fp_sigmask_strip(&copy.__saved_mask);
		exchange_mask(true, (uint64_t *)&copy.__saved_mask);
		copy.__mask_was_saved = 0;
		env = &copy;
	}
	real(call)(env, value);
}

/* Our headers declare these names as functions that never return, and so other types. */
#define LONG_JUMP(name, call)                                                                                \
	FP_INTERPOSE jump_fn fp_jumps_##name __asm__(#name);                                                 \
	void fp_jumps_##name(jump_buffer *env, int value)                                                    \
	{                                                                                                    \
		jump(env, value, call);                                                                      \
	}

LONG_JUMP(longjmp, LONGJMP)
LONG_JUMP(_longjmp, OLD_LONGJMP)
LONG_JUMP(siglongjmp, SIGLONGJMP)
LONG_JUMP(__longjmp_chk, CHECKED)

#endif
