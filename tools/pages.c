/*
 * The stats pages of this user's programs. Room: tools.
 */
#include "pages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

#define fp_autoclosedir FP_CLEANUP(cleanup_closedir)

static void cleanup_closedir(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

static bool is_page_name(const char *name)
{
	size_t len = strlen(name), suffix = strlen(FP_STATSPAGE_SUFFIX);

	return len > suffix && strcmp(name + len - suffix, FP_STATSPAGE_SUFFIX) == 0;
}

static int by_pid(const void *a, const void *b)
{
	const struct fp_statspage *const *x = a, *const *y = b;

	return ((*x)->pid > (*y)->pid) - ((*x)->pid < (*y)->pid);
}

static int append(struct fp_pages *pages, const struct fp_statspage *page)
{
	const struct fp_statspage **items = reallocarray(pages->items, pages->n + 1, sizeof(*items));

	if (!items)
		return -ENOMEM;
	pages->items = items;
	items[pages->n++] = page;
	return 0;
}

int fp_pages_read_dir(struct fp_pages *pages, const char *dir,
                      bool (*drop)(const struct fp_statspage *page, void *user), void *user)
{
	fp_autoclosedir DIR *stream = opendir(dir);
	struct dirent *entry;
	char path[PATH_MAX];
	int r = 0;

	if (!stream)
		return -errno;
	while (r == 0 && (entry = readdir(stream))) {
		const struct fp_statspage *page;

		if (!is_page_name(entry->d_name))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (fp_statspage_open(path, &page) < 0)
			continue; /* just removed, or of another version: not ours to judge */
		if (drop && drop(page, user)) {
			unlink(path);
			fp_statspage_close(page);
			continue;
		}
		r = append(pages, page);
		if (r < 0)
			fp_statspage_close(page);
	}
	if (pages->n)
		qsort(pages->items, pages->n, sizeof(*pages->items), by_pid);
	return r;
}

static bool is_dead(const struct fp_statspage *page, void *user)
{
	return !fp_statspage_alive(page);
}

/* Closes the pages of the dead; returns how many are left. */
static size_t keep_living(struct fp_pages *pages)
{
	size_t kept = 0;

	for (size_t i = 0; i < pages->n; i++) {
		if (is_dead(pages->items[i], NULL))
			fp_statspage_close(pages->items[i]);
		else
			pages->items[kept++] = pages->items[i];
	}
	pages->n = kept;
	return kept;
}

/* True while a `farpage run` holds the lock of its folder. */
static bool run_dir_is_held(const char *dir)
{
	fp_autoclose int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static int read_run_dir(struct fp_pages *pages, const char *dir)
{
	struct fp_pages mine = {0};
	int r = fp_pages_read_dir(&mine, dir, NULL, NULL);

	if (keep_living(&mine) == 0 && !run_dir_is_held(dir))
		fp_pages_run_dir_remove(dir);
	while (r == 0 && mine.n) {
		r = append(pages, mine.items[mine.n - 1]);
		if (r == 0)
			mine.n--;
	}
	fp_pages_done(&mine);
	return r;
}

int fp_pages_read_live(struct fp_pages *pages)
{
	fp_autoclosedir DIR *stream = NULL;
	struct dirent *entry;
	char dir[PATH_MAX - NAME_MAX - 1], path[PATH_MAX];
	int r = fp_statspage_dir(dir, sizeof(dir), 0);

	if (r < 0)
		return r;
	stream = opendir(dir);
	if (!stream)
		return errno == ENOENT ? 0 : -errno; /* nobody has run anything yet */
	r = fp_pages_read_dir(pages, dir, is_dead, NULL);
	while (r == 0 && (entry = readdir(stream))) {
		if (fp_statspage_maker(entry->d_name) == 0)
			unlinkat(dirfd(stream), entry->d_name, 0);
		if (strncmp(entry->d_name, FP_PAGES_RUN_PREFIX, strlen(FP_PAGES_RUN_PREFIX)) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		r = read_run_dir(pages, path);
		if (r == -ENOENT)
			r = 0; /* its run ended just now */
	}
	if (pages->n)
		qsort(pages->items, pages->n, sizeof(*pages->items), by_pid);
	return r;
}

const struct fp_statspage *fp_pages_find(const struct fp_pages *pages, pid_t pid)
{
	for (size_t i = 0; i < pages->n; i++)
		if (pages->items[i]->pid == pid)
			return pages->items[i];
	return NULL;
}

void fp_pages_done(struct fp_pages *pages)
{
	for (size_t i = 0; i < pages->n; i++)
		fp_statspage_close(pages->items[i]);
	free(pages->items);
	*pages = (struct fp_pages){0};
}

uint64_t fp_pages_faults(const struct fp_statspage *page)
{
	uint64_t sum = 0;

	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		sum += page->faults[kind];
	return sum;
}

static void add_node(struct fp_statspage *sum, const struct fp_stats_node *from)
{
	for (unsigned i = 0; i < FP_STATSPAGE_NODES; i++) {
		struct fp_stats_node *node = &sum->node[i];

		if (node->url[0] && strcmp(node->url, from->url) != 0)
			continue;
		node->up = node->url[0] ? node->up && from->up : from->up;
		/* the worst that any process sees */
		node->state = FP_MAX(node->state, from->state);
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

void fp_pages_add(struct fp_statspage *sum, const struct fp_statspage *from)
{
	if (!sum->magic) /* identity: all that stands before the first counter */
		memcpy(sum, from, offsetof(struct fp_statspage, exited));
	add_peaks(sum, from);
	sum->mapped_bytes += from->mapped_bytes;
	sum->resident_bytes += from->resident_bytes;
	sum->remote_bytes += from->remote_bytes;
	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		sum->faults[kind] += from->faults[kind];
	sum->prefetched_pages += from->prefetched_pages;
	sum->fetched_bytes += from->fetched_bytes;
	sum->written_bytes += from->written_bytes;
	sum->evicted_clean += from->evicted_clean;
	sum->evicted_dirty += from->evicted_dirty;
	sum->evicted_zero += from->evicted_zero;
	sum->evict_refused += from->evict_refused;
	sum->waits_for_room += from->waits_for_room;
	sum->lost_pages += from->lost_pages;
	sum->not_far_bytes += from->not_far_bytes;
	for (unsigned i = 0; i < FP_STATSPAGE_NODES && from->node[i].url[0]; i++)
		add_node(sum, &from->node[i]);
	fp_hist_merge(&sum->fault_latency, &from->fault_latency);
	fp_hist_merge(&sum->fetch_latency, &from->fetch_latency);
	fp_hist_merge(&sum->writeback_latency, &from->writeback_latency);
	fp_hist_merge(&sum->evict_latency, &from->evict_latency);
}

/* -ESTALE if the folder was removed before the lock was ours. */
static int make_locked_dir(const char *path, int *ret_fd)
{
	fp_autoclose int fd = -1;
	struct stat st;

	if (mkdir(path, 0700) < 0)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ESTALE : -errno;
	if (flock(fd, LOCK_EX) < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_nlink == 0)
		return -ESTALE;
	*ret_fd = fp_take_fd(fd);
	return 0;
}

int fp_pages_run_dir_create(char *buf, size_t len, int *ret_lock_fd)
{
	fp_autoclose int fd = -1;
	char parent[PATH_MAX];
	int r = fp_statspage_dir(parent, sizeof(parent), 1);

	if (r < 0)
		return r;
	if ((size_t)snprintf(buf, len, "%s/" FP_PAGES_RUN_PREFIX "%d", parent, (int)getpid()) >= len)
		return -ENAMETOOLONG;
	do { /* again if a `farpage ps` took the new folder, not yet locked, for a stale one */
		fp_pages_run_dir_remove(buf);
		r = make_locked_dir(buf, &fd);
	} while (r == -ESTALE);
	if (r < 0)
		return r;
	*ret_lock_fd = fp_take_fd(fd);
	return 0;
}

void fp_pages_run_dir_remove(const char *dir)
{
	fp_autoclosedir DIR *stream = opendir(dir);
	struct dirent *entry;

	if (!stream)
		return;
	while ((entry = readdir(stream)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			unlinkat(dirfd(stream), entry->d_name, 0);
	rmdir(dir);
}
