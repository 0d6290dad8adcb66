/*
 * A program's own stats page, mapped, because a test that counts faults must not cause any by
 * reading the counters. Room: test/lib.
 */
#ifndef FP_STATSMAP_H
#define FP_STATSMAP_H

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "statspage.h"

/* Maps this process's statistics page. NULL: there is none. The mapping is never removed. */
static inline const struct fp_statspage *fp_statsmap_own(void)
{
	char path[PATH_MAX];
	fp_autoclose int fd =
	    fp_statspage_path(getpid(), path, sizeof(path)) < 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	void *page = mmap(NULL, sizeof(struct fp_statspage), PROT_READ, MAP_SHARED, fd, 0);

	return page == MAP_FAILED ? NULL : page;
}

#endif
