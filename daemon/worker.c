/*
 * The worker's thread and its queues. Room: daemon; see worker.h.
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
	struct fp_worker_line *first, **end;
};

struct fp_worker {
	pthread_t thread;
	int eventfd;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t posted;
	struct ready ready[2]; /* [1]: a client waits for their first job */
	bool turn;             /* the kind that ran last */
	struct fp_worker_job *finished, **finished_end;
	bool stopping;
};

static void push_ready(struct fp_worker *worker, struct fp_worker_line *line)
{
	struct ready *ready = &worker->ready[line->first->awaited];

	line->next = NULL;
	*ready->end = line;
	ready->end = &line->next;
}

static struct fp_worker_line *pop_ready(struct ready *ready)
{
	struct fp_worker_line *line = ready->first;

	if (!line)
		return NULL;
	ready->first = line->next;
	if (!ready->first)
		ready->end = &ready->first;
	return line;
}

/* Both kinds have their turns: where clients never stop asking, memory still comes back. */
static struct fp_worker_line *take_turn(struct fp_worker *worker)
{
	struct fp_worker_line *line;

	worker->turn = !worker->turn;
	line = pop_ready(&worker->ready[worker->turn]);
	return line ? line : pop_ready(&worker->ready[!worker->turn]);
}

static struct fp_worker_line *next_line(struct fp_worker *worker)
{
	struct fp_worker_line *line;

	pthread_mutex_lock(&worker->lock);
	while (!(line = take_turn(worker)) && !worker->stopping)
		pthread_cond_wait(&worker->posted, &worker->lock);
	pthread_mutex_unlock(&worker->lock);
	return line;
}

/* Who gets the finished job may free it, and the line with it. */
static void end_turn(struct fp_worker *worker, struct fp_worker_line *line, bool more)
{
	struct fp_worker_job *job = line->first;

	pthread_mutex_lock(&worker->lock);
	if (!more)
		line->first = job->next;
	if (line->first)
		push_ready(worker, line);
	if (!more) {
		job->next = NULL;
		*worker->finished_end = job;
		worker->finished_end = &job->next;
	}
	pthread_mutex_unlock(&worker->lock);
	if (!more)
		eventfd_write(worker->eventfd, 1);
}

static void *keep(void *arg)
{
	struct fp_worker *worker = arg;
	struct fp_worker_line *line;

	while ((line = next_line(worker)))
		end_turn(worker, line, line->first->run(line->first));
	return NULL;
}

int fp_worker_start(struct fp_worker **ret_worker)
{
	fp_autofree struct fp_worker *worker = calloc(1, sizeof(*worker));
	int r;

	if (!worker)
		return -ENOMEM;
	for (unsigned i = 0; i < FP_ARRAY_LEN(worker->ready); i++)
		worker->ready[i].end = &worker->ready[i].first;
	worker->finished_end = &worker->finished;
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->posted, NULL);
	worker->eventfd = eventfd(0, EFD_CLOEXEC);
	if (worker->eventfd < 0)
		return -errno;
	r = pthread_create(&worker->thread, NULL, keep, worker);
	if (r != 0) {
		close(worker->eventfd);
		return -r;
	}
	*ret_worker = fp_take_ptr(worker);
	return 0;
}

void fp_worker_stop(struct fp_worker *worker)
{
	if (!worker)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->stopping = true;
	pthread_cond_signal(&worker->posted);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	fp_worker_reap(worker);
	close(worker->eventfd);
	pthread_cond_destroy(&worker->posted);
	pthread_mutex_destroy(&worker->lock);
	free(worker);
}

void fp_worker_post(struct fp_worker *worker, struct fp_worker_line *line, struct fp_worker_job *job)
{
	job->next = NULL;
	pthread_mutex_lock(&worker->lock);
	if (line->first) {
		line->last = line->last->next = job;
	} else {
		line->first = line->last = job;
		push_ready(worker, line);
	}
	pthread_cond_signal(&worker->posted);
	pthread_mutex_unlock(&worker->lock);
}

void fp_worker_reap(struct fp_worker *worker)
{
	struct fp_worker_job *job;

	for (;;) {
		pthread_mutex_lock(&worker->lock);
		job = worker->finished;
		if (job)
			worker->finished = job->next;
		if (!worker->finished)
			worker->finished_end = &worker->finished;
		pthread_mutex_unlock(&worker->lock);
		if (!job)
			return;
		job->done(job);
	}
}

int fp_worker_fd(const struct fp_worker *worker)
{
	return worker->eventfd;
}
