/*
 * Memory for the fault path: zeroed, present from the start, and locked where RLIMIT_MEMLOCK
 * allows. Of a limit that holds for this process the second half is left to the program, whose own
 * locks count against it too. Room: common. It comes from mmap alone, so that no allocator's lock
 * or free list is behind it.
 */
#ifndef FP_LOCKEDMEM_H
#define FP_LOCKEDMEM_H

#include <stdbool.h>
#include <stddef.h>

#define FP_LOCKEDMEM_PIECES 16384 /* more are not locked */

/* At least len bytes, page aligned; NULL if there is no memory. Control threads. Release with
 * fp_lockedmem_free. */
void *fp_lockedmem_new(size_t len);
/* The same, but a page is present and locked from its first touch on: for what is seldom touched,
 * if ever. */
void *fp_lockedmem_lazy(size_t len);
void fp_lockedmem_free(void *mem, size_t len);

/* Locks what comes from elsewhere and starts a page, on the same terms; nothing new if that start
 * is locked already. Control threads. */
void fp_lockedmem_lock(void *mem, size_t len, bool on_fault);
/* What starts within mem is about to be unmapped. Fine on what was not locked. */
void fp_lockedmem_forget(const void *mem, size_t len);
/* Locks all of it again, after munlockall(2). */
void fp_lockedmem_again(void);

#endif
