/*
 * Robust mutexes that a thread holds when it ends. The kernel hands them on, but nobody serves
 * faults of a thread past its end. A mutex in far memory that is not resident would stay locked for
 * ever. So the thread hands them on itself, before it ends. Room: preload/process.
 */
#ifndef FP_ROBUST_H
#define FP_ROBUST_H

/* Called by the first thread, before any other key of thread-specific data is made: what threads
 * need to touch far memory must outlast this. 0 or a negative errno. */
int fp_robust_open(void);

/* The calling thread, which has just started, will hand its mutexes on when it ends. */
void fp_robust_thread_begins(void);

/* The calling thread hands them on now, as it ends by the system call exit. */
void fp_robust_thread_ends(void);

#endif
