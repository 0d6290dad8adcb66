/*
 * The folder for statistics and sockets. Room: common. It never lies in a folder that users share.
 */
#include "rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

/* The value of an environment variable; NULL if it is not set, or empty. */
static const char *variable(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

/*
 * Removes slashes, and dots that mean the folder itself, from the end of its name. With them,
 * open(2) would follow a link in spite of O_NOFOLLOW.
 */
static void cut_tail(char *dir)
{
	size_t len = strlen(dir);

	while (len > 1 && (dir[len - 1] == '/' || (dir[len - 1] == '.' && dir[len - 2] == '/')))
		dir[--len] = '\0';
}

int fp_rundir_path(char *buf, size_t len)
{
	const char *place;
	int n;

	if ((place = variable("FARPAGE_RUNTIME_DIR")))
		n = snprintf(buf, len, "%s", place);
	else if (geteuid() == 0)
		n = snprintf(buf, len, "/run/farpage");
	else if ((place = variable("XDG_RUNTIME_DIR")) || (place = variable("XDG_CACHE_HOME")))
		n = snprintf(buf, len, "%s/farpage", place);
	else if ((place = variable("HOME")))
		n = snprintf(buf, len, "%s/.cache/farpage", place);
	else
		return -ENOENT;
	if ((size_t)n >= len)
		return -ENAMETOOLONG;
	cut_tail(buf);
	return 0;
}

/* Makes the folder and its parent: a new user has no ~/.cache yet. */
static int make_with_parent(const char *dir)
{
	const char *slash = strrchr(dir, '/');
	char parent[PATH_MAX];

	if (mkdir(dir, 0700) == 0 || errno == EEXIST)
		return 0;
	if (errno != ENOENT || !slash ||
	    snprintf(parent, sizeof(parent), "%.*s", (int)(slash - dir), dir) >= (int)sizeof(parent))
		return -errno;
	return mkdir(parent, 0700) < 0 || mkdir(dir, 0700) < 0 ? -errno : 0;
}

int fp_rundir_make(char *buf, size_t len)
{
	fp_autoclose int fd = -1;
	int r = fp_rundir_path(buf, len);

	if (r == 0)
		r = make_with_parent(buf);
	if (r < 0)
		return r;
	fd = fp_rundir_openat(AT_FDCWD, buf);
	return fd < 0 ? fd : 0;
}

int fp_rundir_openat(int parent_fd, const char *name)
{
	fp_autoclose int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	return st.st_uid == geteuid() && !(st.st_mode & (S_IRWXG | S_IRWXO)) ? fp_take_fd(fd) : -EPERM;
}
