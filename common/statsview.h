/*
 * A reader's copy of a stats page (statspage.h). Room: common. Readers do not map the file: if it
 * were cut short, SIGBUS would end them.
 */
#ifndef FP_STATSVIEW_H
#define FP_STATSVIEW_H

#include <stdbool.h>
#include <sys/types.h>

#include "statspage.h"

struct fp_statsview {
	struct fp_statspage page; /* a copy, made at the last look */
	bool dead; /* nobody writes the page: its lock is free, or locks fail and its process is gone */
	uid_t uid; /* the owner of the file; in the views of tools/stats_search.c, the user of the process */
	int fd;    /* -1: closed, no further look */
};

/*
 * Opens a page and copies it. Returns 0 and *ret_view, which fp_statsview_close closes, or an
 * error: -EINVAL (the file is no stats page), -ENODATA (it is cut short), -EPROTO (it is of another
 * version), -ENOMEM, or the error of open(2).
 */
int fp_statsview_open(const char *path, struct fp_statsview **ret_view);

/*
 * Like fp_statsview_open, for a file in an open folder. Further errors: -EPERM if the file is
 * another user's, -ELOOP if it is a link. The file stays open only if follow is true.
 */
int fp_statsview_openat(int dir_fd, const char *name, bool follow, struct fp_statsview **ret_view);

/*
 * Fills *view again from its file, which is still open. Returns what fp_statsview_open returns.
 * After an error view->page is undefined.
 */
int fp_statsview_look(struct fp_statsview *view);

/* Closes the file: no further look. */
void fp_statsview_unfollow(struct fp_statsview *view);

/* NULL is fine. */
void fp_statsview_close(struct fp_statsview *view);

#endif
