/*
 * Telling systemd. Room: daemon; see notify.h. It does not use sd_notify, which would wait for ever
 * if the queue is full.
 */
#include "notify.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "cleanup.h"

#define TEXT_BYTES 192u
#define STATUS     "STATUS="

int fp_notify_open(void)
{
	const struct timeval patience = {.tv_usec = 500000};
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t len = path ? strlen(path) : 0;
	fp_autoclose int fd = -1;

	if (len < 2 || len >= sizeof(sun.sun_path) || (path[0] != '/' && path[0] != '@'))
		return -1;
	memcpy(sun.sun_path, path, len);
	if (path[0] == '@')
		sun.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 ||
	    connect(fd, (const struct sockaddr *)&sun,
	            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
		return -1;
	return fp_take_fd(fd);
}

void fp_notify(int fd, const char *format, ...)
{
	bool is_status = strncmp(format, STATUS, strlen(STATUS)) == 0;
	char text[TEXT_BYTES];
	va_list args;

	if (fd < 0)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	(void)send(fd, text, strlen(text), MSG_NOSIGNAL | (is_status ? MSG_DONTWAIT : 0));
}
