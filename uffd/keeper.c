/* See keeper.h. */
#include "keeper.h"

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

struct fp_keeper {
	struct fp_keeper_options options;
	struct fp_nodewatch watch;
	pthread_mutex_t turn;      /* held while the store is tended, and from pause to resume */
	_Atomic unsigned n_asking; /* threads that want the turn: a mutex alone need not be fair */
	int wake_fd;
	_Atomic bool stopping;
	struct fp_thread thread;
};

static void pause_briefly(void)
{
	usleep(POLL_US);
}

static void wait_for_work(const struct fp_keeper *keeper, uint64_t sleep_ns)
{
	struct pollfd fds[] = {{.fd = keeper->wake_fd, .events = POLLIN},
	                       {.fd = fp_store_tend_fd(keeper->options.store), .events = POLLIN}};
	struct timespec ts = {.tv_sec = (time_t)(sleep_ns / FP_NSEC_PER_SEC),
	                      .tv_nsec = (long)(sleep_ns % FP_NSEC_PER_SEC)};

	ppoll(fds, FP_ARRAY_LEN(fds), &ts, NULL);
}

static void *run(void *arg)
{
	struct fp_keeper *keeper = arg;
	struct fp_keeper_options *o = &keeper->options;

	if (o->enter_local)
		o->enter_local();
	while (!atomic_load(&keeper->stopping)) {
		uint64_t sleep_ns;

		pthread_mutex_lock(&keeper->turn);
		sleep_ns = fp_store_tend(o->store);
		fp_nodewatch_look(&keeper->watch, o->store);
		pthread_mutex_unlock(&keeper->turn);
		if (atomic_load(&keeper->n_asking))
			pause_briefly();
		else
			wait_for_work(keeper, sleep_ns);
	}
	if (o->leave_local)
		o->leave_local();
	return NULL;
}

/* ---- fork ---- */

void fp_keeper_pause(struct fp_keeper *keeper)
{
	if (!keeper)
		return;
	atomic_fetch_add(&keeper->n_asking, 1);
	pthread_mutex_lock(&keeper->turn);
	atomic_fetch_sub(&keeper->n_asking, 1);
}

void fp_keeper_resume(struct fp_keeper *keeper)
{
	if (keeper)
		pthread_mutex_unlock(&keeper->turn);
}

/* ---- life ---- */

static void keeper_free(struct fp_keeper *keeper)
{
	fp_fd_close(keeper->wake_fd);
	fp_lockedmem_free(keeper, sizeof(*keeper));
}

int fp_keeper_start(const struct fp_keeper_options *options, struct fp_keeper **ret_keeper)
{
	struct fp_keeper *keeper = fp_lockedmem_new(sizeof(*keeper));
	int r;

	if (!keeper)
		return -ENOMEM;
	keeper->options = *options;
	pthread_mutex_init(&keeper->turn, NULL);
	keeper->wake_fd = FP_FD_OPEN(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	r = keeper->wake_fd < 0 ? -errno : fp_thread_start(&keeper->thread, "farpage-keeper", run, keeper);
	if (r < 0) {
		keeper_free(keeper);
		return r;
	}
	*ret_keeper = keeper;
	return 0;
}

void fp_keeper_stop(struct fp_keeper *keeper)
{
	if (!keeper)
		return;
	atomic_store(&keeper->stopping, true);
	eventfd_write(keeper->wake_fd, 1);
	fp_thread_join(&keeper->thread);
	pthread_mutex_destroy(&keeper->turn);
	keeper_free(keeper);
}

void fp_keeper_abandon(struct fp_keeper *keeper)
{
	if (!keeper)
		return;
	fp_thread_abandon(&keeper->thread);
	keeper_free(keeper);
}

int fp_keeper_fd(const struct fp_keeper *keeper)
{
	return keeper ? keeper->wake_fd : -1;
}
