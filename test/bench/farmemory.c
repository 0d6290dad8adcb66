/*
 * What a far page that is not local costs the program's machine. First all pages of a large mapping
 * are read, so that they hold zeros and have no slot. Then, in a far memory of its own, as many
 * pages are written as the node has memory for. The budget is small, so nearly no page is local.
 * The table has bytes a page, by mapping: what /proc/self/smaps shows now, and did not show before
 * the first touch. The pages themselves, and the node's memory, are left out. The kernel's page
 * tables stand apart.
 *
 *   farmemory FARPAGED [READ_SIZE [WRITTEN_SIZE]] [--json]
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "farpage/farpage.h"
#include "units.h"

#define PAGE        4096u
#define LOCAL_BYTES (64ull << 20)
#define POOL_SPARE  (1ull << 30)
#define PARTS_MAX   256  /* mappings that have grown */
#define WORTH_BYTES 0.05 /* a page; smaller parts are summed up */

struct part {
	uint64_t start, bytes, rss;
};

/* The process's memory outside of the mapping [far, far + far_bytes) and of the node's pool. */
struct memory {
	struct part parts[PARTS_MAX];
	unsigned n;
	uint64_t page_tables;
};

struct result {
	const char *name;
	uint64_t bytes; /* of the mapping */
	uint64_t pages; /* of these, the pages that are not local */
	double seconds, together, page_tables;
	struct part grown[PARTS_MAX]; /* rss: what came since before the first touch */
	unsigned n;
};

static _Noreturn void fail(const char *what, const char *why)
{
	fprintf(stderr, "farmemory: %s: %s\n", what, why);
	exit(1);
}

static uint64_t kib_of(const char *line, const char *key)
{
	return strncmp(line, key, strlen(key)) == 0 ? strtoull(line + strlen(key), NULL, 10) << 10 : 0;
}

static uint64_t page_table_bytes(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	uint64_t bytes = 0;
	char line[256];

	while (status && fgets(line, sizeof(line), status))
		bytes += kib_of(line, "VmPTE:");
	if (status)
		fclose(status);
	return bytes;
}

static struct memory look(uint64_t far, uint64_t far_bytes)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	struct memory now = {.page_tables = page_table_bytes()};
	bool counts = false;
	char line[512];

	if (!smaps)
		fail("/proc/self/smaps", "cannot be read");
	while (fgets(line, sizeof(line), smaps)) {
		uint64_t start, end;

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2) {
			counts = (start < far || start >= far + far_bytes) &&
			         !strstr(line, "memfd:farpage") && now.n < PARTS_MAX;
			if (counts)
				now.parts[now.n++] = (struct part){.start = start, .bytes = end - start};
		} else if (counts) {
			now.parts[now.n - 1].rss += kib_of(line, "Rss:");
		}
	}
	fclose(smaps);
	return now;
}

/* What was resident before in a mapping that may have grown since. */
static uint64_t rss_before(const struct memory *before, const struct part *part)
{
	uint64_t rss = 0;

	for (unsigned i = 0; i < before->n; i++)
		if (before->parts[i].start >= part->start &&
		    before->parts[i].start < part->start + part->bytes)
			rss += before->parts[i].rss;
	return rss;
}

static void compare(const struct memory *before, const struct memory *after, struct result *result)
{
	double pages = (double)result->pages;

	for (unsigned i = 0; i < after->n; i++) {
		const struct part *part = &after->parts[i];
		double grown = ((double)part->rss - (double)rss_before(before, part)) / pages;

		result->together += grown;
		if (grown >= WORTH_BYTES) {
			result->grown[result->n] = *part;
			result->grown[result->n++].rss = (uint64_t)(grown * pages);
		}
	}
	result->page_tables = ((double)after->page_tables - (double)before->page_tables) / pages;
}

static struct result measure(const char *name, const char *url, uint64_t bytes, bool write)
{
	const char *nodes[] = {url, NULL};
	const struct far_options options = {
	    .size = sizeof(options), .local_bytes = LOCAL_BYTES, .nodes = nodes, .overcommit = 1};
	struct result result = {.name = name, .bytes = bytes};
	struct far_stats stats = {.size = sizeof(stats)};
	struct far_memory *far;
	struct memory before, after;
	uint64_t start_ns = fp_clock_kernel_ns();
	char error[512];
	void *memory;

	if (far_open(&options, error, sizeof(error), &far) < 0)
		fail("far_open", error);
	if (far_map(far, bytes, &memory) < 0)
		fail("far_map", "the mapping was refused");
	before = look((uintptr_t)memory, bytes);
	for (uint64_t at = 0; at < bytes; at += PAGE) {
		volatile uint64_t *word = (void *)((char *)memory + at);

		if (write)
			*word = at + 1;
		else if (*word != 0)
			fail("a fresh page", "holds no zeros");
	}
	result.seconds = (double)(fp_clock_kernel_ns() - start_ns) / FP_NSEC_PER_SEC;
	far_get_stats(far, &stats);
	result.pages = (bytes - FP_MIN(stats.resident_bytes, bytes)) / PAGE;
	if (write && stats.remote_bytes < bytes - 2 * LOCAL_BYTES)
		fail("written pages", "are not at the node");
	after = look((uintptr_t)memory, bytes);
	if (result.pages == 0)
		fail(name, "all pages are local");
	compare(&before, &after, &result);
	far_close(far);
	return result;
}

static void print_text(const struct result *r)
{
	double rest = r->together;
	char size[16];

	printf("%s: %s, %" PRIu64 " pages not local, %.0f s\n", r->name,
	       fp_size_format(r->bytes, size, sizeof(size)), r->pages, r->seconds);
	for (unsigned i = 0; i < r->n; i++) {
		double grown = (double)r->grown[i].rss / (double)r->pages;

		rest -= grown;
		printf("%10.2f bytes a page in a mapping of %s\n", grown,
		       fp_size_format(r->grown[i].bytes, size, sizeof(size)));
	}
	printf("%10.2f elsewhere\n%10.2f together\n%10.2f in the kernel's page tables\n", rest, r->together,
	       r->page_tables);
}

static void print_json(const struct result *r, const char *end)
{
	printf("{\"what\": \"%s\", \"bytes\": %" PRIu64 ", \"pages\": %" PRIu64
	       ", \"seconds\": %.1f, \"bytes_a_page\": %.3f, \"page_table_bytes_a_page\": %.3f}%s\n",
	       r->name, r->bytes, r->pages, r->seconds, r->together, r->page_tables, end);
}

int main(int argc, char **argv)
{
	bool json = argc > 1 && strcmp(argv[argc - 1], "--json") == 0;
	uint64_t sizes[2] = {64ull << 30, 8ull << 30};
	struct test_daemon daemon;
	struct result read, written;

	argc -= json;
	if (argc < 2 || argc > 4)
		fail("usage", "farmemory FARPAGED [READ_SIZE [WRITTEN_SIZE]] [--json]");
	for (int i = 2; i < argc; i++)
		if (fp_size_parse(argv[i], &sizes[i - 2]) < 0 || sizes[i - 2] <= 4 * LOCAL_BYTES)
			fail(argv[i], "wanted is a size of more than 256M");
	if (test_daemon_start(argv[1], "shm", sizes[1] + POOL_SPARE, &daemon) < 0)
		fail(argv[1], "the node did not start");
	read = measure("read", daemon.url, sizes[0], false);
	if (!json)
		print_text(&read);
	written = measure("written", daemon.url, sizes[1], true);
	test_daemon_stop(&daemon);
	if (json) {
		printf("[");
		print_json(&read, ",");
		print_json(&written, "]");
	} else {
		print_text(&written);
	}
	return 0;
}
