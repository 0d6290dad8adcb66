/*
 * Threads that leave. The kernel does the last of a thread in the C library's record of it: it clears the
 * word that pthread_join waits for, at a time when it serves no fault of that thread any more. So where the
 * record is far memory (a stack that the program placed there), its page is held from the thread's last
 * destructors until the thread is gone. Room: uffd. Only where the kernel faults by itself; elsewhere no
 * stack is far.
 */
#ifndef FP_EXITING_THREADS_H
#define FP_EXITING_THREADS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fp_far;

struct fp_exiting_threads {
	_Atomic pid_t *tid; /* one a place of the hold table: whose record is held by it; 0: nobody's */
	_Atomic uint32_t n; /* of them; also one that is about to be */
	pid_t pid;          /* of this process, as of init or forked */
};

/* 0 or -ENOMEM. done accepts what was never initialised. */
int fp_exiting_threads_init(struct fp_exiting_threads *leavers);
void fp_exiting_threads_done(struct fp_exiting_threads *leavers);

/*
 * The calling thread leaves, and the kernel will touch len_bytes at record: what is far of it is here and
 * writable, and stays so until the thread is gone. On that thread, whose stack may be far; waits as faults
 * do. Not on threads of the agent.
 */
void fp_exiting_threads_add(struct fp_far *far, const void *record, size_t len_bytes);

/* Lets go of what was held for those that are gone. The reclaim thread's. */
void fp_exiting_threads_sweep(struct fp_far *far);

/* In a forked child, which has one thread: the hold table has forgotten them already. */
void fp_exiting_threads_forked(struct fp_far *far);

#endif
