/*
 * getcontext, setcontext and swapcontext: the kernel reads and writes the signal mask in the
 * program's context, which may be far. Room: preload/signals.
 *
 * These calls are about the registers and the stack of their caller, so nothing of ours may be on
 * that stack when they run. We pin the context and jump to the C library's function. The agent
 * unpins at the thread's next pin, as it does after a longjmp.
 */
#include <errno.h>
#include <stdint.h>
#include <ucontext.h>

#include "calls.h"
#include "local.h"
#include "shim.h"
#include "sigmask.h"

#if defined(__x86_64__)

#define HOLD_DEPTH 3072

enum { GET, SET, SWAP, N_CALLS };

typedef int context_fn(ucontext_t *first, const ucontext_t *second);

static context_fn *real(unsigned call)
{
	static const char *const names[N_CALLS] = {"getcontext", "setcontext", "swapcontext"};
	static _Atomic(void *) known[N_CALLS];

	return (context_fn *)fp_shim_next(&known[call], names[call]);
}

context_fn *fp_context_prepare(ucontext_t *first, const ucontext_t *second, unsigned call);

/*
 * Pins from a frame deeper in the stack than any other pin. At the thread's next pin the agent sees
 * that this frame has ended, and unpins.
 */
__attribute__((noinline)) static void hold(const struct fp_pin_range *ranges, unsigned n)
{
	struct {
		struct fp_pin hold;
		char above[HOLD_DEPTH];
	} low;

	__asm__ volatile("" : : "r"(&low) : "memory");
	fp_agent_pin(fp_shim_agent(), ranges, n, &low.hold);
}

/* Called by the three functions below; returns the C library's function, to which they jump. */
__attribute__((used)) context_fn *fp_context_prepare(ucontext_t *first, const ucontext_t *second,
                                                     unsigned call)
{
	const struct fp_pin_range ranges[] = {
	    {.addr = first, .len_bytes = sizeof(*first), .write = call != SET},
	    {.addr = second, .len_bytes = sizeof(*second)},
	};
	int saved = errno;

	if (fp_calls_hold() && !fp_local_is_agent()) {
		hold(ranges, call == SWAP ? 2 : 1);
		fp_local_settle();
	}
	if (call == SET)
		fp_sigmask_strip(&first->uc_sigmask);
	else if (call == SWAP)
		fp_sigmask_strip((sigset_t *)(uintptr_t)&second->uc_sigmask);
	errno = saved;
	return real(call);
}

/*
 * Calls fp_context_prepare with call as its third argument. Jumps to the function that it returns,
 * with the caller's registers and stack.
 */
#define CONTEXT_CALL(name, call)                                                                             \
	__asm__(".text\n"                                                                                    \
	        ".globl " name "\n"                                                                          \
	        ".type " name ", @function\n" name ":\n"                                                     \
	        "	.cfi_startproc\n"                                                                          \
	        "	push %rdi\n"                                                                               \
	        "	push %rsi\n"                                                                               \
	        "	sub $8, %rsp\n"                                                                            \
	        "	.cfi_adjust_cfa_offset 24\n"                                                               \
	        "	mov $" call ", %edx\n"                                                               \
	        "	call fp_context_prepare\n"                                                                 \
	        "	add $8, %rsp\n"                                                                            \
	        "	pop %rsi\n"                                                                                \
	        "	pop %rdi\n"                                                                                \
	        "	.cfi_adjust_cfa_offset -24\n"                                                              \
	        "	jmp *%rax\n"                                                                               \
	        "	.cfi_endproc\n"                                                                            \
	        ".size " name ", .-" name "\n")

CONTEXT_CALL("getcontext", "0");
CONTEXT_CALL("setcontext", "1");
CONTEXT_CALL("swapcontext", "2");

#endif
