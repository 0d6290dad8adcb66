/*
 * mmap and mremap for calls by number, as syscall(2) makes them: see rawcalls.c. Room:
 * preload/memory. They return what the C library's functions return. The parameter caller is the
 * address of the calling code, or NULL if it is unknown.
 */
#ifndef FP_MAPPING_H
#define FP_MAPPING_H

#include <stddef.h>

void *fp_mmap(void *addr, size_t len, int prot, int flags, int fd, long offset, const void *caller);
void *fp_mremap(void *addr, size_t old_len, size_t new_len, int flags, void *new_addr);

#endif
