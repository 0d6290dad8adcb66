/* Our file descriptors inside a program that is not ours. Room: common. */
#ifndef FP_FDUTIL_H
#define FP_FDUTIL_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

#include "fdlock.h"

/*
 * Moves fd, which is close-on-exec, to a number from 512 on, and adds it to the process's list of
 * our descriptors. Such a number is out of the way of programs that count on low numbers, or close
 * a range of them. Returns the descriptor to use from now on.
 *
 * If RLIMIT_NOFILE permits no free number from 512 on, fd keeps its number. But if that is the
 * number of a standard stream, fd moves to the next free number above those three. A negative fd is
 * returned as it is. While the program may be running, use FP_FD_OPEN, which calls this function.
 */
int fp_fd_move_high(int fd);

/*
 * Reads the beginning of a file. Holds the lock while the file is open. Returns the bytes read, or
 * a negative errno.
 */
ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len);

/*
 * Evaluates the expression opening, which opens a descriptor, and moves that descriptor by
 * fp_fd_move_high. Does both under the lock. errno is that of the expression.
 */
#define FP_FD_OPEN(opening)                                                                                  \
	({                                                                                                   \
		bool fp_fd_locked = fp_fd_lock_exclusive();                                                  \
		int fp_fd_opened = fp_fd_move_high(opening);                                                 \
                                                                                                             \
		fp_fd_unlock(fp_fd_locked);                                                                  \
		fp_fd_opened;                                                                                \
	})

/* Adds a descriptor to the list of ours without moving it. */
void fp_fd_keep(int fd);

/*
 * Returns the lowest descriptor of ours that is not below the parameter from; -1: none. Lock-free:
 * any thread, signal handlers too.
 */
int fp_fd_next(int from);
bool fp_fd_is_ours(int fd);

/*
 * fp_fd_make_vital: marks a descriptor of ours as vital for a guard that is about to start
 * (fdguard.h). A later fp_fd_watch of this descriptor removes the mark. fp_fd_next_vital: returns
 * the lowest descriptor that has this mark and is not below the parameter from; -1: none.
 */
void fp_fd_make_vital(int fd, uint8_t mark);
int fp_fd_next_vital(int from, uint8_t mark);

/*
 * From now on only fp_fd_close may close this descriptor of ours. If the kernel hands out its
 * number to us before fp_fd_close, the program has closed the descriptor past the C library. Then
 * two of our descriptors would share an entry of the list, so the process ends.
 */
void fp_fd_watch(int fd);

/* Says that the program took away a descriptor of ours by a bare call. Ends the process with status
 * 125. */
_Noreturn void fp_fd_lost(void);

/*
 * Takes fd off the list. Called under the lock before fd is closed: the program may get the number
 * next.
 */
void fp_fd_forget(int fd);

/* Closes a descriptor of ours, under the lock. Does nothing for a negative number. Keeps errno. */
void fp_fd_close(int fd);

#endif
