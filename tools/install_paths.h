/*
 * Paths of the other parts of Farpage. They lie beside this executable, in a build tree or an
 * installation. Room: tools.
 */
#ifndef FP_INSTALL_PATHS_H
#define FP_INSTALL_PATHS_H

#include <stddef.h>

/*
 * Finds the preload library: $FARPAGE_PRELOAD, else the one beside this executable. 0 and ret_path,
 * or -ENOENT.
 */
int fp_install_paths_preload(char *ret_path, size_t len);

/*
 * Finds the memory node's program: $FARPAGE_DAEMON, else the one beside this executable. 0 and
 * ret_path, or -ENOENT.
 */
int fp_install_paths_daemon(char *ret_path, size_t len);

#endif
