/*
 * An entry that asks a function of ours where to go on, and jumps there with its caller's registers and
 * stack: for calls that are about these. Room: preload; x86-64.
 */
#ifndef FP_TRAMPOLINE_H
#define FP_TRAMPOLINE_H

/*
 * Defines the function name (two arguments at most, neither of them a float). It calls prepare with these and
 * number, a digit, as the third, and jumps to what that returns.
 */
#define FP_TRAMPOLINE(name, prepare, number)                                                                 \
	__asm__(".text\n"                                                                                    \
	        ".globl " name "\n"                                                                          \
	        ".type " name ", @function\n" name ":\n"                                                     \
	        "	.cfi_startproc\n"                                                                          \
	        "	push %rdi\n"                                                                               \
	        "	push %rsi\n"                                                                               \
	        "	sub $8, %rsp\n"                                                                            \
	        "	.cfi_adjust_cfa_offset 24\n"                                                               \
	        "	mov $" number ", %edx\n"                                                             \
	        "	call " prepare "\n"                                                                  \
	        "	add $8, %rsp\n"                                                                            \
	        "	pop %rsi\n"                                                                                \
	        "	pop %rdi\n"                                                                                \
	        "	.cfi_adjust_cfa_offset -24\n"                                                              \
	        "	jmp *%rax\n"                                                                               \
	        "	.cfi_endproc\n"                                                                            \
	        ".size " name ", .-" name "\n")

#endif
