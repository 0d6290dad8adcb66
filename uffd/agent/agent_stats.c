/* See agent_stats.h. */
#include "agent_stats.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent_priv.h"
#include "clock.h"
#include "log.h"
#include "reclaim.h"
#include "rundir.h"

#define COPY_NS  (100 * FP_NSEC_PER_MSEC)
#define POLL_US  50
#define OWN_NAME "/%p" FP_STATSPAGE_SUFFIX

static bool exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

/*
 * The page with our process number may belong to another far memory of this process, or to a
 * process of another pid namespace. Then we try the next number. In the folder of a run, we replace
 * no page at all: that of the program which called exec may not be counted yet.
 */
static int create(const char *pattern, bool in_run, char *path, struct fp_statspage **ret_page)
{
	pid_t number = getpid();
	int r;

	do {
		r = fp_statspage_expand(pattern, number++, path, FP_AGENT_STATS_PATH_LEN);
		if (r == 0)
			r = in_run && exists(path)
			        ? -EBUSY
			        : fp_statspage_create(path, strstr(pattern, "%p"), ret_page);
	} while (r == -EBUSY);
	return r;
}

/* Creates the page that `farpage ps` finds: in the folder of `farpage run`, or else in the
 * user's. */
static int create_seen(struct fp_agent *agent, struct fp_statspage **ret_page)
{
	struct fp_agent_stats *stats = &agent->stats;
	char pattern[sizeof(stats->path)];
	const char *dir = agent->options.stats_dir;
	int r = -ENOENT;

	stats->leave = false;
	if (dir && snprintf(pattern, sizeof(pattern), "%s%s", dir, OWN_NAME) < (int)sizeof(pattern))
		r = create(pattern, true, stats->path, ret_page);
	if (r == 0)
		stats->leave = true;
	else if (*stats->pattern) /* that folder is gone if its run has ended */
		r = create(stats->pattern, false, stats->path, ret_page);
	if (r < 0)
		*stats->path = '\0';
	return r;
}

/* Finds the folder by the environment. If there is none, the pattern is empty. */
static int find_pattern(struct fp_agent_stats *stats)
{
	int r = fp_rundir_make(stats->pattern, sizeof(stats->pattern) - sizeof(OWN_NAME));

	if (r == 0)
		strcat(stats->pattern, OWN_NAME);
	else
		*stats->pattern = '\0';
	return r;
}

static void say_unseen(const struct fp_agent *agent, int r)
{
	char reason[FP_STATSPAGE_EXPLAIN_LEN];

	fp_log(agent->is_child ? FP_LOG_DEBUG : FP_LOG_NOTICE, "stats",
	       "process %d goes on, but `farpage ps` does not see it: its page of statistics: %s "
	       "(FARPAGE_RUNTIME_DIR names the folder, which must be this user's alone)",
	       (int)getpid(), fp_statspage_explain(r, reason, sizeof(reason)));
}

/*
 * Creates the file that the user chose. 0 and *ret_page; NULL: this process has none. A forked
 * child has one only if the name contains %p; otherwise the file is its parent's.
 */
static int create_chosen(struct fp_agent *agent, struct fp_statspage **ret_page, struct fp_agent_error *error)
{
	const char *pattern = agent->options.stats_path;
	char path[sizeof(agent->stats.path)], buf[FP_STATSPAGE_EXPLAIN_LEN];
	const char *reason;
	int r;

	*ret_page = NULL;
	if (!pattern || (agent->is_child && !strstr(pattern, "%p")))
		return 0;
	r = create(pattern, false, path, ret_page);
	if (r == 0)
		return 0;
	reason = fp_statspage_explain(r, buf, sizeof(buf));
	if (r == -EFBIG || agent->is_child) { /* the parent's file was fine */
		fp_log(agent->is_child ? FP_LOG_DEBUG : FP_LOG_NOTICE, "stats",
		       "process %d goes on without its stats file %s: %s", (int)getpid(), pattern, reason);
		return 0;
	}
	snprintf(error->text, sizeof(error->text), "stats file %s: %s", pattern, reason);
	return r;
}

static void describe(struct fp_agent *agent)
{
	struct fp_statspage *stats = agent->far.stats;
	struct fp_store_node info;

	snprintf(stats->fault_mode, sizeof(stats->fault_mode), "%s",
	         agent->far.uffd.sigbus ? "inline" : "thread");
	snprintf(stats->capture, sizeof(stats->capture), "%s",
	         agent->far.capture_by_move ? "move" : "protect");
	atomic_store(&stats->own_mallocs, agent->options.foreign_malloc);
	for (unsigned i = 0; i < fp_store_n_nodes(agent->far.store); i++) {
		fp_store_node_info(agent->far.store, i, &info);
		snprintf(stats->node[i].url, sizeof(stats->node[i].url), "%s", info.url);
	}
	fp_reclaim_publish(&agent->far); /* so that no reader sees nodes without their state */
}

/* Brings the copy up to date. False: another thread is doing that. */
static bool write_copy(struct fp_agent *agent)
{
	struct fp_agent_stats *stats = &agent->stats;

	if (!stats->copy)
		return true;
	if (atomic_exchange(&stats->copying, true))
		return false;
	fp_statspage_copy(stats->copy, agent->far.stats);
	atomic_store(&stats->copying, false);
	return true;
}

/* True if `farpage ps` finds the file that the user chose: a second page would be a second row. */
static bool is_chosen_seen(const struct fp_agent *agent)
{
	return !agent->options.stats_dir && strcmp(agent->options.stats_path, agent->stats.pattern) == 0;
}

/* Removes what others left in the user's folder. A run removes the pages in its own folder. */
static void sweep(const struct fp_agent_stats *stats)
{
	size_t len = strlen(stats->pattern);
	char dir[sizeof(stats->pattern)];

	if (stats->leave || len < sizeof(OWN_NAME))
		return;
	snprintf(dir, sizeof(dir), "%.*s", (int)(len + 1 - sizeof(OWN_NAME)), stats->pattern);
	fp_statspage_sweep(dir);
}

int fp_agent_stats_open(struct fp_agent *agent, struct fp_agent_error *error)
{
	struct fp_agent_stats *stats = &agent->stats;
	struct fp_statspage *chosen, *seen = NULL;
	int found = agent->is_child ? 0 : find_pattern(stats), r = create_chosen(agent, &chosen, error);

	if (r < 0)
		return r;
	if (chosen && is_chosen_seen(agent))
		*stats->path = '\0';
	else if ((r = create_seen(agent, &seen)) < 0)
		say_unseen(agent, found < 0 ? found : r);
	agent->far.stats = chosen ? chosen : seen;
	stats->copy = chosen ? seen : NULL;
	r = agent->far.stats ? 0 : fp_statspage_create_unseen(&agent->far.stats);
	if (r < 0) {
		snprintf(error->text, sizeof(error->text), "no memory for statistics");
		return r;
	}
	sweep(stats);
	describe(agent);
	(void)write_copy(agent);
	return 0;
}

void fp_agent_stats_tend(struct fp_agent *agent)
{
	uint64_t now_ns = agent->stats.copy ? fp_clock_ns() : 0;

	if (!agent->stats.copy || now_ns < agent->stats.next_copy_ns)
		return;
	agent->stats.next_copy_ns = now_ns + COPY_NS;
	(void)write_copy(agent);
}

void fp_agent_stats_exit(struct fp_agent *agent)
{
	if (!agent->far.stats || fp_agent_is_stray(agent))
		return;
	atomic_store(&agent->far.stats->exited, 1);
	while (!write_copy(agent)) /* takes the other thread some microseconds */
		usleep(POLL_US);
	if (*agent->stats.path && !agent->stats.leave)
		unlink(agent->stats.path);
}

void fp_agent_stats_close(struct fp_agent *agent)
{
	fp_statspage_close(agent->far.stats);
	fp_statspage_close(agent->stats.copy);
	agent->far.stats = agent->stats.copy = NULL;
	atomic_store(&agent->stats.copying, false);
}
