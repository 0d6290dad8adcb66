/*
 * Calls that wait for signals, or ask which are pending, where SIGBUS is how faults are served: one that the
 * program has blocked is pending with us, not with the kernel (sigmask.h). Room: preload.
 *
 * One that comes between our look and the kernel's wait runs our handler, which makes the wait's timeout
 * zero: so there is always one. In the wait itself the kernel hands it out.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "call_args.h"
#include "calls.h"
#include "local.h"
#include "shim.h"
#include "sigmask.h"

#define FOREVER 1000000000 /* seconds */

FP_INNER_CALL(sigpending);
FP_INNER_CALL(sigwait);
FP_INNER_CALL(sigwaitinfo);
FP_INNER_CALL(sigtimedwait);

/* What the kernel is handed: the program's, and a stack, may be far. */
struct wait {
	sigset_t set;
	siginfo_t info;
	struct timespec left;
};

static __thread struct wait own __attribute__((tls_model("initial-exec")));

/* By the C library, which is a point of cancellation, or by number. */
typedef int wait_fn(void);

static int by_library(void)
{
	return fp_call_sigtimedwait(&own.set, &own.info, &own.left);
}

static int by_number(void)
{
	return (int)fp_call_syscall_way(SYS_rt_sigtimedwait, (long)&own.set, (long)&own.info, (long)&own.left,
	                                sizeof(uint64_t), 0, 0);
}

/* As sigtimedwait; what a handler waits for that interrupts this is its own. */
static int wait_here(wait_fn *kernels, const struct wait *what, siginfo_t *ret_info)
{
	struct timespec *outer_timeout;
	struct wait outer = own;
	int sig;

	own = *what;
	outer_timeout = fp_sigmask_note_timeout(&own.left);
	sig = fp_sigmask_take_pending(&own.info) ? SIGBUS : kernels();
	if (sig < 0 && errno == EAGAIN && fp_sigmask_take_pending(&own.info))
		sig = SIGBUS;
	*ret_info = own.info;
	own = outer;
	fp_sigmask_note_timeout(outer_timeout);
	if (fp_sigmask_has_pending())
		own.left = (struct timespec){0};
	return sig;
}

/* True and *ret_what: SIGBUS is among what is waited for, and ours. False: the call is any other. */
static bool is_for_bus(const sigset_t *set, const struct timespec *timeout, struct wait *ret_what)
{
	if (!fp_sigmask_is_open() || fp_local_is_agent())
		return false;
	memset(ret_what, 0, sizeof(*ret_what));
	ret_what->left.tv_sec = FOREVER;
	return fp_call_args_fetch(&ret_what->set, set, sizeof(uint64_t)) == 0 &&
	       sigismember(&ret_what->set, SIGBUS) &&
	       (!timeout || fp_call_args_fetch(&ret_what->left, timeout, sizeof(*timeout)) == 0);
}

/* The C library says so of what raise sends. */
static int tell(int sig, siginfo_t *info, siginfo_t *ret_info)
{
	int r = 0;

	if (sig < 0 || !ret_info)
		return sig;
	if (info->si_code == SI_TKILL)
		info->si_code = SI_USER;
	r = fp_call_args_store(ret_info, info, sizeof(*info));
	return r < 0 ? fp_shim_return(r) : sig;
}

FP_INTERPOSE int sigtimedwait(const sigset_t *set, siginfo_t *ret_info, const struct timespec *timeout)
{
	struct wait what;
	siginfo_t info;
	int sig;

	if (!is_for_bus(set, timeout, &what))
		return fp_call_sigtimedwait(set, ret_info, timeout);
	sig = wait_here(by_library, &what, &info);
	return tell(sig, &info, ret_info);
}

FP_INTERPOSE int sigwaitinfo(const sigset_t *set, siginfo_t *ret_info)
{
	struct wait what;

	return is_for_bus(set, NULL, &what) ? sigtimedwait(set, ret_info, NULL)
	                                    : fp_call_sigwaitinfo(set, ret_info);
}

FP_INTERPOSE int sigwait(const sigset_t *set, int *ret_sig)
{
	int sig, saved = errno, error;
	struct wait what;

	if (!is_for_bus(set, NULL, &what))
		return fp_call_sigwait(set, ret_sig);
	do {
		sig = sigtimedwait(set, NULL, NULL);
	} while (sig < 0 && errno == EINTR);
	error = errno;
	errno = saved;
	if (sig < 0)
		return error;
	*ret_sig = sig;
	return 0;
}

long fp_sigwait_by_number(const void *set, void *ret_info, const void *timeout, size_t size)
{
	struct wait what;
	siginfo_t info;
	int sig, r;

	if (size != sizeof(uint64_t) || !is_for_bus(set, timeout, &what))
		return fp_call_syscall_way(SYS_rt_sigtimedwait, (long)set, (long)ret_info, (long)timeout,
		                           (long)size, 0, 0);
	sig = wait_here(by_number, &what, &info);
	if (sig < 0 || !ret_info)
		return sig;
	r = fp_call_args_store(ret_info, &info, sizeof(info));
	return r < 0 ? fp_shim_return(r) : sig;
}

/* ---- what is pending ---- */

/* set: of so many bytes, at least the first few of which hold SIGBUS. */
static long add_pending(void *set)
{
	uint64_t word;
	int r;

	if (!fp_sigmask_is_open() || !fp_sigmask_has_pending())
		return 0;
	r = fp_call_args_fetch(&word, set, sizeof(word));
	word |= 1ull << (SIGBUS - 1);
	return fp_shim_return(r < 0 ? r : fp_call_args_store(set, &word, sizeof(word)));
}

FP_INTERPOSE int sigpending(sigset_t *set)
{
	int r = fp_call_sigpending(set);

	return r < 0 ? r : (int)add_pending(set);
}

long fp_sigpending_by_number(void *set, size_t size)
{
	long r = fp_call_syscall_way(SYS_rt_sigpending, (long)set, (long)size, 0, 0, 0, 0);

	return r < 0 || size != sizeof(uint64_t) ? r : add_pending(set);
}
