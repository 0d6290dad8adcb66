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
	pthread_mutex_t lock; /* guards all members below */
	pthread_cond_t posted;
	/*
	 * Lines whose first job can run. The lines in ready[1] are those for whose first job a
	 * client waits; all others are in ready[0].
	 */
	STAILQ_HEAD(, fp_worker_line) ready[2];
	bool turn; /* the kind of line that ran last */
	STAILQ_HEAD(, fp_worker_job) finished;
	bool stopping;
};

static void push_ready(struct fp_worker *worker, struct fp_worker_line *line)
{
	STAILQ_INSERT_TAIL(&worker->ready[STAILQ_FIRST(&line->jobs)->awaited], line, entry);
}

/*
 * Takes the next line to serve. Lines for which clients wait alternate with the others, so memory
 * comes back even if clients never stop asking.
 */
static struct fp_worker_line *take_turn(struct fp_worker *worker)
{
	struct fp_worker_line *line;
	bool kind = !worker->turn;

	worker->turn = kind;
	if (STAILQ_EMPTY(&worker->ready[kind]))
		kind = !kind;
	line = STAILQ_FIRST(&worker->ready[kind]);
	if (line)
		STAILQ_REMOVE_HEAD(&worker->ready[kind], entry);
	return line;
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

/*
 * Announces the finished job at the very end, because its owner may then free the job and its line.
 */
static void end_turn(struct fp_worker *worker, struct fp_worker_line *line, bool more)
{
	struct fp_worker_job *job = STAILQ_FIRST(&line->jobs);

	pthread_mutex_lock(&worker->lock);
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
