/*
 * Affinity: keeps the fault thread and the thread that faults most on one CPU. Waking a thread on
 * another, idle CPU takes an inter-processor interrupt and the CPU's way out of idle, twice a
 * fault: measured 12 to 49 µs instead of 6. The scheduler, seeing the fault thread run, would move
 * the woken thread to an idle CPU each time; so while one thread makes most of the faults it is
 * held where it is, and let go when it faults no longer. The agent's threads come to that CPU, too:
 * what they take from the program's memory would interrupt any other on which it runs. Room: uffd.
 * The fault thread calls fp_affinity_fault; release and tick may come from any thread.
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
	uint32_t tid; /* candidate of this window (majority vote) */
	uint32_t votes;
	uint32_t hits;           /* faults of the held thread in this window */
	uint32_t faults;         /* in this window */
	_Atomic uint32_t recent; /* faults since the last tick */
	_Atomic bool busy;       /* guards what follows: try-lock, a loser does nothing */
	_Atomic uint32_t held;   /* the thread that is held, 0: none */
	int cpu;
	pid_t pid;                 /* of this process */
	cpu_set_t original;        /* what the held thread was allowed before */
	cpu_set_t own;             /* what the agent's threads are allowed when nobody is held */
	_Atomic uint32_t agent[2]; /* the agent's threads; 0: none */
};

void fp_affinity_init(struct fp_affinity *affinity, bool follow);
/* Lets go of whoever is held, and holds nobody from now on. Before the agent's threads end. */
void fp_affinity_done(struct fp_affinity *affinity);

/* The calling thread is the agent's: it goes where the held thread is. At most two. */
void fp_affinity_join(struct fp_affinity *affinity);

/* A fault of thread tid. Fault thread. */
void fp_affinity_fault(struct fp_affinity *affinity, uint32_t tid);

/* Called every so often: lets go of a thread that faults seldom now. */
void fp_affinity_tick(struct fp_affinity *affinity);

/*
 * Lets go of the calling thread, or of whoever is held: before a thread starts threads or programs,
 * which would inherit its one CPU, and before the program asks for CPUs or chooses some. The child
 * of a vfork, which has the held thread's CPU and its memory, only looks after itself.
 */
void fp_affinity_release(struct fp_affinity *affinity, bool anyone);

#endif
