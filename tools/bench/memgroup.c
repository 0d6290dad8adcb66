/*
 * A control group with a limit of memory. Room: tools/bench.
 */
#include "memgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <mntent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "sysfile.h"

#define MOUNTS         "/proc/self/mounts"
#define PATH_BYTES     256
#define TEXT_BYTES     1024
#define REMOVE_SECONDS 20
#define LOOK_NS        (10 * (long)FP_NSEC_PER_MSEC)

static const char *file_of(const char *dir, const char *name, char path[PATH_BYTES])
{
	snprintf(path, PATH_BYTES, "%s/%s", dir, name);
	return path;
}

static bool has_word(const char *text, const char *word)
{
	size_t len = strlen(word);

	for (const char *at = text; (at = strstr(at, word)); at += len)
		if ((at == text || at[-1] == ' ') && (!at[len] || strchr(" \n", at[len])))
			return true;
	return false;
}

/* True if new groups of this hierarchy have the limit, without a change of any other group. */
static bool offers_limit(const struct mntent *mount, bool *ret_is_v2)
{
	char path[PATH_BYTES], text[TEXT_BYTES];

	*ret_is_v2 = strcmp(mount->mnt_type, "cgroup2") == 0;
	if (*ret_is_v2)
		return fp_sysfile_read(file_of(mount->mnt_dir, "cgroup.subtree_control", path), text,
		                       sizeof(text)) == 0 &&
		       has_word(text, "memory");
	return strcmp(mount->mnt_type, "cgroup") == 0 && hasmntopt(mount, "memory");
}

static int find_place(struct fp_memgroup *ret_group)
{
	FILE *mounts = setmntent(MOUNTS, "re");
	const struct mntent *mount;
	int r = -ENOENT;

	while (mounts && r < 0 && (mount = getmntent(mounts))) {
		if (!offers_limit(mount, &ret_group->is_v2) ||
		    strlen(mount->mnt_dir) >= sizeof(ret_group->dir) - 32)
			continue;
		snprintf(ret_group->dir, sizeof(ret_group->dir), "%s/farpage-bench-%d", mount->mnt_dir,
		         (int)getpid());
		r = 0;
	}
	if (mounts)
		endmntent(mounts);
	return r;
}

static int set_limit(const struct fp_memgroup *group, uint64_t limit_bytes)
{
	char path[PATH_BYTES], text[32];

	snprintf(text, sizeof(text), "%" PRIu64, limit_bytes);
	if (group->is_v2)
		/* Otherwise pages would stop there on their way. Kernels without zswap lack the
		 * file. */
		(void)fp_sysfile_write(file_of(group->dir, "memory.zswap.max", path), "0");
	return fp_sysfile_write(
	    file_of(group->dir, group->is_v2 ? "memory.max" : "memory.limit_in_bytes", path), text);
}

int fp_memgroup_make(uint64_t limit_bytes, char *error, size_t error_len, struct fp_memgroup *ret_group)
{
	struct fp_memgroup group = {.is_v2 = false};
	int r = find_place(&group);

	if (r < 0) {
		snprintf(error, error_len,
		         "no control group can have a limit of memory: the controller "
		         "memory is not enabled at the top of any hierarchy");
		return r;
	}
	r = mkdir(group.dir, 0755) < 0 ? -errno : 0;
	if (r < 0) {
		snprintf(error, error_len, "control group %s: %s", group.dir, strerror(-r));
		return r;
	}
	r = set_limit(&group, limit_bytes);
	if (r < 0) {
		snprintf(error, error_len, "control group %s: its limit of memory: %s", group.dir,
		         strerror(-r));
		rmdir(group.dir);
		return r;
	}
	*ret_group = group;
	return 0;
}

int fp_memgroup_enter(const struct fp_memgroup *group)
{
	char path[PATH_BYTES];

	return fp_sysfile_write(file_of(group->dir, "cgroup.procs", path), "0");
}

bool fp_memgroup_has_killed(const struct fp_memgroup *group)
{
	char path[PATH_BYTES], text[TEXT_BYTES];
	const char *file = group->is_v2 ? "memory.events" : "memory.oom_control", *count;

	if (fp_sysfile_read(file_of(group->dir, file, path), text, sizeof(text)) < 0)
		return false;
	count = strstr(text, "oom_kill ");
	return count && strtoull(count + strlen("oom_kill "), NULL, 10) > 0;
}

static void kill_all(const struct fp_memgroup *group)
{
	char path[PATH_BYTES];
	fp_autofclose FILE *list = fopen(file_of(group->dir, "cgroup.procs", path), "re");
	int pid;

	while (list && fscanf(list, "%d", &pid) == 1)
		if (pid > 0)
			kill(pid, SIGKILL);
}

int fp_memgroup_remove(const struct fp_memgroup *group)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	uint64_t deadline_ns = fp_clock_kernel_ns() + REMOVE_SECONDS * FP_NSEC_PER_SEC;

	if (!group->dir[0])
		return 0;
	while (rmdir(group->dir) < 0 && errno != ENOENT) {
		if (fp_clock_kernel_ns() > deadline_ns)
			return -EBUSY;
		kill_all(group);
		nanosleep(&pause, NULL);
	}
	return 0;
}
