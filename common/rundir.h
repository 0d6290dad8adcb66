/*
 * The folder for statistics and sockets of one user's programs. Room: common. We use it only if it
 * belongs to this user alone: no link, owned by this user, no rights for others. Otherwise another
 * user could plant links there, and a program that removes our leftovers would follow them.
 */
#ifndef FP_RUNDIR_H
#define FP_RUNDIR_H

#include <stddef.h>

/*
 * Writes the folder's path to buf: $FARPAGE_RUNTIME_DIR, else /run/farpage for root, else
 * $XDG_RUNTIME_DIR/farpage, else $XDG_CACHE_HOME/farpage, else $HOME/.cache/farpage. Returns 0,
 * -ENOENT if none of these is set, or -ENAMETOOLONG if buf is too short.
 */
int fp_rundir_path(char *buf, size_t len);

/*
 * Does what fp_rundir_path does, and makes the folder (0700) and its parent if they are missing.
 * Returns 0, an error of fp_rundir_openat, or another negative errno. If the folder is not ours
 * alone, buf still gets its path, for a message.
 */
int fp_rundir_make(char *buf, size_t len);

/*
 * Opens a folder of this user alone, for reading. Returns a descriptor, which the caller owns;
 * -EPERM: it is another user's, or others have rights to it; -ENOTDIR: a link or no folder; or
 * another negative errno.
 */
int fp_rundir_openat(int parent_fd, const char *name);

#endif
