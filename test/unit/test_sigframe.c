/*
 * Signals that the kernel delivers on a local stack of the shim. Tests which stack an address is
 * on, where the program's handler then runs, what the handler finds there, and what it leaves
 * behind.
 */
#include "far_rig.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "calls.h"
#include "cleanup.h"
#include "rawcall.h"
#include "sigframe.h"
#include "sigmask.h"
#include "sigstack.h"

#define STACK_BYTES 65536u
#define DISARM      ((int)(1u << 31)) /* SS_AUTODISARM */
#define RED_ZONE    128u

#if defined(__x86_64__)

static char stack[STACK_BYTES] __attribute__((aligned(64)));

static stack_t stack_of(void *memory, size_t len, int flags)
{
	return (stack_t){.ss_sp = memory, .ss_size = len, .ss_flags = flags};
}

/* ---- which stack ---- */

static void test_own_stack(void **state)
{
	struct fp_sigstack *s = fp_sigstack_new();
	stack_t ss = fp_sigstack_kernels(s);
	uintptr_t start = (uintptr_t)ss.ss_sp, end = start + ss.ss_size;
	int ends[2];

	assert_non_null(s);
	assert_int_equal(ss.ss_flags, 0);
	assert_true(ss.ss_size >= 128u << 10);
	assert_true(fp_sigstack_has(s, end) && fp_sigstack_has(s, start + 1));
	assert_false(fp_sigstack_has(s, end + 1));
	assert_true(fp_sigstack_has(s, start - 100)); /* an overflow still counts as on it */
	assert_false(fp_sigstack_has(s, start - FP_PAGE_SIZE));
	memset(ss.ss_sp, 1, ss.ss_size);
	memset(s->back, 1, s->back_len);
	assert_true(s->back_len >= 2696); /* a frame with AVX-512 */
	assert_int_equal(s->program.ss_flags, SS_DISABLE);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], (char *)ss.ss_sp - 1, 1), -1); /* the page below is inaccessible */
	assert_int_equal(errno, EFAULT);
	close(ends[0]);
	close(ends[1]);
	fp_sigstack_free(s);
	fp_sigstack_free(NULL);
	assert_int_equal(fp_sigstack_kernels(NULL).ss_flags, SS_DISABLE);
}

/*
 * Decides as the kernel does: the first byte of the stack is not on it, the byte behind the last
 * one is.
 */
static void test_programs_stack(void **state)
{
	struct fp_sigstack s = {.program = stack_of(stack, STACK_BYTES, 0)};
	uintptr_t start = (uintptr_t)stack;

	assert_false(fp_sigstack_is_programs(&s, start));
	assert_true(fp_sigstack_is_programs(&s, start + 1));
	assert_true(fp_sigstack_is_programs(&s, start + STACK_BYTES));
	assert_false(fp_sigstack_is_programs(&s, start + STACK_BYTES + 1));
	s.program.ss_flags = DISARM;
	assert_false(fp_sigstack_is_programs(&s, start + 1));
	s.program.ss_flags = SS_DISABLE;
	assert_false(fp_sigstack_is_programs(&s, start + 1));
}

static int set(struct fp_sigstack *s, stack_t ss, uintptr_t sp)
{
	return fp_sigstack_set(s, &ss, sp);
}

static void test_setting_a_stack(void **state)
{
	struct fp_sigstack s = {.program.ss_flags = SS_DISABLE};
	uintptr_t on = (uintptr_t)stack + 1;

	assert_int_equal(set(&s, stack_of(stack, 2047, 0), on), -ENOMEM);
	assert_int_equal(set(&s, stack_of(stack, 4096, 4), on), -EINVAL);
	assert_int_equal(set(&s, stack_of(stack, 4096, SS_DISABLE | SS_ONSTACK), on), -EINVAL);
	assert_int_equal(s.program.ss_flags, SS_DISABLE); /* none of these calls changed it */
	assert_int_equal(set(&s, stack_of(stack, 2048, SS_ONSTACK), on), 0);
	assert_int_equal(s.program.ss_flags, 0);
	assert_ptr_equal(s.program.ss_sp, stack);
	assert_int_equal(s.program.ss_size, 2048);
	assert_int_equal(set(&s, stack_of(NULL, 0, SS_DISABLE), on), -EPERM); /* the thread is on it */
	assert_int_equal(set(&s, stack_of(stack, 4096, DISARM), on + 2048), 0);
	assert_int_equal(s.program.ss_flags, DISARM);
	assert_int_equal(set(&s, stack_of(stack, 1, SS_DISABLE), on), 0);
	assert_null(s.program.ss_sp);
	assert_int_equal(s.program.ss_size, 0);
	assert_int_equal(s.program.ss_flags, SS_DISABLE);
}

/*
 * The program's sigaltstack changes what the shim keeps for the program. It never changes the
 * signal stack that the kernel has for the thread.
 */
static void test_sigaltstack(void **state)
{
	stack_t ours, kernels, old, wanted = stack_of(stack, STACK_BYTES, 0);

	fp_call_raw_syscall(SYS_sigaltstack, NULL, &ours);
	assert_int_equal(sigaltstack(&wanted, NULL), 0);
	assert_int_equal(sigaltstack(NULL, &old), 0);
	assert_memory_equal(&old.ss_sp, &wanted.ss_sp, sizeof(old.ss_sp));
	assert_int_equal(old.ss_size, STACK_BYTES);
	assert_int_equal(old.ss_flags, 0);
	fp_call_raw_syscall(SYS_sigaltstack, NULL, &kernels);
	assert_ptr_equal(kernels.ss_sp, ours.ss_sp);
	wanted.ss_size = 5;
	assert_int_equal(sigaltstack(&wanted, NULL), -1);
	assert_int_equal(errno, ENOMEM);
	assert_int_equal(sigaltstack((const stack_t *)16, NULL), -1);
	assert_int_equal(errno, EFAULT);
	wanted = stack_of(NULL, 0, SS_DISABLE);
	memcpy(FAR(0), &wanted, sizeof(wanted));
	far_rig_close();
	assert_int_equal(sigaltstack((const stack_t *)(const void *)FAR(0), (stack_t *)(void *)FAR(5000)), 0);
	assert_ptr_equal(((stack_t *)(void *)FAR(5000))->ss_sp, stack);
	assert_int_equal(fp_sigstack_own()->program.ss_flags, SS_DISABLE);
}

/* ---- where the handler runs ---- */

static struct {
	struct sigaction action; /* the program's action */
	uint64_t mask;           /* the mask under which its handler runs */
	bool stayed;             /* fp_sigframe_run returned */
	unsigned n_stayed;
	void (*again)(void); /* called after fp_sigframe_run returned for the first time */
	unsigned n_runs;
	uintptr_t at, context_at, sp;
	siginfo_t info;
	uint64_t mask_inside;
	stack_t stack_inside;
	bool in_use;
	void (*inside)(ucontext_t *context);
	sigjmp_buf jump;
} h;

static uint64_t mask_now(void)
{
	uint64_t mask = 0;

	FP_RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, sizeof(mask), 0, 0);
	return mask;
}

static void programs_handler(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	h.n_runs++;
	h.at = (uintptr_t)__builtin_frame_address(0);
	h.context_at = (uintptr_t)context;
	h.sp = (uintptr_t)uc->uc_mcontext.gregs[REG_RSP];
	h.info = *info;
	h.mask_inside = mask_now();
	h.stack_inside = uc->uc_stack;
	h.in_use = fp_sigstack_in_use();
	if (h.inside)
		h.inside(uc);
}

static void kernels_handler(int sig, siginfo_t *info, void *context)
{
	assert_true(fp_sigstack_has(fp_sigstack_own(), (uintptr_t)__builtin_frame_address(0)));
	fp_sigframe_run(sig, context, &h.action, &h.mask);
	h.stayed = true;
	if (++h.n_stayed == 1 && h.again)
		h.again();
}

/* Sends the process itself a signal with this value. When send returns, the handler has run. */
static void send(int value)
{
	assert_int_equal(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = value}), 0);
}

static void begin(int flags, void (*inside)(ucontext_t *context))
{
	struct sigaction action = {.sa_sigaction = kernels_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	memset(&h, 0, sizeof(h));
	h.action.sa_flags = SA_SIGINFO | flags;
	h.action.sa_sigaction = programs_handler;
	h.inside = inside;
	sigfillset(&action.sa_mask);
	sigdelset(&action.sa_mask, SIGBUS);
	sigdelset(&action.sa_mask, SIGSEGV);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	fp_sigstack_own()->program = stack_of(NULL, 0, SS_DISABLE);
}

/*
 * The handler runs below the interrupted frame and that frame's red zone. It gets the signal's
 * information and its own mask.
 */
static void test_on_the_interrupted_stack(void **state)
{
	uint64_t before = mask_now();

	begin(0, NULL);
	h.mask = 1ull << (SIGUSR2 - 1);
	send(4711);
	assert_int_equal(h.n_runs, 1);
	assert_false(h.stayed);
	assert_true(h.context_at + sizeof(struct ucontext_t) - sizeof(((ucontext_t *)0)->__fpregs_mem) <
	            h.sp - RED_ZONE);
	assert_in_range(h.sp - h.at, RED_ZONE, 20000);
	assert_int_equal(h.info.si_signo, SIGUSR1);
	assert_int_equal(h.info.si_value.sival_int, 4711);
	assert_int_equal(h.info.si_pid, getpid());
	assert_int_equal(h.mask_inside, 1ull << (SIGUSR2 - 1));
	assert_int_equal(h.stack_inside.ss_flags, SS_DISABLE);
	assert_false(h.in_use);
	assert_int_equal(mask_now(), before);
}

static bool is_on(uintptr_t addr)
{
	return addr > (uintptr_t)stack && addr <= (uintptr_t)stack + STACK_BYTES;
}

/*
 * The handler begins at the end of the program's signal stack. Its context tells the address of
 * that stack.
 */
static void test_on_the_programs_stack(void **state)
{
	begin(SA_ONSTACK, NULL);
	fp_sigstack_own()->program = stack_of(stack, STACK_BYTES, 0);
	send(1);
	assert_int_equal(h.n_runs, 1);
	assert_true(is_on(h.at) && is_on(h.context_at));
	assert_true((uintptr_t)stack + STACK_BYTES - h.context_at < 16384);
	assert_ptr_equal(h.stack_inside.ss_sp, stack);
	assert_int_equal(h.stack_inside.ss_size, STACK_BYTES);
	assert_true(h.in_use);
	begin(0, NULL); /* a handler without SA_ONSTACK */
	fp_sigstack_own()->program = stack_of(stack, STACK_BYTES, 0);
	send(1);
	assert_false(is_on(h.at));
}

/*
 * The handler asks for a signal stack, but the program has none. So the signal stays on the shim's
 * stack.
 */
static void test_without_a_stack(void **state)
{
	begin(SA_ONSTACK, NULL);
	send(1);
	assert_true(h.stayed);
	assert_int_equal(h.n_runs, 0);
}

static void send_on_ours(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	h.action.sa_flags = SA_SIGINFO;
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	send(2);
}

/*
 * A signal that interrupts a handler on the shim's stack stays on that stack, whatever its handler
 * asks for.
 */
static void test_on_our_stack(void **state)
{
	begin(SA_ONSTACK, NULL);
	h.again = send_on_ours;
	send(1);
	assert_int_equal(h.n_stayed, 2);
	assert_int_equal(h.n_runs, 0);
}

static uintptr_t outer_at;

static void send_another(ucontext_t *context)
{
	outer_at = h.at;
	h.inside = NULL;
	send(2);
}

/*
 * A signal comes during a handler. The second handler runs below the first one, on the same stack.
 */
static void test_nested(void **state)
{
	begin(SA_ONSTACK, send_another);
	fp_sigstack_own()->program = stack_of(stack, STACK_BYTES, 0);
	send(1);
	assert_int_equal(h.n_runs, 2);
	assert_int_equal(h.info.si_value.sival_int, 2);
	assert_true(is_on(h.at) && h.at < outer_at - RED_ZONE);
}

/* ---- what the handler leaves behind ---- */

static void block_and_move(ucontext_t *context)
{
	uint64_t mask = 1ull << (SIGUSR2 - 1) | 1ull << (SIGBUS - 1);

	memcpy(&context->uc_sigmask, &mask, sizeof(mask));
}

/*
 * After the return the thread has the mask that the handler wrote into its context, but without
 * SIGBUS.
 */
static void test_mask_after_return(void **state)
{
	uint64_t before = mask_now();

	fp_sigmask_open();
	begin(0, block_and_move);
	send(1);
	assert_int_equal(mask_now(), 1ull << (SIGUSR2 - 1));
	FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before), 0, 0);
}

static void change_registers(ucontext_t *context)
{
	context->uc_mcontext.gregs[REG_R12] = 0x7777;
	context->uc_mcontext.fpregs->_xmm[7].element[0] = 0x1234;
}

static void clobber_registers(ucontext_t *context)
{
	__asm__ volatile("pcmpeqd %%xmm7, %%xmm7\n xor %%r12d, %%r12d" ::: "xmm7", "r12");
}

/*
 * Sends a signal. Before and after it, looks at two registers and at the bytes below the stack
 * pointer.
 */
static void look_around_signal(uint32_t xmm, uint64_t r12, uint32_t *ret_xmm, uint64_t *ret_r12)
{
	long pid = getpid(), tid = (long)fp_raw(SYS_gettid, 0, 0, 0, 0, 0, 0), red_zone_left = RED_ZONE;

	__asm__ volatile("movd %[xmm], %%xmm7\n"
	                 "mov %[r12], %%r12\n"
	                 "lea -128(%%rsp), %%rdi\n"
	                 "mov $0x5a, %%eax\n"
	                 "rep stosb\n"
	                 "mov %[pid], %%rdi\n"
	                 "mov %[tgkill], %%eax\n"
	                 "syscall\n"
	                 "lea -128(%%rsp), %%rdi\n"
	                 "mov $0x5a, %%eax\n"
	                 "mov $128, %%ecx\n"
	                 "repe scasb\n"
	                 "movd %%xmm7, %[xmm]\n"
	                 "mov %%r12, %[r12]\n"
	                 : [xmm] "+r"(xmm), [r12] "+r"(r12), "+c"(red_zone_left)
	                 : [pid] "r"(pid), [tgkill] "i"(SYS_tgkill), "S"(tid), "d"((long)SIGUSR1)
	                 : "rax", "rdi", "r11", "r12", "xmm7", "memory", "cc");
	assert_int_equal(red_zone_left, 0);
	*ret_xmm = xmm;
	*ret_r12 = r12;
}

static void clobber_wide(ucontext_t *context)
{
	__asm__ volatile("vxorps %%ymm7, %%ymm7, %%ymm7" ::: "xmm7");
}

/*
 * Besides the registers that every processor has, the kernel's frame has wide ones. All of them are
 * restored.
 */
static void test_wide_registers(void **state)
{
	uint32_t before[8] = {1, 2, 3, 4, 5, 6, 7, 8}, after[8];
	long pid = getpid(), tid = (long)fp_raw(SYS_gettid, 0, 0, 0, 0, 0, 0), r = SYS_tgkill;

	if (!__builtin_cpu_supports("avx"))
		skip();
	begin(0, clobber_wide);
	__asm__ volatile("vmovups %[before], %%ymm7\n"
	                 "syscall\n"
	                 "vmovups %%ymm7, %[after]\n"
	                 : [after] "=m"(after), "+a"(r)
	                 : [before] "m"(before), "D"(pid), "S"(tid), "d"((long)SIGUSR1)
	                 : "rcx", "r11", "xmm7", "memory");
	assert_int_equal(h.n_runs, 1);
	assert_memory_equal(after, before, sizeof(before));
}

/*
 * After the return, registers are as before, or as the handler has written them into its context.
 */
static void test_registers(void **state)
{
	uint32_t xmm;
	uint64_t r12;

	begin(0, clobber_registers);
	look_around_signal(0x55aa, 0xabcd, &xmm, &r12);
	assert_int_equal(h.n_runs, 1);
	assert_int_equal(xmm, 0x55aa);
	assert_int_equal(r12, 0xabcd);
	begin(SA_ONSTACK, change_registers);
	fp_sigstack_own()->program = stack_of(stack, STACK_BYTES, 0);
	look_around_signal(0x55aa, 0xabcd, &xmm, &r12);
	assert_int_equal(xmm, 0x1234);
	assert_int_equal(r12, 0x7777);
}

static void check_alignment(ucontext_t *context)
{
	assert_int_equal((uintptr_t)context->uc_mcontext.fpregs % 64, 0);
	assert_true((uintptr_t)context->uc_mcontext.fpregs > (uintptr_t)context);
	assert_true(is_on((uintptr_t)context->uc_mcontext.fpregs));
	assert_int_equal(h.context_at % 16, 0); /* the return address lies below the context */
}

/* Wherever the program's stack ends, the frame is aligned as the kernel's would be. */
static void test_layout(void **state)
{
	for (unsigned i = 0; i < 64; i++) {
		begin(SA_ONSTACK, check_alignment);
		fp_sigstack_own()->program = stack_of(stack, STACK_BYTES - i, 0);
		send(1);
		assert_int_equal(h.n_runs, 1);
	}
}

static void jump_away(ucontext_t *context)
{
	siglongjmp(h.jump, 1);
}

/* A handler may jump away again and again. Nothing of the shim is used up by that. */
static void test_jumps(void **state)
{
	uint64_t before = mask_now();

	begin(SA_ONSTACK, jump_away);
	fp_sigstack_own()->program = stack_of(stack, STACK_BYTES, 0);
	for (unsigned i = 0; i < 1000; i++)
		if (sigsetjmp(h.jump, 1) == 0) {
			send(1);
			fail();
		}
	assert_int_equal(h.n_runs, 1000);
	assert_int_equal(mask_now(), before);
	assert_int_equal(fp_sigstack_own()->program.ss_flags, 0);
}

static void set_another(ucontext_t *context)
{
	assert_int_equal(fp_sigstack_own()->program.ss_flags, SS_DISABLE); /* the stack is unset meanwhile */
	assert_int_equal(set(fp_sigstack_own(), stack_of(stack, STACK_BYTES, 0), 0), 0);
}

/*
 * SS_AUTODISARM: the program's signal stack is unset while the handler runs, and set again when the
 * handler returns.
 */
static void test_disarmed_stack(void **state)
{
	begin(SA_ONSTACK, set_another);
	fp_sigstack_own()->program = stack_of(stack, STACK_BYTES, DISARM);
	send(1);
	assert_int_equal(h.n_runs, 1);
	assert_true(is_on(h.at));
	assert_true(h.in_use); /* the handler runs on it all the same */
	assert_int_equal(fp_sigstack_own()->program.ss_flags, DISARM);
	assert_int_equal(fp_sigstack_own()->program.ss_size, STACK_BYTES);
}

static void run_child(size_t stack_bytes)
{
	begin(SA_ONSTACK, NULL);
	fp_sigstack_own()->program = stack_of(stack, stack_bytes, 0);
	send(1);
	_exit(h.n_runs == 1 ? 0 : 1);
}

/*
 * A signal stack that is too small for the frame ends the program with a message, because no
 * handler can run.
 */
static void test_full_stack(void **state)
{
	static const struct {
		size_t stack_bytes;
		int status;
	} cases[] = {{16384, 0}, {400, 125}};
	int status;

	for (unsigned i = 0; i < FP_ARRAY_LEN(cases); i++) {
		pid_t child;

		far_rig_listen();
		child = fork();
		assert_true(child >= 0);
		if (child == 0)
			run_child(cases[i].stack_bytes);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), cases[i].status);
		assert_int_equal(strstr(far_rig_heard(), "signal stack is full") != NULL,
		                 cases[i].status != 0);
	}
}

/* ---- threads ---- */

static pthread_key_t late_key;
static struct fp_sigstack *late_own;

/*
 * A destructor of the program, which runs after the shim's destructor was called for the first
 * time.
 */
static void look_late(void *arg)
{
	late_own = fp_sigstack_own();
}

static void *use_stack(void *arg)
{
	stack_t kernels;

	assert_int_equal(pthread_setspecific(late_key, arg), 0);

	fp_sigstack_adopt(arg);
	fp_call_raw_syscall(SYS_sigaltstack, NULL, &kernels);
	return fp_sigstack_own() == arg && kernels.ss_sp == fp_sigstack_kernels(arg).ss_sp ? arg : NULL;
}

/* A thread has a signal stack of its own, which is unmapped when the thread ends. */
static void test_stack_of_a_thread(void **state)
{
	struct fp_sigstack *own = fp_sigstack_own(), *s = fp_sigstack_new();
	char *memory = s->memory;
	unsigned char present;
	pthread_t thread;
	void *right;

	assert_int_equal(pthread_key_create(&late_key, look_late), 0);
	assert_int_equal(mincore(memory, FP_PAGE_SIZE, &present), 0);
	assert_int_equal(pthread_create(&thread, NULL, use_stack, s), 0);
	assert_int_equal(pthread_join(thread, &right), 0);
	assert_non_null(right);
	assert_ptr_equal(fp_sigstack_own(), own);
	assert_ptr_equal(late_own, s); /* other destructors still find it */
	assert_int_equal(mincore(memory, FP_PAGE_SIZE, &present), -1);
	assert_int_equal(errno, ENOMEM);
}

static int open_stacks(void **state)
{
	assert_int_equal(far_rig_begin(state), 0);
	assert_false(fp_sigstack_is_open());
	assert_int_equal(fp_sigstack_open(), 0);
	assert_true(fp_sigstack_is_open());
	return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, far_rig_setup, far_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_own_stack),
	    TEST(test_programs_stack),
	    TEST(test_setting_a_stack),
	    TEST(test_sigaltstack),
	    TEST(test_on_the_interrupted_stack),
	    TEST(test_on_the_programs_stack),
	    TEST(test_without_a_stack),
	    TEST(test_on_our_stack),
	    TEST(test_nested),
	    TEST(test_registers),
	    TEST(test_wide_registers),
	    TEST(test_layout),
	    TEST(test_jumps),
	    TEST(test_disarmed_stack),
	    TEST(test_full_stack),
	    TEST(test_stack_of_a_thread),
	    TEST(test_mask_after_return),
	};

	return cmocka_run_group_tests(tests, open_stacks, NULL);
}

#else

int main(void)
{
	puts("frames of signals are known on x86-64 only");
	return 77;
}

#endif
