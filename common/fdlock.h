/*
 * The lock between our openings of descriptors and the program's calls on descriptors of its own.
 * Room: common.
 *
 * The kernel opens a descriptor at the lowest free number. Only then can we move it up and add it
 * to our list (fdutil.h). Between the two steps the program must not close or replace descriptors,
 * because it could take our new descriptor for its own. So an opening waits for the program's calls
 * under way, and a call waits for an opening. Neither waits for ever.
 */
#ifndef FP_FDLOCK_H
#define FP_FDLOCK_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Begins an opening. Waits for another opening to end, and then for the program's calls: 100 ms at
 * most in all. If a call lasts longer (a lingering socket, a FIFO without a writer), the opening
 * begins all the same. The next one then waits 2 ms at most, so that a long call does not delay
 * many openings.
 *
 * Returns true if the calling thread now has the lock. Returns false if another opening has lasted
 * too long. Also returns false, at once, if this thread is in an opening already. The same thread
 * passes the result to fp_fd_unlock. Any thread.
 */
bool fp_fd_lock_exclusive(void);
void fp_fd_unlock(bool locked);

/*
 * Begins a call of the program. Waits half a second at most for an opening. An opening that lasts
 * longer counts as dead: its thread may have been a child of vfork that was killed. Keeps errno.
 * Signal handlers may call this function too, even if they interrupt a call that has the lock, or
 * this very function. They may jump out of the call, fork, or end the thread.
 */
struct fp_fd_hold {
	bool is_mine; /* false: fp_fd_unlock_shared does nothing */
	uint32_t epoch;
};

void fp_fd_lock_shared(struct fp_fd_hold *hold);
void fp_fd_unlock_shared(struct fp_fd_hold *hold);

/*
 * Called in the child of a fork, which has no other threads. If a signal handler forked in the
 * middle of a call, that call goes on in the child without the lock.
 */
void fp_fd_forked(void);

#endif
