/*
 * See affinity.h. No allocation, no blocking: only system calls, and few of them in each window of
 * faults.
 */
#include "affinity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "agent_sigmask.h"
#include "cleanup.h"
#include "clock.h"
#include "rawcall.h"

#define WINDOW       64u
#define MAJORITY     48u /* a thread with so many faults of a window is held alone */
#define SHARE        4u  /* a thread with fewer faults of a window is not held beside others */
#define NEARLY_ALL   60u /* several threads are held only if they make so many faults of a window */
#define ODD_WINDOWS  4u  /* so many windows in a row must suggest another crew than the present one */
#define SLOW_PAGE_NS (100 * FP_NSEC_PER_USEC) /* with slower faults, nothing is tried */
#define SELDOM       32u /* with fewer faults between two ticks, held threads are released */
#define LOCK_NS      (10 * FP_NSEC_PER_MSEC) /* the longest wait for the lock */
#define NO_HOLD_NS   (20 * FP_NSEC_PER_MSEC) /* after a release, so long no thread is held */

/* Uses raw system calls: the shim's wrappers would release the held thread. */
static int get_cpus(uint32_t tid, cpu_set_t *ret_set)
{
	long r;

	CPU_ZERO(ret_set);
	r = FP_RAW(SYS_sched_getaffinity, tid, sizeof(*ret_set), ret_set, 0, 0, 0);
	return r < 0 ? (int)r : 0;
}

static int set_cpus(uint32_t tid, const cpu_set_t *set)
{
	return (int)FP_RAW(SYS_sched_setaffinity, tid, sizeof(*set), set, 0, 0, 0);
}

static uint32_t own_tid(void)
{
	return (uint32_t)FP_RAW(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

void fp_affinity_init(struct fp_affinity *af, bool follow)
{
	*af = (struct fp_affinity){.follow = follow};
	af->cpu = -1;
	af->pid = getpid();
	get_cpus(0, &af->own);
	if (CPU_COUNT(&af->own) < 2)
		af->follow = false;
}

/*
 * Chooses the CPU on which the fault thread runs now, because no other thread runs there at this
 * moment. If the program does not permit that CPU to the thread that we want to hold, chooses the
 * first permitted one.
 */
static int choose_cpu(const cpu_set_t *permitted)
{
	int cpu = sched_getcpu();

	if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, permitted))
		return cpu;
	for (cpu = 0; cpu < CPU_SETSIZE && !CPU_ISSET(cpu, permitted); cpu++)
		;
	return cpu;
}

static bool try_lock(struct fp_affinity *af)
{
	return !atomic_exchange_explicit(&af->busy, true, memory_order_acquire);
}

static void unlock(struct fp_affinity *af)
{
	atomic_store_explicit(&af->busy, false, memory_order_release);
}

/*
 * Takes the lock, which is held for a few system calls only. Its holder may be preempted meanwhile.
 * False: the wait took too long. The caller has signals blocked: a handler that jumps away would
 * never unlock.
 */
static bool lock(struct fp_affinity *af)
{
	uint64_t until_ns = fp_clock_ns() + LOCK_NS;

	while (!try_lock(af)) {
		if (fp_clock_ns() > until_ns)
			return false;
		sched_yield();
	}
	return true;
}

static void place_agents(struct fp_affinity *af, const cpu_set_t *set)
{
	for (unsigned i = 0; i < FP_ARRAY_LEN(af->agent); i++)
		if (atomic_load(&af->agent[i]))
			set_cpus(atomic_load(&af->agent[i]), set);
}

/* True if the thread may still run only on the CPU that we chose. */
static bool is_bound(const struct fp_affinity *af, uint32_t tid)
{
	cpu_set_t now;

	return get_cpus(tid, &now) == 0 && CPU_COUNT(&now) == 1 && CPU_ISSET(af->cpu, &now);
}

/*
 * Gives the held threads their former CPUs. A thread for which the program has chosen other CPUs
 * meanwhile keeps those. n_held becomes 0 only then: who reads 0 need not wait for us.
 */
static void let_go(struct fp_affinity *af)
{
	uint32_t n = atomic_load(&af->n_held);

	for (uint32_t i = 0; i < n; i++)
		if (is_bound(af, atomic_load(&af->held[i])))
			set_cpus(atomic_load(&af->held[i]), &af->original);
	if (n)
		place_agents(af, &af->own);
	atomic_store(&af->n_held, 0);
}

/*
 * True if all threads of the crew are this process's own, and may run on the same CPUs. A thread of
 * another process faults here if it reads this process's memory, as a debugger does.
 */
static bool may_hold(struct fp_affinity *af)
{
	cpu_set_t cpus;

	for (uint32_t i = 0; i < af->n_crew; i++) {
		if (FP_RAW(SYS_tgkill, af->pid, af->crew[i], 0, 0, 0, 0) < 0 ||
		    get_cpus(af->crew[i], &cpus) < 0)
			return false;
		if (i == 0)
			af->original = cpus;
		if (!CPU_EQUAL(&cpus, &af->original) || (af->only_bound && CPU_COUNT(&cpus) > 1))
			return false;
	}
	return true;
}

/*
 * Holds the crew, or none of it. Each thread is published before it is bound, and then the time is
 * checked. So a release at the same moment either sees the thread, or we see the release.
 */
static void hold(struct fp_affinity *af, uint64_t now_ns)
{
	cpu_set_t one;

	if (!may_hold(af))
		return;
	af->cpu = choose_cpu(&af->original);
	CPU_ZERO(&one);
	CPU_SET(af->cpu, &one);
	for (uint32_t i = 0; i < af->n_crew; i++) {
		atomic_store(&af->held[i], af->crew[i]);
		atomic_store(&af->n_held, i + 1);
		if (now_ns < atomic_load(&af->no_hold_until_ns) ||
		    set_cpus(af->crew[i], &one) < 0) { /* the thread has ended */
			let_go(af);
			return;
		}
	}
	place_agents(af, &one);
}

static bool has(const uint32_t *tids, uint32_t n, uint32_t tid)
{
	for (uint32_t i = 0; i < n; i++)
		if (tids[i] == tid)
			return true;
	return false;
}

static bool is_held(const struct fp_affinity *af, uint32_t tid)
{
	for (uint32_t i = 0; i < atomic_load(&af->n_held); i++)
		if (atomic_load(&af->held[i]) == tid)
			return true;
	return false;
}

static bool holds_crew(const struct fp_affinity *af)
{
	uint32_t n = atomic_load(&af->n_held);

	for (uint32_t i = 0; i < n; i++)
		if (!has(af->crew, af->n_crew, atomic_load(&af->held[i])))
			return false;
	return n == af->n_crew;
}

/* Which threads this window suggests to hold. Returns their number. */
static uint32_t choose_crew(const struct fp_affinity *af, uint32_t *ret_tids)
{
	uint32_t n = 0, sum = 0;

	for (uint32_t i = 0; i < af->n_seen; i++) {
		if (af->seen[i].faults >= MAJORITY) {
			ret_tids[0] = af->seen[i].tid;
			return 1;
		}
		if (af->seen[i].faults < SHARE)
			continue;
		if (n == FP_HOLD_MAX)
			return 0;
		ret_tids[n++] = af->seen[i].tid;
		sum += af->seen[i].faults;
	}
	return sum >= NEARLY_ALL ? n : 0;
}

/*
 * Takes over the crew that this window suggests. By chance, a thread may fault seldom in a window.
 * So several threads stay the crew until some windows in a row suggest another. True: it is a new
 * crew, and begins a new trial.
 */
static bool renew_crew(struct fp_affinity *af)
{
	uint32_t tids[FP_HOLD_MAX], n = choose_crew(af, tids);
	bool same = n == af->n_crew;

	for (uint32_t i = 0; i < n && same; i++)
		same = has(af->crew, af->n_crew, tids[i]);
	af->n_odd = same ? 0 : af->n_odd + 1;
	if (same || (af->n_crew > 1 && af->n_odd < ODD_WINDOWS))
		return false;
	af->n_odd = 0;
	af->n_crew = n;
	for (uint32_t i = 0; i < n; i++)
		af->crew[i] = tids[i];
	af->trial = (struct fp_hold_trial){0};
	return true;
}

/*
 * Whether the crew shall be held in the next window. This window took ns. is_quiet: a thread was
 * released shortly before. Then the trial does not count a window in which it asked for a hold.
 */
static bool is_hold_wanted(struct fp_affinity *af, uint64_t ns, bool is_quiet)
{
	if (renew_crew(af) || af->n_crew < 2)
		return af->n_crew == 1;
	if (af->n_odd && ns <= WINDOW * SLOW_PAGE_NS)
		return af->trial.held; /* a window of others says nothing of this crew */
	if (is_quiet && af->trial.held && !holds_crew(af))
		return true;
	return fp_hold_trial_window(&af->trial, ns, WINDOW * SLOW_PAGE_NS);
}

static void end_window(struct fp_affinity *af)
{
	uint64_t now_ns = fp_clock_ns();
	bool is_quiet = now_ns < atomic_load(&af->no_hold_until_ns);
	bool wanted = is_hold_wanted(af, now_ns - af->window_ns, is_quiet);

	if ((wanted ? !is_quiet && !holds_crew(af) : atomic_load(&af->n_held) > 0) && try_lock(af)) {
		let_go(af);
		if (wanted && af->follow)
			hold(af, now_ns);
		unlock(af);
	}
	af->window_ns = now_ns;
	af->faults = af->n_seen = 0;
}

static void count(struct fp_affinity *af, uint32_t tid)
{
	for (uint32_t i = 0; i < af->n_seen; i++) {
		if (af->seen[i].tid == tid) {
			af->seen[i].faults++;
			return;
		}
	}
	if (af->n_seen < FP_ARRAY_LEN(af->seen)) {
		af->seen[af->n_seen].tid = tid;
		af->seen[af->n_seen++].faults = 1;
	}
}

void fp_affinity_join(struct fp_affinity *af)
{
	uint32_t tid = own_tid();

	for (unsigned i = 0; i < FP_ARRAY_LEN(af->agent); i++) {
		uint32_t none = 0;

		if (atomic_compare_exchange_strong(&af->agent[i], &none, tid))
			return;
	}
}

void fp_affinity_fault(struct fp_affinity *af, uint32_t tid)
{
	if (!af->follow)
		return;
	atomic_store_explicit(&af->recent, atomic_load_explicit(&af->recent, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
	count(af, tid);
	if (++af->faults == WINDOW)
		end_window(af);
}

void fp_affinity_tick(struct fp_affinity *af)
{
	uint32_t recent = atomic_exchange(&af->recent, 0);

	if (recent < SELDOM && atomic_load(&af->n_held) && try_lock(af)) {
		let_go(af);
		unlock(af);
	}
}

void fp_affinity_release(struct fp_affinity *af, bool anyone)
{
	cpu_set_t original;
	uint64_t mask;

	atomic_store(&af->no_hold_until_ns, fp_clock_ns() + NO_HOLD_NS);
	if (atomic_load(&af->n_held) == 0)
		return;
	if (getpid() != af->pid) {
		original = af->original;
		if (is_bound(af, 0))
			set_cpus(0, &original);
		return;
	}
	if (!anyone && !is_held(af, own_tid()))
		return;
	mask = fp_agent_sigmask_block(true, false);
	if (lock(af)) {
		let_go(af);
		unlock(af);
	}
	fp_agent_sigmask_restore(mask);
}

void fp_affinity_forking(struct fp_affinity *af)
{
	fp_affinity_release(af, false);
	af->forking = own_tid();
}

void fp_affinity_forked(struct fp_affinity *af)
{
	if (is_held(af, af->forking) && is_bound(af, 0))
		set_cpus(0, &af->original);
}

void fp_affinity_done(struct fp_affinity *af)
{
	uint64_t mask = fp_agent_sigmask_block(true, false);
	bool locked = lock(af); /* without the lock, to let go is still better than to leave threads bound */

	af->follow = false;
	let_go(af);
	if (locked)
		unlock(af);
	fp_agent_sigmask_restore(mask);
}
