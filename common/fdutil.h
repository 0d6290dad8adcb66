/*
 * File descriptors that live inside a program that is not ours. Room: common.
 */
#ifndef FP_FDUTIL_H
#define FP_FDUTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "fdlock.h"

/*
 * Moves fd, which is close-on-exec, to 512 or above, where programs that count on low numbers, or
 * close a range of them, do not meet it, and keeps it in the process's list of our descriptors.
 * Returns the descriptor to use from now on: the old one if RLIMIT_NOFILE has no room above, or if
 * it is negative. Where the program may be running, open by FP_FD_OPEN.
 */
int fp_fd_move_high(int fd);

/* Reads the beginning of a file, which is open under the lock only. Returns the bytes read, or a
 * negative errno. */
ssize_t fp_fd_read_file(const char *path, void *ret_bytes, size_t len);

/* fp_fd_move_high of what an expression opens, with nothing in between; errno is the
 * expression's. */
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

/* The lowest of our descriptors that is at least from; -1: none. Lock-free: any thread, signal
 * handlers too. */
int fp_fd_next(int from);
bool fp_fd_is_ours(int fd);

/* Marks one of ours for the guard that starts next (fdguard.h), until fp_fd_watch; the lowest of
 * these from a number on, -1: none. */
void fp_fd_make_vital(int fd);
int fp_fd_next_vital(int from);

/*
 * One of ours is closed by fp_fd_close alone from now on. If the kernel hands the number out to us
 * again before that, the program has closed it past the C library: then the process ends, as two
 * things of ours would share a number.
 */
void fp_fd_watch(int fd);

/* Says that a descriptor of ours is gone, by a bare system call, and ends the process with status
 * 125. */
_Noreturn void fp_fd_lost(void);

/* fd is about to be closed, under the lock: the number may become the program's. */
void fp_fd_forget(int fd);

/* Closes one of ours, under the lock; a negative number is fine, errno stays. */
void fp_fd_close(int fd);

#endif
