/*
 * The shared secret of a node, from a file. Room: common.
 */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"

/* What others can read is no secret, and what they can write is theirs. */
static int check_file(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	return st.st_mode & (S_IROTH | S_IWOTH) ? -EPERM : 0;
}

/* Reads up to len bytes. Returns the count, or a negative errno. Never waits for a FIFO's
 * writer. */
static ssize_t read_start(const char *path, char *buf, size_t len)
{
	fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	size_t used = 0;
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = check_file(fd);
	if (n < 0)
		return n;
	n = 1;
	while (n > 0 && used < len) {
		n = read(fd, buf + used, len - used);
		if (n < 0)
			return -errno;
		used += (size_t)n;
	}
	return (ssize_t)used;
}

static int copy_line(const char *bytes, size_t n, char **ret_secret)
{
	size_t len = 0;

	while (len < n && bytes[len] && bytes[len] != '\r' && bytes[len] != '\n')
		len++;
	if (len == 0)
		return -ENODATA;
	if (len < FP_SECRET_MIN_BYTES || len > FP_SECRET_MAX_BYTES)
		return -EMSGSIZE;
	*ret_secret = strndup(bytes, len);
	return *ret_secret ? 0 : -ENOMEM;
}

/* Does not use stdio, whose buffer would keep a copy of the secret. */
int fp_secret_read(const char *path, char **ret_secret)
{
	char bytes[FP_SECRET_MAX_BYTES + 1];
	ssize_t n = read_start(path, bytes, sizeof(bytes));
	int r = n < 0 ? (int)n : copy_line(bytes, (size_t)n, ret_secret);

	explicit_bzero(bytes, sizeof(bytes));
	return r;
}

const char *fp_secret_explain(int error, const char *path, const char *user, char *buf, size_t len)
{
	char reason[64];

	switch (error) {
	case -EINVAL:
		snprintf(buf, len, "it is not a regular file");
		break;
	case -EPERM:
		snprintf(buf, len, "other users may read or write it: chmod o-rw %s", path);
		break;
	case -EACCES:
		snprintf(
		    buf, len,
		    "%s may not read it: chown it to that user, chmod 600 it, and let that user enter its "
		    "folder",
		    user);
		break;
	case -ENODATA:
		snprintf(buf, len, "its first line, which is the secret, is empty");
		break;
	case -EMSGSIZE:
		snprintf(
		    buf, len,
		    "its first line, which is the secret, must have %d to %d bytes; make one with: openssl "
		    "rand -hex 32",
		    FP_SECRET_MIN_BYTES, FP_SECRET_MAX_BYTES);
		break;
	default:
		snprintf(buf, len, "%s", fp_strerror(error, reason, sizeof(reason)));
	}
	return buf;
}

void fp_secret_free(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}
