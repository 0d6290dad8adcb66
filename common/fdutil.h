/* Our file descriptors inside a program that is not ours. Room: common. */
#ifndef FP_FDUTIL_H
#define FP_FDUTIL_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

#include "fdlock.h"

/*
 * Moves fd, which is close-on-exec, to 512 or above, and adds it to the process's list of our
 * descriptors. Programs that count on low numbers, or close a range of them, do not meet it there.
 * Returns the descriptor to use from now on: the old one if RLIMIT_NOFILE has no room above, or if
 * it is negative. Where the program may be running, open by FP_FD_OPEN.
 */
int fp_fd_move_high(int fd);

/* Reads the beginning of a file, which is open only under the lock. Returns the bytes read, or a
 * negative errno. */
ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len);

/* fp_fd_move_high of the descriptor that an expression opens, in one hold of the lock. errno is the
 * expression's. */
#define FP_FD_OPEN(opening)                                                                                  \
	({                                                                                                   \
		bool fp_fd_locked = fp_fd_lock_exclusive();                                                  \
		int fp_fd_opened = fp_fd_move_high(opening);                                                 \
                                                                                                             \
		fp_fd_unlock(fp_fd_locked);                                                                  \
		fp_fd_opened;                                                                                \
	})

/* Adds a descriptor that stays at its number to that list. */
void fp_fd_keep(int fd);

/* The lowest of our descriptors that is at least from; -1: none. Lock-free: any thread, signal
 * handlers too. */
int fp_fd_next(int from);
bool fp_fd_is_ours(int fd);

/* Marks one of ours for a guard that is about to start (fdguard.h), until fp_fd_watch.
 * fp_fd_next_vital: the lowest number with that mark that is at least from; -1: none. */
void fp_fd_make_vital(int fd, uint8_t mark);
int fp_fd_next_vital(int from, uint8_t mark);

/*
 * From now on only fp_fd_close closes this descriptor of ours. If the kernel hands out its number
 * to us again before that, the program has closed it past the C library. Then the process ends, as
 * two things of ours would share a number.
 */
void fp_fd_watch(int fd);

/* Says that the program took away a descriptor of ours by a bare call. Ends the process with status
 * 125. */
_Noreturn void fp_fd_lost(void);

/* Takes fd off the list. It is about to be closed, under the lock: the number may become the
 * program's. */
void fp_fd_forget(int fd);

/* Closes one of ours, under the lock. A negative number is fine; errno stays. */
void fp_fd_close(int fd);

#endif
