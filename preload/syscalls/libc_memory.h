/*
 * The C library allocates memory for system calls of its own. Those calls bypass exported names, so
 * we can't pin for them. Therefore the memory for them is local, in the modes that calls.h names.
 * Room: preload/syscalls.
 */
#ifndef FP_LIBC_MEMORY_H
#define FP_LIBC_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Where the dynamic loader's code lies. The loader's allocations are always local. They are tables
 * of thread-local data, which are needed to make a new thread. In a forked child the agent's
 * threads need these tables before any fault can be served.
 */
struct fp_libc_memory_code {
	uintptr_t known, start, end;
};
extern struct fp_libc_memory_code fp_libc_memory_loader;

static inline bool fp_libc_memory_is_loader(const void *code)
{
	return (uintptr_t)code - fp_libc_memory_loader.start <
	       fp_libc_memory_loader.end - fp_libc_memory_loader.start;
}

/* Finds the C library's code. Called once, before the program has other threads. */
void fp_libc_memory_open(void);

/*
 * True if code at this address may allocate memory that the C library then passes to a system call.
 * Such memory is buffers of streams and directories, names, and messages to name servers. False for
 * the large arrays that the C library allocates to sort.
 */
bool fp_libc_memory_wants_local(const void *code, size_t size);

#endif
