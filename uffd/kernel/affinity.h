/*
 * Affinity: keeps the fault thread and the thread that faults most on one CPU. Room: uffd/kernel.
 *
 * To wake a thread on another, idle CPU, an interrupt must bring that CPU out of idle. A fault
 * needs two such wake-ups, and then takes 12 to 49 µs instead of 6 (measured). The scheduler sees
 * the fault thread run and moves the woken thread to an idle CPU each time. So a thread that makes
 * most of the faults is held on the fault thread's CPU, and released when it no longer does.
 *
 * The agent's threads run on that CPU, too. On another CPU, an agent thread would interrupt the
 * held thread with each page that it takes from the program. The fault thread calls
 * fp_affinity_fault; any thread may call fp_affinity_release and fp_affinity_tick.
 */
#ifndef FP_AFFINITY_H
#define FP_AFFINITY_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_affinity {
	_Atomic bool follow;
	uint32_t tid; /* the candidate of this window (majority vote): a thread that may be held */
	uint32_t votes;
	uint32_t hits;           /* faults that the held thread made in this window */
	uint32_t faults;         /* all faults in this window */
	_Atomic uint32_t recent; /* faults since the last tick */
	_Atomic bool busy;       /* lock of the fields below; the fault thread and the tick only try it */
	_Atomic uint32_t held;   /* tid of the held thread; 0: none */
	int cpu;
	pid_t pid;                 /* the process that this belongs to */
	cpu_set_t original;        /* the CPUs that the held thread had before */
	cpu_set_t own;             /* CPUs of agent threads when they follow no thread */
	_Atomic uint32_t agent[2]; /* tids of the agent's threads; 0: none */
};

void fp_affinity_init(struct fp_affinity *affinity, bool follow);
/* Releases the held thread, and holds none from now on. Call it before the agent's threads end. */
void fp_affinity_done(struct fp_affinity *affinity);

/* Called by an agent thread, which then follows the held thread. At most two threads. */
void fp_affinity_join(struct fp_affinity *affinity);

/* Counts a fault of thread tid. Called by the fault thread. */
void fp_affinity_fault(struct fp_affinity *affinity, uint32_t tid);

/* Called at intervals: releases the held thread if it now faults seldom. */
void fp_affinity_tick(struct fp_affinity *affinity);

/*
 * Releases the calling thread if it is held. If the parameter anyone is true, releases the held
 * thread, whichever it is. Called before a thread starts threads or programs, which would inherit
 * its one CPU, and before the program reads or sets CPUs. A child of vfork shares this memory, and
 * may have inherited the held thread's one CPU: it releases only itself.
 */
void fp_affinity_release(struct fp_affinity *affinity, bool anyone);

#endif
