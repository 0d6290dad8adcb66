/*
 * The keeper's thread and its two queues. Room: daemon; see keeper.h.
 */
#include "keeper.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"

struct queue {
	struct fp_job *first, **end;
};

struct fp_keeper {
	pthread_t thread;
	int eventfd;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t posted;
	struct queue todo, finished;
	bool stopping;
};

static void queue_init(struct queue *queue)
{
	queue->first = NULL;
	queue->end = &queue->first;
}

static void queue_push(struct queue *queue, struct fp_job *job)
{
	job->next = NULL;
	*queue->end = job;
	queue->end = &job->next;
}

static struct fp_job *queue_pop(struct queue *queue)
{
	struct fp_job *job = queue->first;

	if (!job)
		return NULL;
	queue->first = job->next;
	if (!queue->first)
		queue->end = &queue->first;
	return job;
}

static struct fp_job *next_job(struct fp_keeper *keeper)
{
	struct fp_job *job;

	pthread_mutex_lock(&keeper->lock);
	while (!(job = queue_pop(&keeper->todo)) && !keeper->stopping)
		pthread_cond_wait(&keeper->posted, &keeper->lock);
	pthread_mutex_unlock(&keeper->lock);
	return job;
}

static void finish(struct fp_keeper *keeper, struct fp_job *job)
{
	pthread_mutex_lock(&keeper->lock);
	queue_push(&keeper->finished, job);
	pthread_mutex_unlock(&keeper->lock);
	eventfd_write(keeper->eventfd, 1);
}

static void *keep(void *arg)
{
	struct fp_keeper *keeper = arg;
	struct fp_job *job;

	while ((job = next_job(keeper))) {
		job->run(job);
		finish(keeper, job);
	}
	return NULL;
}

int fp_keeper_start(struct fp_keeper **ret_keeper)
{
	fp_autofree struct fp_keeper *keeper = calloc(1, sizeof(*keeper));
	int r;

	if (!keeper)
		return -ENOMEM;
	queue_init(&keeper->todo);
	queue_init(&keeper->finished);
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

void fp_keeper_stop(struct fp_keeper *keeper)
{
	if (!keeper)
		return;
	pthread_mutex_lock(&keeper->lock);
	keeper->stopping = true;
	pthread_cond_signal(&keeper->posted);
	pthread_mutex_unlock(&keeper->lock);
	pthread_join(keeper->thread, NULL);
	fp_keeper_reap(keeper);
	close(keeper->eventfd);
	pthread_cond_destroy(&keeper->posted);
	pthread_mutex_destroy(&keeper->lock);
	free(keeper);
}

void fp_keeper_post(struct fp_keeper *keeper, struct fp_job *job)
{
	pthread_mutex_lock(&keeper->lock);
	queue_push(&keeper->todo, job);
	pthread_cond_signal(&keeper->posted);
	pthread_mutex_unlock(&keeper->lock);
}

void fp_keeper_reap(struct fp_keeper *keeper)
{
	struct fp_job *job;

	for (;;) {
		pthread_mutex_lock(&keeper->lock);
		job = queue_pop(&keeper->finished);
		pthread_mutex_unlock(&keeper->lock);
		if (!job)
			return;
		job->done(job);
	}
}

int fp_keeper_fd(const struct fp_keeper *keeper)
{
	return keeper->eventfd;
}
