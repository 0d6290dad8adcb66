/*
 * The program that `farpage run` starts: finds it as a shell would, and tells whether a preloaded
 * library reaches it at all. Room: tools.
 */
#ifndef FP_PROGRAM_H
#define FP_PROGRAM_H

#include <stddef.h>

/*
 * Finds command (in PATH if it has no slash) and writes its path to ret_path. 0; -ENOENT; -EACCES
 * (found, but not executable); -ENAMETOOLONG.
 */
int fp_program_find(const char *command, char *ret_path, size_t len);

/*
 * Tells whether the dynamic loader will preload a library into the program at path: follows "#!"
 * lines, reads the ELF header. 0, also for unknown formats; else a negative errno, and error has
 * the reason and a remedy: -ENOEXEC (statically linked, or built for another machine), -EPERM
 * (set-user-ID and the like: the loader ignores LD_PRELOAD), or those of open(2).
 */
int fp_program_check(const char *path, char *error, size_t error_len);

#endif
