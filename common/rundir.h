/*
 * The folder for statistics and sockets of one user's programs. Room: common. It counts only if it
 * belongs to this user alone: no link, owner this user, no right for others. Another user who may
 * write to it could plant links, and a program that removes our leftovers would follow them.
 */
#ifndef FP_RUNDIR_H
#define FP_RUNDIR_H

#include <stddef.h>

/*
 * Its path: $FARPAGE_RUNTIME_DIR, else /run/farpage for root, else $XDG_RUNTIME_DIR/farpage, else
 * $XDG_CACHE_HOME/farpage, else $HOME/.cache/farpage. Writes it to buf. 0; -ENOENT: none of these
 * is set; -ENAMETOOLONG.
 */
int fp_rundir_path(char *buf, size_t len);

/*
 * The same, and makes the folder (0700) and its parent if they are not there. 0 or a negative
 * errno, also as fp_rundir_openat. A path that is not ours alone is written to buf all the same,
 * for a message.
 */
int fp_rundir_make(char *buf, size_t len);

/*
 * Opens a folder of this user alone, for reading. Returns a descriptor, which the caller owns;
 * -EPERM: it is another user's, or others have rights to it; -ENOTDIR: a link or no folder; or
 * another negative errno.
 */
int fp_rundir_openat(int parent_fd, const char *name);

#endif
