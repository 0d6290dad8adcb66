/* See callsteps.h. sigsetjmp and its kin, with buffers at and across the end of a page. */
#include "callsteps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "underpreload.h"

typedef struct __jmp_buf_tag buffer;
typedef void jump_fn(buffer *env, int value);

jump_fn __longjmp_chk;

/* As the functions that never return, so that the compiler leaves the array alone. */
static jump_fn *const jumps[] = {
    (jump_fn *)longjmp,
    (jump_fn *)_longjmp,
    (jump_fn *)siglongjmp,
    __longjmp_chk,
};

/* The parts of a buffer that may begin on the next page: the mask's flag, the mask, its end. */
static const size_t borders[] = {
    offsetof(buffer, __mask_was_saved),
    offsetof(buffer, __saved_mask),
    offsetof(buffer, __saved_mask) + 8,
    sizeof(buffer) + 8,
};

static void change_mask(int how, int sig)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, sig);
	sigprocmask(how, &set, NULL);
}

static bool is_blocked(int sig)
{
	sigset_t set;

	sigprocmask(SIG_BLOCK, NULL, &set);
	return sigismember(&set, sig);
}

static void page_out(const buffer *env)
{
	if (test_is_far(env))
		test_evict((const char *)env - (uintptr_t)env % STEP_PAGE, (size_t)2 * STEP_PAGE);
}

/*
 * Returns by a jump, once. Signals differ before and after sigsetjmp; the result says what was
 * restored.
 */
static long there_and_back(buffer *env, jump_fn *jump, int which)
{
	volatile long seen = 0;
	int value;

	memset(env, 0x55, sizeof(*env));
	change_mask(SIG_BLOCK, SIGUSR1);
	page_out(env);
	value = which == 0 ? sigsetjmp(env, 1) : which == 1 ? (setjmp)(env) : sigsetjmp(env, 0);
	if (value == 0) {
		seen = 1;
		change_mask(SIG_UNBLOCK, SIGUSR1);
		change_mask(SIG_BLOCK, SIGUSR2);
		page_out(env);
		jump(env, 7);
	}
	seen = seen * 10 + value;
	seen = seen * 100 + is_blocked(SIGUSR1) * 10 + is_blocked(SIGUSR2);
	change_mask(SIG_UNBLOCK, SIGUSR1);
	change_mask(SIG_UNBLOCK, SIGUSR2);
	return seen;
}

long test_step_jumps(void **m)
{
	char *border = (char *)m[0] + STEP_TAIL;
	long r = 0;

	for (size_t i = 0; i < sizeof(borders) / sizeof(*borders); i++)
		for (int which = 0; which < 3; which++) {
			buffer *env = (void *)(border - borders[i]);
			long seen = there_and_back(env, jumps[(i + (size_t)which) % 4], which);

			assert_int_equal(seen, which < 2 ? 1710 : 1701);
			r = r * 3 + seen;
		}
	return r;
}
