/*
 * A program that has a stats page with known figures and no far memory, for tests of programs that
 * read such pages. It prints its process number, and lives until its stdin ends. For each line "N
 * US" it counts N further faults of US microseconds, which read and wrote a page each. Room:
 * test/lib.
 *
 *   statswriter PATTERN [idle|two]   (see fp_statspage_expand; idle: no fault so far; two: it has two
 *   far memories, and the second page has 100 faults more)
 */
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "statspage.h"

static void fill(struct fp_statspage *page)
{
	snprintf(page->fault_mode, sizeof(page->fault_mode), "thread");
	snprintf(page->capture, sizeof(page->capture), "move");
	page->budget_bytes = 64u << 20;
	page->mapped_bytes = page->mapped_peak_bytes = 512u << 20;
	page->resident_bytes = page->resident_peak_bytes = 63u << 20;
	page->remote_bytes = 400u << 20;
	page->fetched_bytes = 1000 * 4096;
	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		page->faults[kind] = 100 * (kind + 1);
	snprintf(page->node[0].url, sizeof(page->node[0].url), "tcp://far \"quoted\":1");
	page->node[0].up = 1;
	page->node[0].reconnects = 3;
	page->node[0].failures = 4;
	page->node[0].heartbeat_ns = 1500;
	snprintf(page->node[1].url, sizeof(page->node[1].url), "shm:/lost");
	page->node[1].state = FP_STATS_NODE_LOST;
	snprintf(page->node[2].url, sizeof(page->node[2].url), "tcp://cut");
	snprintf(page->node[2].way, sizeof(page->node[2].way), "tcp://other-way");
	page->node[2].state = FP_STATS_NODE_OPEN;
	for (unsigned us = 1; us <= 1000; us++) {
		fp_hist_record(&page->kind_latency[us <= 600 ? FP_FAULT_READ : FP_FAULT_ZERO], us * 1000);
		fp_hist_record(&page->fetch_latency, us * 2000);
		if (us > 900)
			fp_hist_record(&page->waited_latency, us * 1000);
	}
}

static void count(struct fp_statspage *page, uint64_t n, uint64_t us)
{
	page->faults[FP_FAULT_READ] += n;
	page->fetched_bytes += n * 4096;
	page->written_bytes += n * 4096;
	for (uint64_t i = 0; i < n; i++)
		fp_hist_record(&page->kind_latency[FP_FAULT_READ], us * 1000);
}

static void forget_faults(struct fp_statspage *page)
{
	const size_t at = offsetof(struct fp_statspage, fault_latency); /* all behind it are histograms */

	memset((char *)page->faults, 0, sizeof(page->faults));
	memset((char *)page + at, 0, sizeof(*page) - at);
}

static bool add_second(const char *pattern)
{
	struct fp_statspage *page;
	char path[PATH_MAX];

	if (fp_statspage_expand(pattern, getpid() + 1, path, sizeof(path)) < 0 ||
	    fp_statspage_create(path, false, &page) < 0)
		return false;
	fill(page);
	count(page, 100, 5);
	return true;
}

int main(int argc, char **argv)
{
	struct fp_statspage *page;
	char path[PATH_MAX], line[64];
	uint64_t n, us;

	if (argc < 2 || fp_statspage_expand(argv[1], getpid(), path, sizeof(path)) < 0)
		return 2;
	if (fp_statspage_create(path, false, &page) < 0)
		return 1;
	fill(page);
	if (argc > 2 && strcmp(argv[2], "two") == 0 && !add_second(argv[1]))
		return 1;
	if (argc > 2 && strcmp(argv[2], "idle") == 0)
		forget_faults(page);
	printf("%d\n", page->pid);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		if (sscanf(line, "%" SCNu64 " %" SCNu64, &n, &us) == 2)
			count(page, n, us);
	fp_statspage_close(page);
	return 0;
}
