/*
 * Paths of the other parts of Farpage. Room: tools.
 */
#include "install_paths.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

#define PRELOAD "libfarpage-preload.so"
#define DAEMON  "farpaged"

/* The folder of this executable; "" if /proc does not show it. */
static void own_folder(char *buf, size_t len)
{
	ssize_t n = readlink("/proc/self/exe", buf, len - 1);

	buf[n < 0 ? 0 : n] = '\0';
	*(strrchr(buf, '/') ?: buf) = '\0';
}

static bool resolve(const char *path, char *ret_path, size_t len)
{
	fp_autofree char *real = realpath(path, NULL);

	return real && (size_t)snprintf(ret_path, len, "%s", real) < len;
}

/*
 * Finds the file that the environment variable names, else the first candidate that exists.
 * Candidates are relative to this executable's folder.
 */
static int find(const char *variable, const char *const *candidates, char *ret_path, size_t len)
{
	const char *given = getenv(variable);
	char folder[PATH_MAX], path[2 * PATH_MAX];

	if (given)
		return resolve(given, ret_path, len) ? 0 : -ENOENT;
	own_folder(folder, sizeof(folder));
	for (; *candidates; candidates++) {
		snprintf(path, sizeof(path), "%s/%s", folder, *candidates);
		if (resolve(path, ret_path, len))
			return 0;
	}
	return -ENOENT;
}

int fp_install_paths_preload(char *ret_path, size_t len)
{
	static const char *const candidates[] = {
	    "../preload/" PRELOAD,
	    "../" FARPAGE_LIBDIR "/" PRELOAD,
	    "../lib/" PRELOAD,
	    NULL,
	};

	return find("FARPAGE_PRELOAD", candidates, ret_path, len);
}

int fp_install_paths_daemon(char *ret_path, size_t len)
{
	static const char *const candidates[] = {
	    "../daemon/" DAEMON,
	    "../" FARPAGE_SBINDIR "/" DAEMON,
	    "../bin/" DAEMON,
	    NULL,
	};

	return find("FARPAGE_DAEMON", candidates, ret_path, len);
}
