/*
 * See sigmask.h. Calls that take the address of a mask are rows of calls.def. There the piece MASK
 * takes SIGBUS out of the mask. This file has the old calls without a mask, such as sighold. The C
 * library would change the mask inside of them, where no row sees it.
 */
#include "sigmask.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "far_pieces.h"
#include "shim.h"

#define BUS_BIT (1ull << (SIGBUS - 1))

static const uint64_t bus_alone = BUS_BIT; /* static, as the kernel reads it: a stack may be far */
static atomic_bool is_open;

bool fp_sigmask_is_open(void)
{
	return atomic_load_explicit(&is_open, memory_order_relaxed);
}

void fp_sigmask_strip(void *mask)
{
	if (fp_sigmask_is_open())
		*(uint64_t *)mask &= ~BUS_BIT;
}

void fp_sigmask_thread_begins(void)
{
	if (fp_sigmask_is_open())
		FP_RAW(SYS_rt_sigprocmask, SIG_UNBLOCK, &bus_alone, NULL, sizeof(bus_alone), 0, 0);
}

void fp_sigmask_open(void)
{
	atomic_store(&is_open, true);
	fp_sigmask_thread_begins();
}

/* ---- older ways ---- */

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

/* sigpause as today's headers define it: waits with the thread's mask, less one signal. */
FP_INTERPOSE int fp_sigpause(int sig) __asm__("__xpg_sigpause");
int fp_sigpause(int sig)
{
	sigset_t set;

	sigemptyset(&set);
	if (sigprocmask(SIG_BLOCK, NULL, &set) < 0 || sigdelset(&set, sig) < 0)
		return -1;
	return sigsuspend(&set);
}
