/*
 * The C library's own use of memory, where its system calls do not pass through exported names: what it
 * allocates for itself is local then. Room: uffd/preload. See calls.h for when that is.
 */
#ifndef FP_LIBC_H
#define FP_LIBC_H

#include <stdbool.h>
#include <stddef.h>

/* Finds the C library's code. Once, before the program has threads. */
void fp_libc_open(void);

/*
 * True if what code at this address allocates may end up in a system call of the C library's own: its
 * streams' and directories' buffers, names, messages to name servers; not the large arrays that it sorts in.
 */
bool fp_libc_wants_local(const void *code, size_t size);

#endif
