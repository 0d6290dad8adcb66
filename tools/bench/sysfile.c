/*
 * Files of /proc and /sys. Room: tools/bench.
 */
#include "sysfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

int fp_sysfile_write(const char *path, const char *text)
{
	fp_autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);

	return fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

int fp_sysfile_read(const char *path, char *ret_text, size_t len)
{
	fp_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret_text, len - 1);

	if (n < 0)
		return -errno;
	ret_text[n] = '\0';
	return 0;
}
