/*
 * A bed for a bench: pages that can be sent away and touched. They are far memory over one way to a
 * node, or pages of the bare floor, each of which faults once. Or each touch is a bare request to
 * another process. Room: tools/bench. It uses far memory only through the public API.
 */
#ifndef FP_BED_H
#define FP_BED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "farpage/farpage.h"
#include "hist.h"

struct fp_bed;

enum fp_bed_kind { FP_BED_FAR, FP_BED_FLOOR, FP_BED_BARE_TCP };

struct fp_bed_options {
	enum fp_bed_kind kind;
	const char *url; /* of the node of far memory */
	const char *secret;
	bool is_inline;
	uint64_t seed; /* of the pages' contents */
	uint64_t n_pages;
	uint64_t local_bytes;
	uint32_t readahead_pages; /* as in struct far_options */
};

/*
 * Makes a bed whose pages all hold generation 0 of pattern.h. 0 and *ret_bed; else a negative errno
 * and a text in error. Release with fp_bed_close.
 */
int fp_bed_open(const struct fp_bed_options *options, char *error, size_t error_len, struct fp_bed **ret_bed);

/* The first word of a page. Bare tcp has none. */
volatile uint64_t *fp_bed_word(const struct fp_bed *bed, size_t page);

/*
 * Makes every page remote. Does nothing to the floor, whose pages are not local before their first
 * read, and nothing to bare tcp. 0, or -EBUSY if some pages stay local after several attempts.
 */
int fp_bed_send_away(struct fp_bed *bed);

/*
 * Reads the first word of all pages in the given order. Records the time of each read that took
 * least_ns or more. Returns how many words were not those of the given generation.
 */
size_t fp_bed_read(const struct fp_bed *bed, const uint32_t *order, unsigned generation, uint64_t least_ns,
                   struct fp_hist *h);

/*
 * True if every word is right: the first word of each page is of the given generation, and the
 * others are of generation 0. Otherwise *ret_bad is the page of the first wrong word. Over bare tcp
 * fp_bed_read has compared all words already.
 */
bool fp_bed_verify(const struct fp_bed *bed, unsigned generation, size_t *ret_bad);

/*
 * Returns the library's counters; zeros without far memory. The library counts a fault only after
 * it has woken the faulting thread. So this waits, for at most a second, until the counters have
 * reached fetched_bytes and no longer change.
 */
struct far_stats fp_bed_stats(const struct fp_bed *bed, uint64_t fetched_bytes);

/* NULL is fine. */
void fp_bed_close(struct fp_bed *bed);

#endif
