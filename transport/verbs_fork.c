/*
 * Resets verbs in a forked child. Room: transport; see fp_verbs_forget.
 *
 * The kernel ends the queue pairs and rdma_cm connections of a process when the last copy of their
 * descriptors is closed. A forked child has copies. Memory mapped from a device (queues, doorbells)
 * keeps the device open as well. So while the child lives, nodes would not see the parent's end.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "fdutil.h"
#include "verbs_internal.h"

#define DEVICE_PREFIX "/dev/infiniband/uverbs"

static bool is_device(const char *path)
{
	return strncmp(path, DEVICE_PREFIX, strlen(DEVICE_PREFIX)) == 0;
}

/*
 * Whether the program itself has opened a device: then some of the mappings may be the program's.
 */
static bool program_has_devices(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	bool found = false;

	while (dir && !found && (entry = readdir(dir))) {
		char target[sizeof(DEVICE_PREFIX)];
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = 0;
		found = is_device(target) && !fp_fd_is_ours(atoi(entry->d_name));
	}
	if (dir)
		closedir(dir);
	return found;
}

static void unmap_devices(void)
{
	fp_autofclose FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		const char *path = strchr(line, '/');
		char *end;
		unsigned long from = strtoul(line, &end, 16),
		              to = *end == '-' ? strtoul(end + 1, NULL, 16) : 0;

		if (path && is_device(path) && to > from)
			munmap((void *)from, to - from);
	}
}

void fp_verbs_forget(void)
{
	if (!fp_verbs_inherited())
		return;
	if (!program_has_devices())
		unmap_devices();
	fp_verbs_drop_descriptors();
	fp_verbs_unload();
}
