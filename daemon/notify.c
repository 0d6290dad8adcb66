/*
 * Telling systemd. Room: daemon; see notify.h. sd_notify would wait for a reader whose queue is
 * full.
 */
#include "notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cleanup.h"

#define STATUS "STATUS="

/* Connected, the socket says by itself when its reader has room again. */
void fp_notify_open(struct fp_notify *notify, struct fp_loop *loop)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t len = path ? strlen(path) : 0;
	fp_autoclose int fd = -1;

	*notify = (struct fp_notify){.loop = loop, .fd = -1};
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
	if (notify->fd >= 0)
		close(fp_take_fd(notify->fd));
}

static void send_first(struct fp_notify *notify);

static void on_sent(struct fp_op *op, int res, unsigned flags)
{
	struct fp_notify *notify = fp_container_of(op, struct fp_notify, op);

	notify->sending = false;
	notify->first = (notify->first + 1) % FP_NOTIFY_TEXTS;
	notify->n--;
	if (notify->n)
		send_first(notify);
}

static void send_first(struct fp_notify *notify)
{
	const char *text = notify->texts[notify->first];
	struct io_uring_sqe *sqe = fp_loop_sqe(notify->loop);

	notify->op.done = on_sent;
	notify->sending = true;
	io_uring_prep_send(sqe, notify->fd, text, strlen(text), MSG_NOSIGNAL);
	fp_loop_sqe_set(sqe, &notify->op);
}

static char *nth(struct fp_notify *notify, unsigned i)
{
	return notify->texts[(notify->first + i) % FP_NOTIFY_TEXTS];
}

static bool is_status(const char *text)
{
	return strncmp(text, STATUS, strlen(STATUS)) == 0;
}

void fp_notify(struct fp_notify *notify, const char *format, ...)
{
	va_list args;

	if (notify->fd < 0)
		return;
	if (notify->n > 1 && is_status(nth(notify, notify->n - 1)) && is_status(format))
		notify->n--;
	if (notify->n == FP_NOTIFY_TEXTS)
		return;
	va_start(args, format);
	vsnprintf(nth(notify, notify->n++), FP_NOTIFY_BYTES, format, args);
	va_end(args);
	if (!notify->sending)
		send_first(notify);
}
