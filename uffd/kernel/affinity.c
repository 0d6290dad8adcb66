/*
 * See affinity.h. No allocation, no blocking: only system calls, and few of them in each window of
 * faults.
 */
#include "affinity.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"

#define WINDOW        64u
#define MAJORITY      48u /* a thread is held only if at least so many faults of a window are its own */
#define SELDOM        32u /* a held thread with fewer faults between two ticks is released */
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
 * Gives the held thread its former CPUs, unless the program has chosen other CPUs for it meanwhile.
 */
static void let_go(struct fp_affinity *af)
{
	uint32_t tid = atomic_exchange(&af->held, 0);

	if (!tid)
		return;
	if (is_bound(af, tid))
		set_cpus(tid, &af->original);
	place_agents(af, &af->own);
}

static void hold(struct fp_affinity *af, uint32_t tid)
{
	cpu_set_t one;

	if (get_cpus(tid, &af->original) < 0)
		return;
	af->cpu = choose_cpu(&af->original);
	CPU_ZERO(&one);
	CPU_SET(af->cpu, &one);
	if (set_cpus(tid, &one) < 0)
		return;
	atomic_store(&af->held, tid);
	place_agents(af, &one);
}

static void end_window(struct fp_affinity *af)
{
	bool stays = atomic_load_explicit(&af->held, memory_order_relaxed) && af->hits >= MAJORITY;

	if (!stays && try_lock(af)) {
		let_go(af);
		if (af->follow && af->votes >= 2 * MAJORITY - WINDOW)
			hold(af, af->tid);
		unlock(af);
	}
	af->faults = af->votes = af->hits = 0;
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
	af->hits += tid == atomic_load_explicit(&af->held, memory_order_relaxed);
	if (af->votes == 0)
		af->tid = tid;
	if (af->tid == tid)
		af->votes++;
	else
		af->votes--;
	if (++af->faults == WINDOW)
		end_window(af);
}

void fp_affinity_tick(struct fp_affinity *af)
{
	uint32_t recent = atomic_exchange(&af->recent, 0);

	if (recent < SELDOM && atomic_load(&af->held) && try_lock(af)) {
		let_go(af);
		unlock(af);
	}
}

void fp_affinity_release(struct fp_affinity *af, bool anyone)
{
	cpu_set_t original;

	if (atomic_load_explicit(&af->held, memory_order_relaxed) == 0)
		return;
	if (getpid() != af->pid) {
		original = af->original;
		set_cpus(0, &original);
		return;
	}
	if (!anyone && atomic_load(&af->held) != (uint32_t)syscall(SYS_gettid))
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
