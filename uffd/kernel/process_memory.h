/*
 * The bytes of pages that are here, for the agent's own threads, whatever the program may do with them. Room:
 * uffd, inside.
 *
 * /proc/self/mem reads and writes past any protection. A child that was made in a `chroot` without /proc
 * can't have it: there the kernel is asked as on behalf of another process, which keeps to the protection. So
 * what the program itself can't read is refused, and stays where it is. A folder of /proc that is kept open
 * would help, and would be a way out of the `chroot`: so there is none.
 */
#ifndef FP_PROCESS_MEMORY_H
#define FP_PROCESS_MEMORY_H

#include "far.h"

/* Whether bytes can be had without /proc/self/mem. 0, or what the kernel refuses it with. */
int fp_process_memory_check(void);

/* Copies a page that is here. False if it is not, or can't be read. Never waits for a fault. */
bool fp_process_memory_read(const struct fp_far *far, uint32_t page, void *ret_bytes);

/* Makes it zeros where it stands; its protection against writes is lifted. False if it can't be written. */
bool fp_process_memory_clear(const struct fp_far *far, uint32_t page);

#endif
