/*
 * See affinity.h. No allocation, no blocking: only system calls, and few of them in each window of
 * faults.
 */
#include "affinity.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

#define WINDOW        64u
#define MAJORITY      48u /* a thread with so many faults of a window is held alone */
#define SHARE         8u  /* a thread with fewer faults of a window is not held beside others */
#define NEARLY_ALL    60u /* several threads are held only if they make so many faults of a window */
#define SLOW_PAGE_NS  (100 * FP_NSEC_PER_USEC) /* with slower faults, nothing is tried */
#define EVICTED       256u                     /* pages of a window in fault mode inline */
#define SELDOM        32u /* with fewer faults between two ticks, held threads are released */
#define RELEASE_TRIES 1000u

/* Uses raw system calls: the shim's wrappers would release the held thread. */
static int get_cpus(uint32_t tid, cpu_set_t *ret_set)
{
	CPU_ZERO(ret_set);
	return syscall(SYS_sched_getaffinity, tid, sizeof(*ret_set), ret_set) < 0 ? -errno : 0;
}

static int set_cpus(uint32_t tid, const cpu_set_t *set)
{
	return syscall(SYS_sched_setaffinity, tid, sizeof(*set), set) < 0 ? -errno : 0;
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
 * meanwhile keeps those.
 */
static void let_go(struct fp_affinity *af)
{
	uint32_t n = atomic_exchange(&af->n_held, 0);

	for (uint32_t i = 0; i < n; i++)
		if (is_bound(af, atomic_load(&af->held[i])))
			set_cpus(atomic_load(&af->held[i]), &af->original);
	if (n)
		place_agents(af, &af->own);
}

/* Holds the crew, or none of it if its threads may not run on the same CPUs. */
static void hold(struct fp_affinity *af)
{
	cpu_set_t one, cpus;

	if (get_cpus(af->crew[0], &af->original) < 0)
		return;
	for (uint32_t i = 1; i < af->n_crew; i++)
		if (get_cpus(af->crew[i], &cpus) < 0 || !CPU_EQUAL(&cpus, &af->original))
			return;
	af->cpu = choose_cpu(&af->original);
	CPU_ZERO(&one);
	CPU_SET(af->cpu, &one);
	for (uint32_t i = 0; i < af->n_crew; i++) {
		if (set_cpus(af->crew[i], &one) < 0) { /* the thread has ended */
			let_go(af);
			return;
		}
		atomic_store(&af->held[i], af->crew[i]);
		atomic_store(&af->n_held, i + 1);
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

/* Takes over the crew that this window suggests. True: it is a new one, and begins a new trial. */
static bool renew_crew(struct fp_affinity *af)
{
	uint32_t tids[FP_HOLD_MAX], n = choose_crew(af, tids);
	bool same = n == af->n_crew;

	for (uint32_t i = 0; i < n && same; i++)
		same = has(af->crew, af->n_crew, tids[i]);
	if (same)
		return false;
	af->n_crew = n;
	for (uint32_t i = 0; i < n; i++)
		af->crew[i] = tids[i];
	af->trial = (struct fp_hold_trial){0};
	return true;
}

/* Whether the crew shall be held in the next window. This window took ns. */
static bool is_hold_wanted(struct fp_affinity *af, uint64_t ns)
{
	if (renew_crew(af) || af->n_crew < 2)
		return af->n_crew == 1;
	return fp_hold_trial_window(&af->trial, ns, WINDOW * SLOW_PAGE_NS);
}

static void end_window(struct fp_affinity *af)
{
	uint64_t now_ns = fp_clock_ns();
	bool wanted = is_hold_wanted(af, now_ns - af->window_ns);

	if ((wanted ? !holds_crew(af) : atomic_load(&af->n_held) > 0) && try_lock(af)) {
		let_go(af);
		if (wanted && af->follow)
			hold(af);
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
	uint32_t tid = (uint32_t)syscall(SYS_gettid);

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

/* Binds the agent's threads to the CPU, or with -1 gives them back their own CPUs. */
static void bind_agents(struct fp_affinity *af, int cpu)
{
	cpu_set_t one;

	if (cpu == af->cpu)
		return;
	CPU_ZERO(&one);
	if (cpu >= 0)
		CPU_SET(cpu, &one);
	place_agents(af, cpu >= 0 ? &one : &af->own);
	af->cpu = cpu;
}

void fp_affinity_evicted(struct fp_affinity *af, int cpu, uint32_t n)
{
	uint64_t now_ns;

	if (!af->follow || cpu < 0 || cpu >= CPU_SETSIZE)
		return;
	af->evicted += n;
	if (af->evicted >= EVICTED) {
		now_ns = fp_clock_ns();
		fp_hold_trial_window(&af->trial, now_ns - af->window_ns, EVICTED * SLOW_PAGE_NS);
		af->window_ns = now_ns;
		af->evicted = 0;
	}
	bind_agents(af, af->trial.held ? cpu : -1);
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

	if (atomic_load_explicit(&af->n_held, memory_order_relaxed) == 0)
		return;
	if (getpid() != af->pid) {
		original = af->original;
		set_cpus(0, &original);
		return;
	}
	if (!anyone && !is_held(af, (uint32_t)syscall(SYS_gettid)))
		return;
	for (unsigned tries = 0; !try_lock(af); tries++) { /* held only for a few system calls */
		if (tries == RELEASE_TRIES)
			return; /* our signal handler has interrupted the holder */
		sched_yield();
	}
	let_go(af);
	unlock(af);
}

void fp_affinity_done(struct fp_affinity *af)
{
	while (!try_lock(af))
		sched_yield();
	af->follow = false;
	let_go(af);
	unlock(af);
}
