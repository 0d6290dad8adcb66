/*
 * Finds the stats pages of programs, wherever they lie. Room: tools. A program holds a lock on its
 * page and maps it (statspage.h). So the kernel's list of locks says which processes may have one,
 * and the mappings of these say where. No list of folders would do: a service has its folder where
 * its unit says, and a program may have an environment of its own.
 */
#ifndef FP_STATS_SEARCH_H
#define FP_STATS_SEARCH_H

#include <stdbool.h>
#include <sys/types.h>

#include "statsview.h"

/* What is done with the pages. */
struct fp_stats_search {
	bool (*wants)(pid_t pid, void *user);                /* false: not of this process */
	int (*found)(struct fp_statsview *view, void *user); /* takes view, also if it fails */
	void *user;
};

/*
 * Gives the pages of processes that live in this pid namespace: those of this user's processes, and
 * with CAP_SYS_PTRACE and CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (root has all) those of all. The
 * page's uid is that of the process. A page that names another process than the one that maps it is
 * left out. 0, -ENOMEM, -EMFILE or -ENFILE, or the first error of found.
 */
int fp_stats_search(const struct fp_stats_search *search);

#endif
