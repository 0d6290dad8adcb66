/*
 * See sigframe.h. On the program's stack, a frame has the kernel's own layout of x86-64. So
 * handlers, debuggers and unwinders find what they expect.
 *
 * Any code below may fault on far memory. Such a fault is served on the same stack of ours, further
 * down. A fault in the program's handler is served from the top of our stack again. So nothing that
 * the program needs may remain there while its handler runs.
 */
#include "sigframe.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "end.h"
#include "far_pieces.h"
#include "sigmask.h"
#include "sigstack.h"

#if defined(__x86_64__)

#define RED_ZONE    128u
#define FP_ALIGN    64u
#define FP_LEGACY   512u /* bytes of FXSAVE; its bytes at FP_SOFTWARE say whether more state follows */
#define FP_SOFTWARE 464u
#define FP_MAGIC    0x46505853u /* FP_XSTATE_MAGIC1 */
#define DISARM      (1u << 31)  /* SS_AUTODISARM */
#define FAULTS      (1ull << (SIGBUS - 1) | 1ull << (SIGSEGV - 1))

/* The kernel's struct ucontext. */
struct context {
	unsigned long flags;
	void *link;
	stack_t stack;
	mcontext_t machine;
	uint64_t mask;
};

/* The kernel's struct rt_sigframe. */
struct frame {
	void (*back)(void);
	struct context context;
	siginfo_t info;
};

static_assert(sizeof(struct context) == 304 && sizeof(struct frame) == 440, "as the kernel has them");
static_assert(offsetof(struct context, mask) == offsetof(ucontext_t, uc_sigmask), "as the program sees it");

_Noreturn void fp_sigframe_jump(struct frame *frame, void *handler, int sig, const uint64_t *mask);
void fp_sigframe_back(void);
struct context *fp_sigframe_leave(struct context *context);
extern const uint64_t fp_sigframe_blocked;

/*
 * The signals that are blocked while a frame goes back to the kernel. The action that we give the
 * kernel blocks the same signals while a frame comes from the kernel.
 */
const uint64_t fp_sigframe_blocked = ~FAULTS;
static const uint64_t faults = FAULTS;

static size_t float_state_len(const char *fp)
{
	uint32_t told[2];

	if (!fp)
		return 0;
	memcpy(told, fp + FP_SOFTWARE, sizeof(told));
	return told[0] == FP_MAGIC ? told[1] : FP_LEGACY;
}

/* ---- which stack ---- */

/*
 * The address below which the kernel would make the frame if we had set no signal stack. Returns 0
 * if the handler must run on our stack instead. That is so in two cases: the signal interrupted a
 * handler that already runs on our stack, or the handler wants a signal stack (SA_ONSTACK) and the
 * program set none. The second case occurs in Go programs: they ask the kernel for the thread's
 * signal stack, get ours, and expect their handlers to run on it.
 */
static uintptr_t find_top(const struct fp_sigstack *s, uintptr_t sp, const struct sigaction *action,
                          bool *ret_bounded)
{
	bool is_on = fp_sigstack_is_programs(s, sp);

	*ret_bounded = is_on;
	if (fp_sigstack_has(s, sp))
		return 0;
	if (!(action->sa_flags & SA_ONSTACK) || is_on)
		return sp - RED_ZONE;
	if (s->program.ss_flags & SS_DISABLE)
		return 0;
	*ret_bounded = true;
	return (uintptr_t)s->program.ss_sp + s->program.ss_size;
}

/* ---- to the program's stack ---- */

static void note_entry(struct fp_sigstack *s, uintptr_t frame)
{
	uintptr_t start = (uintptr_t)s->program.ss_sp, end = start + s->program.ss_size;

	if (!(s->program.ss_flags & SS_DISABLE) && frame > start && frame <= end) {
		s->entered = start;
		s->entered_end = end;
	}
	if ((unsigned)s->program.ss_flags & DISARM)
		s->program = (stack_t){.ss_flags = SS_DISABLE};
}

void fp_sigframe_run(int sig, void *context, const struct sigaction *action, const uint64_t *mask)
{
	struct fp_sigstack *s = fp_sigstack_own();
	const struct frame *from = (const void *)((char *)context - offsetof(struct frame, context));
	const char *fp = (const char *)from->context.machine.fpregs;
	size_t fp_len = float_state_len(fp);
	uintptr_t top, fp_at, at;
	struct frame *to;
	bool bounded;

	if (!s || !fp_sigstack_has(s, (uintptr_t)from))
		return;
	top = find_top(s, (uintptr_t)from->context.machine.gregs[REG_RSP], action, &bounded);
	if (top == 0)
		return;
	fp_at = (top - fp_len) & ~(uintptr_t)(FP_ALIGN - 1);
	at = ((fp_at - sizeof(*from)) & ~(uintptr_t)15) - sizeof(from->back);
	if (bounded && at <= (uintptr_t)s->program.ss_sp)
		fp_end_refused("signals",
		               "the program's signal stack is full, signal %d finds no room there: give it a "
		               "larger one (sigaltstack)",
		               sig);
	to = (struct frame *)at; // NOLINT(performance-no-int-to-ptr)
	if (fp)
		memcpy((char *)to + (fp_at - at), fp, fp_len);
	to->info = from->info;
	to->context = from->context;
	to->context.stack = s->program;
	if (fp)
		to->context.machine.fpregs = (void *)((char *)to + (fp_at - at));
	to->back = fp_sigframe_back;
	note_entry(s, at);
	/*
	 * *mask lies on our stack, which the jump leaves: a fault before the kernel has read *mask
	 * would overwrite it
	 */
	FP_RAW(SYS_rt_sigprocmask, SIG_BLOCK, &faults, NULL, sizeof(faults), 0, 0);
	fp_sigframe_jump(to, (void *)action->sa_sigaction, sig, mask);
}

/*
 * A signal may come as soon as the mask is set, and its handler may use this frame. So after that
 * no instruction here may change the frame.
 */
__asm__(".text\n"
        ".globl fp_sigframe_jump\n"
        ".hidden fp_sigframe_jump\n"
        ".type fp_sigframe_jump, @function\n"
        "fp_sigframe_jump:\n"
        "	mov %rdi, %rsp\n"
        "	mov %rsi, %rbx\n"
        "	mov %edx, %ebp\n"
        "	mov $2, %edi\n" /* SIG_SETMASK */
        "	mov %rcx, %rsi\n"
        "	xor %edx, %edx\n"
        "	mov $8, %r10d\n"
        "	mov $14, %eax\n" /* rt_sigprocmask */
        "	syscall\n"
        "	mov %ebp, %edi\n"
        "	lea 312(%rsp), %rsi\n" /* info */
        "	lea 8(%rsp), %rdx\n"   /* context */
        "	xor %eax, %eax\n"
        "	jmp *%rbx\n"
        ".size fp_sigframe_jump, .-fp_sigframe_jump\n");
static_assert(offsetof(struct frame, info) == 312 && offsetof(struct frame, context) == 8,
              "as in the code above");
static_assert(SYS_rt_sigprocmask == 14 && SYS_rt_sigreturn == 15 && SIG_SETMASK == 2, "and below");

/* ---- and back ---- */

/* The part of sigreturn that concerns the program's signal stack. The kernel does the rest. */
static void restore_programs(struct fp_sigstack *s, const struct context *context)
{
	const stack_t *ss = &context->stack;

	if (ss->ss_sp != s->program.ss_sp || ss->ss_size != s->program.ss_size ||
	    ss->ss_flags != s->program.ss_flags)
		fp_sigstack_set(s, ss, (uintptr_t)context->machine.gregs[REG_RSP]);
}

/*
 * Called by the code below on the program's stack, with all signals blocked. Copies the frame to
 * memory of ours, because the kernel can't read it on a far stack. While the frame is read, a lost
 * page may raise SIGBUS even so. The return from that handler overwrites this memory, and then the
 * copy is made again.
 */
__attribute__((used)) struct context *fp_sigframe_leave(struct context *context)
{
	struct fp_sigstack *s = fp_sigstack_own();
	size_t fp_len = float_state_len((const char *)context->machine.fpregs), head = sizeof(struct context);
	struct context *back = s ? (struct context *)(void *)s->back : context;
	unsigned turn;

	head = (head + FP_ALIGN - 1) & ~(size_t)(FP_ALIGN - 1);
	if (s)
		restore_programs(s, context);
	do {
		turn = s ? ++s->returns : 0;
		atomic_signal_fence(memory_order_seq_cst);
		*back = *context;
		if (s && fp_len && head + fp_len <= s->back_len) {
			memcpy(s->back + head, context->machine.fpregs, fp_len);
			back->machine.fpregs = (void *)(s->back + head);
		}
		back->stack = fp_sigstack_kernels(s);
		fp_sigmask_strip(&back->mask);
		atomic_signal_fence(memory_order_seq_cst);
	} while (s && s->returns != turn);
	return back;
}

/*
 * Handlers return to this code, with the stack pointer at the context. The directives tell
 * unwinders the place of each register in the context, as in the C library's own code. So unwinders
 * find the interrupted frame.
 */
#define AT(reg, low, high) "	.cfi_escape 0x10, " #reg ", 3, 0x77, " #low ", " #high "\n"
__asm__(".text\n"
        "	.cfi_startproc simple\n"
        "	.cfi_signal_frame\n"
        "	.cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06\n" /* CFA: rsp as saved in the context */
        AT(8, 0xa8, 0x00) AT(9, 0xb0, 0x00) AT(10, 0xb8, 0x00) AT(11, 0xc0, 0x00) AT(12, 0xc8, 0x00)
            AT(13, 0xd0, 0x00) AT(14, 0xd8, 0x00) AT(15, 0xe0, 0x00) AT(5, 0xe8, 0x00) AT(4, 0xf0, 0x00)
                AT(6, 0xf8, 0x00) AT(3, 0x80, 0x01) AT(1, 0x88, 0x01) AT(0, 0x90, 0x01) AT(2, 0x98, 0x01)
                    AT(7, 0xa0, 0x01)
                        AT(16, 0xa8, 0x01) "	nop\n" /* as unwinders look up the byte before */
                                           ".globl fp_sigframe_back\n"
                                           ".hidden fp_sigframe_back\n"
                                           ".type fp_sigframe_back, @function\n"
                                           "fp_sigframe_back:\n"
                                           "	mov %rsp, %rbx\n"
                                           "	mov $2, %edi\n" /* SIG_SETMASK */
                                           "	lea fp_sigframe_blocked(%rip), %rsi\n"
                                           "	xor %edx, %edx\n"
                                           "	mov $8, %r10d\n"
                                           "	mov $14, %eax\n" /* rt_sigprocmask */
                                           "	syscall\n"
                                           "	mov %rbx, %rdi\n"
                                           "	cld\n"
                                           "	call fp_sigframe_leave\n"
                                           "	mov %rax, %rsp\n"
                                           "	mov $15, %eax\n" /* rt_sigreturn */
                                           "	syscall\n"
                                           "	ud2\n"
                                           "	.cfi_endproc\n"
                                           ".size fp_sigframe_back, .-fp_sigframe_back\n");
static_assert(offsetof(struct context, machine) == 40 && REG_R8 == 0 && REG_R15 == 7 && REG_RDI == 8 &&
                  REG_RSI == 9 && REG_RBP == 10 && REG_RBX == 11 && REG_RDX == 12 && REG_RAX == 13 &&
                  REG_RCX == 14 && REG_RSP == 15 && REG_RIP == 16,
              "as in the code above");

#else

void fp_sigframe_run(int sig, void *context, const struct sigaction *action, const uint64_t *mask)
{
}

#endif
