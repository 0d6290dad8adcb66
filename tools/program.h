/*
 * The program that `farpage run` starts: finds it as a shell would, and checks whether a preloaded
 * library would be loaded into it. Room: tools.
 */
#ifndef FP_PROGRAM_H
#define FP_PROGRAM_H

#include <stddef.h>

/*
 * Finds command (in PATH if it has no slash) and writes its path to ret_path. 0; -ENOENT: there is
 * no such file; -EACCES: the file was found, but is not executable; -ENAMETOOLONG.
 */
int fp_program_find(const char *command, char *ret_path, size_t len);

/*
 * Checks whether the dynamic loader will preload a library into the program at path. Follows "#!"
 * lines, and reads the ELF header. 0: it will, or the format is unknown. Otherwise a negative
 * errno, and error has the reason and a remedy: -ENOEXEC (statically linked, or built for another
 * machine, for another C library or with a sanitizer), -EPERM (set-user-ID and the like: the loader
 * ignores LD_PRELOAD), or an error of open(2).
 */
int fp_program_check(const char *path, char *error, size_t error_len);

#endif
