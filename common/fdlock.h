/*
 * The lock between what opens descriptors for us and what the program does with its own. Room:
 * common.
 *
 * The kernel hands out the lowest number, and only then it can be moved and listed (fdutil.h). So
 * openings exclude what the program closes or replaces, which would meet a descriptor that it takes
 * for its own, or one whose old number we are about to close. An opening waits for calls of the
 * program under way, a call for an opening, and nobody for ever.
 */
#ifndef FP_FDLOCK_H
#define FP_FDLOCK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * An opening. It waits a tenth of a second at most, and after one in vain the next waits two
 * milliseconds: a call may last (a lingering socket, a FIFO without a writer), and is not waited
 * for twice. False at once in an opening of the same thread's. Any thread. Returns whether it has
 * the lock, which the same thread says to fp_fd_unlock.
 */
bool fp_fd_lock_exclusive(void);
void fp_fd_unlock(bool locked);

/*
 * A call of the program's. It waits half a second at most; what opens for longer is taken for dead
 * (a child of vfork that was killed). Signal handlers too, also such as interrupt a call that has
 * the lock, or this very function: they may jump out of the call, fork, or end the thread. errno
 * stays.
 */
struct fp_fd_hold {
	bool is_mine; /* false: unlocking does nothing */
	uint32_t epoch;
};

void fp_fd_lock_shared(struct fp_fd_hold *hold);
void fp_fd_unlock_shared(struct fp_fd_hold *hold);

/* In the child of a fork, whose other threads are gone. A call that a handler interrupted to fork
 * goes on without the lock. */
void fp_fd_forked(void);

#endif
