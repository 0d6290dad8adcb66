/*
 * The stats pages of programs. Room: tools.
 */
#include "stats_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "privnode.h"
#include "rundir.h"
#include "stats_search.h"
#include "tool.h"
#include "units.h"

#define fp_autoclosedir FP_CLEANUP(cleanup_closedir)

/* The first and the last counter. All fields between them are counters too, which are added up. */
#define FIRST_COUNTER offsetof(struct fp_statspage, faults)
#define LAST_COUNTER  offsetof(struct fp_statspage, not_far_bytes)

static void cleanup_closedir(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

/* Opens the folder in dir_fd for reading, from its start. NULL and errno on an error. */
static DIR *list(int dir_fd)
{
	fp_autoclose int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);

	if (stream)
		fp_take_fd(fd);
	return stream;
}

static int by_pid(const void *a, const void *b)
{
	const struct fp_statsview *const *x = a, *const *y = b;

	if ((*x)->page.pid != (*y)->page.pid)
		return (*x)->page.pid < (*y)->page.pid ? -1 : 1;
	return ((*x)->page.start_realtime_ns > (*y)->page.start_realtime_ns) -
	       ((*x)->page.start_realtime_ns < (*y)->page.start_realtime_ns);
}

static int append(struct fp_stats_dir *pages, struct fp_statsview *view)
{
	struct fp_statsview **items = reallocarray(pages->items, pages->n + 1, sizeof(*items));

	if (!items)
		return -ENOMEM;
	pages->items = items;
	items[pages->n++] = view;
	return 0;
}

static bool is_wanted(const struct fp_stats_dir *pages, pid_t pid)
{
	return !pages->only_pid || pages->only_pid == pid;
}

int fp_stats_dir_read_dir(struct fp_stats_dir *pages, int dir_fd,
                          bool (*drop)(const struct fp_statsview *view, void *user), void *user)
{
	fp_autoclosedir DIR *stream = list(dir_fd);
	struct dirent *entry;
	int r = 0;

	if (!stream)
		return -errno;
	while (r == 0 && (entry = readdir(stream))) {
		struct fp_statsview *view;

		if (fp_statspage_owner(entry->d_name) < 0)
			continue;
		r = fp_statsview_openat(dir_fd, entry->d_name, pages->follow, &view);
		if (r == -ENODATA)
			fp_log(FP_LOG_WARNING, "stats", "%s: cut short", entry->d_name);
		if (r < 0) { /* no error: the page is not ours, just removed, or of another version */
			r = r == -EMFILE || r == -ENFILE ? r : 0;
			continue;
		}
		if (drop && drop(view, user)) {
			unlinkat(dir_fd, entry->d_name, 0);
			fp_statsview_close(view);
			continue;
		}
		r = is_wanted(pages, view->page.pid) ? append(pages, view) : 0;
		if (r < 0 || !is_wanted(pages, view->page.pid))
			fp_statsview_close(view);
	}
	if (pages->n)
		qsort(pages->items, pages->n, sizeof(*pages->items), by_pid);
	return r;
}

static bool is_dead(const struct fp_statsview *view, void *user)
{
	return view->dead;
}

/* Closes the pages that nobody writes, and those of processes that are not in this pid
 * namespace. */
static void keep_living(struct fp_stats_dir *pages)
{
	size_t kept = 0;

	for (size_t i = 0; i < pages->n; i++) {
		if (pages->items[i]->dead || !fp_statspage_alive(&pages->items[i]->page))
			fp_statsview_close(pages->items[i]);
		else
			pages->items[kept++] = pages->items[i];
	}
	pages->n = kept;
}

static void say_dir(const char *label, const char *dir, int r)
{
	char reason[64];

	if (!*dir)
		fp_log(
		    FP_LOG_ERROR, label,
		    "no folder for sockets and statistics: set HOME, XDG_RUNTIME_DIR or FARPAGE_RUNTIME_DIR");
	else if (r == -EPERM)
		fp_log(FP_LOG_ERROR, label,
		       "%s: the folder for sockets and statistics must be this user's alone: `chmod 700` it, "
		       "or name another in FARPAGE_RUNTIME_DIR",
		       dir);
	else
		fp_log(FP_LOG_ERROR, label,
		       "%s: no folder for sockets and statistics: %s (FARPAGE_RUNTIME_DIR names another)",
		       dir, fp_strerror(r, reason, sizeof(reason)));
}

static bool is_own(int dir_fd, const char *name, mode_t type)
{
	struct stat st;

	return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & S_IFMT) == type &&
	       st.st_uid == geteuid();
}

/*
 * Removes a file that Farpage made and left behind. Removes no file that others may have put there.
 */
static void remove_litter(int dir_fd, const char *name)
{
	bool is_litter = false;

	if (strcmp(name, FP_PRIVNODE_SOCKET) == 0)
		is_litter = is_own(dir_fd, name, S_IFSOCK);
	else if (fp_statspage_maker(name) == 0)
		is_litter = fp_statspage_is_free(dir_fd, name, false);
	else if (fp_statspage_owner(name) > 0)
		is_litter = fp_statspage_is_free(dir_fd, name, true);
	if (is_litter)
		unlinkat(dir_fd, name, 0);
}

/*
 * Removes the folder that is called name in parent_fd, and that is open as dir_fd. The folder stays
 * if it holds files that are not Farpage's.
 */
static void remove_run_dir(int parent_fd, const char *name, int dir_fd)
{
	fp_autoclosedir DIR *stream = list(dir_fd);
	struct dirent *entry;

	while (stream && (entry = readdir(stream)))
		remove_litter(dir_fd, entry->d_name);
	unlinkat(parent_fd, name, AT_REMOVEDIR);
}

/* True for a name of the form run-PID. */
static bool is_run_dir_name(const char *name)
{
	size_t len = strlen(FP_STATS_DIR_RUN_PREFIX);
	uint64_t pid;
	char exact[32];

	if (strncmp(name, FP_STATS_DIR_RUN_PREFIX, len) != 0 ||
	    fp_number_parse(name + len, 1, INT_MAX, &pid) < 0)
		return false;
	snprintf(exact, sizeof(exact), FP_STATS_DIR_RUN_PREFIX "%" PRIu64, pid);
	return strcmp(name, exact) == 0;
}

static int read_run_dir(struct fp_stats_dir *pages, int parent_fd, const char *name)
{
	fp_autoclose int fd = fp_rundir_openat(parent_fd, name);
	size_t before = pages->n;
	int r;

	if (fd < 0) /* the run has just ended, or the folder is not ours */
		return fd == -ENOENT || fd == -ENOTDIR || fd == -EPERM || fd == -EACCES ? 0 : fd;
	r = fp_stats_dir_read_dir(pages, fd, NULL, NULL);
	keep_living(pages);
	/* a living `farpage run` holds the lock of its folder */
	if (!pages->only_pid && pages->n == before && flock(fd, LOCK_EX | LOCK_NB) == 0)
		remove_run_dir(parent_fd, name, fd);
	return r;
}

static int read_live(struct fp_stats_dir *pages, int dir_fd)
{
	fp_autoclosedir DIR *stream = list(dir_fd);
	struct dirent *entry;
	int r;

	if (!stream)
		return -errno;
	r = fp_stats_dir_read_dir(pages, dir_fd, is_dead, NULL);
	keep_living(pages);
	while (r == 0 && (entry = readdir(stream))) {
		if (is_run_dir_name(entry->d_name))
			r = read_run_dir(pages, dir_fd, entry->d_name);
		else if (fp_statspage_maker(entry->d_name) == 0)
			remove_litter(dir_fd, entry->d_name);
	}
	return r;
}

/* The folder's own programs have their pages already. */
static bool is_new(pid_t pid, void *user)
{
	const struct fp_stats_dir *pages = user;

	for (size_t i = 0; i < pages->n; i++)
		if (pages->items[i]->page.pid == pid)
			return false;
	return is_wanted(pages, pid);
}

static int add_page(struct fp_statsview *view, void *user)
{
	struct fp_stats_dir *pages = user;
	int r = append(pages, view);

	if (r < 0)
		fp_statsview_close(view);
	else if (!pages->follow)
		fp_statsview_unfollow(view);
	return r;
}

/* True if the environment names the only folder to look at. */
static bool names_folder(void)
{
	const char *folder = getenv("FARPAGE_RUNTIME_DIR");

	return folder && *folder;
}

/* True with those capabilities of root that stats_search.h needs. */
static bool may_see_all_users(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

	if (geteuid() != 0 || syscall(SYS_capget, &header, data) < 0)
		return false;
	return data[0].effective & 1u << CAP_SYS_PTRACE &&
	       (data[0].effective & 1u << CAP_SYS_ADMIN ||
	        data[1].effective & 1u << (CAP_CHECKPOINT_RESTORE - 32));
}

bool fp_stats_dir_sees_all_users(void)
{
	return may_see_all_users() && !names_folder();
}

/* Adds the programs that have their pages elsewhere. */
static int read_elsewhere(struct fp_stats_dir *pages)
{
	const struct fp_stats_search search = {is_new, add_page, pages};
	int r = fp_stats_search(&search);

	if (pages->n)
		qsort(pages->items, pages->n, sizeof(*pages->items), by_pid);
	return r;
}

int fp_stats_dir_read_live(struct fp_stats_dir *pages, const char *label)
{
	fp_autoclose int fd = -1;
	char dir[PATH_MAX] = "", reason[64];
	int r = fp_rundir_path(dir, sizeof(dir));

	if (r == 0)
		fd = r = fp_rundir_openat(AT_FDCWD, dir);
	if (r >= 0)
		r = read_live(pages, fd);
	else if (*dir && r == -ENOENT)
		r = 0; /* nothing was run from there yet */
	if (r < 0) {
		say_dir(label, dir, r);
		return r;
	}
	r = names_folder() ? 0 : read_elsewhere(pages);
	if (r < 0)
		fp_log(FP_LOG_ERROR, label, "the list of programs: %s",
		       fp_strerror(r, reason, sizeof(reason)));
	return r;
}

struct fp_statsview *fp_stats_dir_find(const struct fp_stats_dir *pages, const struct fp_statspage *page)
{
	for (size_t i = 0; i < pages->n; i++)
		if (fp_statspage_same(&pages->items[i]->page, page))
			return pages->items[i];
	return NULL;
}

void fp_stats_dir_done(struct fp_stats_dir *pages)
{
	for (size_t i = 0; i < pages->n; i++)
		fp_statsview_close(pages->items[i]);
	free(pages->items);
	*pages = (struct fp_stats_dir){0};
}

uint64_t fp_stats_dir_faults(const struct fp_statspage *page)
{
	uint64_t sum = 0;

	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		sum += page->faults[kind];
	return sum;
}

/*
 * The sum has the worst state of any process. A process that has not needed the node says nothing
 * about it.
 */
static void add_state(struct fp_stats_node *node, const struct fp_stats_node *from)
{
	bool knows_none = !node->url[0] || node->state == FP_STATS_NODE_UNASKED;

	if (!knows_none && from->state == FP_STATS_NODE_UNASKED)
		return;
	node->state = knows_none ? from->state : FP_MAX(node->state, from->state);
	node->up = knows_none ? from->up : node->up && from->up;
}

static void add_node(struct fp_statspage *sum, const struct fp_stats_node *from)
{
	for (unsigned i = 0; i < FP_STATSPAGE_NODES; i++) {
		struct fp_stats_node *node = &sum->node[i];

		if (node->url[0] && strcmp(node->url, from->url) != 0)
			continue;
		add_state(node, from);
		/* in the sum, each of these fields has the worst value of any process */
		node->degraded |= from->degraded;
		node->spent |= from->spent;
		node->heartbeat_ns = FP_MAX(node->heartbeat_ns, from->heartbeat_ns);
		node->reconnects += from->reconnects;
		node->failures += from->failures;
		memcpy(node->url, from->url, sizeof(node->url));
		memcpy(node->way, from->way, sizeof(node->way));
		node->leased_bytes += from->leased_bytes;
		node->read_bytes += from->read_bytes;
		node->written_bytes += from->written_bytes;
		return;
	}
}

static void add_peaks(struct fp_statspage *sum, const struct fp_statspage *from)
{
	if (from->resident_peak_bytes >= sum->resident_peak_bytes) {
		sum->resident_peak_bytes = from->resident_peak_bytes;
		sum->budget_bytes = from->budget_bytes;
	}
	if (from->mapped_peak_bytes > sum->mapped_peak_bytes)
		sum->mapped_peak_bytes = from->mapped_peak_bytes;
}

void fp_stats_dir_add(struct fp_statspage *sum, const struct fp_statspage *from)
{
	if (!sum->magic) /* the first page gives the identity: all fields before the counters */
		memcpy(sum, from, offsetof(struct fp_statspage, exited));
	add_peaks(sum, from);
	sum->mapped_bytes += from->mapped_bytes;
	sum->resident_bytes += from->resident_bytes;
	sum->remote_bytes += from->remote_bytes;
	for (size_t at = FIRST_COUNTER; at <= LAST_COUNTER; at += sizeof(uint64_t))
		*(_Atomic uint64_t *)((char *)sum + at) +=
		    *(const _Atomic uint64_t *)((const char *)from + at);
	for (unsigned i = 0; i < FP_STATSPAGE_NODES && from->node[i].url[0]; i++)
		add_node(sum, &from->node[i]);
	fp_hist_merge(&sum->fault_latency, &from->fault_latency);
	for (unsigned kind = 0; kind < FP_FAULT_TIMED; kind++)
		fp_hist_merge(&sum->kind_latency[kind], &from->kind_latency[kind]);
	fp_hist_merge(&sum->waited_latency, &from->waited_latency);
	fp_hist_merge(&sum->fetch_latency, &from->fetch_latency);
	fp_hist_merge(&sum->writeback_latency, &from->writeback_latency);
	fp_hist_merge(&sum->evict_latency, &from->evict_latency);
}

/* Locks the folder. -ESTALE: somebody removed the folder before we had the lock. */
static int make_locked_dir(const char *path, int *ret_fd)
{
	fp_autoclose int fd = -1;
	struct stat st;

	if (mkdir(path, 0700) < 0)
		return -errno;
	fd = fp_rundir_openat(AT_FDCWD, path);
	if (fd < 0)
		return fd == -ENOENT ? -ESTALE : fd;
	if (flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_nlink == 0)
		return -ESTALE;
	*ret_fd = fp_take_fd(fd);
	return 0;
}

/* Removes what programs and runs have left that a signal ended, say. */
static void sweep(const char *dir)
{
	fp_autoclose int fd = fp_rundir_openat(AT_FDCWD, dir);
	struct fp_stats_dir pages = {0};

	if (fd >= 0)
		(void)read_live(&pages, fd);
	fp_stats_dir_done(&pages);
}

int fp_stats_dir_run_dir_create(const char *label, char *buf, size_t len, int *ret_lock_fd)
{
	char parent[PATH_MAX] = "";
	int number = (int)getpid(), r = fp_rundir_make(parent, sizeof(parent));

	if (r < 0) {
		say_dir(label, parent, r);
		return r;
	}
	sweep(parent);
	/*
	 * Takes the next number if our folder's name exists. Another pid namespace may have it, or
	 * a run may have left it behind. Also tries again if a reader of the folder removed our new
	 * one before we locked it.
	 */
	do {
		r = snprintf(buf, len, "%s/" FP_STATS_DIR_RUN_PREFIX "%d", parent, number++);
		if ((size_t)r >= len) {
			r = -ENAMETOOLONG;
			break;
		}
		r = make_locked_dir(buf, ret_lock_fd);
	} while (r == -ESTALE || r == -EEXIST);
	if (r < 0)
		say_dir(label, buf, r);
	return r;
}

void fp_stats_dir_run_dir_remove(const char *dir)
{
	fp_autoclose int fd = fp_rundir_openat(AT_FDCWD, dir);

	if (fd >= 0)
		remove_run_dir(AT_FDCWD, dir, fd);
}
