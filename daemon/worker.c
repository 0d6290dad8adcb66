/*
 * The keeper's thread and its queues. Room: daemon; see keeper.h.
 */
#include "worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"

/* Lines whose first job can run. */
struct ready {
	struct fp_call_args_line *first, **end;
};

struct fp_worker {
	pthread_t thread;
	int eventfd;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t posted;
	struct ready ready[2]; /* [1]: a client waits for their first job */
	bool turn;             /* the kind that ran last */
	struct fp_call_args *finished, **finished_end;
	bool stopping;
};

static void push_ready(struct fp_worker *keeper, struct fp_call_args_line *line)
{
	struct ready *ready = &keeper->ready[line->first->awaited];

	line->next = NULL;
	*ready->end = line;
	ready->end = &line->next;
}

static struct fp_call_args_line *pop_ready(struct ready *ready)
{
	struct fp_call_args_line *line = ready->first;

	if (!line)
		return NULL;
	ready->first = line->next;
	if (!ready->first)
		ready->end = &ready->first;
	return line;
}

/* Both kinds have their turns: where clients never stop asking, memory still comes back. */
static struct fp_call_args_line *take_turn(struct fp_worker *keeper)
{
	struct fp_call_args_line *line;

	keeper->turn = !keeper->turn;
	line = pop_ready(&keeper->ready[keeper->turn]);
	return line ? line : pop_ready(&keeper->ready[!keeper->turn]);
}

static struct fp_call_args_line *next_line(struct fp_worker *keeper)
{
	struct fp_call_args_line *line;

	pthread_mutex_lock(&keeper->lock);
	while (!(line = take_turn(keeper)) && !keeper->stopping)
		pthread_cond_wait(&keeper->posted, &keeper->lock);
	pthread_mutex_unlock(&keeper->lock);
	return line;
}

/* Who gets the finished job may free it, and the line with it. */
static void end_turn(struct fp_worker *keeper, struct fp_call_args_line *line, bool more)
{
	struct fp_call_args *job = line->first;

	pthread_mutex_lock(&keeper->lock);
	if (!more)
		line->first = job->next;
	if (line->first)
		push_ready(keeper, line);
	if (!more) {
		job->next = NULL;
		*keeper->finished_end = job;
		keeper->finished_end = &job->next;
	}
	pthread_mutex_unlock(&keeper->lock);
	if (!more)
		eventfd_write(keeper->eventfd, 1);
}

static void *keep(void *arg)
{
	struct fp_worker *keeper = arg;
	struct fp_call_args_line *line;

	while ((line = next_line(keeper)))
		end_turn(keeper, line, line->first->run(line->first));
	return NULL;
}

int fp_worker_start(struct fp_worker **ret_keeper)
{
	fp_autofree struct fp_worker *keeper = calloc(1, sizeof(*keeper));
	int r;

	if (!keeper)
		return -ENOMEM;
	for (unsigned i = 0; i < FP_ARRAY_LEN(keeper->ready); i++)
		keeper->ready[i].end = &keeper->ready[i].first;
	keeper->finished_end = &keeper->finished;
	pthread_mutex_init(&keeper->lock, NULL);
	pthread_cond_init(&keeper->posted, NULL);
	keeper->eventfd = eventfd(0, EFD_CLOEXEC);
	if (keeper->eventfd < 0)
		return -errno;
	r = pthread_create(&keeper->thread, NULL, keep, keeper);
	if (r != 0) {
		close(keeper->eventfd);
		return -r;
	}
	*ret_keeper = fp_take_ptr(keeper);
	return 0;
}

void fp_worker_stop(struct fp_worker *keeper)
{
	if (!keeper)
		return;
	pthread_mutex_lock(&keeper->lock);
	keeper->stopping = true;
	pthread_cond_signal(&keeper->posted);
	pthread_mutex_unlock(&keeper->lock);
	pthread_join(keeper->thread, NULL);
	fp_worker_reap(keeper);
	close(keeper->eventfd);
	pthread_cond_destroy(&keeper->posted);
	pthread_mutex_destroy(&keeper->lock);
	free(keeper);
}

void fp_worker_post(struct fp_worker *keeper, struct fp_call_args_line *line, struct fp_call_args *job)
{
	job->next = NULL;
	pthread_mutex_lock(&keeper->lock);
	if (line->first) {
		line->last = line->last->next = job;
	} else {
		line->first = line->last = job;
		push_ready(keeper, line);
	}
	pthread_cond_signal(&keeper->posted);
	pthread_mutex_unlock(&keeper->lock);
}

void fp_worker_reap(struct fp_worker *keeper)
{
	struct fp_call_args *job;

	for (;;) {
		pthread_mutex_lock(&keeper->lock);
		job = keeper->finished;
		if (job)
			keeper->finished = job->next;
		if (!keeper->finished)
			keeper->finished_end = &keeper->finished;
		pthread_mutex_unlock(&keeper->lock);
		if (!job)
			return;
		job->done(job);
	}
}

int fp_worker_fd(const struct fp_worker *keeper)
{
	return keeper->eventfd;
}
