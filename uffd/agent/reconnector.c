/* See keeper.h. */
#include "reconnector.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fdutil.h"
#include "lockedmem.h"
#include "nodewatch.h"
#include "thread.h"

#define POLL_US 200

/* The thread of one node. */
struct tender {
	struct fp_reconnector *keeper;
	unsigned node;
	struct fp_node_said said;
	pthread_mutex_t turn; /* held while the node is tended, and from pause to resume */
	struct fp_thread thread;
};

struct fp_reconnector {
	struct fp_reconnector_options options;
	_Atomic unsigned n_asking; /* threads that want the turns: a mutex alone need not be fair */
	int wake_fd;               /* readable from the stop on */
	_Atomic bool stopping;
	unsigned n_tenders;
	struct tender tenders[FP_STORE_MAX_NODES];
};

static void pause_briefly(void)
{
	usleep(POLL_US);
}

static void wait_for_work(const struct tender *tender, uint64_t sleep_ns)
{
	const struct fp_reconnector *keeper = tender->keeper;
	struct pollfd fds[] = {
	    {.fd = keeper->wake_fd, .events = POLLIN},
	    {.fd = fp_store_tend_fd(keeper->options.store, tender->node), .events = POLLIN}};
	struct timespec ts = {.tv_sec = (time_t)(sleep_ns / FP_NSEC_PER_SEC),
	                      .tv_nsec = (long)(sleep_ns % FP_NSEC_PER_SEC)};

	ppoll(fds, FP_ARRAY_LEN(fds), &ts, NULL);
}

static void *run(void *arg)
{
	struct tender *tender = arg;
	struct fp_reconnector *keeper = tender->keeper;
	struct fp_reconnector_options *o = &keeper->options;

	if (o->enter_local)
		o->enter_local();
	while (!atomic_load(&keeper->stopping)) {
		uint64_t sleep_ns;

		if (atomic_load(&keeper->n_asking)) { /* it may wait for another node's attempt */
			pause_briefly();
			continue;
		}
		fp_store_refresh_names(o->store, tender->node); /* no fork waits for a resolver */
		pthread_mutex_lock(&tender->turn);
		sleep_ns = fp_store_tend(o->store, tender->node);
		fp_nodewatch_look(&tender->said, o->store, tender->node);
		pthread_mutex_unlock(&tender->turn);
		wait_for_work(tender, sleep_ns);
	}
	if (o->leave_local)
		o->leave_local();
	return NULL;
}

/* ---- fork ---- */

void fp_reconnector_pause(struct fp_reconnector *keeper)
{
	if (!keeper)
		return;
	atomic_fetch_add(&keeper->n_asking, 1);
	for (unsigned i = 0; i < keeper->n_tenders; i++)
		pthread_mutex_lock(&keeper->tenders[i].turn);
	atomic_fetch_sub(&keeper->n_asking, 1);
}

void fp_reconnector_resume(struct fp_reconnector *keeper)
{
	for (unsigned i = 0; keeper && i < keeper->n_tenders; i++)
		pthread_mutex_unlock(&keeper->tenders[i].turn);
}

/* ---- life ---- */

static void keeper_free(struct fp_reconnector *keeper)
{
	fp_fd_close(keeper->wake_fd);
	fp_lockedmem_free(keeper, sizeof(*keeper));
}

static int start_tender(struct fp_reconnector *keeper, unsigned node)
{
	struct tender *tender = &keeper->tenders[node];
	int r;

	tender->keeper = keeper;
	tender->node = node;
	pthread_mutex_init(&tender->turn, NULL);
	r = fp_thread_start(&tender->thread, "farpage-keeper", run, tender);
	keeper->n_tenders += r == 0;
	return r;
}

int fp_reconnector_start(const struct fp_reconnector_options *options, struct fp_reconnector **ret_keeper)
{
	struct fp_reconnector *keeper = fp_lockedmem_new(sizeof(*keeper));
	int r;

	if (!keeper)
		return -ENOMEM;
	keeper->options = *options;
	keeper->wake_fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	r = keeper->wake_fd < 0 ? -errno : 0;
	for (unsigned i = 0; i < fp_store_n_nodes(options->store) && r == 0; i++)
		r = start_tender(keeper, i);
	if (r < 0) {
		fp_reconnector_stop(keeper);
		return r;
	}
	*ret_keeper = keeper;
	return 0;
}

void fp_reconnector_stop(struct fp_reconnector *keeper)
{
	if (!keeper)
		return;
	atomic_store(&keeper->stopping, true);
	eventfd_write(keeper->wake_fd, 1);
	for (unsigned i = 0; i < keeper->n_tenders; i++) {
		fp_thread_join(&keeper->tenders[i].thread);
		pthread_mutex_destroy(&keeper->tenders[i].turn);
	}
	keeper_free(keeper);
}

void fp_reconnector_abandon(struct fp_reconnector *keeper)
{
	if (!keeper)
		return;
	for (unsigned i = 0; i < keeper->n_tenders; i++)
		fp_thread_abandon(&keeper->tenders[i].thread);
	keeper_free(keeper);
}

int fp_reconnector_fd(const struct fp_reconnector *keeper)
{
	return keeper ? keeper->wake_fd : -1;
}
