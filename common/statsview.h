/*
 * A reader's look at a stats page (statspage.h): a copy of the file. Room: common. Readers map
 * nothing: a file that is cut short would end them by SIGBUS.
 */
#ifndef FP_STATSVIEW_H
#define FP_STATSVIEW_H

#include <stdbool.h>

#include "statspage.h"

struct fp_statsview {
	struct fp_statspage page; /* as of the last look */
	bool dead; /* no process writes it any more: it is gone here, and nobody has the page's lock */
	int fd;    /* -1: there is no further look */
};

/*
 * Opens a page and looks. 0 and *ret_view, to be closed by fp_statsview_close; -EINVAL: it is no
 * stats page; -ENODATA: it is cut short; -EPROTO: it is of another version; -ENOMEM; or why it
 * can't be opened.
 */
int fp_statsview_open(const char *path, struct fp_statsview **ret_view);

/*
 * The same for a file in an open folder: -EPERM if it is another user's, -ELOOP if a link. Only
 * with follow the file stays open.
 */
int fp_statsview_openat(int dir_fd, const char *name, bool follow, struct fp_statsview **ret_view);

/* Looks again at a file that is open. 0 or as above; on an error page may be anything. */
int fp_statsview_look(struct fp_statsview *view);

/* NULL is fine. */
void fp_statsview_close(struct fp_statsview *view);

#endif
