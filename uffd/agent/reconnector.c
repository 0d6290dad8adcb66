/* See reconnector.h. */
#include "reconnector.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "lockedmem.h"
#include "node_notice.h"
#include "thread.h"

#define POLL_US 200

/* The thread of one node. */
struct node_thread {
	struct fp_reconnector *reconnector;
	unsigned node;
	struct fp_node_said said;
	pthread_mutex_t turn; /* held while the thread works on its node; a pause holds it until resume */
	struct fp_thread thread;
};

struct fp_reconnector {
	struct fp_reconnector_options options;
	/*
	 * how many threads want all turns; while there are any, the node threads take no turn,
	 * because a mutex is not fair
	 */
	_Atomic unsigned n_asking;
	_Atomic bool stopping;
	unsigned n_threads;
	struct node_thread threads[FP_STORE_MAX_NODES];
};

static void pause_briefly(void)
{
	usleep(POLL_US);
}

static void wait_for_work(const struct node_thread *thread, uint64_t sleep_ns)
{
	const struct fp_reconnector *reconnector = thread->reconnector;

	if (!atomic_load(&reconnector->stopping))
		fp_store_await_work(reconnector->options.store, thread->node, sleep_ns);
}

static void *run(void *arg)
{
	struct node_thread *thread = arg;
	struct fp_reconnector *reconnector = thread->reconnector;
	struct fp_reconnector_options *o = &reconnector->options;

	if (o->enter_local)
		o->enter_local();
	while (!atomic_load(&reconnector->stopping)) {
		uint64_t sleep_ns;

		if (atomic_load(&reconnector->n_asking)) { /* a pause may wait for another node's turn */
			pause_briefly();
			continue;
		}
		if (!o->keeps_names)
			fp_store_refresh_names(o->store,
			                       thread->node); /* not in a turn: forks wait for turns */
		pthread_mutex_lock(&thread->turn);
		sleep_ns = fp_store_reconnect(o->store, thread->node);
		fp_node_notice_look(&thread->said, o->store, thread->node);
		pthread_mutex_unlock(&thread->turn);
		wait_for_work(thread, sleep_ns);
	}
	if (o->leave_local)
		o->leave_local();
	return NULL;
}

/* ---- fork ---- */

void fp_reconnector_pause(struct fp_reconnector *reconnector)
{
	if (!reconnector)
		return;
	atomic_fetch_add(&reconnector->n_asking, 1);
	for (unsigned i = 0; i < reconnector->n_threads; i++)
		pthread_mutex_lock(&reconnector->threads[i].turn);
	atomic_fetch_sub(&reconnector->n_asking, 1);
}

void fp_reconnector_resume(struct fp_reconnector *reconnector)
{
	for (unsigned i = 0; reconnector && i < reconnector->n_threads; i++)
		pthread_mutex_unlock(&reconnector->threads[i].turn);
}

/* ---- life ---- */

static void reconnector_free(struct fp_reconnector *reconnector)
{
	fp_lockedmem_free(reconnector, sizeof(*reconnector));
}

static int start_thread(struct fp_reconnector *reconnector, unsigned node)
{
	struct node_thread *thread = &reconnector->threads[node];
	int r;

	thread->reconnector = reconnector;
	thread->node = node;
	pthread_mutex_init(&thread->turn, NULL);
	r = fp_thread_start(&thread->thread, "farpage-reconn", run, thread);
	reconnector->n_threads += r == 0;
	return r;
}

int fp_reconnector_start(const struct fp_reconnector_options *options,
                         struct fp_reconnector **ret_reconnector)
{
	struct fp_reconnector *reconnector = fp_lockedmem_new(sizeof(*reconnector));
	int r = 0;

	if (!reconnector)
		return -ENOMEM;
	reconnector->options = *options;
	for (unsigned i = 0; i < fp_store_n_nodes(options->store) && r == 0; i++)
		r = start_thread(reconnector, i);
	if (r < 0) {
		fp_reconnector_stop(reconnector);
		return r;
	}
	*ret_reconnector = reconnector;
	return 0;
}

void fp_reconnector_stop(struct fp_reconnector *reconnector)
{
	if (!reconnector)
		return;
	atomic_store(&reconnector->stopping, true);
	for (unsigned i = 0; i < reconnector->n_threads; i++) {
		fp_store_wake_reconnect(reconnector->options.store, reconnector->threads[i].node);
		fp_thread_join(&reconnector->threads[i].thread);
		pthread_mutex_destroy(&reconnector->threads[i].turn);
	}
	reconnector_free(reconnector);
}

void fp_reconnector_abandon(struct fp_reconnector *reconnector)
{
	if (!reconnector)
		return;
	for (unsigned i = 0; i < reconnector->n_threads; i++)
		fp_thread_abandon(&reconnector->threads[i].thread);
	reconnector_free(reconnector);
}
