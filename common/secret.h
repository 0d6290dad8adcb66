/*
 * The shared secret of a node, from a file. farpaged and its clients read it by the same rule, and
 * say the same of a file that breaks it. Room: common.
 */
#ifndef FP_SECRET_H
#define FP_SECRET_H

#include <stddef.h>

#define FP_SECRET_MIN_BYTES 16
#define FP_SECRET_MAX_BYTES 1024

/*
 * Reads the first line of the file at path. The rule: a regular file that this process may read,
 * and that users outside its owner and group may neither read nor write. Returns 0 and *ret_secret
 * (malloc'd), or an error. -EINVAL: not a regular file. -EPERM: others may read or write it.
 * -ENODATA: its first line is empty. -EMSGSIZE: that line is shorter than FP_SECRET_MIN_BYTES or
 * longer than FP_SECRET_MAX_BYTES. Otherwise the errors of open(2) and read(2); -EACCES: this
 * process may not read it.
 */
int fp_secret_read(const char *path, char **ret_secret);

/*
 * Says what is wrong with the file at path, by the error of fp_secret_read, and what to do. It does
 * not name the file at the beginning. user: who reads it ("the user farpage"). Returns buf.
 */
const char *fp_secret_explain(int error, const char *path, const char *user, char *buf, size_t len);

/* Wipes and frees; NULL is fine. */
void fp_secret_free(char *secret);

#endif
