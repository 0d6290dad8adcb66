/*
 * Host memory. Room: daemon; see hostmem.h.
 *
 *   /proc/self/cgroup      the group of this process
 *   MOUNT/a/b, MOUNT/a, MOUNT: limit - usage + page cache; the smallest result counts
 *
 * If the mount does not show the group, as in some containers, the top group of the mount counts.
 * See cgroups(7), and memory in the kernel's cgroup-v1 and cgroup-v2 documents.
 */
#include "hostmem.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "units.h"

/*
 * Memory not offered to clients: it is for the node's own heap, and for the page tables of the
 * memory that is offered.
 */
#define OWN_BYTES  (16ull << 20)
#define OWN_DIVIDE 256

/* What is kept back for clients: see fp_hostmem_kept_back. */
#define CLIENTS_DIVIDE 16
#define CLIENTS_BYTES  (1ull << 30)

#define NO_LIMIT (1ull << 62) /* without a limit, cgroup v1 says a little less than INT64_MAX */

/* Differences between cgroup versions. The statistics include child groups. */
struct version {
	const char *controller; /* text before the group in /proc/self/cgroup: "4:memory:/a/b", "0::/a/b" */
	const char *mount;
	const char *limit, *usage;
	const char *inactive, *active; /* keys of memory.stat: page cache that can be freed */
};

static const struct version versions[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "active_file "},
    {"memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file ", "total_active_file "},
};

/*
 * Finds the line of the file dir/file that begins with key, and returns the number behind key. If
 * there is no such line, returns fallback.
 */
static uint64_t read_number(const char *dir, const char *file, const char *key, uint64_t fallback)
{
	fp_autofclose FILE *f = NULL;
	char path[2 * PATH_MAX], line[256];
	unsigned long long number;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &number) == 1)
			return number;
	return fallback;
}

static void look_at_group(const struct version *v, const char *dir, struct fp_hostmem *host)
{
	uint64_t limit = read_number(dir, v->limit, "", UINT64_MAX), usage, cache;
	char size[16];

	if (limit >= NO_LIMIT)
		return;
	host->total_bytes = FP_MIN(host->total_bytes, limit);
	usage = read_number(dir, v->usage, "", 0);
	cache =
	    read_number(dir, "memory.stat", v->inactive, 0) + read_number(dir, "memory.stat", v->active, 0);
	usage -= FP_MIN(usage, cache);
	if (limit - FP_MIN(limit, usage) >= host->available_bytes)
		return;
	host->available_bytes = limit - FP_MIN(limit, usage);
	snprintf(host->bound, sizeof(host->bound), "%.180s/%s is %s", dir, v->limit,
	         fp_size_format(limit, size, sizeof(size)));
}

/* Looks at the group of this process and at each group above it. */
static void look_at_groups(const char *root, const struct version *v, struct fp_hostmem *host)
{
	fp_autofclose FILE *f = NULL;
	char line[PATH_MAX], dir[2 * PATH_MAX], *group = NULL;
	size_t mount_len = (size_t)snprintf(dir, sizeof(dir), "%s%s", root, v->mount);

	snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
	f = fopen(line, "re");
	while (f && !group && fgets(line, sizeof(line), f))
		group = strstr(line, v->controller);
	if (!group)
		return;
	group[strcspn(group, "\n")] = '\0';
	snprintf(dir + mount_len, sizeof(dir) - mount_len, "%s", group + strlen(v->controller));
	for (;;) {
		look_at_group(v, dir, host);
		if (strlen(dir) <= mount_len)
			return;
		*strrchr(dir, '/') = '\0';
	}
}

uint64_t fp_hostmem_kept_back(const struct fp_hostmem *host)
{
	return FP_MIN(host->total_bytes / CLIENTS_DIVIDE, CLIENTS_BYTES);
}

void fp_hostmem_read(const char *root, struct fp_hostmem *ret_host)
{
	struct fp_hostmem host = {
	    .available_bytes = UINT64_MAX, .total_bytes = UINT64_MAX, .bound = "nothing"};
	char proc[PATH_MAX], size[16];
	uint64_t kib;

	snprintf(proc, sizeof(proc), "%s/proc", root);
	kib = read_number(proc, "meminfo", "MemTotal:", UINT64_MAX);
	if (kib != UINT64_MAX)
		host.total_bytes = kib << 10;
	kib = read_number(proc, "meminfo", "MemAvailable:", UINT64_MAX);
	if (kib != UINT64_MAX) {
		host.available_bytes = (kib + read_number(proc, "meminfo", "SwapFree:", 0)) << 10;
		snprintf(host.bound, sizeof(host.bound), "/proc/meminfo has %s of memory and swap",
		         fp_size_format(host.available_bytes, size, sizeof(size)));
	}
	for (unsigned i = 0; i < FP_ARRAY_LEN(versions); i++)
		look_at_groups(root, &versions[i], &host);
	if (host.available_bytes != UINT64_MAX) {
		host.available_bytes -= FP_MIN(host.available_bytes, OWN_BYTES + fp_hostmem_kept_back(&host));
		host.available_bytes -= host.available_bytes / OWN_DIVIDE;
	}
	*ret_host = host;
}
