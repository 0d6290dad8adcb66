/*
 * The shared secret of a node, from a file. Room: common.
 */
#ifndef FP_SECRET_H
#define FP_SECRET_H

#define FP_SECRET_MAX_BYTES 1024

/*
 * Reads the first line of the file at path. Returns 0 and *ret_secret (malloc'd), -ENODATA if the
 * line is empty, -EMSGSIZE if it is longer than FP_SECRET_MAX_BYTES, or the errors of open(2) and
 * read(2).
 */
int fp_secret_read(const char *path, char **ret_secret);

/* Wipes and frees; NULL is fine. */
void fp_secret_free(char *secret);

#endif
