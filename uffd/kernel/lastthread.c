/* See lastthread.h. */
#include "lastthread.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "thread.h"

#define LOOK_NS (200 * FP_NSEC_PER_MSEC)

/*
 * The n-th field of stat after the name; n counts from 1. The name itself may contain any
 * character. NULL: there are fewer fields.
 */
static const char *field(const char *stat, unsigned n)
{
	const char *p = strrchr(stat, ')');

	while (p && n--)
		p = strchr(p + 1, ' ');
	return p ? p + 1 : NULL;
}

/* All threads of the process. *ret_state: the main thread's state. 0: not known. */
static unsigned count_all(int stat_fd, char *ret_state)
{
	const char *state, *n_threads;
	char stat[1024];
	ssize_t n = stat_fd < 0 ? -1 : pread(stat_fd, stat, sizeof(stat) - 1, 0);

	if (n <= 0)
		return 0;
	stat[n] = '\0';
	/* proc_pid_stat(5): field 2 is the name, 3 the main thread's state, 20 num_threads */
	state = field(stat, 1);
	n_threads = field(stat, 18);
	if (!state || !n_threads)
		return 0;
	*ret_state = *state;
	/* this counts an ended main thread, until the last thread has ended */
	return (unsigned)strtoul(n_threads, NULL, 10);
}

/* Ours that have ended count until they are joined. */
static unsigned without_ours(unsigned all, unsigned ours)
{
	return all == 0 ? 0 : all > ours ? all - ours : 1;
}

unsigned fp_lastthread_count(int stat_fd)
{
	/* first, because a thread of ours that starts after the read must not count as one of those
	 * read */
	unsigned ours = fp_thread_count();
	char state;

	return without_ours(count_all(stat_fd, &state), ours);
}

static bool only_agent_left(struct fp_lastthread *last, int stat_fd)
{
	unsigned ours = fp_thread_count(), all; /* ours first, as above */
	char state = 0;

	all = count_all(stat_fd, &state);
	if (all == 0)
		return false;
	last->n_threads = without_ours(all, ours);
	return state == 'Z' && all == ours + 1;
}

static void *end(void *unused)
{
	sigset_t none;

	sigemptyset(&none);
	pthread_sigmask(SIG_SETMASK, &none, NULL);
	exit(0);
}

void fp_lastthread_look(struct fp_lastthread *last, int stat_fd, uint64_t now_ns)
{
	pthread_t thread;

	if (last->ended || now_ns < last->next_look_ns)
		return;
	last->next_look_ns = now_ns + LOOK_NS;
	if (only_agent_left(last, stat_fd))
		last->ended = pthread_create(&thread, NULL, end, NULL) == 0;
}
