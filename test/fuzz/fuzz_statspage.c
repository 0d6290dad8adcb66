/*
 * Fuzz target: any file as a program's stats page. The first two bytes say where the file is cut
 * off (65535: nowhere). The others overwrite the beginning of a sound page.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "fuzz.h"
#include "statsview.h"

static void check(const struct fp_statspage *page)
{
	assert(page->magic == FP_STATSPAGE_MAGIC && page->size_bytes == sizeof(*page));
	assert(memchr(page->command, '\0', sizeof(page->command)));
	assert(memchr(page->fault_mode, '\0', sizeof(page->fault_mode)));
	assert(memchr(page->capture, '\0', sizeof(page->capture)));
	for (unsigned i = 0; i < FP_STATSPAGE_NODES; i++) {
		assert(memchr(page->node[i].url, '\0', sizeof(page->node[i].url)));
		assert(memchr(page->node[i].way, '\0', sizeof(page->node[i].way)));
		assert(fp_stats_node_state_name(page->node[i].state));
	}
	(void)fp_statspage_alive(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	static struct fp_statspage file;
	fp_autoclose int fd = memfd_create("page", MFD_CLOEXEC);
	struct fp_statsview *view;
	char path[32];
	uint16_t size;
	int r;

	if (len < sizeof(size))
		return 0;
	memcpy(&size, bytes, sizeof(size));
	file = (struct fp_statspage){
	    .magic = FP_STATSPAGE_MAGIC, .version = FP_STATSPAGE_VERSION, .size_bytes = sizeof(file)};
	memcpy(&file, bytes + sizeof(size), FP_MIN(len - sizeof(size), sizeof(file)));
	if (fd < 0 || write(fd, &file, sizeof(file)) != (ssize_t)sizeof(file))
		abort();
	if (size != UINT16_MAX && ftruncate(fd, size) < 0)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = fp_statsview_open(path, &view);
	assert(r == 0 || r == -EINVAL || r == -EPROTO || r == -ENODATA);
	if (r < 0)
		return 0;
	check(&view->page);
	fp_statsview_close(view);
	return 0;
}
