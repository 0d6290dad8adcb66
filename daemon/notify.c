/*
 * Telling systemd. Room: daemon; see notify.h. It does not use sd_notify, which would wait for ever
 * if the queue is full.
 */
#include "notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cleanup.h"

#define STATUS "STATUS="

void fp_notify_open(struct fp_notify *notify)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t len = path ? strlen(path) : 0;
	fp_autoclose int fd = -1;

	*notify = (struct fp_notify){.fd = -1};
	if (len < 2 || len >= sizeof(sun.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(sun.sun_path, path, len);
	if (path[0] == '@')
		sun.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&sun,
	                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) == 0)
		notify->fd = fp_take_fd(fd);
}

void fp_notify_close(struct fp_notify *notify)
{
	fp_notify_flush(notify);
	fp_cleanup_close(&notify->fd);
}

/* False: the reader's queue is full. Any other error means that nobody listens any more. */
static bool send_text(const struct fp_notify *notify, const char *text)
{
	return send(notify->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0 ||
	       (errno != EAGAIN && errno != ENOBUFS);
}

static void drop_first(struct fp_notify *notify)
{
	notify->n--;
	memmove(notify->waiting[0], notify->waiting[1], notify->n * sizeof(notify->waiting[0]));
}

bool fp_notify_flush(struct fp_notify *notify)
{
	while (notify->n && send_text(notify, notify->waiting[0]))
		drop_first(notify);
	return notify->n;
}

void fp_notify(struct fp_notify *notify, const char *format, ...)
{
	char text[FP_NOTIFY_BYTES];
	va_list args;

	if (notify->fd < 0)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if ((!fp_notify_flush(notify) && send_text(notify, text)) ||
	    strncmp(text, STATUS, strlen(STATUS)) == 0)
		return;
	if (notify->n == FP_NOTIFY_WAITING)
		drop_first(notify);
	memcpy(notify->waiting[notify->n++], text, sizeof(text));
}
