/* See sigmask.h. What is kept by thread is changed by that thread and its signal handlers alone. */
#include "sigmask.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "call_args.h"
#include "calls.h"
#include "local.h"
#include "far_pieces.h"
#include "shim.h"
#include "sigframe.h"
#include "signals.h"

#define BUS_BIT (1ull << (SIGBUS - 1))

static const uint64_t bus_alone = BUS_BIT; /* for the kernel: a stack may be far, and leave */

typedef int mask_fn(int how, const sigset_t *set, sigset_t *ret_old);

static atomic_bool is_open;
static _Atomic(mask_fn *) libc_mask; /* pthread_sigmask */

static __thread struct {
	bool blocks;
	bool pending; /* it was sent meanwhile */
	siginfo_t info;
	struct fp_sigmask_wait wait;
	struct timespec *timeout; /* of a wait for SIGBUS */
	uint64_t told, asked;     /* masks from and for the kernel; handlers leave them as they are */
	struct {
		bool is_open;
		bool blocks;
		uint64_t mask;
	} emulated; /* a wait that ends at once: what holds outside */
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
	FP_RAW(SYS_rt_sigprocmask, SIG_UNBLOCK, &bus_alone, NULL, sizeof(bus_alone), 0, 0);
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
	if (!fp_sigmask_is_open())
		return;
	own.blocks = blocks;
	unblock();
}

static bool blocks_in(const void *context)
{
	return fp_sigmask_of_context(context) & BUS_BIT;
}

bool fp_sigmask_defer(const siginfo_t *info, const void *context)
{
	if (!blocks_in(context))
		return false;
	if (!own.pending)
		own.info = *info;
	own.pending = true;
	if (own.timeout)
		*own.timeout = (struct timespec){0};
	return true;
}

bool fp_sigmask_has_pending(void)
{
	return own.pending;
}

bool fp_sigmask_take_pending(siginfo_t *ret_info)
{
	if (!own.pending) /* from here on one may come: it stays */
		return false;
	*ret_info = own.info;
	own.pending = false;
	return true;
}

void fp_sigmask_forked(void)
{
	own.pending = false;
}

struct timespec *fp_sigmask_note_timeout(struct timespec *timeout)
{
	struct timespec *before = own.timeout;

	own.timeout = timeout;
	return before;
}

static void deliver(void)
{
	if (!own.pending || own.blocks)
		return;
	own.pending = false;
	FP_RAW(SYS_rt_tgsigqueueinfo, getpid(), FP_RAW(SYS_gettid, 0, 0, 0, 0, 0, 0), SIGBUS, &own.info, 0,
	       0);
}

static bool blocks_after(int how, uint64_t set)
{
	bool has = set & BUS_BIT;

	return how == SIG_BLOCK ? own.blocks || has : how == SIG_UNBLOCK ? own.blocks && !has : has;
}

/*
 * On a stack that is itself far, the kernel may not reach our copies: they are touched, and it is asked
 * again. It must not have changed anything by then, so it tells first and changes then.
 */
static int ask_again(mask_fn *by, int how, const sigset_t *set, sigset_t *ret_old)
{
	int r;

	do {
		sigemptyset(ret_old);
		__asm__ volatile("" : : "r"(ret_old) : "memory");
		r = by(SIG_BLOCK, NULL, ret_old);
	} while (r == EFAULT);
	while (set && r == 0 && (r = by(how, set, NULL)) == EFAULT) {
		(void)*(const volatile uint64_t *)set;
		r = 0;
	}
	return r;
}

/*
 * An error number, as pthread_sigmask has it. The program's sets may be far, and are as long as the kernel's:
 * it sees neither. As by it, the mask is changed even if it can't be told what it was.
 */
static int change(mask_fn *by, int how, const void *set, void *ret_old)
{
	bool before = own.blocks, after = before;
	sigset_t ours = {0}, old = {0};
	int r = set ? -fp_call_args_fetch(&ours, set, sizeof(uint64_t)) : 0;

	if (r)
		return r;
	if (set)
		after = blocks_after(how, *(uint64_t *)&ours);
	if (set && how != SIG_UNBLOCK)
		fp_sigmask_strip(&ours);
	if (fp_call_args_far(&old, sizeof(old)) || fp_call_args_far(&ours, sizeof(ours)))
		r = ask_again(by, how, set ? &ours : NULL, &old);
	else
		r = by(how, set ? &ours : NULL, &old);
	if (r)
		return r;
	own.blocks = after && fp_sigmask_is_open(); /* elsewhere the kernel knows, and tells */
	if (before)
		sigaddset(&old, SIGBUS);
	if (ret_old)
		r = -fp_call_args_store(ret_old, &old, sizeof(uint64_t));
	deliver();
	return r;
}

FP_INTERPOSE int pthread_sigmask(int how, const sigset_t *set, sigset_t *ret_old)
{
	if (fp_local_is_agent() || (!fp_sigmask_is_open() && !fp_calls_hold()))
		return real()(how, set, ret_old);
	return change(real(), how, set, ret_old);
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

/* sigpause of all kinds: waits under the thread's mask without one signal, or under another one. */
static int pause_under(int sig_or_mask, bool is_sig)
{
	sigset_t set;

	sigemptyset(&set);
	if (!is_sig)
		*(uint64_t *)&set = (unsigned)sig_or_mask;
	else if (sigprocmask(SIG_BLOCK, NULL, &set) < 0 || sigdelset(&set, sig_or_mask) < 0)
		return -1;
	return sigsuspend(&set);
}

FP_INTERPOSE int __sigpause(int sig_or_mask, int is_sig);
int __sigpause(int sig_or_mask, int is_sig)
{
	return pause_under(sig_or_mask, is_sig);
}

/* By other names, as the headers say which of the two sigpause is. */
FP_INTERPOSE int fp_sigpause_of_bsd(int mask) __asm__("sigpause");
int fp_sigpause_of_bsd(int mask)
{
	return pause_under(mask, false);
}

FP_INTERPOSE int fp_sigpause_of_xpg(int sig) __asm__("__xpg_sigpause");
int fp_sigpause_of_xpg(int sig)
{
	return pause_under(sig, true);
}

/* ---- by the system call's number ---- */

static int kernels_mask(int how, const sigset_t *set, sigset_t *ret_old)
{
	return (int)-FP_RAW(SYS_rt_sigprocmask, how, set, ret_old, sizeof(uint64_t), 0, 0);
}

long fp_sigmask_by_number(int how, const void *set, void *ret_old, size_t size)
{
	int r;

	if (!fp_sigmask_is_open() || fp_local_is_agent())
		return fp_call_syscall_way(SYS_rt_sigprocmask, how, (long)set, (long)ret_old, (long)size, 0,
		                           0);
	if (size != sizeof(uint64_t)) {
		errno = EINVAL;
		return -1;
	}
	r = change(kernels_mask, how, set, ret_old);
	if (r == 0)
		return 0;
	errno = r;
	return -1;
}

/* ---- what another program starts with ---- */

/* From here to the kernel nothing may be far. The C library may look at PATH on the way. */
bool fp_sigmask_begin_exec(const void *args)
{
	const char *path = getenv("PATH");
	bool ignores;

	if (!fp_sigmask_is_open() || fp_call_args_far(args, 1) || (path && fp_call_args_far(path, 1)))
		return false;
	ignores = fp_signals_begin_exec();
	if (own.blocks)
		FP_RAW(SYS_rt_sigprocmask, SIG_BLOCK, &bus_alone, NULL, sizeof(bus_alone), 0, 0);
	return ignores || own.blocks;
}

void fp_sigmask_end_exec(void)
{
	int saved = errno;

	fp_signals_end_exec();
	unblock();
	errno = saved;
}

/* ---- around vfork ---- */

#define BELIEVES_BLOCKED 1u
#define BELIEVES_PENDING 2u

unsigned fp_sigmask_belief(void)
{
	return (own.blocks ? BELIEVES_BLOCKED : 0) | (own.pending ? BELIEVES_PENDING : 0);
}

void fp_sigmask_believe(unsigned belief)
{
	own.blocks = belief & BELIEVES_BLOCKED;
	own.pending = belief & BELIEVES_PENDING;
}

bool fp_sigmask_spawn(const posix_spawnattr_t *attr, posix_spawnattr_t *ret_copy)
{
	short flags = 0;
	sigset_t mask;

	if (!own.blocks || (attr && posix_spawnattr_getflags(attr, &flags) != 0) ||
	    (flags & POSIX_SPAWN_SETSIGMASK) || sigprocmask(SIG_BLOCK, NULL, &mask) < 0)
		return false;
	if (attr)
		*ret_copy = *attr;
	else
		posix_spawnattr_init(ret_copy);
	posix_spawnattr_setflags(ret_copy, (short)(flags | POSIX_SPAWN_SETSIGMASK));
	posix_spawnattr_setsigmask(ret_copy, &mask);
	return true;
}

/* ---- around handlers ---- */

void fp_sigmask_show(uint64_t *mask)
{
	if (own.blocks)
		*mask |= BUS_BIT;
}

void fp_sigmask_adopt(const uint64_t *mask)
{
	if (!fp_sigmask_is_open())
		return;
	own.blocks = (*mask & BUS_BIT) != 0;
	deliver();
}

struct fp_sigmask_wait fp_sigmask_note_wait(struct fp_sigmask_wait wait)
{
	struct fp_sigmask_wait before = own.wait;

	own.wait = wait;
	return before;
}

/* By memory that is never far. */
static void set_kernels(uint64_t mask)
{
	uint64_t outer = own.asked;

	own.asked = mask;
	FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, &own.asked, NULL, sizeof(mask), 0, 0);
	own.asked = outer;
}

static uint64_t kernels_now(void)
{
	uint64_t outer = own.told, now;

	FP_RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &own.told, sizeof(now), 0, 0);
	now = own.told;
	own.told = outer;
	return now;
}

/* The handlers run between the two masks, as if the call had set the first and a signal had ended it. */
bool fp_sigmask_ends_wait(const struct fp_sigmask_wait *wait)
{
	if (!wait->kernels || !own.pending || (wait->asked & BUS_BIT))
		return false;
	if (fp_signals_ignores_bus()) { /* it is gone once it is let in */
		own.pending = false;
		return false;
	}
	own.emulated.blocks = own.blocks;
	own.emulated.mask = kernels_now();
	own.emulated.is_open = true;
	own.blocks = false;
	set_kernels(wait->asked);
	deliver();
	if (own.emulated.is_open) { /* what is blocked since, if not by a handler's return */
		own.blocks = own.emulated.blocks;
		set_kernels(own.emulated.mask);
		own.emulated.is_open = false;
	}
	return true;
}

void fp_sigmask_leave_wait(uint64_t *mask)
{
	if (!own.emulated.is_open)
		return;
	own.emulated.is_open = false;
	own.blocks = own.emulated.blocks;
	*mask = own.emulated.mask;
}

uint64_t fp_sigmask_of_context(const void *context)
{
	uint64_t mask = *(const uint64_t *)&((const ucontext_t *)context)->uc_sigmask;

	if (fp_sigframe_waited_under(context, own.wait.kernels))
		return own.wait.asked;
	fp_sigmask_show(&mask);
	return mask;
}

uint64_t fp_sigmask_begin_handler(uint64_t mask)
{
	if (fp_sigmask_is_open())
		own.blocks = (mask & BUS_BIT) != 0;
	fp_sigmask_strip(&mask);
	return mask;
}

void fp_sigmask_enter(uint64_t mask)
{
	FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask), 0, 0);
}

/* ---- in what the program keeps ---- */

#define NOTE      (sizeof(sigset_t) / sizeof(uint64_t) - 1) /* the word of a set that nobody uses */
#define NOTED     0x4661725061676531ull
#define NOTED_BUS (NOTED + 1)

void fp_sigmask_save(sigset_t *set)
{
	if (fp_sigmask_is_open())
		((uint64_t *)set)[NOTE] = own.blocks ? NOTED_BUS : NOTED;
}

/* The bit itself is there if the program has put it in, or if the set is out of a handler's context. */
void fp_sigmask_load(sigset_t *set)
{
	uint64_t *words = (uint64_t *)set;

	if (!fp_sigmask_is_open())
		return;
	if (words[0] & BUS_BIT) {
		words[NOTE] = NOTED_BUS;
		words[0] &= ~BUS_BIT;
	}
	own.blocks = words[NOTE] == NOTED_BUS;
	deliver();
}
