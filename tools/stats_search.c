/*
 * The stats pages of programs, wherever they lie. Room: tools; see stats_search.h.
 */
#include "stats_search.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

#define LINE_BYTES 4608 /* of /proc/PID/maps, with the longest path */

/* A mapping that may be that of a stats page. */
struct candidate {
	pid_t pid;
	uint64_t start, end;
	char path[LINE_BYTES];
};

/* The length of the mapping of a page. */
static uint64_t mapping_bytes(void)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

	return (sizeof(struct fp_statspage) + page_bytes - 1) / page_bytes * page_bytes;
}

/* Reads a line of /proc/PID/maps into *m. False: the mapping is not that of a stats page. */
static bool may_be_page(const char *line, struct candidate *m)
{
	uint64_t offset;
	char rights[5];

	return sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %*s %[^\n]", &m->start, &m->end,
	              rights, &offset, m->path) == 5 &&
	       strcmp(rights, "rw-s") == 0 && offset == 0 && m->end - m->start == mapping_bytes();
}

/* The effective user of a process. */
static bool read_user(pid_t pid, uid_t *ret_uid)
{
	char path[64], line[256];
	unsigned uid = 0;
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	fp_autofclose FILE *status = fopen(path, "re");
	while (status && !found && fgets(line, sizeof(line), status))
		found = sscanf(line, "Uid: %*u %u", &uid) == 1;
	if (found)
		*ret_uid = uid;
	return found;
}

/*
 * Opens the mapped file, whatever became of its name. Opens regular files only: opening a device
 * may do something. 0 or a negative errno.
 */
static int open_mapped(const struct candidate *m, struct fp_statsview **ret_view)
{
	char path[96];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, (int)m->pid, m->start,
	         m->end);
	fp_autoclose int fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return fp_statsview_open(path, ret_view);
}

/*
 * NULL: it is no page, or of another version, or its process is not this one. Without the right to
 * follow /proc/PID/map_files, opens the file by its name, if file and process are this user's.
 */
static struct fp_statsview *open_page(const struct candidate *m)
{
	struct fp_statsview *view = NULL;
	uid_t uid;
	int r = read_user(m->pid, &uid) ? open_mapped(m, &view) : -ESRCH;

	if (r == -EPERM && uid == geteuid())
		r = fp_statsview_openat(AT_FDCWD, m->path, true, &view);
	if (r < 0)
		return NULL;
	view->uid = uid; /* the owner of the file may be another user, who let this one write to it */
	if (view->page.pid == m->pid && fp_statspage_alive(&view->page))
		return view;
	fp_statsview_close(view);
	return NULL;
}

/* The page that the process maps, or NULL. */
static struct fp_statsview *page_of(pid_t pid)
{
	char path[64], line[LINE_BYTES];
	struct candidate candidate = {.pid = pid};
	struct fp_statsview *view = NULL;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	fp_autofclose FILE *maps = fopen(path, "re");
	while (maps && !view && fgets(line, sizeof(line), maps))
		if (may_be_page(line, &candidate))
			view = open_page(&candidate);
	return view;
}

static int by_number(const void *a, const void *b)
{
	const pid_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/*
 * The processes with a lock like that on a page, in order; one with several is there several times.
 * Reads all of the list before anything else: while it is read slowly, the kernel may skip lines.
 */
static int read_holders(pid_t **ret_pids, size_t *ret_n)
{
	fp_autofclose FILE *locks = fopen("/proc/locks", "re");
	fp_autofree pid_t *pids = NULL;
	char line[256];
	size_t n = 0;
	int pid;

	while (locks && fgets(line, sizeof(line), locks)) {
		pid_t *more;

		if (sscanf(line, "%*d: FLOCK ADVISORY WRITE %d", &pid) != 1 || pid <= 0)
			continue;
		more = reallocarray(pids, n + 1, sizeof(*pids));
		if (!more)
			return -ENOMEM;
		pids = more;
		pids[n++] = pid;
	}
	if (n)
		qsort(pids, n, sizeof(*pids), by_number);
	*ret_pids = fp_take_ptr(pids);
	*ret_n = n;
	return 0;
}

int fp_stats_search(const struct fp_stats_search *search)
{
	fp_autofree pid_t *pids = NULL;
	size_t n = 0;
	int r = read_holders(&pids, &n);

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct fp_statsview *view = NULL;

		if ((i == 0 || pids[i] != pids[i - 1]) && search->wants(pids[i], search->user))
			view = page_of(pids[i]);
		if (view)
			r = search->found(view, search->user);
	}
	return r;
}
