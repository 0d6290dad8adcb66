/*
 * The lock between our openings of descriptors and the program's calls on its own ones. Room:
 * common.
 *
 * The kernel hands out the lowest number; only then can we move and list the descriptor (fdutil.h).
 * So during an opening the program must not close or replace descriptors. It could hit one of ours
 * that it takes for its own, or one whose old number we are about to close. An opening waits for
 * the program's calls under way, a call waits for an opening, and neither waits for ever.
 */
#ifndef FP_FDLOCK_H
#define FP_FDLOCK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Begins an opening. It waits 100 ms at most, and 2 ms at most if the last opening waited in vain.
 * A call may last long (a lingering socket, a FIFO without a writer) and should not delay many
 * openings. False at once if the same thread is in an opening already. Any thread. Returns whether
 * it has the lock; the same thread passes this to fp_fd_unlock.
 */
bool fp_fd_lock_exclusive(void);
void fp_fd_unlock(bool locked);

/*
 * Begins a call of the program. It waits half a second at most. An opening that lasts longer counts
 * as dead (a child of vfork that was killed). Signal handlers too, even if they interrupt a call
 * that has the lock, or this very function. They may jump out of the call, fork, or end the thread.
 * errno stays.
 */
struct fp_fd_hold {
	bool is_mine; /* false: unlocking does nothing */
	uint32_t epoch;
};

void fp_fd_lock_shared(struct fp_fd_hold *hold);
void fp_fd_unlock_shared(struct fp_fd_hold *hold);

/* Called in the child of a fork, which has no other threads. If a signal handler forked in the
 * middle of a call, that call goes on without the lock. */
void fp_fd_forked(void);

#endif
