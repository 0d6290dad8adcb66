/*
 * Memory for the fault path: zeroed, present from the start, and locked where RLIMIT_MEMLOCK
 * allows. Room: common.
 *
 * If the limit applies to this process, we use half of it: the program's own locks count against it
 * too. Once our half is used up, nothing more is locked. After the program's munlockall(2) none of
 * our memory is locked. The memory comes from mmap alone, so no allocator's lock or free list is
 * behind it.
 */
#ifndef FP_LOCKEDMEM_H
#define FP_LOCKEDMEM_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Allocates at least len bytes, page aligned; NULL if there is no memory. For control threads.
 * Release with fp_lockedmem_free.
 */
void *fp_lockedmem_new(size_t len);
/*
 * Like fp_lockedmem_new, but a page is present and locked only from its first touch on. For memory
 * that is touched seldom or never.
 */
void *fp_lockedmem_lazy(size_t len);
void fp_lockedmem_free(void *mem, size_t len);

/*
 * Locks memory that was not allocated here, within the same limit. mem is page aligned. For control
 * threads.
 */
void fp_lockedmem_lock(void *mem, size_t len, bool on_fault);
/* Call it before you unmap memory that fp_lockedmem_lock got, with the same length. */
void fp_lockedmem_forget(size_t len);

#endif
