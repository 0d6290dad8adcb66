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

struct fp_worker {
	pthread_t thread;
	int eventfd;
	pthread_mutex_t lock; /* guards all members below, and all shares and lines */
	pthread_cond_t posted;
	/*
	 * Shares with lines whose first job can run. For those in ready[1] a client waits, for
	 * those in ready[0] nobody. A share can be in both.
	 */
	STAILQ_HEAD(, fp_worker_wait) ready[2];
	bool kind; /* of the job that runs now, or ran last */
	STAILQ_HEAD(, fp_worker_job) finished;
	bool stopping;
};

static void push_ready(struct fp_worker *worker, struct fp_worker_line *line)
{
	bool kind = STAILQ_FIRST(&line->jobs)->awaited;
	struct fp_worker_wait *wait = &line->share->waits[kind];

	if (STAILQ_EMPTY(&wait->lines)) {
		STAILQ_INIT(&wait->lines);
		STAILQ_INSERT_TAIL(&worker->ready[kind], wait, entry);
	}
	STAILQ_INSERT_TAIL(&wait->lines, line, entry);
}

/*
 * Chooses the line to serve. It stays the first of its share, and its share the first of its kind,
 * until the turn ends. Work for which clients wait alternates with the rest, so memory comes back
 * even if clients never stop asking.
 */
static struct fp_worker_line *begin_turn(struct fp_worker *worker)
{
	struct fp_worker_wait *wait;

	worker->kind = !worker->kind;
	if (STAILQ_EMPTY(&worker->ready[worker->kind]))
		worker->kind = !worker->kind;
	wait = STAILQ_FIRST(&worker->ready[worker->kind]);
	return wait ? STAILQ_FIRST(&wait->lines) : NULL;
}

/* The share that was served goes to the end, behind those that came meanwhile. */
static void rotate(struct fp_worker *worker)
{
	struct fp_worker_wait *wait = STAILQ_FIRST(&worker->ready[worker->kind]);

	STAILQ_REMOVE_HEAD(&wait->lines, entry);
	STAILQ_REMOVE_HEAD(&worker->ready[worker->kind], entry);
	if (!STAILQ_EMPTY(&wait->lines))
		STAILQ_INSERT_TAIL(&worker->ready[worker->kind], wait, entry);
}

static struct fp_worker_line *next_line(struct fp_worker *worker)
{
	struct fp_worker_line *line;

	pthread_mutex_lock(&worker->lock);
	while (!(line = begin_turn(worker)) && !worker->stopping)
		pthread_cond_wait(&worker->posted, &worker->lock);
	pthread_mutex_unlock(&worker->lock);
	return line;
}

/*
 * Announces the finished job at the very end, because its owner may then free the job, its line and
 * its share.
 */
static void end_turn(struct fp_worker *worker, struct fp_worker_line *line, bool more)
{
	struct fp_worker_job *job = STAILQ_FIRST(&line->jobs);

	pthread_mutex_lock(&worker->lock);
	rotate(worker);
	if (!more)
		STAILQ_REMOVE_HEAD(&line->jobs, entry);
	if (!STAILQ_EMPTY(&line->jobs))
		push_ready(worker, line);
	if (!more)
		STAILQ_INSERT_TAIL(&worker->finished, job, entry);
	pthread_mutex_unlock(&worker->lock);
	if (!more)
		eventfd_write(worker->eventfd, 1);
}

static void *work(void *arg)
{
	struct fp_worker *worker = arg;
	struct fp_worker_line *line;

	while ((line = next_line(worker))) {
		struct fp_worker_job *job = STAILQ_FIRST(&line->jobs);

		end_turn(worker, line, job->run && job->run(job));
	}
	return NULL;
}

int fp_worker_start(struct fp_worker **ret_worker)
{
	fp_autofree struct fp_worker *worker = calloc(1, sizeof(*worker));
	int r;

	if (!worker)
		return -ENOMEM;
	for (unsigned i = 0; i < FP_ARRAY_LEN(worker->ready); i++)
		STAILQ_INIT(&worker->ready[i]);
	STAILQ_INIT(&worker->finished);
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->posted, NULL);
	worker->eventfd = eventfd(0, EFD_CLOEXEC);
	if (worker->eventfd < 0)
		return -errno;
	r = pthread_create(&worker->thread, NULL, work, worker);
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
	do {
		fp_worker_reap(worker); /* may post more jobs, which run here */
		work(worker);
	} while (!STAILQ_EMPTY(&worker->finished));
	close(worker->eventfd);
	pthread_cond_destroy(&worker->posted);
	pthread_mutex_destroy(&worker->lock);
	free(worker);
}

void fp_worker_post(struct fp_worker *worker, struct fp_worker_line *line, struct fp_worker_job *job)
{
	bool first;

	pthread_mutex_lock(&worker->lock);
	first = STAILQ_EMPTY(&line->jobs);
	if (first)
		STAILQ_INIT(&line->jobs);
	STAILQ_INSERT_TAIL(&line->jobs, job, entry);
	if (first)
		push_ready(worker, line);
	pthread_cond_signal(&worker->posted);
	pthread_mutex_unlock(&worker->lock);
}

void fp_worker_reap(struct fp_worker *worker)
{
	struct fp_worker_job *job;

	for (;;) {
		pthread_mutex_lock(&worker->lock);
		job = STAILQ_FIRST(&worker->finished);
		if (job)
			STAILQ_REMOVE_HEAD(&worker->finished, entry);
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
