/*
 * The stats page of an agent, and the names under which others find it. Room: uffd/agent; for
 * agent.c and fork.c.
 *
 * `farpage ps` finds a page in the folder of the user's pages. If the user chose another file, the
 * agent counts in that file, and the folder has a copy. The agent brings the copy up to date ten
 * times a second. So `farpage ps` shows a program however it was started.
 */
#ifndef FP_AGENT_STATS_H
#define FP_AGENT_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "statspage.h"

struct fp_agent;
struct fp_agent_error;

#define FP_AGENT_STATS_PATH_LEN 256

/* What an agent knows of its page besides far.stats, in which it counts. */
struct fp_agent_stats {
	struct fp_statspage *copy;          /* for `farpage ps`; NULL: it finds far.stats itself */
	_Atomic bool copying;               /* taken by the thread that writes the copy */
	uint64_t next_copy_ns;              /* of the reclaim thread */
	char path[FP_AGENT_STATS_PATH_LEN]; /* where `farpage ps` finds the page or its copy; "": nowhere */
	/* The same with %p. Read from the environment at the start: later its memory may be far. */
	char pattern[FP_AGENT_STATS_PATH_LEN];
	bool leave; /* the page at path stays at the end; `farpage run` removes it */
};

/*
 * Makes the stats page of this process, or of a forked child, and sets far.stats. If the folder
 * that `farpage ps` reads can't be used, the process goes on, and a line says that `farpage ps`
 * does not see it. If the user chose a file and it can't be made, the start fails: a negative errno
 * and error->text.
 */
int fp_agent_stats_open(struct fp_agent *agent, struct fp_agent_error *error);

/* For the reclaim thread, in each turn. */
void fp_agent_stats_tend(struct fp_agent *agent);

/* The process ends in good order: marks the page as exited, and takes it from the folder. Any
 * thread; calling it twice is fine. Does nothing in a stray child: the page is the parent's. */
void fp_agent_stats_exit(struct fp_agent *agent);

/* Unmaps, after the reclaim thread has ended. For a forked child, too: the files stay. */
void fp_agent_stats_close(struct fp_agent *agent);

#endif
