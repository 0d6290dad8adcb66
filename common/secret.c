/*
 * The shared secret of a node, from a file. Room: common.
 */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

/* Reads up to len bytes. Returns the count, or a negative errno. */
static ssize_t read_start(const char *path, char *buf, size_t len)
{
	fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t n = 1;

	if (fd < 0)
		return -errno;
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
	if (len > FP_SECRET_MAX_BYTES)
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

void fp_secret_free(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}
