/*
 * Shards. Room: daemon; see shard.h.
 */
#include "shard.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "conn.h"

/* ---- a shard's thread ---- */

static void read_events(struct fp_shard *shard)
{
	fp_loop_read(&shard->loop, &shard->event_op, shard->event_fd, &shard->events, sizeof(shard->events));
}

/* The round itself has done what the event is for. */
static void on_event(struct fp_op *op, int res, unsigned flags)
{
	read_events(fp_container_of(op, struct fp_shard, event_op));
}

/* Links that have arrived are taken first. So the queue is empty during the rest of the round. */
static void begin_round(struct fp_loop *loop)
{
	struct fp_shard *shard = fp_container_of(loop, struct fp_shard, loop);
	struct fp_conn *conn;

	pthread_rwlock_rdlock(&shard->shards->rounds);
	while ((conn = STAILQ_FIRST(&shard->arrived))) {
		STAILQ_REMOVE_HEAD(&shard->arrived, moving);
		fp_conn_settle(conn);
	}
	if (shard->shards->stopping)
		fp_loop_stop(loop);
}

static bool end_round(struct fp_loop *loop)
{
	struct fp_shard *shard = fp_container_of(loop, struct fp_shard, loop);
	bool busy = fp_turns_round(&shard->turns, fp_conn_go_on);

	pthread_rwlock_unlock(&shard->shards->rounds);
	return busy;
}

/* Without this shard its links would hang. So the main loop ends the node. */
static void fail(struct fp_shard *shard, int r)
{
	pthread_rwlock_rdlock(&shard->shards->rounds);
	shard->status = r;
	pthread_rwlock_unlock(&shard->shards->rounds);
	eventfd_write(shard->shards->event_fd, 1);
}

static void *serve(void *arg)
{
	struct fp_shard *shard = arg;
	char name[16];
	int r;

	snprintf(name, sizeof(name), "shard-%u", shard->idx);
	pthread_setname_np(pthread_self(), name);
	shard->status = r = fp_loop_init(&shard->loop, &shard->error);
	sem_post(&shard->started);
	if (r < 0)
		return NULL;
	shard->loop.begin_round = begin_round;
	shard->loop.between_rounds = end_round;
	read_events(shard);
	r = fp_loop_run(&shard->loop);
	if (r < 0)
		fail(shard, r);
	fp_loop_done(&shard->loop);
	return NULL;
}

/* ---- starting and stopping ---- */

static int explain(struct fp_conf_error *error, int r)
{
	const char *remedy = "";
	char reason[64];

	if (r == -EMFILE)
		remedy = ": raise the limit of open files (LimitNOFILE=, ulimit -n), or choose fewer shards";
	else if (r == -EAGAIN)
		remedy = ": raise the limit of threads (TasksMax=, ulimit -u), or choose fewer shards";
	snprintf(error->text, sizeof(error->text), "a thread that serves links: %s%s",
	         fp_strerror(r, reason, sizeof(reason)), remedy);
	return r;
}

/* On failure the shard has no thread, and nothing to free. */
static int start(struct fp_shards *shards, struct fp_shard *shard, struct fp_conf_error *error)
{
	int r;

	shard->shards = shards;
	shard->event_op.done = on_event;
	STAILQ_INIT(&shard->arrived);
	STAILQ_INIT(&shard->left);
	fp_turns_init(&shard->turns);
	shard->event_fd = eventfd(0, EFD_CLOEXEC);
	if (shard->event_fd < 0)
		return explain(error, -errno);
	sem_init(&shard->started, 0, 0);
	r = -pthread_create(&shard->thread, NULL, serve, shard);
	if (r < 0) {
		explain(error, r);
	} else {
		while (sem_wait(&shard->started) < 0)
			;
		r = shard->status;
		if (r < 0) {
			pthread_join(shard->thread, NULL);
			*error = shard->error;
		}
	}
	sem_destroy(&shard->started);
	if (r < 0)
		close(shard->event_fd);
	return r;
}

/*
 * By default a reader of a lock passes waiting writers. Busy shards could then keep the main loop
 * out for ever.
 */
static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;

	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

int fp_shards_start(struct fp_shards *shards, unsigned n, struct fp_conf_error *error)
{
	int r = 0;

	*shards = (struct fp_shards){.running = true};
	init_lock(&shards->rounds);
	shards->event_fd = eventfd(0, EFD_CLOEXEC);
	if (shards->event_fd < 0)
		r = explain(error, -errno);
	for (unsigned i = 0; r == 0 && i < n; i++) {
		shards->items[i].idx = i + 1;
		r = start(shards, &shards->items[i], error);
		shards->n += r == 0;
	}
	if (r < 0)
		fp_shards_stop(shards);
	return r;
}

void fp_shards_stop(struct fp_shards *shards)
{
	if (!shards->running)
		return;
	fp_shards_hold(shards);
	shards->stopping = true;
	fp_shards_release(shards);
	for (unsigned i = 0; i < shards->n; i++) {
		eventfd_write(shards->items[i].event_fd, 1);
		pthread_join(shards->items[i].thread, NULL);
		close(shards->items[i].event_fd);
	}
	pthread_rwlock_destroy(&shards->rounds);
	fp_cleanup_close(&shards->event_fd);
	shards->n = 0;
	shards->running = false;
}

/* ---- for the main loop ---- */

static void take_back(struct fp_shard *shard)
{
	struct fp_conn *conn;

	while ((conn = STAILQ_FIRST(&shard->left))) {
		STAILQ_REMOVE_HEAD(&shard->left, moving);
		shard->n_links--;
		fp_conn_return(conn);
	}
}

void fp_shards_hold(struct fp_shards *shards)
{
	if (!shards->n)
		return;
	pthread_rwlock_wrlock(&shards->rounds);
	for (unsigned i = 0; i < shards->n; i++)
		take_back(&shards->items[i]);
}

void fp_shards_release(struct fp_shards *shards)
{
	if (shards->n)
		pthread_rwlock_unlock(&shards->rounds);
}

int fp_shards_fd(const struct fp_shards *shards)
{
	return shards->n ? shards->event_fd : -1;
}

int fp_shards_status(const struct fp_shards *shards)
{
	for (unsigned i = 0; i < shards->n; i++)
		if (shards->items[i].status < 0)
			return shards->items[i].status;
	return 0;
}

void fp_shards_move(struct fp_shards *shards, struct fp_conn *conn)
{
	struct fp_shard *least = shards->items;

	for (unsigned i = 1; i < shards->n; i++)
		if (shards->items[i].n_links < least->n_links)
			least = &shards->items[i];
	least->n_links++;
	conn->shard = least;
	STAILQ_INSERT_TAIL(&least->arrived, conn, moving);
	eventfd_write(least->event_fd, 1);
}

void fp_shards_add_counters(const struct fp_shards *shards, struct fp_counters *sum)
{
	for (unsigned i = 0; i < shards->n; i++) {
		const struct fp_counters *counters = &shards->items[i].counters;

		sum->refused += counters->refused;
		sum->reads += counters->reads;
		sum->writes += counters->writes;
		sum->read_bytes += counters->read_bytes;
		sum->written_bytes += counters->written_bytes;
		sum->denied += counters->denied;
	}
}

/* ---- for a shard ---- */

void fp_shard_give_back(struct fp_conn *conn)
{
	struct fp_shard *shard = conn->shard;

	STAILQ_INSERT_TAIL(&shard->left, conn, moving);
	eventfd_write(shard->shards->event_fd, 1);
}
