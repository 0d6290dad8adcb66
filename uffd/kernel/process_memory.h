/*
 * Reads and writes present pages for the agent, whatever their protection. Room: uffd/kernel.
 *
 * /proc/self/mem ignores protections. A child in a `chroot` without /proc can't open it. There the
 * agent uses process_vm_readv and process_vm_writev, which obey protections: a page that the
 * program can't read is refused, and stays where it is. An open descriptor of /proc would help, but
 * would also be a way out of the `chroot`.
 */
#ifndef FP_PROCESS_MEMORY_H
#define FP_PROCESS_MEMORY_H

#include <stdbool.h>

/* Checks that reading and writing works without /proc/self/mem. 0, or the kernel's error. */
int fp_process_memory_check(void);

/*
 * Copies the page at addr. False if it is absent, or can't be read. Never waits for a fault. mem_fd
 * is a descriptor of /proc/self/mem, or -1.
 */
bool fp_process_memory_read(int mem_fd, void *addr, void *ret_bytes);

/* Fills a present page with zeros in place. It must not be write-protected. False if it can't be
 * written. */
bool fp_process_memory_clear(int mem_fd, void *addr);

#endif
