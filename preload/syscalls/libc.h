/*
 * The C library's own use of memory, where its system calls do not pass through exported names:
 * what it allocates for itself is local then. Room: preload. See calls.h for when that is.
 */
#ifndef FP_LIBC_H
#define FP_LIBC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The dynamic loader's code. What it allocates is always local: it keeps there what any new thread
 * is made of (the modules with thread-local data, the vectors that lead to it), and the agent's
 * threads in a child of fork are made before any fault can be served.
 */
struct fp_libc_code {
	uintptr_t known, start, end;
};
extern struct fp_libc_code fp_libc_loader;

static inline bool fp_libc_is_loader(const void *code)
{
	return (uintptr_t)code - fp_libc_loader.start < fp_libc_loader.end - fp_libc_loader.start;
}

/* Finds the C library's code. Once, before the program has threads. */
void fp_libc_open(void);

/*
 * True if what code at this address allocates may end up in a system call of the C library's own:
 * its streams' and directories' buffers, names, messages to name servers; not the large arrays that
 * it sorts in.
 */
bool fp_libc_wants_local(const void *code, size_t size);

#endif
