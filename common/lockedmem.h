/*
 * Memory for the fault path: zeroed, present from the start, and locked where RLIMIT_MEMLOCK
 * allows. Of a limit that holds for this process the second half is left to the program, whose own
 * locks count against it too. Once the first half is used up, nothing more is locked. After the
 * program's munlockall(2) nothing of it is. Room: common. It comes from mmap alone, so that no
 * allocator's lock or free list is behind it.
 */
#ifndef FP_LOCKEDMEM_H
#define FP_LOCKEDMEM_H

#include <stdbool.h>
#include <stddef.h>

/* At least len bytes, page aligned; NULL if there is no memory. Control threads. Release with
 * fp_lockedmem_free. */
void *fp_lockedmem_new(size_t len);
/* The same, but a page is present and locked from its first touch on: for what is seldom touched,
 * if ever. */
void *fp_lockedmem_lazy(size_t len);
void fp_lockedmem_free(void *mem, size_t len);

/* Locks what comes from elsewhere and starts a page, on the same terms. Control threads. */
void fp_lockedmem_lock(void *mem, size_t len, bool on_fault);
/* Memory that was given to fp_lockedmem_lock, with this length, is about to be unmapped. */
void fp_lockedmem_forget(size_t len);

#endif
