/*
 * A bed for a bench. Room: tools.
 */
#include "farbed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "privnode.h"

#define PUSH_ATTEMPTS 20

struct fp_farbed {
	struct fp_privnode *node; /* NULL: it is somebody else's */
	struct far_memory *memory;
	void *base;
	size_t bytes;
};

static void free_bed(struct fp_farbed **bed)
{
	fp_farbed_close(*bed);
}

/* The URL for a way, of a node started for it if need be. */
static int find_node(struct fp_farbed *bed, const struct fp_farbed_options *options, char *error,
                     size_t error_len, const char **ret_url)
{
	enum fp_privnode_kind kind = strcmp(options->way, "tcp") == 0 ? FP_PRIVNODE_TCP : FP_PRIVNODE_SHM;
	/* for two of them */
	uint64_t pool_bytes = 2 * (options->map_bytes + options->map_bytes / 2) + (256u << 20);
	int r;

	if (kind == FP_PRIVNODE_SHM && strcmp(options->way, "shm") != 0) {
		*ret_url = options->way;
		return 0;
	}
	if (options->beside) {
		*ret_url = fp_privnode_url(options->beside->node);
		return 0;
	}
	r = fp_privnode_start(
	    &(struct fp_privnode_options){.kind = kind, .dir = options->dir, .pool_bytes = pool_bytes}, error,
	    error_len, &bed->node);
	if (r == 0)
		*ret_url = fp_privnode_url(bed->node);
	return r;
}

int fp_farbed_open(const struct fp_farbed_options *options, char *error, size_t error_len,
                   struct fp_farbed **ret_bed)
{
	FP_CLEANUP(free_bed) struct fp_farbed *bed = calloc(1, sizeof(*bed));
	const char *nodes[2] = {NULL, NULL};
	struct far_options far = {
	    .size = sizeof(far),
	    .local_bytes = options->local_bytes,
	    .nodes = nodes,
	    .readahead_pages = options->readahead_pages,
	    .fault_mode = options->fault_mode,
	};
	int r;

	if (!bed)
		return -ENOMEM;
	bed->bytes = options->map_bytes;
	r = find_node(bed, options, error, error_len, &nodes[0]);
	if (r < 0)
		return r;
	if (!bed->node)
		far.secret = options->secret;
	r = far_open(&far, error, error_len, &bed->memory);
	if (r < 0)
		return r;
	r = far_map(bed->memory, bed->bytes, &bed->base);
	if (r < 0) {
		snprintf(error, error_len, "%s: mapping %zu bytes: %s", nodes[0], bed->bytes, strerror(-r));
		return r;
	}
	*ret_bed = fp_take_ptr(bed);
	return 0;
}

void *fp_farbed_memory(const struct fp_farbed *bed)
{
	return bed->base;
}

/* How many pages of the mapping are in local memory: asked of the kernel, not of the product that
 * is measured. */
static size_t resident_pages(const struct fp_farbed *bed)
{
	size_t n_pages = bed->bytes / (size_t)getpagesize(), resident = 0;
	fp_autofree unsigned char *in_core = malloc(n_pages);

	if (!in_core || mincore(bed->base, bed->bytes, in_core) < 0)
		return n_pages;
	for (size_t i = 0; i < n_pages; i++)
		resident += in_core[i] & 1;
	return resident;
}

int fp_farbed_push_out(struct fp_farbed *bed)
{
	for (unsigned i = 0; i < PUSH_ATTEMPTS; i++) {
		int r = far_advise(bed->memory, bed->base, bed->bytes, FAR_ADVICE_COLD);

		if (r < 0)
			return r;
		if (resident_pages(bed) == 0)
			return 0;
	}
	return -EBUSY;
}

uint64_t fp_farbed_fetched(const struct fp_farbed *bed, uint64_t expected)
{
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};
	struct far_stats stats = {.size = sizeof(stats)};

	for (unsigned ms = 0; ms < 1000; ms++) {
		far_get_stats(bed->memory, &stats);
		if (stats.fetched_bytes >= expected)
			break;
		nanosleep(&pause, NULL);
	}
	return stats.fetched_bytes;
}

struct far_stats fp_farbed_stats(const struct fp_farbed *bed)
{
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};
	struct far_stats before = {.size = sizeof(before)}, now = before;

	far_get_stats(bed->memory, &now);
	for (unsigned ms = 0; ms < 1000 && memcmp(&before, &now, sizeof(now)) != 0; ms++) {
		before = now;
		nanosleep(&pause, NULL);
		far_get_stats(bed->memory, &now);
	}
	return now;
}

void fp_farbed_close(struct fp_farbed *bed)
{
	if (!bed)
		return;
	far_close(bed->memory);
	fp_privnode_stop(bed->node);
	free(bed);
}
