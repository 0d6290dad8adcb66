/*
 * The stats page as a file. Room: common. A page is built under a temporary name, and gets its own
 * name once it is whole. So a reader finds a whole page or none. The file's blocks are allocated
 * beforehand, so that counting never meets a full file system.
 */
#include "statspage.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fdutil.h"
#include "lockedmem.h"
#include "log.h"
#include "rundir.h"

#define TEMPORARY "XXXXXX"

/* The fields of /proc/PID/stat that a page needs. */
struct proc_stat {
	char command[64];
	char state;
	long n_threads;
	uint64_t start_ticks;
};

/*
 * The command stands in parentheses, and may itself have any characters. So the last closing
 * parenthesis of the file ends it.
 */
static int proc_stat_read(pid_t pid, struct proc_stat *ret_stat)
{
	char path[32], text[1024], *open_paren, *close_paren;
	struct proc_stat stat = {0};
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	len = fp_fd_read_file(path, text, sizeof(text) - 1);
	if (len < 0)
		return (int)len;
	text[len] = '\0';
	open_paren = strchr(text, '(');
	close_paren = strrchr(text, ')');
	if (!open_paren || !close_paren ||
	    sscanf(close_paren + 1,
	           " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %" SCNu64,
	           &stat.state, &stat.n_threads, &stat.start_ticks) != 3)
		return -EPROTO;
	*close_paren = '\0';
	snprintf(stat.command, sizeof(stat.command), "%s", open_paren + 1);
	*ret_stat = stat;
	return 0;
}

static void fill_identity(struct fp_statspage *page)
{
	struct proc_stat self = {.state = '?'};
	struct timespec now;

	if (proc_stat_read(getpid(), &self) < 0) /* /proc is not mounted, or no descriptor is free */
		prctl(PR_GET_NAME, self.command);
	clock_gettime(CLOCK_REALTIME, &now);
	page->magic = FP_STATSPAGE_MAGIC;
	page->version = FP_STATSPAGE_VERSION;
	page->size_bytes = sizeof(*page);
	page->pid = getpid();
	page->ppid = getppid();
	page->start_ticks = self.start_ticks;
	page->start_realtime_ns = (uint64_t)now.tv_sec * FP_NSEC_PER_SEC + (uint64_t)now.tv_nsec;
	memcpy(page->command, self.command, sizeof(page->command));
}

static int map(int fd, int flags, struct fp_statspage **ret_page)
{
	struct fp_statspage *page =
	    mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);

	if (page == MAP_FAILED)
		return -errno;
	fp_lockedmem_lock(page, sizeof(*page), false);
	fill_identity(page);
	*ret_page = page;
	return 0;
}

/*
 * Returns -EFBIG if RLIMIT_FSIZE is too low: past the limit the kernel would end the process by
 * SIGXFSZ.
 */
static int check_limit(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(struct fp_statspage) ? -EFBIG
	                                                                                            : 0;
}

/*
 * Allocates, locks, maps and fills the page in fd. From then on the mapping keeps the lock. The
 * kernel releases the lock when the last process that maps the page ends, in whatever way.
 */
static int build(int fd, struct fp_statspage **ret_page)
{
	int r;

	(void)flock(fd, LOCK_EX | LOCK_NB); /* if it fails, readers rely on the process number alone */
	r = -posix_fallocate(fd, 0, sizeof(**ret_page));
	return r < 0 ? r : map(fd, MAP_SHARED, ret_page);
}

static bool is_locked(const char *path)
{
	fp_autoclose int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

/*
 * Returns 0 if path is free, or is a file that we may replace: a regular file of this user. If the
 * parameter yields is true, a file whose lock is held may not be replaced.
 */
static int may_replace(const char *path, bool yields)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
		return -EEXIST;
	return yields && is_locked(path) ? -EBUSY : 0;
}

static int create_at(char *temporary, const char *path, struct fp_statspage **ret_page)
{
	fp_autoclose int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
	struct fp_statspage *page;
	int r;

	if (fd < 0)
		return -errno;
	r = build(fd, &page);
	if (r == 0 && rename(temporary, path) < 0) {
		r = -errno;
		fp_statspage_close(page);
	}
	if (r < 0)
		unlink(temporary);
	else
		*ret_page = page;
	return r;
}

int fp_statspage_create(const char *path, bool yields, struct fp_statspage **ret_page)
{
	char temporary[PATH_MAX];
	int r = check_limit();

	if (r == 0)
		r = may_replace(path, yields);
	if (r < 0)
		return r;
	if (snprintf(temporary, sizeof(temporary), "%s." TEMPORARY, path) >= (int)sizeof(temporary))
		return -ENAMETOOLONG;
	return create_at(temporary, path, ret_page);
}

int fp_statspage_create_unseen(struct fp_statspage **ret_page)
{
	return map(-1, MAP_PRIVATE | MAP_ANONYMOUS, ret_page);
}

const char *fp_statspage_explain(int error, char *buf, size_t len)
{
	switch (error) {
	case -EISDIR:
		return "it is a folder: name a file in it";
	case -EEXIST:
		return "there is something that is no regular file of this user: name another file";
	case -EBUSY:
		return "a running program writes this file: name another file";
	case -EFBIG:
		return "the limit of file sizes leaves no room for it (ulimit -f)";
	default:
		return fp_strerror(error, buf, len);
	}
}

void fp_statspage_copy(struct fp_statspage *to, const struct fp_statspage *from)
{
	_Atomic uint64_t *words = (_Atomic uint64_t *)to;
	const _Atomic uint64_t *others = (const _Atomic uint64_t *)from;

	static_assert(sizeof(*to) % sizeof(*words) == 0, "a page is whole words");
	for (size_t i = 0; i < sizeof(*to) / sizeof(*words); i++)
		atomic_store_explicit(&words[i], atomic_load_explicit(&others[i], memory_order_relaxed),
		                      memory_order_relaxed);
}

void fp_statspage_sum_kinds(const struct fp_statspage *page, struct fp_hist *ret_sum)
{
	memset(ret_sum, 0, sizeof(*ret_sum));
	for (unsigned kind = 0; kind < FP_FAULT_TIMED; kind++)
		fp_hist_merge(ret_sum, &page->kind_latency[kind]);
}

void fp_statspage_close(const struct fp_statspage *page)
{
	if (!page)
		return;
	fp_lockedmem_forget(sizeof(*page));
	munmap((void *)page, sizeof(*page));
}

int fp_statspage_path(pid_t pid, char *buf, size_t len)
{
	char dir[PATH_MAX];
	int r = fp_rundir_path(dir, sizeof(dir));

	if (r < 0)
		return r;
	r = snprintf(buf, len, "%s/%d" FP_STATSPAGE_SUFFIX, dir, (int)pid);
	return (size_t)r < len ? 0 : -ENAMETOOLONG;
}

int fp_statspage_expand(const char *pattern, pid_t pid, char *buf, size_t len)
{
	const char *mark = strstr(pattern, "%p");
	int n = mark ? snprintf(buf, len, "%.*s%d%s", (int)(mark - pattern), pattern, (int)pid, mark + 2)
	             : snprintf(buf, len, "%s", pattern);

	return (size_t)n < len ? 0 : -ENAMETOOLONG;
}

/* A program whose main thread called pthread_exit is in state Z while its other threads run. */
int fp_statspage_alive(const struct fp_statspage *page)
{
	struct proc_stat stat;

	return proc_stat_read(page->pid, &stat) == 0 && stat.start_ticks == page->start_ticks &&
	       (stat.state != 'Z' || stat.n_threads > 1) && stat.state != 'X';
}

bool fp_statspage_same(const struct fp_statspage *a, const struct fp_statspage *b)
{
	return a->pid == b->pid && a->start_ticks == b->start_ticks &&
	       a->start_realtime_ns == b->start_realtime_ns;
}

/*
 * Splits a name of the form PID.stats... Returns the process number; *ret_rest is the part after
 * ".stats". -EINVAL: the name has another form.
 */
static int name_pid(const char *name, const char **ret_rest)
{
	char *end;
	long pid;

	if (*name < '1' || *name > '9')
		return -EINVAL;
	errno = 0;
	pid = strtol(name, &end, 10);
	if (errno || pid > INT_MAX || strncmp(end, FP_STATSPAGE_SUFFIX, strlen(FP_STATSPAGE_SUFFIX)) != 0)
		return -EINVAL;
	*ret_rest = end + strlen(FP_STATSPAGE_SUFFIX);
	return (int)pid;
}

int fp_statspage_owner(const char *name)
{
	const char *rest;
	int pid = name_pid(name, &rest);

	return pid < 0 || *rest ? -EINVAL : pid;
}

/* The name is PID.stats.XXXXXX: fp_statspage_create makes it from a path of fp_statspage_path. */
int fp_statspage_maker(const char *name)
{
	const char *rest;
	int pid = name_pid(name, &rest);

	if (pid < 0 || *rest != '.' || strlen(rest + 1) != strlen(TEMPORARY) || strchr(rest + 1, '.'))
		return -EINVAL;
	return kill(pid, 0) < 0 && errno == ESRCH ? 0 : pid;
}

bool fp_statspage_is_free(int dir_fd, const char *name, bool finished)
{
	fp_autoclose int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	uint64_t magic = 0;
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	       flock(fd, LOCK_SH | LOCK_NB) == 0 &&
	       (read(fd, &magic, sizeof(magic)) == sizeof(magic) || !finished) &&
	       (magic == FP_STATSPAGE_MAGIC || (!magic && !finished));
}

/*
 * Leaves the page of a number that is in use: between two programs of that process (exec) it has no
 * lock either, and a new page of that name must not go.
 */
static void sweep_one(int dir_fd, const char *name)
{
	int pid = fp_statspage_owner(name);

	if (pid > 0 && kill(pid, 0) < 0 && errno == ESRCH && fp_statspage_is_free(dir_fd, name, true))
		unlinkat(dir_fd, name, 0);
}

void fp_statspage_sweep(const char *dir)
{
	alignas(struct dirent64) char entries[2048];
	fp_autoclose int fd = fp_rundir_openat(AT_FDCWD, dir);
	ssize_t len;

	while (fd >= 0 && (len = getdents64(fd, entries, sizeof(entries))) > 0)
		for (const char *at = entries; at < entries + len;) {
			const struct dirent64 *entry = (const void *)at;

			sweep_one(fd, entry->d_name);
			at += entry->d_reclen;
		}
}

const char *fp_fault_kind_name(enum fp_fault_kind kind)
{
	static const char *const names[FP_FAULT_KINDS] = {
	    [FP_FAULT_ZERO] = "zero",       [FP_FAULT_READ] = "read",         [FP_FAULT_WRITE] = "write",
	    [FP_FAULT_PROTECT] = "protect", [FP_FAULT_RESCUED] = "rescued",   [FP_FAULT_PRESENT] = "present",
	    [FP_FAULT_DROPPED] = "dropped", [FP_FAULT_POISONED] = "poisoned",
	};

	return names[kind];
}

bool fp_stats_node_is_trouble(uint32_t state)
{
	return state != FP_STATS_NODE_UP && state != FP_STATS_NODE_UNASKED;
}

const char *fp_stats_node_state_name(uint32_t state)
{
	static const char *const names[FP_STATS_NODE_STATES] = {
	    [FP_STATS_NODE_UP] = "up",
	    [FP_STATS_NODE_OPEN] = "cut off",
	    [FP_STATS_NODE_HALF_OPEN] = "reconnecting",
	    [FP_STATS_NODE_LOST] = "lost",
	    [FP_STATS_NODE_UNASKED] = "not yet connected",
	};

	return state < FP_STATS_NODE_STATES ? names[state] : "?";
}
