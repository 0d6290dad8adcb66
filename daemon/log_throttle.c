/*
 * The throttle of the log. Room: daemon; see log_throttle.h.
 *
 * Other processes may share the open file of stderr, so we can't make it non-blocking. Instead we
 * open a pipe or a terminal once more, for us alone. A socket can't be opened again. There we ask
 * poll(2) whether a line fits. The answer is wrong only if another process fills the socket in the
 * same instant.
 */
#include "log_throttle.h"
#include "units.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"

#define LINES_A_SECOND 50u
#define MAX_TOPICS     12u /* subsystems; all further ones share the last topic */

/*
 * How much one subsystem has logged since the time since_ns. After a second the count begins anew.
 */
struct topic {
	const char *subsystem;
	uint64_t since_ns;
	unsigned n;
	unsigned long long left_out;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards topics */
static struct topic topics[MAX_TOPICS];
static _Thread_local bool telling; /* this thread has the lock, and logs a line of the throttle itself */

static bool takes_line(void)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};

	return poll(&fd, 1, 0) == 1 && (fd.revents & (POLLOUT | POLLERR)) == POLLOUT;
}

static struct topic *find_topic(const char *subsystem)
{
	struct topic *topic = topics;

	while (topic->subsystem && strcmp(topic->subsystem, subsystem) != 0 &&
	       topic < topics + MAX_TOPICS - 1)
		topic++;
	topic->subsystem = subsystem;
	return topic;
}

static void tell_left_out(struct topic *topic)
{
	if (!topic->left_out || !takes_line())
		return;
	telling = true;
	fp_log(FP_LOG_WARNING, topic->subsystem, "left out here: %llu line%s, too many at once",
	       topic->left_out, fp_plural(topic->left_out));
	telling = false;
	topic->left_out = 0;
}

/* Called by fp_log on any thread. False: fp_log writes the line. */
static bool leave_out(const char *subsystem, const char *line, size_t len)
{
	struct topic *topic;
	bool left_out;

	if (telling)
		return false;
	pthread_mutex_lock(&lock);
	topic = find_topic(subsystem);
	if (fp_clock_ns() - topic->since_ns >= FP_NSEC_PER_SEC) {
		tell_left_out(topic);
		topic->since_ns = fp_clock_ns();
		topic->n = 0;
	}
	left_out = topic->n++ >= LINES_A_SECOND || !takes_line();
	topic->left_out += left_out;
	pthread_mutex_unlock(&lock);
	return left_out;
}

static void open_stderr_anew(void)
{
	fp_autoclose int fd = -1;
	struct stat st;

	if (fstat(STDERR_FILENO, &st) < 0 || (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode)))
		return;
	fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd >= 0)
		(void)dup2(fd, STDERR_FILENO);
}

void fp_log_throttle_start(void)
{
	open_stderr_anew();
	fp_log_divert(leave_out);
}

void fp_log_throttle_stop(void)
{
	fp_log_divert(NULL);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < MAX_TOPICS; i++)
		tell_left_out(&topics[i]);
	pthread_mutex_unlock(&lock);
}
