/* See agent_sigmask.h. Only a thread and its signal handlers change that thread's state here. */
#include "agent_sigmask.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rawcall.h"

#define BIT(sig)  (1ull << ((sig)-1))
#define INTERNALS (BIT(32) | BIT(33)) /* the C library's own signals: cancellation and setuid */

static const uint64_t to_block[2][2] = {
    {~INTERNALS, ~INTERNALS & ~BIT(SIGBUS)},
    {~0ull, ~BIT(SIGBUS)},
};

/*
 * If somebody sends SIGBUS, the program's handler may interrupt a function below, and may itself
 * call that function. So each function restores the fields told and asked before it returns.
 */
static __thread struct {
	uint64_t told, asked; /* the mask that the kernel returned; the mask that we set */
	unsigned depth;       /* how many blocks are not yet restored */
	bool pending;         /* a SIGBUS was sent during a block */
	siginfo_t info;       /* its details, for sending it again */
} own __attribute__((tls_model("initial-exec")));

static void set_mask(const uint64_t *mask, uint64_t *ret_old)
{
	FP_RAW(SYS_rt_sigprocmask, SIG_SETMASK, mask, ret_old, sizeof(*mask), 0, 0);
}

uint64_t fp_agent_sigmask_block(bool all, bool faults)
{
	uint64_t outer = own.told, mask;

	set_mask(&to_block[all][faults], &own.told);
	mask = own.told;
	own.told = outer;
	own.depth++;
	return mask;
}

static void send_once_more(void)
{
	own.pending = false;
	FP_RAW(SYS_rt_tgsigqueueinfo, getpid(), FP_RAW(SYS_gettid, 0, 0, 0, 0, 0, 0), SIGBUS, &own.info, 0,
	       0);
}

void fp_agent_sigmask_restore(uint64_t mask)
{
	uint64_t outer = own.asked;

	own.depth--;
	atomic_signal_fence(memory_order_seq_cst);
	own.asked = mask;
	set_mask(&own.asked, NULL);
	own.asked = outer;
	if (own.depth == 0 && own.pending)
		send_once_more();
}

bool fp_agent_sigmask_defer(const siginfo_t *info)
{
	if (own.depth == 0 || info->si_code > 0)
		return false;
	if (!own.pending)
		own.info = *info;
	own.pending = true;
	return true;
}

unsigned fp_agent_sigmask_depth(void)
{
	return own.depth;
}

void fp_agent_sigmask_vforked(unsigned depth)
{
	own.depth = depth;
}

void fp_agent_sigmask_forked(void)
{
	own.pending = false;
}
