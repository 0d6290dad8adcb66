/*
 * The thread that writes the log. Room: daemon; see logwriter.h.
 *
 * A full pipe, a stopped terminal or a hung file system may hold the thread for ever. So nobody
 * waits for it, and it holds no lock while it writes. Nor can stderr be made non-blocking: other
 * processes share its file.
 */
#include "logwriter.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"

#define MAX_LINES      128u
#define LINES_A_SECOND 50u
#define MAX_TOPICS     12u /* subsystems; those beyond share the last */

struct line {
	size_t len;
	char text[FP_LOG_LINE_BYTES];
};

/* What one subsystem has said in the second that began at since_ns. */
struct topic {
	const char *subsystem;
	uint64_t since_ns;
	unsigned n;
	uint64_t left_out;
};

static struct {
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	pthread_t thread;
	bool started, stopping;
	struct topic topics[MAX_TOPICS];
	struct line lines[MAX_LINES]; /* a ring: the first is being written */
	unsigned first, n;
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct topic *find_topic(const char *subsystem)
{
	struct topic *topic = writer.topics;

	while (topic->subsystem && strcmp(topic->subsystem, subsystem) != 0 &&
	       topic < writer.topics + MAX_TOPICS - 1)
		topic++;
	topic->subsystem = subsystem;
	return topic;
}

static bool is_over(const struct topic *topic, uint64_t now_ns)
{
	return now_ns - topic->since_ns >= FP_NSEC_PER_SEC;
}

/* Called by fp_log on any thread. The writer's own lines, on what was left out, it writes
 * itself. */
static bool take(const char *subsystem, const char *line, size_t len)
{
	uint64_t now_ns = fp_clock_ns();
	struct topic *topic;

	if (pthread_equal(pthread_self(), writer.thread))
		return false;
	pthread_mutex_lock(&writer.lock);
	topic = find_topic(subsystem);
	if (is_over(topic, now_ns)) {
		topic->since_ns = now_ns;
		topic->n = 0;
	}
	if (topic->n++ >= LINES_A_SECOND || writer.n == MAX_LINES) {
		topic->left_out++;
	} else {
		struct line *next = &writer.lines[(writer.first + writer.n++) % MAX_LINES];

		memcpy(next->text, line, len);
		next->len = len;
	}
	pthread_cond_broadcast(&writer.changed);
	pthread_mutex_unlock(&writer.lock);
	return true;
}

/* Returns false if some subsystem's second is not over yet. The lock is let go of meanwhile. */
static bool tell_left_out(void)
{
	bool all = true;

	for (struct topic *topic = writer.topics; topic < writer.topics + MAX_TOPICS; topic++) {
		unsigned long long left_out = topic->left_out;

		if (!left_out)
			continue;
		if (!writer.stopping && !is_over(topic, fp_clock_ns())) {
			all = false;
			continue;
		}
		topic->left_out = 0;
		pthread_mutex_unlock(&writer.lock);
		fp_log(FP_LOG_WARNING, topic->subsystem, "%llu lines were left out here: too many at once",
		       left_out);
		pthread_mutex_lock(&writer.lock);
	}
	return all;
}

static void write_first(void)
{
	const struct line *line = &writer.lines[writer.first];

	pthread_mutex_unlock(&writer.lock);
	fp_log_write(line->text, line->len);
	pthread_mutex_lock(&writer.lock);
	writer.first = (writer.first + 1) % MAX_LINES;
	writer.n--;
	pthread_cond_broadcast(&writer.changed);
}

static void wait_until(uint64_t when_ns)
{
	const struct timespec when = {.tv_sec = (time_t)(when_ns / FP_NSEC_PER_SEC),
	                              .tv_nsec = (long)(when_ns % FP_NSEC_PER_SEC)};

	pthread_cond_clockwait(&writer.changed, &writer.lock, CLOCK_MONOTONIC, &when);
}

static void *write_all(void *arg)
{
	pthread_mutex_lock(&writer.lock);
	for (;;) {
		bool told = tell_left_out();

		if (writer.n)
			write_first();
		else if (writer.stopping)
			break;
		else if (told)
			pthread_cond_wait(&writer.changed, &writer.lock);
		else
			wait_until(fp_clock_ns() + FP_NSEC_PER_SEC);
	}
	writer.started = false;
	pthread_cond_broadcast(&writer.changed);
	pthread_mutex_unlock(&writer.lock);
	return NULL;
}

int fp_logwriter_start(void)
{
	int r = pthread_create(&writer.thread, NULL, write_all, NULL);

	if (r != 0)
		return -r;
	writer.started = true;
	fp_log_divert(take);
	return 0;
}

void fp_logwriter_stop(void)
{
	uint64_t until_ns = fp_clock_ns() + FP_NSEC_PER_SEC;

	pthread_mutex_lock(&writer.lock);
	writer.stopping = true;
	pthread_cond_broadcast(&writer.changed);
	while (writer.started && fp_clock_ns() < until_ns)
		wait_until(until_ns);
	pthread_mutex_unlock(&writer.lock);
}
