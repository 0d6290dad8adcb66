/*
 * Notices what may hold the program's memory unseen by UFFDIO_MOVE, and then makes the agent wary.
 * Room: preload/syscalls. Three kinds:
 *   - files whose direct reads take plain references instead of pins;
 *   - devices, which may do so too, or may pin memory to read it for as long as they like;
 *   - sockets of kernel TLS, which may decrypt into memory by plain references.
 * doc/kernel.md has the table. What is received over a socket, or opened by a bare call or
 * io_uring, is not noticed.
 */
#ifndef FP_WARY_H
#define FP_WARY_H

#include <sys/socket.h>

/*
 * Looks at a descriptor that was opened, or whose flags were changed. flags: those of open(2), or
 * -1 to ask the kernel. Keeps errno. Any thread, signal handlers too.
 */
void fp_wary_look(int fd, int flags);

/* Looks at the descriptors that the program has inherited. */
void fp_wary_look_at_inherited(void);

/* Called before setsockopt. Keeps errno. */
void fp_wary_setsockopt(int level, int option, const void *value, socklen_t len);

#endif
