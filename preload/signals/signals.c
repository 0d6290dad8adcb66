/*
 * See signals.h. For each signal there are two copies of the program's action: one is valid, the
 * other is for the next change. So a handler reads without a lock. Changes are made under a lock,
 * with all signals blocked, as handlers may call sigaction.
 */
#include "signals.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent_sigmask.h"
#include "calls.h"
#include "local.h"
#include "local_stack.h"
#include "far_pieces.h"
#include "shim.h"
#include "sigframe.h"
#include "sigstack.h"
#include "sigmask.h"

#define N_SIGNAL 65
#define RESTORER 0x04000000 /* SA_RESTORER in the kernel's form */
#define FAULTS   (1ull << (SIGBUS - 1) | 1ull << (SIGSEGV - 1))
#define KEPT     (SA_RESTART | SA_NOCLDSTOP | SA_NOCLDWAIT)

typedef int action_fn(int sig, const struct sigaction *action, struct sigaction *ret_old);

typedef sighandler_t signal_fn(int sig, sighandler_t handler);

/* no header declares it any more */
action_fn __sigaction;
signal_fn bsd_signal;

struct taken {
	atomic_bool is_taken;
	struct fp_signal_hook hook;
	_Atomic uint64_t n_changes; /* its lowest bit is the index of the valid action */
	struct sigaction actions[2];
};

/* The kernel's form of an action. */
struct kernel_action {
	sighandler_t handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

static struct taken all[N_SIGNAL];
static atomic_bool interrupts[N_SIGNAL]; /* the program called siginterrupt for it */
static _Atomic pid_t owner;              /* the process that these actions belong to */
static atomic_bool is_locked;
static void (*before_core)(void); /* NULL: nothing is done */

static struct taken *taken_of(int sig)
{
	struct taken *t = sig > 0 && sig < N_SIGNAL ? &all[sig] : NULL;

	return t && atomic_load_explicit(&t->is_taken, memory_order_acquire) ? t : NULL;
}

/*
 * Calls the C library's own sigaction. It is looked up before the program runs, as signal handlers
 * need it. It gives the kernel memory on the stack, so the stack must be local.
 */
static int libc_action(int sig, const struct sigaction *action, struct sigaction *ret_old)
{
	static _Atomic(void *) known;

	return ((action_fn *)fp_shim_next(&known, "sigaction"))(sig, action, ret_old);
}

static uint64_t lock(void)
{
	static const struct timespec moment = {.tv_nsec = 20000};
	uint64_t mask = fp_agent_sigmask_block(true, false);

	while (atomic_exchange(&is_locked, true))
		FP_RAW(SYS_nanosleep, &moment, NULL, 0, 0, 0, 0);
	return mask;
}

static void unlock(uint64_t mask)
{
	atomic_store(&is_locked, false);
	fp_agent_sigmask_restore(mask);
}

/* Copies the program's action. Returns how many changes there were so far. */
static uint64_t current_action(const struct taken *t, struct sigaction *ret_action)
{
	uint64_t number;

	do {
		number = atomic_load(&t->n_changes);
		*ret_action = t->actions[number % 2];
		atomic_thread_fence(memory_order_acquire);
	} while (atomic_load(&t->n_changes) != number);
	return number;
}

/* Makes action the program's action. Called under the lock. */
static void change_action(struct taken *t, const struct sigaction *action)
{
	uint64_t number = atomic_load(&t->n_changes) + 1;

	t->actions[number % 2] = *action;
	atomic_store(&t->n_changes, number);
}

/* ---- the kernel's action ---- */

static void on_signal(int sig, siginfo_t *info, void *context);

static bool is_handler(const struct sigaction *action)
{
	return (action->sa_flags & SA_SIGINFO) ||
	       (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* True if before_core comes before the default action. */
static bool fills_core(const struct taken *t)
{
	return before_core && FP_SIGNALS_CORE >> (t - all - 1) & 1;
}

/* True if the kernel must call us also for the default action. */
static bool is_hooked(const struct taken *t)
{
	return t->hook.first || fills_core(t);
}

/*
 * Makes the action with which the handler runs on our stack. It blocks all signals but the two that
 * faults raise.
 */
static void install_framed(struct sigaction *action, const struct taken *t, const struct sigaction *program)
{
	*(uint64_t *)&action->sa_mask = ~FAULTS;
	action->sa_flags |= program->sa_flags & (is_hooked(t) ? KEPT : KEPT | SA_RESETHAND);
}

/* Installs the action that the kernel needs for this action of the program. */
static int install(int sig, const struct taken *t, const struct sigaction *program)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	if (t->hook.always) /* block all: a cancelled thread must not unwind the handler */
		memset(&action.sa_mask, 0xff, sizeof(action.sa_mask));
	else if (is_handler(program) && fp_sigstack_is_open())
		install_framed(&action, t, program);
	else if (is_handler(program)) {
		action.sa_mask = program->sa_mask;
		action.sa_flags = (program->sa_flags & ~(int)SA_RESETHAND) | SA_SIGINFO;
	} else if (program->sa_handler == SIG_IGN || !is_hooked(t))
		action = *program;
	if (!t->hook.always)
		fp_sigmask_strip(&action.sa_mask);
	return libc_action(sig, &action, NULL);
}

/* Sets the program's action and the kernel's. action must be local memory. */
static int set_action(int sig, struct taken *t, const struct sigaction *action, struct sigaction *ret_old)
{
	uint64_t mask = lock();
	int r;

	current_action(t, ret_old);
	change_action(t, action);
	r = install(sig, t, action);
	unlock(mask);
	return r;
}

/* ---- children of vfork ---- */

/* True in a vfork child: it has its parent's memory, but actions of its own. */
static bool is_borrowed(void)
{
	return atomic_load(&owner) != getpid() && !(fp_shim_agent() && fp_agent_is_stray(fp_shim_agent()));
}

/*
 * Sets an action in a child of vfork. Only the kernel knows the child's actions. For signals of
 * faults, the parent's actions stay in force.
 */
static int borrowed_sigaction(int sig, struct taken *t, const struct sigaction *action,
                              struct sigaction *ret_old)
{
	struct sigaction copy, old, kernels;

	current_action(t, &old);
	if (!t->hook.always && libc_action(sig, NULL, &kernels) == 0 && kernels.sa_sigaction != on_signal)
		old = kernels;
	if (action && !t->hook.always) {
		copy = *action;
		fp_sigmask_strip(&copy.sa_mask);
		if (libc_action(sig, &copy, NULL) < 0)
			return -1;
	}
	if (ret_old)
		*ret_old = old;
	return 0;
}

/* ---- the program's handler ---- */

/* True if the signal is a fault, which comes again when its handler returns. */
static bool recurs(int sig, const siginfo_t *info)
{
	return info->si_code > 0 &&
	       (sig == SIGSEGV || sig == SIGBUS || sig == SIGFPE || sig == SIGILL || sig == SIGTRAP);
}

/*
 * Does the kernel's default action. A fault then repeats, and ends the program. Other signals are
 * sent once more. A signal without a hook comes here only while another thread removes its handler:
 * the kernel then has the default action already, or very soon.
 */
static void default_action(int sig, const struct taken *t, siginfo_t *info)
{
	const struct sigaction action = {.sa_handler = SIG_DFL};

	if (fills_core(t) && atomic_load(&owner) == getpid())
		before_core();
	if (is_hooked(t))
		libc_action(sig, &action, NULL);
	if (!recurs(sig, info))
		FP_RAW(SYS_rt_tgsigqueueinfo, getpid(), FP_RAW(SYS_gettid, 0, 0, 0, 0, 0, 0), sig, info, 0,
		       0);
}

/*
 * The mask for the program's handler. The parameter before is the thread's mask when the signal
 * came.
 */
static uint64_t mask_of(int sig, const struct sigaction *action, uint64_t before)
{
	uint64_t own = action->sa_flags & SA_NODEFER ? 0 : 1ull << (sig - 1);
	uint64_t mask = *(const uint64_t *)&action->sa_mask | own | before;

	fp_sigmask_strip(&mask);
	return mask;
}

/*
 * Resets the action (SA_RESETHAND), unless the program has changed it again. The parameter number
 * says how many changes there were when the action was read. Without a hook, the kernel has reset
 * its own action already.
 */
static void reset_hand(int sig, struct taken *t, uint64_t number)
{
	const struct sigaction reset = {.sa_handler = SIG_DFL};
	uint64_t mask = lock();

	if (atomic_load(&t->n_changes) == number) {
		change_action(t, &reset);
		if (is_hooked(t))
			install(sig, t, &reset);
	}
	unlock(mask);
}

/* Unblocks the signals of faults: our part is done, and the program's handler may fault. */
static void allow_faults(void)
{
	static const uint64_t faults = FAULTS;

	FP_RAW(SYS_rt_sigprocmask, SIG_UNBLOCK, &faults, NULL, sizeof(faults), 0, 0);
}

static void run_handler(int sig, siginfo_t *info, void *context, const struct sigaction *action)
{
	uint64_t *back = (uint64_t *)&((ucontext_t *)context)->uc_sigmask, mask;

	if (fp_sigstack_is_open()) {
		if (all[sig].hook.always)
			allow_faults();
		mask = mask_of(sig, action, *back);
		fp_sigframe_run(sig, context, action, &mask);
		FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask), 0, 0);
	}
	if (action->sa_flags & SA_SIGINFO)
		action->sa_sigaction(sig, info, context);
	else
		action->sa_handler(sig);
	fp_sigmask_strip(back); /* the handler may have changed the mask */
}

static void settle_here(int sig)
{
	fp_local_settle();
}

/*
 * Called at the end of our handler, with the interrupted context. The thread may have been
 * cancelled, with the asynchronous type, while its fault was served. Then the thread ends here,
 * with the mask that it had. If our handler interrupted another handler of ours, the interrupted
 * one does this later.
 *
 * That mask lets the program's handlers in, and they may switch to another context for long. So it
 * is set where they may run: settle_here runs on the program's stack, as a handler of the program
 * would. Only a handler that the program itself runs on our stack settles there.
 */
static void settle(int sig, void *context)
{
	static const struct sigaction here = {.sa_handler = settle_here};
	const uint64_t mask = *(const uint64_t *)&((const ucontext_t *)context)->uc_sigmask;

	if (!fp_local_owes() || (mask >> (FP_SIGCANCEL - 1) & 1))
		return;
	allow_faults();
	fp_sigframe_run(sig, context, &here, &mask);
	FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask), 0, 0);
	fp_local_settle();
}

/*
 * Runs the C library's own handler at once, because calls of the C library wait until it has run.
 * With asynchronous cancellation that handler would end the thread on the spot, perhaps in a
 * bracket with locks held. So it runs with deferred cancellation, and only marks the thread as
 * cancelled; see settle.
 */
static bool run_internal(int sig, siginfo_t *info, void *context)
{
	struct sigaction action;
	int type;

	current_action(&all[sig], &action);
	fp_shim_enter_local();
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	action.sa_sigaction(sig, info, context);
	pthread_setcanceltype(type, NULL);
	fp_shim_leave_local();
	return true;
}

static bool ask_first(int sig, const struct taken *t, siginfo_t *info, void *context)
{
	if (sig == FP_SIGCANCEL || sig == FP_SIGSETXID)
		return run_internal(sig, info, context);
	return t->hook.first && t->hook.first(info, context);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	struct taken *t = &all[sig];
	struct sigaction action;
	uint64_t number;
	int saved = errno;

	if (ask_first(sig, t, info, context)) {
		errno = saved;
		settle(sig, context);
		return;
	}
	number = current_action(t, &action);
	if (!is_handler(&action)) {
		if (action.sa_handler == SIG_DFL || recurs(sig, info))
			default_action(sig, t, info);
		errno = saved;
		return;
	}
	if (action.sa_flags & SA_RESETHAND)
		reset_hand(sig, t, number);
	errno = saved;
	run_handler(sig, info, context, &action);
}

/* ---- taking signals over ---- */

int fp_signals_take(int sig, const struct fp_signal_hook *hook)
{
	struct taken *t = sig > 0 && sig < N_SIGNAL ? &all[sig] : NULL;
	struct sigaction action, none;

	if (!t || atomic_load(&t->is_taken))
		return -EINVAL;
	if (libc_action(sig, NULL, &action) < 0)
		return -errno;
	action.sa_flags &= ~RESTORER;
	t->hook = *hook;
	atomic_store(&owner, getpid());
	if (set_action(sig, t, &action, &none) < 0)
		return -errno;
	atomic_store_explicit(&t->is_taken, true, memory_order_release);
	return 0;
}

void fp_signals_before_core(void (*act)(void))
{
	before_core = act;
}

int fp_signals_take_rest(uint64_t signals)
{
	const struct fp_signal_hook none = {0};
	int r = 0;

	for (int sig = 1; sig < N_SIGNAL && r == 0; sig++)
		if (signals >> (sig - 1) & 1 && !taken_of(sig) && sig != SIGKILL && sig != SIGSTOP &&
		    (sig < __SIGRTMIN || sig >= SIGRTMIN))
			r = fp_signals_take(sig, &none);
	return r;
}

static struct sigaction of_kernels(const struct kernel_action *raw)
{
	struct sigaction action = {.sa_handler = raw->handler, .sa_flags = (int)raw->flags & ~RESTORER};

	memcpy(&action.sa_mask, &raw->mask, sizeof(raw->mask));
	return action;
}

/* Uses system calls, because the C library refuses to change the actions of its own signals. */
void fp_signals_take_internal(int sig)
{
	struct kernel_action now = {0};
	struct sigaction action;

	if (FP_RAW(SYS_rt_sigaction, sig, NULL, &now, sizeof(now.mask), 0, 0) < 0 || now.handler == SIG_DFL ||
	    now.handler == SIG_IGN)
		return;
	action = of_kernels(&now);
	change_action(&all[sig], &action);
	now.handler = (sighandler_t)(void *)on_signal;
	now.flags |= SA_SIGINFO | SA_ONSTACK;
	now.mask = ~FAULTS;
	FP_RAW(SYS_rt_sigaction, sig, &now, NULL, sizeof(now.mask), 0, 0);
}

void fp_signals_forked(void)
{
	atomic_store(&owner, getpid());
	atomic_store(&is_locked, false);
}

/* ---- the program's calls ---- */

static int change_or_ask(int sig, const struct sigaction *action, struct sigaction *ret_old)
{
	struct taken *t = taken_of(sig);
	struct sigaction old, copy;

	if (!t)
		return libc_action(sig, action, ret_old);
	if (is_borrowed())
		return borrowed_sigaction(sig, t, action, ret_old);
	if (!action)
		current_action(t, &old);
	else {
		copy = *action; /* may be far memory: read it before all signals are blocked */
		if (set_action(sig, t, &copy, &old) < 0)
			return -1;
	}
	if (ret_old)
		*ret_old = old;
	return 0;
}

FP_INTERPOSE int sigaction(int sig, const struct sigaction *action, struct sigaction *ret_old)
{
	return (int)FP_ON_LOCAL_STACK(change_or_ask, sig, action, ret_old, 0, 0, 0);
}

FP_INTERPOSE action_fn __sigaction __attribute__((alias("sigaction"), nothrow, leaf));

long fp_signals_by_number(int sig, const void *action, void *ret_old, size_t size)
{
	static atomic_bool said;

	if (!taken_of(sig) || !fp_sigstack_is_open() || fp_local_is_agent())
		return fp_call_syscall_way(SYS_rt_sigaction, sig, (long)action, (long)ret_old, (long)size, 0,
		                           0);
	fp_shim_say_once(&said, "the system call rt_sigaction was refused: use sigaction, or fault mode "
	                        "thread");
	return fp_shim_return(-ENOSYS);
}

/* ---- older calls for the same ---- */

/*
 * Sets a handler, returns the previous one. The C library's versions of these calls bypass
 * sigaction.
 */
static sighandler_t set_handler(int sig, sighandler_t handler, int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, old;

	if (!(flags & SA_NODEFER))
		sigaddset(&action.sa_mask, sig);
	return sigaction(sig, &action, &old) < 0 ? SIG_ERR : old.sa_handler;
}

FP_INTERPOSE sighandler_t signal(int sig, sighandler_t handler)
{
	bool interrupt = sig > 0 && sig < N_SIGNAL && atomic_load(&interrupts[sig]);

	return set_handler(sig, handler, interrupt ? 0 : SA_RESTART);
}

FP_INTERPOSE signal_fn bsd_signal __attribute__((alias("signal"), nothrow, leaf));
FP_INTERPOSE signal_fn ssignal __attribute__((alias("signal")));

FP_INTERPOSE sighandler_t __sysv_signal(int sig, sighandler_t handler)
{
	return set_handler(sig, handler, SA_RESETHAND | SA_NODEFER);
}

FP_INTERPOSE signal_fn sysv_signal __attribute__((alias("__sysv_signal")));

/* System V's call. It also changes the thread's mask. */
FP_INTERPOSE sighandler_t sigset(int sig, sighandler_t disposition)
{
	struct sigaction old;
	sigset_t set, before;

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

/*
 * Sets or clears SA_RESTART in the action that we keep for the program. The kernel has an action of
 * ours, which stays as it is.
 */
FP_INTERPOSE int siginterrupt(int sig, int interrupt)
{
	struct sigaction action;

	if (sigaction(sig, NULL, &action) < 0)
		return -1;
	atomic_store(&interrupts[sig], interrupt != 0);
	action.sa_flags = interrupt ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
	return sigaction(sig, &action, NULL);
}
