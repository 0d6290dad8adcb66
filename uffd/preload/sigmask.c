/* See sigmask.h. What is kept by thread is changed by that thread and its signal handlers alone. */
#include "sigmask.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "calls.h"
#include "local.h"
#include "shim.h"

#define BUS_BIT  (1ull << (SIGBUS - 1))
#define N_SIGNAL 65

typedef int mask_fn(int how, const sigset_t *set, sigset_t *ret_old);

extern int __sigaction(int sig, const struct sigaction *action, struct sigaction *ret_old);

static atomic_bool is_open;
static _Atomic(mask_fn *) libc_mask;    /* pthread_sigmask */
static atomic_bool in_action[N_SIGNAL]; /* the program's handler has SIGBUS in its mask, as it believes */

static __thread struct {
	bool blocks;
	bool pending; /* it was sent meanwhile */
} own __attribute__((tls_model("initial-exec")));

/* Its own thread's mask, by the C library: it keeps signals of its own out of it. */
static mask_fn *real(void)
{
	mask_fn *fn = atomic_load_explicit(&libc_mask, memory_order_relaxed);

	if (!fn) {
		fn = (mask_fn *)dlsym(RTLD_NEXT, "pthread_sigmask");
		atomic_store_explicit(&libc_mask, fn, memory_order_relaxed);
	}
	return fn;
}

bool fp_sigmask_is_open(void)
{
	return atomic_load_explicit(&is_open, memory_order_relaxed);
}

void fp_sigmask_strip(void *mask)
{
	if (fp_sigmask_is_open())
		*(uint64_t *)mask &= ~BUS_BIT;
}

bool fp_sigmask_blocks(void)
{
	return own.blocks;
}

static void unblock(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGBUS);
	real()(SIG_UNBLOCK, &set, NULL);
}

void fp_sigmask_open(void)
{
	sigset_t now;

	real()(SIG_BLOCK, NULL, &now);
	own.blocks = sigismember(&now, SIGBUS);
	unblock();
	atomic_store(&is_open, true);
}

void fp_sigmask_inherit(bool blocks)
{
	own.blocks = blocks;
	unblock();
}

bool fp_sigmask_defer(void)
{
	own.pending |= own.blocks;
	return own.blocks;
}

static void deliver(void)
{
	if (!own.pending || own.blocks)
		return;
	own.pending = false;
	syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGBUS);
}

static bool blocks_after(int how, const sigset_t *set)
{
	switch (how) {
	case SIG_BLOCK:
		return own.blocks || sigismember(set, SIGBUS);
	case SIG_UNBLOCK:
		return own.blocks && !sigismember(set, SIGBUS);
	default:
		return sigismember(set, SIGBUS);
	}
}

/* An error number, as pthread_sigmask has it. The program's sets may be far: the kernel sees neither. */
static int change(int how, const sigset_t *set, sigset_t *ret_old)
{
	bool before = own.blocks, after = set ? blocks_after(how, set) : before;
	sigset_t ours, old;
	int r;

	if (set)
		ours = *set;
	if (set && how != SIG_UNBLOCK)
		fp_sigmask_strip(&ours);
	r = real()(how, set ? &ours : NULL, &old);
	if (r)
		return r;
	own.blocks = after;
	if (ret_old) {
		if (before)
			sigaddset(&old, SIGBUS);
		*ret_old = old;
	}
	deliver();
	return 0;
}

FP_INTERPOSE int pthread_sigmask(int how, const sigset_t *set, sigset_t *ret_old)
{
	if (fp_local_is_agent() || (!fp_sigmask_is_open() && !fp_calls_hold()))
		return real()(how, set, ret_old);
	return change(how, set, ret_old);
}

FP_INTERPOSE int sigprocmask(int how, const sigset_t *set, sigset_t *ret_old)
{
	int r = pthread_sigmask(how, set, ret_old);

	if (r == 0)
		return 0;
	errno = r;
	return -1;
}

/* ---- older ways to say the same: the C library's would go past us ---- */

static int change_one(int how, int sig)
{
	sigset_t set;

	sigemptyset(&set);
	return sigaddset(&set, sig) < 0 ? -1 : sigprocmask(how, &set, NULL);
}

FP_INTERPOSE int sighold(int sig)
{
	return change_one(SIG_BLOCK, sig);
}

FP_INTERPOSE int sigrelse(int sig)
{
	return change_one(SIG_UNBLOCK, sig);
}

static int change_word(int how, int mask)
{
	sigset_t set, old;

	sigemptyset(&set);
	*(uint64_t *)&set = (unsigned)mask;
	return sigprocmask(how, &set, &old) < 0 ? -1 : (int)*(uint64_t *)&old;
}

FP_INTERPOSE int sigblock(int mask)
{
	return change_word(SIG_BLOCK, mask);
}

FP_INTERPOSE int sigsetmask(int mask)
{
	return change_word(SIG_SETMASK, mask);
}

/* ---- actions ---- */

void fp_sigmask_enter(const sigset_t *mask)
{
	sigset_t ours = *mask;

	fp_sigmask_strip(&ours);
	real()(SIG_SETMASK, &ours, NULL);
}

int fp_sigmask_action(int sig, const struct sigaction *action, struct sigaction *ret_old)
{
	bool known = sig > 0 && sig < N_SIGNAL, before;
	struct sigaction ours, old;

	if (!fp_sigmask_is_open() || !known)
		return __sigaction(sig, action, ret_old);
	if (action) {
		ours = *action;
		fp_sigmask_strip(&ours.sa_mask);
	}
	if (__sigaction(sig, action ? &ours : NULL, &old) < 0)
		return -1;
	before = action ? atomic_exchange(&in_action[sig], sigismember(&action->sa_mask, SIGBUS))
	                : atomic_load(&in_action[sig]);
	if (ret_old) {
		if (before)
			sigaddset(&old.sa_mask, SIGBUS);
		*ret_old = old;
	}
	return 0;
}
