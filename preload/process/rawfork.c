/*
 * Forks that go past the C library's fork and its handlers: the system calls by syscall(2), and
 * clone. Room: preload. Children that share the memory (threads, vfork) are let pass; a plain child
 * becomes one of fork; what fork can't make is refused with a message.
 */
#include <assert.h>
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "calls.h"
#include "cleanup.h"
#include "local.h"
#include "agent_sigmask.h"
#include "refusals.h"
#include "shim.h"
#include "sigmask.h"

/* Flags beyond the signal that fork can stand in for. */
#define FLAGS_KNOWN ((uint64_t)(CLONE_PARENT_SETTID | CLONE_CHILD_SETTID))

extern int __clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);

/* What the calls have in common. */
struct fork_request {
	uint64_t flags; /* without the signal */
	uint64_t exit_signal;
	uint64_t stack;
	pid_t *parent_tid, *child_tid;
};

static int refuse(const char *call)
{
	static atomic_bool said;

	fp_shim_say_once(
	    &said,
	    "%s was refused: its child would not see what is far. Use fork or posix_spawn, or run "
	    "without far memory",
	    call);
	errno = ENOSYS;
	return -1;
}

/* The kernel takes the signal stack away from such a child: no fault of its own could be served. */
static bool lacks_stack(const struct fork_request *rq)
{
	return fp_sigmask_is_open() && (rq->flags & CLONE_VM) && !(rq->flags & CLONE_VFORK);
}

static int refuse_beside(const char *call)
{
	static atomic_bool said;

	fp_shim_say_once(
	    &said,
	    "%s with CLONE_VM was refused: in fault mode inline it needs CLONE_VFORK as well. Use "
	    "pthread_create, posix_spawn or vfork, or fault mode thread",
	    call);
	errno = ENOSYS;
	return -1;
}

/* As threads ask for, and children that share the memory. */
static bool clears_far(const struct fork_request *rq)
{
	return (rq->flags & CLONE_VM) && (rq->flags & CLONE_CHILD_CLEARTID) &&
	       fp_refusals_clear_tid(rq->child_tid);
}

static bool is_plain(const struct fork_request *rq)
{
	return (rq->flags & ~FLAGS_KNOWN) == 0 && rq->exit_signal == SIGCHLD;
}

static pid_t fork_for(const struct fork_request *rq)
{
	pid_t pid = fork();

	if (pid == 0 && (rq->flags & CLONE_CHILD_SETTID))
		*rq->child_tid = getpid();
	if (pid > 0 && (rq->flags & CLONE_PARENT_SETTID))
		*rq->parent_tid = pid;
	return pid;
}

/* ---- around vfork ---- */

/*
 * A child of vfork has its parent's thread, and what that thread has noted, to itself; and it may
 * be killed at any instant. The parent goes on with what was noted before: packed, as only
 * registers are its own then.
 */
#define HOLDS_SHIFT 8
#define LOCAL_SHIFT 16
#define MASKS_SHIFT 40
#define LOCAL_MASK  0xffffffu
#define MASKS_MASK  0x3fffffu

__attribute__((used)) static uint64_t before_vfork(void)
{
	return (uint64_t)FP_MIN(fp_agent_pin_depth(), 0xffu) << HOLDS_SHIFT |
	       (uint64_t)(fp_local.depth & LOCAL_MASK) << LOCAL_SHIFT |
	       (uint64_t)(fp_agent_sigmask_depth() & MASKS_MASK) << MASKS_SHIFT;
}

__attribute__((used)) static void vfork_is_over(uint64_t noted)
{
	int saved = errno;

	fp_agent_pin_vforked((unsigned)(noted >> HOLDS_SHIFT & 0xffu));
	fp_agent_sigmask_vforked((unsigned)(noted >> MASKS_SHIFT & MASKS_MASK));
	fp_local_vforked((unsigned)(noted >> LOCAL_SHIFT & LOCAL_MASK));
	errno = saved;
}

/* ---- the functions of the C library ---- */

/* Its child may do only what is async-signal safe, and an agent can't be started so. */
FP_INTERPOSE pid_t _Fork(void)
{
	return refuse("_Fork");
}

FP_INTERPOSE int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
	struct fork_request rq = {.flags = (uint64_t)(unsigned)flags & ~(uint64_t)CSIGNAL,
	                          .exit_signal = (uint64_t)(unsigned)flags & CSIGNAL};
	uint64_t noted;
	va_list args;
	void *tls;
	pid_t pid;

	va_start(args, arg);
	rq.parent_tid = va_arg(args, pid_t *);
	tls = va_arg(args, void *);
	rq.child_tid = va_arg(args, pid_t *);
	va_end(args);
	if (lacks_stack(&rq))
		return refuse_beside("clone");
	if (clears_far(&rq))
		return -1;
	if ((flags & CLONE_VM) || !fp_shim_agent()) {
		noted = before_vfork();
		pid = __clone(fn, stack, flags, arg, rq.parent_tid, tls, rq.child_tid);
		if (flags & CLONE_VFORK)
			vfork_is_over(noted);
		return pid;
	}
	if (!is_plain(&rq))
		return refuse("clone without CLONE_VM");
	pid = fork_for(&rq);
	if (pid == 0)
		_exit(fn(arg)); /* on its copy of this stack, which is as good */
	return pid;
}

/* ---- the system calls, by syscall(2) ---- */

#if defined(__x86_64__)

static void of_clone3(const struct clone_args *args, struct fork_request *ret_rq)
{
	*ret_rq = (struct fork_request){.flags = args->flags,
	                                .exit_signal = args->exit_signal,
	                                .stack = args->stack,
	                                .parent_tid = (pid_t *)(uintptr_t)args->parent_tid,
	                                .child_tid = (pid_t *)(uintptr_t)args->child_tid};
}

static void of_clone(uint64_t flags, uint64_t stack, uint64_t parent_tid, uint64_t child_tid,
                     struct fork_request *ret_rq)
{
	*ret_rq = (struct fork_request){.flags = flags & ~(uint64_t)CSIGNAL,
	                                .exit_signal = flags & CSIGNAL,
	                                .stack = stack,
	                                .parent_tid = (pid_t *)parent_tid,
	                                .child_tid = (pid_t *)child_tid};
}

static void read_request(long number, const uint64_t *args, struct fork_request *ret_rq)
{
	if (number == SYS_clone3)
		of_clone3((const struct clone_args *)args[0], ret_rq);
	else if (number == SYS_clone)
		of_clone(args[0], args[1], args[2], args[3], ret_rq);
	else
		of_clone(SIGCHLD, 0, 0, 0, ret_rq);
}

/* Called by syscall below: whether the kernel shall do it. It must then be asked without a frame of
 * ours on the stack, as the child may have another one. */
__attribute__((used)) static bool is_kernels(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	const uint64_t args[] = {a, b, c, d};
	struct fork_request rq;

	if (!fp_shim_agent())
		return true;
	read_request(number, args, &rq);
	return (rq.flags & CLONE_VM) && !lacks_stack(&rq) && !clears_far(&rq);
}

__attribute__((used)) static long make_child(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	const char *call = number == SYS_clone3 ? "the system call clone3" : "the system call clone";
	const uint64_t args[] = {a, b, c, d};
	struct fork_request rq;

	read_request(number, args, &rq);
	if (lacks_stack(&rq))
		return refuse_beside(call);
	if (clears_far(&rq))
		return -1;
	if (!is_plain(&rq) || rq.stack)
		return refuse(call);
	return fork_for(&rq);
}

/* Where syscall takes a number: to the kernel, by the way that calls.h tells; to rawcalls.c; to the
 * above. */
enum { KIND_KERNEL, KIND_OURS, KIND_CHILD };

#define N_KINDS 463 /* the code below has it as well */

__attribute__((used)) static const uint8_t kinds[N_KINDS] = {
    [SYS_mmap] = KIND_OURS,
    [SYS_mprotect] = KIND_OURS,
    [SYS_munmap] = KIND_OURS,
    [SYS_rt_sigaction] = KIND_OURS,
    [SYS_set_robust_list] = KIND_OURS,
    [SYS_mremap] = KIND_OURS,
    [SYS_mincore] = KIND_OURS,
    [SYS_madvise] = KIND_OURS,
    [SYS_shmat] = KIND_OURS,
    [SYS_clone] = KIND_CHILD,
    [SYS_fork] = KIND_CHILD,
    [SYS_vfork] = KIND_CHILD,
    [SYS_sigaltstack] = KIND_OURS,
    [SYS_mlock] = KIND_OURS,
    [SYS_munlock] = KIND_OURS,
    [SYS_mlockall] = KIND_OURS,
    [SYS_prctl] = KIND_OURS,
    [SYS_setrlimit] = KIND_OURS,
    [SYS_unshare] = KIND_OURS,
    [SYS_prlimit64] = KIND_OURS,
    [SYS_setns] = KIND_OURS,
    [SYS_mlock2] = KIND_OURS,
    [SYS_pkey_mprotect] = KIND_OURS,
    [SYS_clone3] = KIND_CHILD,
    [SYS_process_madvise] = KIND_OURS,
    [FP_SYS_MSEAL] = KIND_OURS,
    [SYS_io_uring_setup] = KIND_OURS,
    [SYS_set_tid_address] = KIND_OURS,
};

__asm__(".text\n"
        ".globl syscall\n"
        ".type syscall, @function\n"
        "syscall:\n"
        "	.cfi_startproc\n"
        "	cmp $463, %rdi\n"
        "	jae 4f\n"
        "	lea kinds(%rip), %rax\n"
        "	movzbl (%rax,%rdi), %eax\n"
        "	cmp $1, %eax\n"
        "	je 5f\n"
        "	ja 3f\n"
        "4:	jmp *fp_call_syscall_way(%rip)\n"
        "5:	jmp fp_rawcall\n"
        ".globl fp_call_raw_syscall\n"
        ".hidden fp_call_raw_syscall\n"
        ".type fp_call_raw_syscall, @function\n"
        "fp_call_raw_syscall:\n"
        "1:	mov %rdi, %rax\n"
        "	mov %rsi, %rdi\n"
        "	mov %rdx, %rsi\n"
        "	mov %rcx, %rdx\n"
        "	mov %r8, %r10\n"
        "	mov %r9, %r8\n"
        "	mov 8(%rsp), %r9\n"
        "	syscall\n"
        "	cmp $-4095, %rax\n"
        "	jae 2f\n"
        "	ret\n"
        "2:	neg %eax\n"
        "	push %rax\n"
        "	.cfi_adjust_cfa_offset 8\n"
        "	call __errno_location@PLT\n"
        "	pop %rcx\n"
        "	.cfi_adjust_cfa_offset -8\n"
        "	mov %ecx, (%rax)\n"
        "	mov $-1, %rax\n"
        "	ret\n"
        "3:	push %rdi\n"
        "	push %rsi\n"
        "	push %rdx\n"
        "	push %rcx\n"
        "	push %r8\n"
        "	push %r9\n"
        "	sub $8, %rsp\n"
        "	.cfi_adjust_cfa_offset 56\n"
        "	call is_kernels\n"
        "	add $8, %rsp\n"
        "	pop %r9\n"
        "	pop %r8\n"
        "	pop %rcx\n"
        "	pop %rdx\n"
        "	pop %rsi\n"
        "	pop %rdi\n"
        "	.cfi_adjust_cfa_offset -56\n"
        "	test %al, %al\n"
        "	jnz 1b\n"
        "	jmp make_child\n"
        "	.cfi_endproc\n"
        ".size syscall, .-syscall\n");

/* The child returns first, and writes over the return address: that, and what was noted, stay in
 * registers. */
__asm__(".text\n"
        ".globl vfork\n"
        ".type vfork, @function\n"
        ".globl __vfork\n"
        ".type __vfork, @function\n"
        "vfork:\n"
        "__vfork:\n"
        "	.cfi_startproc\n"
        "	sub $8, %rsp\n"
        "	.cfi_adjust_cfa_offset 8\n"
        "	call before_vfork\n"
        "	add $8, %rsp\n"
        "	.cfi_adjust_cfa_offset -8\n"
        "	mov %rax, %rsi\n"
        "	pop %rdi\n"
        "	.cfi_adjust_cfa_offset -8\n"
        "	.cfi_register %rip, %rdi\n"
        "	mov $58, %eax\n"
        "	syscall\n"
        "	push %rdi\n"
        "	.cfi_adjust_cfa_offset 8\n"
        "	.cfi_offset %rip, -8\n"
        "	test %rax, %rax\n"
        "	jz 1f\n"
        "	push %rax\n"
        "	.cfi_adjust_cfa_offset 8\n"
        "	mov %rsi, %rdi\n"
        "	call vfork_is_over\n"
        "	pop %rax\n"
        "	.cfi_adjust_cfa_offset -8\n"
        "	cmp $-4095, %rax\n"
        "	jb 1f\n"
        "	neg %eax\n"
        "	push %rax\n"
        "	.cfi_adjust_cfa_offset 8\n"
        "	call __errno_location@PLT\n"
        "	pop %rcx\n"
        "	.cfi_adjust_cfa_offset -8\n"
        "	mov %ecx, (%rax)\n"
        "	mov $-1, %rax\n"
        "1:	ret\n"
        "	.cfi_endproc\n"
        ".size vfork, .-vfork\n"
        ".size __vfork, .-__vfork\n");
static_assert(N_KINDS == 463 && KIND_KERNEL == 0 && KIND_OURS == 1 && KIND_CHILD == 2 && SYS_vfork == 58,
              "as in the code above");

#else

/* Here syscall(2) is the C library's. */
long fp_call_raw_syscall(long number, ...)
{
	va_list args;
	long a[6];

	va_start(args, number);
	for (unsigned i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#endif
