/*
 * Affinity: keeps the fault thread and the threads that fault on one CPU. Room: uffd/kernel.
 *
 * To wake a thread on another, idle CPU, an interrupt must bring that CPU out of idle. A fault
 * needs two such wake-ups, and then takes 12 to 49 µs instead of 6 (measured). The scheduler sees
 * the fault thread run and moves the woken thread to an idle CPU each time. So a thread that makes
 * most of the faults is held on the fault thread's CPU, and released when it no longer does. Two to
 * eight threads that make nearly all faults together are held if a trial shows that this is faster
 * (holdtrial.h). More threads keep the CPUs awake themselves, and are not held.
 *
 * The agent's threads run on that CPU, too. On another CPU, an agent thread would interrupt the
 * held threads with each page that it takes from the program. In fault mode inline no thread is
 * held: threads fault and evict where they are.
 *
 * The fault thread calls fp_affinity_fault. Any thread may call fp_affinity_release and
 * fp_affinity_tick.
 */
#ifndef FP_AFFINITY_H
#define FP_AFFINITY_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "holdtrial.h"

#define FP_HOLD_MAX 8u /* so many threads are held at most */

struct fp_affinity {
	_Atomic bool follow;
	bool only_bound; /* holds only threads that have one CPU anyway, so the program sees no change */
	struct {
		uint32_t tid, faults;
	} seen[FP_HOLD_MAX + 1]; /* the first threads that faulted in this window */
	uint32_t n_seen;
	uint32_t faults;                    /* all faults in this window */
	uint64_t window_ns;                 /* when this window began */
	uint32_t crew[FP_HOLD_MAX], n_crew; /* the threads to hold, as windows suggested */
	uint32_t n_odd;                     /* windows in a row that suggested another crew */
	struct fp_hold_trial trial;         /* of this crew */
	_Atomic uint32_t recent;            /* faults since the last tick */
	/*
	 * The lock of the fields below. The fault thread and the tick only try it; others wait for
	 * a moment. All have signals blocked meanwhile.
	 */
	_Atomic bool busy;
	_Atomic uint32_t n_held; /* the held threads: the first n_held of held */
	_Atomic uint32_t held[FP_HOLD_MAX];
	_Atomic uint64_t no_hold_until_ns; /* after a release, no thread is held before this time */
	uint32_t forking;                  /* the thread that forked last */
	int cpu;
	pid_t pid;                 /* the process that this belongs to */
	cpu_set_t original;        /* the CPUs that each held thread had before */
	cpu_set_t own;             /* CPUs of agent threads when they follow no thread */
	_Atomic uint32_t agent[2]; /* tids of the agent's threads; 0: none */
};

void fp_affinity_init(struct fp_affinity *affinity, bool follow);
/* Releases the held threads, and holds none from now on. Call it before the agent's threads end. */
void fp_affinity_done(struct fp_affinity *affinity);

/* Called by an agent thread, which then follows the held threads. At most two threads. */
void fp_affinity_join(struct fp_affinity *affinity);

/* Counts a fault of thread tid. Called by the fault thread. */
void fp_affinity_fault(struct fp_affinity *affinity, uint32_t tid);

/* Called at intervals: releases the held threads if they now fault seldom. */
void fp_affinity_tick(struct fp_affinity *affinity);

/*
 * Releases all held threads if the calling thread is one of them, or if anyone is true. For 20 ms
 * no thread is held then. Called before a thread starts threads or programs, which would inherit
 * its one CPU, and before the program reads or sets CPUs. A child of vfork shares this memory, and
 * may have inherited a held thread's one CPU: it releases only itself.
 */
void fp_affinity_release(struct fp_affinity *affinity, bool anyone);

/*
 * Called by a thread that is about to fork: releases as above. forked: called in the child, whose
 * thread gets its CPUs back if it was held again meanwhile.
 */
void fp_affinity_forking(struct fp_affinity *affinity);
void fp_affinity_forked(struct fp_affinity *affinity);

#endif
