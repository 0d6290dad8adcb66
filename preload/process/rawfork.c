/*
 * Forks that bypass the C library's fork and its handlers: system calls by syscall(2), and clone.
 * Room: preload/process. Calls pass if the child shares the memory (threads, vfork). A plain child
 * of a program with one thread is made by fork instead. All other calls are refused with a message.
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

#include "call_args.h"
#include "calls.h"
#include "cleanup.h"
#include "local.h"
#include "agent_sigmask.h"
#include "refusals.h"
#include "shim.h"
#include "sigmask.h"

enum child { BY_KERNEL, BY_FORK, REFUSED };

static enum child refuse(const char *call, const char *why)
{
	static atomic_bool said;

	fp_shim_say_once(&said, "%s was refused: %s", call, why);
	errno = ENOSYS;
	return REFUSED;
}

/*
 * A bare fork runs no handlers and waits for no lock. Here a fork takes the allocator's locks. A
 * thread that the program has stopped by a signal may hold one, and then the fork would wait for
 * ever: collectors fork so. So it is refused beside other threads.
 */
static enum child fork_alone(const char *call)
{
	static atomic_bool said;

	if (fp_agent_is_alone(fp_shim_agent()))
		return BY_FORK;
	fp_shim_say_once(&said,
	                 "%s was refused (EAGAIN): the child needs locks of the allocator, which another "
	                 "thread may hold for ever. Use fork or posix_spawn (for a program in D: "
	                 "--DRT-gcopt=fork:0)",
	                 call);
	errno = EAGAIN;
	return REFUSED;
}

/*
 * Decides how to make the child of a call of clone. The parameter flags has the call's flags, with
 * the signal. has_stack is true if the child begins on another stack, which fork can't do. cleared
 * is the word that the kernel clears when the child ends.
 *
 * In fault mode inline, a child that runs beside its parent is refused. The kernel takes the
 * child's signal stack away, so none of its faults could be served.
 */
static enum child choose(const char *call, uint64_t flags, bool has_stack, const void *cleared)
{
	if (!fp_shim_agent())
		return BY_KERNEL;
	fp_agent_affinity_release(fp_shim_agent(), false); /* the child would inherit its one CPU */
	if (flags == SIGCHLD && !has_stack)
		return fork_alone(call);
	if (!(flags & CLONE_VM))
		return refuse(call, "its child would not see what is far. Use fork or posix_spawn, or run "
		                    "without far memory");
	if (fp_sigmask_is_open() && !(flags & CLONE_VFORK))
		return refuse(call, "in fault mode inline CLONE_VM needs CLONE_VFORK as well. Use "
		                    "pthread_create, posix_spawn or vfork, or fault mode thread");
	return (flags & CLONE_CHILD_CLEARTID) && fp_refusals_clear_tid(cleared) ? REFUSED : BY_KERNEL;
}

/* ---- around vfork ---- */

/*
 * A child of vfork uses its parent's thread and that thread's records, and may be killed at any
 * instant. So the parent notes its records before the call, and restores them after it. All are
 * packed into one number, which stays in a register: the child may overwrite the stack.
 */
#define HOLDS_SHIFT 8
#define LOCAL_SHIFT 16
#define BLOCK_SHIFT 24
#define MASKS_SHIFT 40
#define MASKS_MASK  0x3fffffu

__attribute__((used)) static uint64_t before_vfork(void)
{
	if (fp_shim_agent()) /* the child would inherit the one CPU of a held thread */
		fp_agent_affinity_release(fp_shim_agent(), false);
	return (uint64_t)FP_MIN(fp_agent_pin_depth(), 0xffu) << HOLDS_SHIFT |
	       (uint64_t)FP_MIN(fp_local.depth, 0xffu) << LOCAL_SHIFT |
	       (uint64_t)FP_MIN(fp_call_args_depth(), 0xffffu) << BLOCK_SHIFT |
	       (uint64_t)(fp_agent_sigmask_depth() & MASKS_MASK) << MASKS_SHIFT;
}

__attribute__((used)) static void vfork_is_over(uint64_t noted)
{
	int saved = errno;

	fp_agent_pin_vforked((unsigned)(noted >> HOLDS_SHIFT & 0xffu));
	fp_agent_sigmask_vforked((unsigned)(noted >> MASKS_SHIFT & MASKS_MASK));
	fp_local_vforked((unsigned)(noted >> LOCAL_SHIFT & 0xffu));
	fp_call_args_vforked(noted >> BLOCK_SHIFT & 0xffffu);
	errno = saved;
}

/* ---- the functions of the C library ---- */

/* Refused: the child may do only async-signal-safe work, and starting an agent is not. */
FP_INTERPOSE pid_t _Fork(void)
{
	(void)refuse("_Fork", "its child can't start an agent. Use fork or posix_spawn");
	return -1;
}

static __typeof__(clone) *real_clone(void)
{
	return FP_NEXT(clone);
}

/* A signal handler may not look functions up, so that is done before. */
__attribute__((constructor)) static void look_up(void)
{
	(void)real_clone();
}

static pid_t clone_by_kernel(int (*fn)(void *), void *stack, int flags, void *arg, pid_t *parent_tid,
                             void *tls, pid_t *child_tid)
{
	uint64_t noted = before_vfork();
	pid_t pid = real_clone()(fn, stack, flags, arg, parent_tid, tls, child_tid);

	if (flags & CLONE_VFORK)
		vfork_is_over(noted);
	return pid;
}

FP_INTERPOSE int clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
	pid_t *parent_tid, *child_tid, pid;
	enum child child;
	va_list args;
	void *tls;

	va_start(args, arg);
	parent_tid = va_arg(args, pid_t *);
	tls = va_arg(args, void *);
	child_tid = va_arg(args, pid_t *);
	va_end(args);
	child = choose("clone", (unsigned)flags, false, child_tid);
	if (child == BY_KERNEL)
		return clone_by_kernel(fn, stack, flags, arg, parent_tid, tls, child_tid);
	pid = child == BY_FORK ? fork() : -1;
	if (pid == 0)
		_exit(fn(arg)); /* runs on the child's copy of this stack instead of the given one */
	return pid;
}

FP_ALSO_AS(clone) __typeof__(clone) __clone;

/* ---- the system calls, by syscall(2) ---- */

#if defined(__x86_64__)

/* Leaves what the kernel refuses to the kernel: memory that it can't read, an unknown size. */
static enum child choose_clone3(const void *user, size_t size)
{
	struct clone_args args;

	if (!fp_shim_agent() || size < CLONE_ARGS_SIZE_VER0 ||
	    fp_call_args_fetch(&args, user, CLONE_ARGS_SIZE_VER0) < 0)
		return BY_KERNEL;
	return choose("the system call clone3", args.flags | args.exit_signal, args.stack,
	              (const void *)(uintptr_t)args.child_tid);
}

/*
 * Called by syscall below. If the kernel makes the child, syscall enters the kernel without a frame
 * of ours on the stack, because the child may run on another stack.
 */
__attribute__((used)) static enum child choose_by_number(long number, uint64_t a, uint64_t b, uint64_t c,
                                                         uint64_t d)
{
	if (number == SYS_clone3)
		return choose_clone3((const void *)a, b);
	if (number == SYS_clone)
		return choose("the system call clone", a, b, (const void *)d);
	return choose("the system call fork", SIGCHLD, false, NULL);
}

__attribute__((used)) static long make_child(enum child child)
{
	return child == BY_FORK ? fork() : -1;
}

/*
 * Where syscall sends a number. KIND_KERNEL: to the kernel, as calls.h says. KIND_OURS: to
 * rawcalls.c. KIND_CHILD: to choose_by_number.
 */
enum { KIND_KERNEL, KIND_OURS, KIND_CHILD };

#define N_KINDS 463 /* the assembly below has this number, too */

__attribute__((used)) static const uint8_t kinds[N_KINDS] = {
    [SYS_open] = KIND_OURS,
    [SYS_mmap] = KIND_OURS,
    [SYS_mprotect] = KIND_OURS,
    [SYS_munmap] = KIND_OURS,
    [SYS_rt_sigaction] = KIND_OURS,
    [SYS_futex] = KIND_OURS,
    [SYS_setsockopt] = KIND_OURS,
    [SYS_set_robust_list] = KIND_OURS,
    [SYS_mremap] = KIND_OURS,
    [SYS_mincore] = KIND_OURS,
    [SYS_msync] = KIND_OURS,
    [SYS_madvise] = KIND_OURS,
    [SYS_shmat] = KIND_OURS,
    [SYS_clone] = KIND_CHILD,
    [SYS_fork] = KIND_CHILD,
    [SYS_vfork] = KIND_CHILD,
    [SYS_execve] = KIND_OURS,
    [SYS_sigaltstack] = KIND_OURS,
    [SYS_mlock] = KIND_OURS,
    [SYS_munlock] = KIND_OURS,
    [SYS_mlockall] = KIND_OURS,
    [SYS_prctl] = KIND_OURS,
    [SYS_setrlimit] = KIND_OURS,
    [SYS_sched_setaffinity] = KIND_OURS,
    [SYS_sched_getaffinity] = KIND_OURS,
    [SYS_fcntl] = KIND_OURS,
    [SYS_openat] = KIND_OURS,
    [SYS_unshare] = KIND_OURS,
    [SYS_prlimit64] = KIND_OURS,
    [SYS_setns] = KIND_OURS,
    [SYS_execveat] = KIND_OURS,
    [SYS_open_by_handle_at] = KIND_OURS,
    [SYS_openat2] = KIND_OURS,
    [SYS_mlock2] = KIND_OURS,
    [SYS_pkey_mprotect] = KIND_OURS,
    [SYS_clone3] = KIND_CHILD,
    [SYS_process_madvise] = KIND_OURS,
    [SYS_vmsplice] = KIND_OURS,
    [FP_SYS_MSEAL] = KIND_OURS,
    [SYS_io_uring_setup] = KIND_OURS,
    [SYS_set_tid_address] = KIND_OURS,
    [SYS_rseq] = KIND_OURS,
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
        "fp_rawfork_failed:\n"
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
        "	call choose_by_number\n"
        "	add $8, %rsp\n"
        "	pop %r9\n"
        "	pop %r8\n"
        "	pop %rcx\n"
        "	pop %rdx\n"
        "	pop %rsi\n"
        "	pop %rdi\n"
        "	.cfi_adjust_cfa_offset -56\n"
        "	test %eax, %eax\n"
        "	jz 1b\n"
        "	mov %eax, %edi\n"
        "	jmp make_child\n"
        "	.cfi_endproc\n"
        ".size syscall, .-syscall\n");

/*
 * vfork. The child returns first, and overwrites the return address on the stack. Therefore
 * this address and the packed records stay in registers.
 */
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
        "	jae fp_rawfork_failed\n"
        "1:	ret\n"
        "	.cfi_endproc\n"
        ".size vfork, .-vfork\n"
        ".size __vfork, .-__vfork\n");
static_assert(N_KINDS == 463 && KIND_KERNEL == 0 && KIND_OURS == 1 && KIND_CHILD == 2 && SYS_vfork == 58 &&
                  BY_KERNEL == 0,
              "as in the code above");

#else

/* On other processors, syscall(2) stays the C library's. */
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
