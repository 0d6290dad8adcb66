/*
 * The stats pages of this user's programs: finds them, removes those of dead programs, adds several
 * up. Room: tools. Pages lie in the folder of fp_rundir_path (programs started with a plain
 * LD_PRELOAD, or users of libfarpage). Each `farpage run` has a folder "run-PID" in it, for its
 * pages and the socket of its node.
 */
#ifndef FP_STATS_DIR_H
#define FP_STATS_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "statsview.h"

#define FP_STATS_DIR_RUN_PREFIX "run-"

/* Copies of pages, ordered by pid. Zero-initialise it. follow keeps their files open for
 * fp_statsview_look. */
struct fp_stats_dir {
	struct fp_statsview **items;
	size_t n;
	bool follow;
};

/* Adds every readable page PID.stats of this user in an open folder. If drop (may be NULL) returns
 * true for a page, the page is removed from disk instead. 0 or a negative errno. */
int fp_stats_dir_read_dir(struct fp_stats_dir *pages, int dir_fd,
                          bool (*drop)(const struct fp_statsview *view, void *user), void *user);

/*
 * Adds the pages of all programs of this user that live in this pid namespace. Removes from disk
 * the pages of dead programs, whose locks nobody has, also unfinished ones. Pages stay while their
 * `farpage run` lives, which needs them for its report. 0, or a negative errno after a message
 * under label.
 */
int fp_stats_dir_read_live(struct fp_stats_dir *pages, const char *label);

/* The page of a living process, or NULL. Owned by pages. */
struct fp_statsview *fp_stats_dir_find(const struct fp_stats_dir *pages, pid_t pid);

void fp_stats_dir_done(struct fp_stats_dir *pages);

/*
 * Adds the counters and histograms of from into sum, whose identity is that of the first page
 * added. Peaks and budget are those of the largest process, since each process has a budget of its
 * own. Nodes are matched by url.
 */
void fp_stats_dir_add(struct fp_statspage *sum, const struct fp_statspage *from);

/* Faults of all kinds. */
uint64_t fp_stats_dir_faults(const struct fp_statspage *page);

/*
 * Creates the folder of one `farpage run`, writes its path to buf and locks it as long as
 * *ret_lock_fd stays open. 0, or a negative errno after a message under label.
 */
int fp_stats_dir_run_dir_create(const char *label, char *buf, size_t len, int *ret_lock_fd);

/*
 * Removes such a folder with the pages of dead processes and the node's socket in it. It stays if
 * it holds anything else, or is not this user's alone. Errors are ignored: `farpage ps` tries
 * again.
 */
void fp_stats_dir_run_dir_remove(const char *dir);

#endif
