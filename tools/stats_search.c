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

/*
 * How many files of one process are looked at. A process may map one file thousands of times, and
 * other files of a page's length. It must not keep us from the pages of others.
 */
#define MAX_FILES 64

/* A mapping that may be that of a stats page. */
struct candidate {
	pid_t pid;
	uint64_t start, end;
	char file[64]; /* device and number, as the list of mappings has them */
	char path[LINE_BYTES];
};

/* The files of one process that were looked at. */
struct files {
	char names[MAX_FILES][sizeof(((struct candidate *)NULL)->file)];
	size_t n;
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
	char rights[5], device[32], number[32];
	bool whole = sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %31s %31s %[^\n]", &m->start,
	                    &m->end, rights, &offset, device, number, m->path) == 7;

	snprintf(m->file, sizeof(m->file), "%s %s", whole ? device : "", whole ? number : "");
	return whole && strcmp(rights, "rw-s") == 0 && offset == 0 && m->end - m->start == mapping_bytes();
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
 * *ret_view is NULL if it is no page, or of another version, or its process is not this one.
 * Without the right to follow /proc/PID/map_files, opens the file by its name, if file and process
 * are this user's. 0, or -EMFILE or -ENFILE.
 */
static int open_page(const struct candidate *m, struct fp_statsview **ret_view)
{
	struct fp_statsview *view = NULL;
	uid_t uid;
	int r = read_user(m->pid, &uid) ? open_mapped(m, &view) : -ESRCH;

	if (r == -EPERM && uid == geteuid())
		r = fp_statsview_openat(AT_FDCWD, m->path, true, &view);
	*ret_view = NULL;
	if (r < 0)
		return r == -EMFILE || r == -ENFILE ? r : 0;
	view->uid = uid; /* the owner of the file may be another user, who let this one write to it */
	if (view->page.pid == m->pid && fp_statspage_alive(&view->page))
		*ret_view = view;
	else
		fp_statsview_close(view);
	return 0;
}

/* False: the file was looked at before. */
static bool note_file(struct files *files, const char *file)
{
	for (size_t i = 0; i < files->n; i++)
		if (strcmp(files->names[i], file) == 0)
			return false;
	strcpy(files->names[files->n++], file);
	return true;
}

/* Gives the pages that the process maps: one for each far memory. */
static int find_pages(pid_t pid, const struct fp_stats_search *search)
{
	char path[64], line[LINE_BYTES];
	struct candidate candidate = {.pid = pid};
	struct files files = {.n = 0};
	int r = 0;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	fp_autofclose FILE *maps = fopen(path, "re");
	if (!maps)
		return errno == EMFILE || errno == ENFILE ? -errno : 0;
	while (r == 0 && files.n < MAX_FILES && fgets(line, sizeof(line), maps)) {
		struct fp_statsview *view = NULL;

		if (may_be_page(line, &candidate) && note_file(&files, candidate.file))
			r = open_page(&candidate, &view);
		if (view)
			r = search->found(view, search->user);
	}
	return r;
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

	for (size_t i = 0; r == 0 && i < n; i++)
		if ((i == 0 || pids[i] != pids[i - 1]) && search->wants(pids[i], search->user))
			r = find_pages(pids[i], search);
	return r;
}
