/*
 * Robust mutexes that a thread holds when it ends: the kernel hands them on, but nobody serves the
 * faults of a thread that is past its end, so those in far memory that are not resident would stay
 * locked for ever. The thread does it itself, before. Room: preload.
 */
#ifndef FP_ROBUST_H
#define FP_ROBUST_H

/* Before any other key of thread-specific data is made, since what threads need to touch far memory
 * must outlast this; the caller's thread is the first. 0 or a negative errno. */
int fp_robust_open(void);

/* The calling thread, which has just started, hands its mutexes on when it ends. */
void fp_robust_thread_begins(void);

/* The calling thread hands them on now, as it ends by the system call exit. */
void fp_robust_thread_ends(void);

#endif
