/*
 * A bed for a bench. Room: tools/bench; see bed.h.
 */
#include "bed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "baretcp.h"
#include "cleanup.h"
#include "clock.h"
#include "floor.h"
#include "pattern.h"
#include "units.h"

#define PUSH_ATTEMPTS 20

struct fp_bed {
	enum fp_bed_kind kind;
	struct far_memory *far;
	struct fp_floor floor;
	struct fp_baretcp bare;
	void *base; /* NULL: over bare tcp, or not open yet */
	uint64_t seed;
	size_t n_pages, bytes;
};

static void free_bed(struct fp_bed **bed)
{
	fp_bed_close(*bed);
}

static int open_floor(struct fp_bed *bed, const struct fp_bed_options *options, char *error, size_t error_len)
{
	int r = fp_floor_open(&bed->floor, bed->bytes, options->is_inline);

	if (r < 0) {
		snprintf(error, error_len, "floor: userfaultfd is not to be had: %s", strerror(-r));
		return r;
	}
	bed->base = bed->floor.memory;
	fp_pattern_fill(bed->floor.source, bed->n_pages, bed->seed);
	r = fp_floor_warm(&bed->floor);
	if (r < 0)
		snprintf(error, error_len, "floor: %s", strerror(-r));
	return r;
}

static int open_bare(struct fp_bed *bed, const struct fp_bed_options *options, char *error, size_t error_len)
{
	void *pages = malloc(bed->bytes);
	int r = -ENOMEM;

	if (pages) {
		fp_pattern_fill(pages, bed->n_pages, bed->seed);
		r = fp_baretcp_open(&bed->bare, pages, bed->n_pages);
	}
	free(pages); /* the process that answers has its own */
	if (r < 0)
		snprintf(error, error_len, "bare-tcp: %s", strerror(-r));
	return r;
}

static int open_far(struct fp_bed *bed, const struct fp_bed_options *options, char *error, size_t error_len)
{
	const char *nodes[] = {options->url, NULL};
	const struct far_options far = {
	    .size = sizeof(far),
	    .local_bytes = options->local_bytes,
	    .nodes = nodes,
	    .secret = options->secret,
	    .readahead_pages = options->readahead_pages,
	    .fault_mode = options->is_inline ? FAR_FAULT_INLINE : FAR_FAULT_THREAD,
	};
	char size[16];
	int r = far_open(&far, error, error_len, &bed->far);

	if (r < 0)
		return r;
	r = far_map(bed->far, bed->bytes, &bed->base);
	if (r < 0)
		snprintf(error, error_len, "node %s: mapping %s: %s", options->url,
		         fp_size_format(bed->bytes, size, sizeof(size)), strerror(-r));
	else
		fp_pattern_fill(bed->base, bed->n_pages, bed->seed);
	return r;
}

int fp_bed_open(const struct fp_bed_options *options, char *error, size_t error_len, struct fp_bed **ret_bed)
{
	static int (*const open[])(struct fp_bed *, const struct fp_bed_options *, char *, size_t) = {
	    [FP_BED_FAR] = open_far, [FP_BED_FLOOR] = open_floor, [FP_BED_BARE_TCP] = open_bare};
	FP_CLEANUP(free_bed) struct fp_bed *bed = calloc(1, sizeof(*bed));
	int r;

	snprintf(error, error_len, "no memory");
	if (!bed)
		return -ENOMEM;
	bed->kind = options->kind;
	bed->seed = options->seed;
	bed->n_pages = options->n_pages;
	bed->bytes = bed->n_pages * FP_PATTERN_PAGE_BYTES;
	r = open[bed->kind](bed, options, error, error_len);
	if (r == 0)
		*ret_bed = fp_take_ptr(bed);
	return r;
}

volatile uint64_t *fp_bed_word(const struct fp_bed *bed, size_t page)
{
	return (void *)((char *)bed->base + page * FP_PATTERN_PAGE_BYTES);
}

/*
 * Counts the pages in local memory. Asks the kernel, so that the product does not measure itself.
 */
static size_t resident_pages(const struct fp_bed *bed)
{
	fp_autofree unsigned char *in_core = malloc(bed->n_pages);
	size_t resident = 0;

	if (!in_core || mincore(bed->base, bed->bytes, in_core) < 0)
		return bed->n_pages;
	for (size_t i = 0; i < bed->n_pages; i++)
		resident += in_core[i] & 1;
	return resident;
}

int fp_bed_send_away(struct fp_bed *bed)
{
	for (unsigned i = 0; bed->far && i < PUSH_ATTEMPTS; i++) {
		int r = far_advise(bed->far, bed->base, bed->bytes, FAR_ADVICE_COLD);

		if (r < 0)
			return r;
		if (resident_pages(bed) == 0)
			return 0;
	}
	return bed->far ? -EBUSY : 0;
}

/* Returns how many pages came with wrong bytes, or not at all. */
static size_t ask_for_all(const struct fp_bed *bed, const uint32_t *order, struct fp_hist *h)
{
	uint64_t words[FP_PATTERN_PAGE_WORDS];
	size_t wrong = 0;

	for (size_t i = 0; i < bed->n_pages; i++) {
		uint64_t start_ns = fp_clock_ns();
		bool right = fp_baretcp_ask(&bed->bare, order[i], words) == 0;

		fp_hist_record(h, fp_clock_ns() - start_ns);
		for (size_t word = 0; right && word < FP_PATTERN_PAGE_WORDS; word++)
			right = words[word] == fp_pattern_word(bed->seed, order[i], word, 0);
		wrong += !right;
	}
	return wrong;
}

size_t fp_bed_read(const struct fp_bed *bed, const uint32_t *order, unsigned generation, uint64_t least_ns,
                   struct fp_hist *h)
{
	size_t wrong = 0;

	if (bed->kind == FP_BED_BARE_TCP)
		return ask_for_all(bed, order, h);
	for (size_t i = 0; i < bed->n_pages; i++) {
		const volatile uint64_t *word = fp_bed_word(bed, order[i]);
		uint64_t start_ns = fp_clock_ns(), value = *word, took_ns = fp_clock_ns() - start_ns;

		if (took_ns >= least_ns)
			fp_hist_record(h, took_ns);
		wrong += value != fp_pattern_word(bed->seed, order[i], 0, generation);
	}
	return wrong;
}

bool fp_bed_verify(const struct fp_bed *bed, unsigned generation, size_t *ret_bad)
{
	return bed->kind == FP_BED_BARE_TCP ||
	       fp_pattern_verify(bed->base, bed->n_pages, bed->seed, generation, ret_bad);
}

struct far_stats fp_bed_stats(const struct fp_bed *bed, uint64_t fetched_bytes)
{
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};
	struct far_stats before, now = {.size = sizeof(now)};

	for (unsigned ms = 0; bed->far && ms < 1000; ms++) {
		before = now;
		far_get_stats(bed->far, &now);
		if (memcmp(&before, &now, sizeof(now)) == 0 && now.fetched_bytes >= fetched_bytes)
			break;
		nanosleep(&pause, NULL);
	}
	return now;
}

void fp_bed_close(struct fp_bed *bed)
{
	if (!bed)
		return;
	if (bed->far)
		far_close(bed->far);
	else if (bed->kind == FP_BED_FLOOR && bed->base)
		fp_floor_close(&bed->floor);
	else if (bed->kind == FP_BED_BARE_TCP && bed->bare.answerer > 0)
		fp_baretcp_close(&bed->bare);
	free(bed);
}
