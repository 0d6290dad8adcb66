/*
 * The histograms of a stats page: their names, which --phase takes, and their drawing as SVG. Room:
 * tools.
 */
#ifndef FP_PHASE_H
#define FP_PHASE_H

#include <stdio.h>

#include "statspage.h"

struct fp_phase {
	const char *title; /* for a person */
	size_t offset;     /* in struct fp_statspage */
};

/* The names, ended by NULL; the first is the default. */
extern const char *const fp_phase_names[];
/* The phases in the same order. */
extern const struct fp_phase fp_phases[];

const struct fp_hist *fp_phase_hist(const struct fp_phase *phase, const struct fp_statspage *page);

/*
 * Draws h as a percentile curve: latency (linear) over the percentile, where each step adds one
 * nine. 0 or a negative errno.
 */
int fp_phase_svg(const struct fp_hist *h, const char *title, FILE *out);

#endif
