/*
 * File descriptors that live inside a program that is not ours. Room: common.
 */
#ifndef FP_FDUTIL_H
#define FP_FDUTIL_H

#include <stdbool.h>

/*
 * Moves fd, which is close-on-exec, to 512 or above, where programs that count on low numbers, or close a
 * range of them, do not meet it, and keeps it in the process's list of our descriptors. Returns the
 * descriptor to use from now on: the old one if RLIMIT_NOFILE has no room above, or if it is negative.
 */
int fp_fd_move_high(int fd);

/* Puts a descriptor that lies where it is to stay into that list. */
void fp_fd_keep(int fd);

/* The lowest of our descriptors that is at least from; -1: none. Lock-free: any thread, signal handlers too.
 */
int fp_fd_next(int from);
bool fp_fd_is_ours(int fd);

/* fd was closed, or is about to be: the number may become the program's. */
void fp_fd_forget(int fd);

#endif
