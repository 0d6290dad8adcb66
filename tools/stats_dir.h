/*
 * The stats pages of programs: finds them, removes those of dead programs, adds several up. Room:
 * tools. Programs started with a plain LD_PRELOAD, and users of libfarpage, have their pages in the
 * folder of fp_rundir_path. Each `farpage run` has a folder "run-PID" in it, for its
 * pages and the socket of its node.
 */
#ifndef FP_STATS_DIR_H
#define FP_STATS_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "statsview.h"

#define FP_STATS_DIR_RUN_PREFIX "run-"

/*
 * Copies of pages, ordered by pid, and those of one process by age: a process has a page for each
 * far memory. Zero-initialise it. If follow is set, their files stay open for fp_statsview_look.
 */
struct fp_stats_dir {
	struct fp_statsview **items;
	size_t n;
	bool follow;
	pid_t only_pid; /* not 0: leaves out the pages of all other processes */
};

/* Adds every readable page PID.stats of this user in an open folder. If drop (may be NULL) returns
 * true for a page, the page is removed from disk instead. 0 or a negative errno. */
int fp_stats_dir_read_dir(struct fp_stats_dir *pages, int dir_fd,
                          bool (*drop)(const struct fp_statsview *view, void *user), void *user);

/*
 * Adds the pages of all programs of this user that live in this pid namespace, wherever they lie,
 * and for root those of all users (stats_search.h). If FARPAGE_RUNTIME_DIR is set, adds those in
 * that folder only. Removes from this user's folder the pages of dead programs, also unfinished
 * pages. A program is dead if nobody has its page's lock. The pages of a `farpage run` stay while
 * it lives, because its report needs them. 0, or a negative errno after a message that names label.
 */
int fp_stats_dir_read_live(struct fp_stats_dir *pages, const char *label);

/* True if that includes other users' programs: for root, with the capabilities that it takes. */
bool fp_stats_dir_sees_all_users(void);

/* The look at the same page, or NULL. pages owns it. */
struct fp_statsview *fp_stats_dir_find(const struct fp_stats_dir *pages, const struct fp_statspage *page);

void fp_stats_dir_done(struct fp_stats_dir *pages);

/*
 * Adds the counters and histograms of *from to *sum. The first page that is added gives *sum its
 * identity. Peaks and budget are those of the largest process, because each process has a budget of
 * its own. Nodes with the same URL are added up.
 */
void fp_stats_dir_add(struct fp_statspage *sum, const struct fp_statspage *from);

/* The sum of faults of all kinds. */
uint64_t fp_stats_dir_faults(const struct fp_statspage *page);

/*
 * Creates the folder of one `farpage run`, writes its path to buf, and locks it. The lock lasts as
 * long as *ret_lock_fd is open. First removes what dead runs and programs have left, as
 * fp_stats_dir_read_live does. 0, or a negative errno after a message that names label.
 */
int fp_stats_dir_run_dir_create(const char *label, char *buf, size_t len, int *ret_lock_fd);

/*
 * Removes such a folder, with the node's socket and the pages of dead processes in it. The folder
 * stays if it holds anything else, or if other users may write it. Errors are ignored: `farpage ps`
 * tries again.
 */
void fp_stats_dir_run_dir_remove(const char *dir);

#endif
