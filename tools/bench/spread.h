/*
 * Several measurements of one thing: median, least and greatest. Room: tools.
 */
#ifndef FP_SPREAD_H
#define FP_SPREAD_H

#include <stddef.h>
#include <stdio.h>

struct fp_spread {
	double median, min, max;
};

/* Of n (at least one) values, which are sorted in place. */
struct fp_spread fp_spread_of(double *values, size_t n);

/* "5.21 [5.02 6.40]" with decimals places after the point, the median right-aligned in width
 * columns. */
void fp_spread_print(struct fp_spread spread, int width, int decimals, FILE *out);

/* "NAME": {"median": ..., "min": ..., "max": ...} */
void fp_spread_json(const char *name, struct fp_spread spread, FILE *out);

#endif
