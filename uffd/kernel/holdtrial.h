/*
 * The hold trial: whether work goes faster while some threads are held on one CPU, or free. Room:
 * uffd/kernel. Pure: no system call, one thread.
 *
 * Threads that only fetch pages are faster together on the fault thread's CPU, because no idle CPU
 * has to be woken for each fault. Threads that compute between their faults need all CPUs. Only a
 * trial can tell what is faster:
 *
 *   MEASURE ──enough windows──> SETTLE ──one window──> COMPARE ──enough windows──> KEEP ─┐
 *      ^   this way                       other way                                      │
 *      └─────────────────────────────────── enough windows ─────────────────────────────┘
 *
 * A window is a fixed number of faults. While these are seldom, nothing is tried and nothing is
 * held: then it is better not to disturb the scheduler. Faults that become seldom in a trial of
 * holding end it: free is kept. KEEP is so long that the next trial costs no more than a fiftieth
 * of it, if the slower way takes up to 17 times as long. If the kept way takes twice the time that
 * it took in its trial, for some windows in a row, the program does other work: then KEEP ends.
 */
#ifndef FP_HOLDTRIAL_H
#define FP_HOLDTRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum fp_hold_phase { FP_HOLD_MEASURE, FP_HOLD_SETTLE, FP_HOLD_COMPARE, FP_HOLD_KEEP };

/* Zero-initialise: nothing is held, and the first windows are measured. */
struct fp_hold_trial {
	enum fp_hold_phase phase;
	bool held;            /* what the trial asks for now */
	bool was_slow;        /* in the last window, faults were seldom */
	uint32_t n;           /* windows of this phase so far */
	uint32_t keep;        /* length of the last KEEP, in windows */
	uint32_t n_changed;   /* windows in a row that took far longer than in the trial */
	uint64_t least_ns[2]; /* the fastest window: [0] free, [1] held; a disturbance only adds time */
};

/*
 * Tells that a window took ns. slow_ns: a longer window means that faults are seldom.
 * Returns whether the threads shall be held during the next window.
 */
bool fp_hold_trial_window(struct fp_hold_trial *trial, uint64_t ns, uint64_t slow_ns);

#endif
