/*
 * Memory that the C library allocates for its own system calls. Those calls pass through no
 * exported names, so this memory is local. Room: preload/syscalls. calls.h says in which modes.
 */
#ifndef FP_LIBC_H
#define FP_LIBC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The dynamic loader's code. What it allocates is always local. Every new thread is made from it:
 * the modules with thread-local data, and the vectors that lead to it. After a fork, the child
 * makes the agent's threads before any fault can be served.
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
 * True if code at this address may pass what it allocates to a system call of the C library's own:
 * buffers of streams and directories, names, messages to name servers. False for the large arrays
 * that it sorts in.
 */
bool fp_libc_wants_local(const void *code, size_t size);

#endif
