/*
 * Files of /proc and /sys, each of which holds one short text. Room: tools/bench.
 */
#ifndef FP_SYSFILE_H
#define FP_SYSFILE_H

#include <stddef.h>

/* Writes text by a single write(2). 0 or a negative errno. */
int fp_sysfile_write(const char *path, const char *text);

/* Reads the beginning of a file as a string. 0 and ret_text, or a negative errno. */
int fp_sysfile_read(const char *path, char *ret_text, size_t len);

#endif
