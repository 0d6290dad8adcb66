/*
 * setjmp, longjmp and their kin: which signals are blocked goes with them, and of SIGBUS only the shim knows
 * where it serves faults by it. Room: preload. A jump buffer has room for far more signals than there
 * are; a word of that says what the thread believed. What setjmp is about is its caller's registers and
 * stack: as in context.c it is jumped to.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stddef.h>

#include "shim.h"
#include "sigmask.h"
#include "trampoline.h"

#if defined(__x86_64__)

enum { SIGSETJMP, SETJMP, SIGLONGJMP, LONGJMP, OLD_LONGJMP, LONGJMP_CHK, N_CALLS };

typedef void call_fn(void);
typedef void jump_fn(struct __jmp_buf_tag *env, int value);

static _Atomic(call_fn *) found[N_CALLS];

static call_fn *real(unsigned call)
{
	static const char *const names[N_CALLS] = {"__sigsetjmp", "setjmp",   "siglongjmp",
	                                           "longjmp",     "_longjmp", "__longjmp_chk"};
	call_fn *fn = atomic_load_explicit(&found[call], memory_order_relaxed);

	if (!fn) {
		fn = (call_fn *)dlsym(RTLD_NEXT, names[call]);
		atomic_store_explicit(&found[call], fn, memory_order_relaxed);
	}
	return fn;
}

/* Before the program runs: signal handlers jump, and must not be in the loader meanwhile. */
__attribute__((constructor)) static void find_all(void)
{
	for (unsigned i = 0; i < N_CALLS; i++)
		real(i);
}

/* Called by the two below; returns where they go on. */
__attribute__((used)) call_fn *fp_jump_prepare(struct __jmp_buf_tag *env, int saves, unsigned call);
call_fn *fp_jump_prepare(struct __jmp_buf_tag *env, int saves, unsigned call)
{
	if (saves || call == SETJMP)
		fp_sigmask_save((sigset_t *)(void *)&env->__saved_mask);
	return real(call);
}

FP_TRAMPOLINE("__sigsetjmp", "fp_jump_prepare", "0");
FP_TRAMPOLINE("setjmp", "fp_jump_prepare", "1");

static void jump(unsigned call, struct __jmp_buf_tag *env, int value)
{
	if (env->__mask_was_saved)
		fp_sigmask_load((sigset_t *)(void *)&env->__saved_mask);
	((jump_fn *)real(call))(env, value);
}

/* By other names, as the headers' declarations have attributes that these must not have. */
#define JUMP_CALL(name, call)                                                                                \
	FP_INTERPOSE void fp_jump_by_##name(struct __jmp_buf_tag *env, int value) __asm__(#name);            \
	void fp_jump_by_##name(struct __jmp_buf_tag *env, int value)                                         \
	{                                                                                                    \
		jump(call, env, value);                                                                      \
	}

JUMP_CALL(siglongjmp, SIGLONGJMP)
JUMP_CALL(longjmp, LONGJMP)
JUMP_CALL(_longjmp, OLD_LONGJMP)
JUMP_CALL(__longjmp_chk, LONGJMP_CHK)

#endif
