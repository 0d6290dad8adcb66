/*
 * See signals.h. What the program has set is kept in records that are written once and published by an atomic
 * index: sigaction is async-signal safe, and must not find a lock that the interrupted thread, or one that a
 * fork left behind, holds.
 */
#include "signals.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"
#include "sigmask.h"

#define RECORDS 64u /* of one signal: so many changes must not pass while somebody copies one */

typedef sighandler_t set_fn(int sig, sighandler_t handler);
typedef int interrupt_fn(int sig, int interrupt);

set_fn bsd_signal; /* in no header any more */
extern int __sigaction(int sig, const struct sigaction *action, struct sigaction *ret_old);

/* One action that the program has set. stamp: the number of the change; 0 while it is written. */
struct record {
	_Atomic uint64_t stamp;
	struct sigaction action;
};

struct taken {
	atomic_bool is_taken;
	struct fp_signal_hook hook;
	_Atomic uint64_t n_changes; /* begun */
	_Atomic uint64_t current;   /* stamp of the one that holds */
	struct record records[RECORDS];
};

static struct taken taken_segv, taken_bus;
static _Atomic pid_t owner; /* a vfork child shares our memory, but its actions are its own */

static struct taken *taken_of(int sig)
{
	struct taken *t = sig == SIGSEGV ? &taken_segv : sig == SIGBUS ? &taken_bus : NULL;

	return t && atomic_load_explicit(&t->is_taken, memory_order_acquire) ? t : NULL;
}

static struct record *record_of(struct taken *t, uint64_t stamp)
{
	return &t->records[stamp % RECORDS];
}

/* What the program has set; returns its stamp. */
static uint64_t current_action(struct taken *t, struct sigaction *ret_action)
{
	uint64_t stamp;
	struct record *r;

	do {
		stamp = atomic_load(&t->current);
		r = record_of(t, stamp);
		*ret_action = r->action;
		atomic_thread_fence(memory_order_acquire);
	} while (atomic_load(&r->stamp) != stamp);
	return stamp;
}

/* Makes action the program's. Returns the stamp of what it replaces. */
static uint64_t change_action(struct taken *t, const struct sigaction *action, uint64_t *ret_stamp)
{
	uint64_t stamp = atomic_fetch_add(&t->n_changes, 1) + 1;
	struct record *r = record_of(t, stamp);

	atomic_store(&r->stamp, 0);
	atomic_thread_fence(memory_order_release);
	r->action = *action;
	atomic_store(&r->stamp, stamp);
	*ret_stamp = stamp;
	return atomic_exchange(&t->current, stamp);
}

/* ---- the kernel's action ---- */

static void on_signal(int sig, siginfo_t *info, void *context);

static bool is_handler(const struct sigaction *action)
{
	return (action->sa_flags & SA_SIGINFO) ||
	       (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* Installs what the kernel shall have while the program's action is this one. */
static int install(int sig, const struct taken *t, const struct sigaction *program)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	if (t->hook.always) /* all: a cancelled thread must not unwind the handler */
		memset(&action.sa_mask, 0xff, sizeof(action.sa_mask));
	else if (!is_handler(program) && program->sa_handler == SIG_IGN)
		action = *program;
	else if (is_handler(program)) {
		action.sa_mask = program->sa_mask;
		action.sa_flags = (program->sa_flags & ~(int)SA_RESETHAND) | SA_SIGINFO;
	}
	if (!t->hook.always)
		fp_sigmask_strip(&action.sa_mask);
	return __sigaction(sig, &action, NULL);
}

/* Sets the program's action, and the kernel's to match, whoever else does so at the same time. */
static int set_action(int sig, struct taken *t, const struct sigaction *action, uint64_t *ret_before)
{
	struct sigaction now = *action;
	uint64_t stamp;

	*ret_before = change_action(t, action, &stamp);
	do {
		if (install(sig, t, &now) < 0)
			return -1;
		stamp = atomic_load(&t->current);
	} while (current_action(t, &now) != stamp);
	return 0;
}

/* ---- the program's handler ---- */

/* What the kernel does without a handler. A fault that recurs, or a signal sent once more, ends the program.
 */
static void default_action(int sig, const siginfo_t *info)
{
	const struct sigaction action = {.sa_handler = SIG_DFL};

	__sigaction(sig, &action, NULL);
	if (info->si_code <= 0)
		syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), sig);
}

/* The mask of the program's handler, which ran with all signals blocked so far. */
static void enter_mask(int sig, const struct sigaction *action, const ucontext_t *context)
{
	sigset_t mask = action->sa_mask;

	if (!(action->sa_flags & SA_NODEFER))
		sigaddset(&mask, sig);
	sigorset(&mask, &mask, &context->uc_sigmask);
	fp_sigmask_enter(&mask);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	static const struct sigaction reset = {.sa_handler = SIG_DFL};
	struct taken *t = sig == SIGSEGV ? &taken_segv : &taken_bus;
	struct sigaction action;
	uint64_t before;
	int saved = errno;

	if (t->hook.first(info, context)) {
		errno = saved;
		return;
	}
	current_action(t, &action);
	if (!is_handler(&action)) {
		if (action.sa_handler == SIG_DFL || info->si_code > 0)
			default_action(sig, info);
		errno = saved;
		return;
	}
	if (action.sa_flags & SA_RESETHAND)
		set_action(sig, t, &reset, &before);
	if (t->hook.always)
		enter_mask(sig, &action, context);
	errno = saved;
	if (action.sa_flags & SA_SIGINFO)
		action.sa_sigaction(sig, info, context);
	else
		action.sa_handler(sig);
}

/* ---- life ---- */

int fp_signals_take(int sig, const struct fp_signal_hook *hook)
{
	struct taken *t = sig == SIGSEGV ? &taken_segv : sig == SIGBUS ? &taken_bus : NULL;
	struct sigaction action;
	uint64_t before;

	if (!t || atomic_load(&t->is_taken))
		return -EINVAL;
	if (__sigaction(sig, NULL, &action) < 0)
		return -errno;
	t->hook = *hook;
	atomic_store(&owner, getpid());
	if (set_action(sig, t, &action, &before) < 0)
		return -errno;
	atomic_store_explicit(&t->is_taken, true, memory_order_release);
	return 0;
}

void fp_signals_forked(void)
{
	atomic_store(&owner, getpid());
}

/* ---- what the program calls ---- */

/* True in a vfork child: what it sets must not become its parent's. */
static bool is_borrowed(void)
{
	return atomic_load(&owner) != getpid() && !(fp_shim_agent() && fp_agent_is_stray(fp_shim_agent()));
}

FP_INTERPOSE int sigaction(int sig, const struct sigaction *action, struct sigaction *ret_old)
{
	struct taken *t = taken_of(sig);
	struct sigaction old, copy;
	uint64_t before;

	if (!t)
		return fp_sigmask_action(sig, action, ret_old);
	current_action(t, &old);
	if (action) {
		copy = *action; /* the caller's may be far, and become ours only when it is here */
		if (is_borrowed()) {
			if (__sigaction(sig, &copy, NULL) < 0)
				return -1;
		} else {
			if (set_action(sig, t, &copy, &before) < 0)
				return -1;
			if (atomic_load(&record_of(t, before)->stamp) == before)
				old = record_of(t, before)->action;
		}
	}
	if (ret_old)
		*ret_old = old;
	return 0;
}

/* The C library's own. */
static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

/* signal of one kind or another: sets a handler, returns the one before. */
static sighandler_t set_handler(int sig, sighandler_t handler, int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, old;

	return sigaction(sig, &action, &old) < 0 ? SIG_ERR : old.sa_handler;
}

FP_INTERPOSE sighandler_t signal(int sig, sighandler_t handler)
{
	return taken_of(sig) ? set_handler(sig, handler, SA_RESTART)
	                     : ((set_fn *)next("signal"))(sig, handler);
}

FP_INTERPOSE sighandler_t bsd_signal(int sig, sighandler_t handler)
{
	return signal(sig, handler);
}

FP_INTERPOSE sighandler_t ssignal(int sig, sighandler_t handler)
{
	return signal(sig, handler);
}

FP_INTERPOSE sighandler_t __sysv_signal(int sig, sighandler_t handler)
{
	return taken_of(sig) ? set_handler(sig, handler, SA_RESETHAND | SA_NODEFER)
	                     : ((set_fn *)next("__sysv_signal"))(sig, handler);
}

FP_INTERPOSE sighandler_t sysv_signal(int sig, sighandler_t handler)
{
	return __sysv_signal(sig, handler);
}

/* The System V way: the signal's place in the thread's mask goes with it. */
FP_INTERPOSE sighandler_t sigset(int sig, sighandler_t disposition)
{
	struct sigaction old;
	sigset_t set, before;

	if (!taken_of(sig))
		return ((set_fn *)next("sigset"))(sig, disposition);
	sigemptyset(&set);
	sigaddset(&set, sig);
	if (sigaction(sig, NULL, &old) < 0)
		return SIG_ERR;
	if (disposition != SIG_HOLD && set_handler(sig, disposition, 0) == SIG_ERR)
		return SIG_ERR;
	pthread_sigmask(disposition == SIG_HOLD ? SIG_BLOCK : SIG_UNBLOCK, &set, &before);
	return sigismember(&before, sig) ? SIG_HOLD : old.sa_handler;
}

FP_INTERPOSE int sigignore(int sig)
{
	const struct sigaction action = {.sa_handler = SIG_IGN};

	return sigaction(sig, &action, NULL);
}

/* Whether calls restart is a flag of the action: here of what the program has set. */
FP_INTERPOSE int siginterrupt(int sig, int interrupt)
{
	struct sigaction action;

	if (!taken_of(sig))
		return ((interrupt_fn *)next("siginterrupt"))(sig, interrupt);
	if (sigaction(sig, NULL, &action) < 0)
		return -1;
	action.sa_flags = interrupt ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
	return sigaction(sig, &action, NULL);
}
