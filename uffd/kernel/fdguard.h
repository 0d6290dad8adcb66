/*
 * The descriptor guard: a second reference to the agent's vital descriptors, which the program
 * cannot close. Room: uffd/kernel.
 *
 *     program's table: threads of the program and of the agent      guard's table: one thread, asleep
 *       3  the program's                                              -
 *       513 userfaultfd ───────────────► open file ◄───────────────── 513
 *       514 ...                                                       514
 *
 * A program may close or replace any descriptor by a bare call, which no shim sees. If the last
 * reference to a userfaultfd were gone, the kernel would fill missing pages with zeros. As the
 * guard has a reference, a fault waits instead. An agent thread that finds its descriptor missing
 * ends the process with a message. So does the guard, which compares the two tables four times a
 * second.
 */
#ifndef FP_FDGUARD_H
#define FP_FDGUARD_H

#include <semaphore.h>
#include <stdint.h>

#include "thread.h"

#define FP_FDGUARD_MAX 256u

struct fp_fdguard {
	struct fp_thread thread;
	sem_t ready;
	/* marks the vital descriptors of this guard; set before it starts: see fp_fd_make_vital */
	uint8_t mark;
	_Atomic uint32_t stopping;
	int result;
	const struct fp_thread *peer; /* an agent thread, which uses the program's table */
	int fds[FP_FDGUARD_MAX];      /* the vital descriptors of this far memory, in the guard's table */
	unsigned n_fds;
};

/*
 * Starts a thread with a descriptor table of its own, which has only the vital descriptors
 * (fdutil.h). Does not wait for it. peer uses the program's table, and outlives the guard. *guard
 * is in locked memory. Where kcmp(2) is refused, the tables are not compared. Returns 0 or a
 * negative errno.
 */
int fp_fdguard_start(struct fp_fdguard *guard, const struct fp_thread *peer);

/*
 * Waits until the guard has its references. Called before the program may close anything. 0, or a
 * negative errno where the kernel (before 5.9) or a filter of system calls refuses close_range.
 */
int fp_fdguard_wait(struct fp_fdguard *guard);

void fp_fdguard_stop(struct fp_fdguard *guard);

/* Forgets the guard's thread. Called in a forked child, where the thread does not run. */
void fp_fdguard_abandon(struct fp_fdguard *guard);

#endif
