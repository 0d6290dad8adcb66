/* See stderr.h. */
#include "stderr.h"

#include <poll.h>
#include <unistd.h>

#define PATIENCE_MS 100

bool fp_stderr_takes_text(void)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&fd, 1, PATIENCE_MS) == 1 && (fd.revents & POLLOUT);
}
