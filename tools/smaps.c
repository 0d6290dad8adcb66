/*
 * Memory that is not far, by kind. Room: tools; see smaps.h.
 */
#include "smaps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

/* One mapping, as the first of its lines describes it. */
struct mapping {
	uint64_t start, end;
	char rights[5];
	unsigned long inode;
	char name[128];
};

/* Parses the first line of a mapping. False: the line is one of those after it. */
static bool parse_mapping(const char *line, struct mapping *ret_mapping)
{
	struct mapping m = {.start = 0};

	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %*x %*s %lu %127[^\n]", &m.start, &m.end, m.rights,
	           &m.inode, m.name) < 4)
		return false;
	*ret_mapping = m;
	return true;
}

static enum fp_smaps_kind kind_of(const struct mapping *m)
{
	if (m->rights[3] == 's')
		return FP_SMAPS_SHARED;
	if (strcmp(m->name, "[stack]") == 0)
		return FP_SMAPS_STACK;
	if (m->rights[2] == 'x' && (m->inode || strcmp(m->name, "[vdso]") == 0))
		return FP_SMAPS_CODE;
	return m->inode ? FP_SMAPS_FILE : FP_SMAPS_OTHER;
}

static void close_file(FILE **file)
{
	if (*file)
		fclose(*file);
}

int fp_smaps_read(const struct fp_statspage *page, struct fp_smaps *ret_kinds)
{
	struct fp_smaps kinds = {.bytes[FP_SMAPS_RULE] = page->rule_local_bytes};
	struct mapping m = {.start = 0};
	char path[32], line[512];
	uint64_t kib;

	if (!fp_statspage_alive(page)) /* it has ended, or lives in another pid namespace */
		return -ENOENT;
	snprintf(path, sizeof(path), "/proc/%d/smaps", page->pid);
	FP_CLEANUP(close_file) FILE *file = fopen(path, "re");
	if (!file)
		return -errno;
	while (fgets(line, sizeof(line), file)) {
		if (parse_mapping(line, &m) || sscanf(line, "Rss: %" SCNu64 " kB", &kib) != 1)
			continue;
		if (m.start < page->far_start || m.start >= page->far_end)
			kinds.bytes[kind_of(&m)] += kib << 10;
	}
	if (ferror(file))
		return -EIO;
	*ret_kinds = kinds;
	return 0;
}

const char *fp_smaps_kind_name(enum fp_smaps_kind kind)
{
	static const char *const names[FP_SMAPS_KINDS] = {"by_rule", "code",  "file",
	                                                  "shared",  "stack", "anonymous"};

	return names[kind];
}
