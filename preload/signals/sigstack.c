/* See sigstack.h. */
#include "sigstack.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call_args.h"
#include "calls.h"
#include "local.h"
#include "cleanup.h"
#include "lockedmem.h"
#include "lookup.h"
#include "shim.h"
#include "store.h"

/*
 * The size of a stack: for our own code, and for handlers that run on it. The top part is locked in
 * memory. That part is enough to serve a fault inside another signal.
 */
#define STACK_BYTES  (256u << 10)
#define LOCKED_BYTES (48u << 10)
#define FRAME_LEAST  4096u
#define LEAST_BYTES  2048u      /* the kernel's own minimum for sigaltstack */
#define DISARM       (1u << 31) /* SS_AUTODISARM */

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

static atomic_bool is_open;
static pthread_key_t key;
static __thread struct fp_sigstack *own __attribute__((tls_model("initial-exec")));

bool fp_sigstack_is_open(void)
{
	return atomic_load_explicit(&is_open, memory_order_relaxed);
}

struct fp_sigstack *fp_sigstack_own(void)
{
	return own;
}

/* ---- memory: by bare calls, so that it stays local ---- */

static size_t to_pages(size_t bytes)
{
	return (bytes + FP_PAGE_SIZE - 1) & ~(size_t)(FP_PAGE_SIZE - 1);
}

/*
 * Maps the memory of a stack. From low to high addresses: an inaccessible page, the stack, struct
 * fp_sigstack, the memory from which frames return.
 */
struct fp_sigstack *fp_sigstack_new(void)
{
	size_t frame = FP_MAX(getauxval(AT_MINSIGSTKSZ), (unsigned long)FRAME_LEAST);
	size_t head = (sizeof(struct fp_sigstack) + 63) & ~(size_t)63, tail = to_pages(head + frame);
	size_t len = FP_PAGE_SIZE + STACK_BYTES + tail;
	char *p =
	    (char *)fp_call_raw_syscall(SYS_mmap, NULL, len, PROT_READ | PROT_WRITE,
	                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0L);
	struct fp_sigstack *s;

	if (p == MAP_FAILED)
		return NULL;
	s = (struct fp_sigstack *)(void *)(p + len - tail);
	fp_call_raw_syscall(SYS_mprotect, p, FP_PAGE_SIZE, PROT_NONE);
	fp_lockedmem_lock((char *)s - LOCKED_BYTES, LOCKED_BYTES + tail, true);
	*s = (struct fp_sigstack){.memory = p,
	                          .len = len,
	                          .program.ss_flags = SS_DISABLE,
	                          .back = (char *)s + head,
	                          .back_len = tail - head};
	return s;
}

void fp_sigstack_free(struct fp_sigstack *s)
{
	if (!s)
		return;
	fp_lockedmem_forget(LOCKED_BYTES + s->len - (size_t)((char *)s - s->memory));
	fp_call_raw_syscall(SYS_munmap, s->memory, s->len);
}

stack_t fp_sigstack_kernels(const struct fp_sigstack *s)
{
	if (!s)
		return (stack_t){.ss_flags = SS_DISABLE};
	return (stack_t){.ss_sp = s->memory + FP_PAGE_SIZE, .ss_size = STACK_BYTES};
}

static int tell_kernel(const struct fp_sigstack *s)
{
	const stack_t ss = fp_sigstack_kernels(s);

	return fp_call_raw_syscall(SYS_sigaltstack, &ss, NULL) < 0 ? -errno : 0;
}

/* ---- threads ---- */

void fp_sigstack_adopt(struct fp_sigstack *s)
{
	if (tell_kernel(s) < 0)
		return;
	own = s;
	pthread_setspecific(key, s);
}

/*
 * Frees the stack, but only in the last round of the thread's destructors, because other
 * destructors may still touch far memory. In earlier rounds it sets its key again, so that it is
 * called once more.
 */
static void on_thread_end(void *arg)
{
	struct fp_sigstack *s = arg;

	if (++s->rounds < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(key, s) == 0)
		return;
	if (fp_shim_agent())
		fp_agent_thread_ends(fp_shim_agent());
	if (s != own || tell_kernel(NULL) < 0)
		return;
	own = NULL;
	fp_sigstack_free(s);
}

#if defined(__x86_64__)
int fp_sigstack_open(void)
{
	struct fp_sigstack *s = fp_sigstack_new();
	int r = s ? -pthread_key_create(&key, on_thread_end) : -ENOMEM;

	if (r < 0) {
		fp_sigstack_free(s);
		return r;
	}
	fp_call_raw_syscall(SYS_sigaltstack, NULL, &s->program);
	fp_sigstack_adopt(s);
	atomic_store(&is_open, true);
	fp_local_route_signals();
	return 0;
}
#else
int fp_sigstack_open(void)
{
	return -ENOTSUP;
}
#endif

/* ---- which stack an address is on ---- */

bool fp_sigstack_has(const struct fp_sigstack *s, uintptr_t addr)
{
	return addr > (uintptr_t)s->memory && addr <= (uintptr_t)s->memory + FP_PAGE_SIZE + STACK_BYTES;
}

bool fp_sigstack_is_programs(const struct fp_sigstack *s, uintptr_t addr)
{
	uintptr_t start = (uintptr_t)s->program.ss_sp;

	return !((unsigned)s->program.ss_flags & (DISARM | SS_DISABLE)) && addr > start &&
	       addr - start <= s->program.ss_size;
}

bool fp_sigstack_in_use(void)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);

	return own && (fp_sigstack_has(own, here) || fp_sigstack_is_programs(own, here) ||
	               (here > own->entered && here <= own->entered_end));
}

/* ---- the program's calls ---- */

int fp_sigstack_set(struct fp_sigstack *s, const stack_t *ss, uintptr_t sp)
{
	stack_t wanted = *ss;
	unsigned flags = (unsigned)wanted.ss_flags & ~DISARM;

	if (fp_sigstack_is_programs(s, sp))
		return -EPERM;
	if (flags != 0 && flags != SS_ONSTACK && flags != SS_DISABLE)
		return -EINVAL;
	if (flags == SS_DISABLE)
		wanted = (stack_t){.ss_flags = wanted.ss_flags};
	else if (wanted.ss_size < LEAST_BYTES)
		return -ENOMEM;
	wanted.ss_flags &= ~SS_ONSTACK;
	s->program = wanted;
	return 0;
}

FP_INTERPOSE int sigaltstack(const stack_t *ss, stack_t *ret_old)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	stack_t old, wanted;
	int r = 0;

	if (!own)
		return (int)fp_call_syscall_way(SYS_sigaltstack, (long)ss, (long)ret_old, 0, 0, 0, 0);
	old = own->program;
	if (fp_sigstack_is_programs(own, here))
		old.ss_flags |= SS_ONSTACK;
	if (ss)
		r = fp_call_args_fetch(&wanted, ss, sizeof(wanted));
	if (r == 0 && ss)
		r = fp_sigstack_set(own, &wanted, here);
	if (r == 0 && ret_old)
		r = fp_call_args_store(ret_old, &old, sizeof(old));
	return fp_shim_return(r);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Interposed because the C library's version would give the kernel a stack that may be far. */
FP_INTERPOSE int sigstack(struct sigstack *ss, struct sigstack *ret_old)
{
	static atomic_bool said;

	if (!own)
		return ((__typeof__(&sigstack))fp_lookup_next("sigstack", NULL))(ss, ret_old);
	fp_shim_say_once(&said,
	                 "sigstack was refused: it does not say how large the stack is. Use sigaltstack");
	return fp_shim_return(-ENOSYS);
}
