/*
 * File descriptors that live inside a program that is not ours. Room: common.
 */
#ifndef FP_FDUTIL_H
#define FP_FDUTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Moves fd, which is close-on-exec, to 512 or above, where programs that count on low numbers, or close a
 * range of them, do not meet it, and keeps it in the process's list of our descriptors. Returns the
 * descriptor to use from now on: the old one if RLIMIT_NOFILE has no room above, or if it is negative. Where
 * the program may be running, open by FP_FD_OPEN.
 */
int fp_fd_move_high(int fd);

/*
 * The kernel hands out the lowest number, and only then it can be moved and listed. So openings exclude what
 * the program closes or replaces, which would meet a descriptor that it takes for its own, or one whose old
 * number we are about to close. An opening waits for calls of the program under way, a call for an opening:
 * a tenth of a second at most, and the next opening two milliseconds, as a call may last (a lingering socket,
 * a FIFO without a writer). Any thread. Returns whether it has it, which the same thread says to
 * fp_fd_unlock.
 */
bool fp_fd_lock_exclusive(void);
void fp_fd_unlock(bool locked);

/*
 * The program's side; signal handlers too, also such as interrupt a call that has it, which do without, and
 * jump out of it, or fork. hold lies on the caller's stack.
 */
struct fp_fd_hold {
	bool is_mine; /* false: unlocking does nothing */
};

void fp_fd_lock_shared(struct fp_fd_hold *hold);
void fp_fd_unlock_shared(struct fp_fd_hold *hold);

/*
 * Reads the beginning of a file, which is open under the lock only. If not patient, returns -EBUSY rather
 * than wait for it. Returns the bytes read, or a negative errno.
 */
ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len, bool patient);

/* In the child of a fork, whose other threads are gone. */
void fp_fd_forked(void);

/* fp_fd_move_high of what an expression opens, with nothing in between; errno is the expression's. */
#define FP_FD_OPEN(opening)                                                                                  \
	({                                                                                                   \
		bool fp_fd_locked = fp_fd_lock_exclusive();                                                  \
		int fp_fd_opened = fp_fd_move_high(opening);                                                 \
                                                                                                             \
		fp_fd_unlock(fp_fd_locked);                                                                  \
		fp_fd_opened;                                                                                \
	})

/* Puts a descriptor that lies where it is to stay into that list. */
void fp_fd_keep(int fd);

/* The lowest of our descriptors that is at least from; -1: none. Lock-free: any thread, signal handlers too.
 */
int fp_fd_next(int from);
bool fp_fd_is_ours(int fd);

/* fd is about to be closed, under the lock: the number may become the program's. */
void fp_fd_forget(int fd);

/* Closes one of ours, under the lock. */
void fp_fd_close(int fd);

#endif
