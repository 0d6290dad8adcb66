/*
 * Tells whether pages are present and addresses mapped, as the kernel sees it. Room: uffd/kernel.
 * Uses raw system calls: if the C library's functions were called, the shim would answer as it
 * answers the program.
 */
#ifndef FP_PRESENCE_H
#define FP_PRESENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_PAGEMAP_HERE  (3ull << 62) /* bits of a page map entry: present, swapped */
#define FP_PAGEMAP_ALONE (1ull << 56) /* mapped by this process alone */

/* Reads the page map's entries of n pages from addr on (/proc/self/pagemap, proc_pid_pagemap(5)).
 * False: it can't be read. */
bool fp_presence_read(int pagemap_fd, const void *addr, uint64_t *ret_entries, unsigned n);

/* True if the page map says that nothing is there, neither in memory nor in swap. */
bool fp_presence_is_absent(int pagemap_fd, const void *addr);

/*
 * True if the page is in memory. Asks mincore, which takes a swapped page for absent. If a filter
 * of system calls refuses mincore, asks the page map, unless pagemap_fd is -1.
 */
bool fp_presence_is_here(int pagemap_fd, const void *addr);

/*
 * True if the page is in memory, and another process has mapped it, too: a child that shares it
 * copy-on-write. False also if the page map can't be read.
 */
bool fp_presence_is_shared(int pagemap_fd, const void *addr);

/* True if a part of [addr, addr + len) is not mapped. */
bool fp_presence_has_hole(const void *addr, size_t len);

#endif
