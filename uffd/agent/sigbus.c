/*
 * See sigbus.h. Except for add, remove and install, this file runs in the handler of SIGBUS, with
 * all signals blocked and under law 4.
 */
#include "sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <stddef.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/syscall.h>

#include "agent_priv.h"
#include "clock.h"
#include "inline.h"
#include "layout.h"
#include "log.h"
#include "agent_sigmask.h"

#define AGENTS_MAX 64u
#define SPINS      256u /* how often a thread tries a page that is not ready, before it faults again */
#define REPEATS    64u  /* after so many faults in a row at one address, we look at the clock, too */

/*
 * The agents and the bounds of their ranges. Bounds are set last and cleared first, so an address
 * within bounds always has an agent.
 */
static struct {
	_Atomic uintptr_t base, end;
	struct fp_agent *_Atomic agent;
} agents[AGENTS_MAX];

/*
 * Counts faults in a row at one address. If they do not end, whatever the cause is, the program
 * gets the signal (law 8).
 */
static __thread struct {
	uintptr_t addr;
	unsigned n;
	bool told;
	uint64_t since_ns;
} repeated __attribute__((tls_model("initial-exec")));

/* ---- the agent of an address ---- */

int fp_sigbus_add(struct fp_agent *agent, uintptr_t base, uint64_t len)
{
	for (unsigned i = 0; i < AGENTS_MAX; i++) {
		struct fp_agent *none = NULL;

		if (!atomic_compare_exchange_strong(&agents[i].agent, &none, agent))
			continue;
		atomic_store(&agents[i].base, base);
		atomic_store(&agents[i].end, base + len);
		return 0;
	}
	return -ENOSPC;
}

void fp_sigbus_remove(const struct fp_agent *agent)
{
	for (unsigned i = 0; i < AGENTS_MAX; i++) {
		if (atomic_load(&agents[i].agent) != agent)
			continue;
		atomic_store(&agents[i].end, 0);
		atomic_store(&agents[i].agent, NULL);
	}
}

static struct fp_agent *agent_of(uintptr_t addr)
{
	for (unsigned i = 0; i < AGENTS_MAX; i++)
		if (addr < atomic_load(&agents[i].end) && addr >= atomic_load(&agents[i].base))
			return atomic_load(&agents[i].agent);
	return NULL;
}

/* ---- the kind of fault ---- */

#if defined(__x86_64__)
enum fp_access fp_sigbus_access(const void *context)
{
	const ucontext_t *uc = context;
	uint64_t error = (uint64_t)uc->uc_mcontext.gregs[REG_ERR];
	bool present = error & 1, write = error & 2;

	if (uc->uc_mcontext.gregs[REG_TRAPNO] != 14)
		return FP_ACCESS_UNKNOWN;
	return !write ? FP_ACCESS_READ : present ? FP_ACCESS_PROTECTED : FP_ACCESS_WRITE;
}
#else
enum fp_access fp_sigbus_access(const void *context)
{
	return FP_ACCESS_UNKNOWN;
}
#endif

/*
 * Called for a fault on a resident page when the processor does not report the kind of access.
 * Either the page is write-protected, or a bare call has dropped it. We try both in turn. A wrong
 * guess changes nothing but the page's word.
 */
static struct fp_uffd_fault describe(uintptr_t addr, enum fp_access access, uint64_t word)
{
	bool unknown = access == FP_ACCESS_UNKNOWN, resident = fp_page_state(word) == FP_PAGE_RESIDENT;

	return (struct fp_uffd_fault){
	    .addr = addr & ~(uintptr_t)(FP_PAGE_SIZE - 1),
	    .write = access == FP_ACCESS_WRITE || access == FP_ACCESS_PROTECTED,
	    .wp = access == FP_ACCESS_PROTECTED || (unknown && resident && repeated.n % 2 == 0),
	};
}

/* ---- faults that do not end ---- */

static bool is_endless(const struct fp_agent *agent, uintptr_t addr)
{
	if (repeated.addr != addr) {
		repeated.addr = addr;
		repeated.n = 0;
		repeated.told = false;
	}
	/*
	 * while a node is cut off, the time does not count: a page may wait for the node's whole
	 * patience, which is longer than this limit
	 */
	if (++repeated.n == REPEATS || (repeated.n > REPEATS && fp_far_patience_ns(&agent->far)))
		repeated.since_ns = fp_clock_ns();
	return repeated.n > REPEATS && fp_clock_ns() - repeated.since_ns > 4 * agent->far.deadline_ns;
}

static void tell_endless(const struct fp_agent *agent, uintptr_t addr)
{
	static struct fp_log_limit limit;
	uint64_t word = atomic_load(&agent->far.words[fp_far_page(&agent->far, addr)]);

	if (repeated.told || !fp_log_allowed(&limit, 10) || !fp_log_takes_text())
		return;
	repeated.told = true;
	fp_log(FP_LOG_ERROR, "pager",
	       "the fault at %p does not end (the page's word is %#llx); SIGBUS follows. Look at the nodes "
	       "(farpage ps); if they answer, report this as a fault of Farpage, with this line",
	       (void *)addr, (unsigned long long)word); // NOLINT(performance-no-int-to-ptr)
}

/* Serves a fault. True: the thread goes on, and faults again if the page is still not ready. */
static bool serve(struct fp_agent *agent, uintptr_t addr, enum fp_access access, bool guest)
{
	struct fp_far *far = &agent->far;
	uint32_t page = fp_far_page(far, addr);
	enum fp_inline_end end = FP_INLINE_BUSY;
	uint64_t before = atomic_load(&far->words[page]);

	for (unsigned i = 0; end == FP_INLINE_BUSY && i < SPINS; i++) {
		struct fp_uffd_fault fault = describe(addr, access, atomic_load(&far->words[page]));

		end = fp_inline_serve_as(far->inline_servers, &fault, guest);
		if (end == FP_INLINE_BUSY)
			fp_inline_wait(far->inline_servers, i);
	}
	if (end == FP_INLINE_SERVED && !fp_inline_is_ready(before, access != FP_ACCESS_READ))
		repeated.n = 0;       /* the fault was justified */
	return end != FP_INLINE_LOST; /* a lost page: the program itself gets this signal */
}

bool fp_agent_signal(const siginfo_t *info, const void *context)
{
	uintptr_t addr = (uintptr_t)info->si_addr;
	struct fp_agent *agent = info->si_code == BUS_ADRERR ? agent_of(addr) : NULL;
	enum fp_access access = fp_sigbus_access(context);
	int saved = errno;
	bool dealt, guest;

	if (!agent)
		return fp_agent_sigmask_defer(info);
	if (is_endless(agent, addr)) {
		tell_endless(agent, addr);
		return false;
	}
	if (fp_far_is_foreign(&agent->far,
	                      fp_far_page(&agent->far, addr))) /* perhaps it became foreign after the fault */
		return repeated.n == 1;
	guest = fp_inline_has_guest(atomic_load(&agent->far.inline_servers));
	if (!guest) /* a guest shares its parent's thread-local state, and must not change it */
		fp_agent_enter_local(agent);
	dealt = serve(agent, addr, access, guest);
	if (!guest)
		fp_agent_leave_local(agent);
	errno = saved;
	return dealt;
}

/* ---- a handler for callers that have none ---- */

static struct sigaction before;

static void hand_on(int sig, siginfo_t *info, void *context)
{
	const struct sigaction none = {.sa_handler = SIG_DFL};
	const ucontext_t *uc = context;
	sigset_t mask;

	if (!(before.sa_flags & SA_SIGINFO) &&
	    (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)) {
		if (before.sa_handler == SIG_IGN && info->si_code <= 0)
			return;
		sigaction(sig, &none, NULL); /* the fault repeats, and ends the program */
		if (info->si_code <= 0)
			syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), sig);
		return;
	}
	sigorset(&mask, &before.sa_mask, &uc->uc_sigmask);
	sigdelset(&mask, SIGBUS); /* faults of the handler on far memory come here again */
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(sig, info, context);
	else
		before.sa_handler(sig);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	if (!fp_agent_signal(info, context))
		hand_on(sig, info, context);
}

int fp_sigbus_install(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	int r = 0;

	struct sigaction now;

	/* blocks all signals, also those of pthread_cancel and setuid */
	memset(&action.sa_mask, 0xff, sizeof(action.sa_mask));
	pthread_mutex_lock(&lock);
	if (sigaction(SIGBUS, NULL, &now) < 0)
		r = -errno;
	else if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_signal) {
		before = now;
		r = sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
	}
	pthread_mutex_unlock(&lock);
	return r;
}
