/*
 * Whether pages are present, and whether addresses are mapped, as the kernel sees it. Room:
 * uffd/kernel. By raw system calls: the shim answers the C library's for the program.
 */
#ifndef FP_PRESENCE_H
#define FP_PRESENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP_PAGEMAP_HERE (3ull << 62) /* of an entry: present or swapped */

/* Reads the page map's entries (/proc/self/pagemap, proc_pid_pagemap(5)) of n pages from addr on.
 * False: it can't be read. */
bool fp_presence_read(int pagemap_fd, const void *addr, uint64_t *ret_entries, unsigned n);

/* True if the page map says that nothing is there, not even in swap. */
bool fp_presence_is_absent(int pagemap_fd, const void *addr);

/* True if the page is in memory. A filter of system calls may refuse mincore: then the page map
 * tells, if pagemap_fd is one. What lies in swap seems absent. */
bool fp_presence_is_here(int pagemap_fd, const void *addr);

/* True if a part of [addr, addr + len) is in no mapping. */
bool fp_presence_has_hole(const void *addr, size_t len);

#endif
