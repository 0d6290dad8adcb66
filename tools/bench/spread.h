/*
 * The spread of one figure over the rounds of a bench, and means over several figures. Room:
 * tools/bench. It uses its arguments alone.
 */
#ifndef FP_SPREAD_H
#define FP_SPREAD_H

#include <jansson.h>
#include <stddef.h>

/* The median, or NAN if n is 0. Sorts the values, none of which may be NAN. */
double fp_spread_median(double *values, size_t n);

/*
 * Returns an object with median, min and max; null if n is 0, or if the first value is NAN. Sorts
 * the values. The caller owns the result; NULL: no memory.
 */
json_t *fp_spread_json(double *values, size_t n);

/* The geometric mean of values that are greater than 0; NAN if n is 0. */
double fp_spread_geomean(const double *values, size_t n);

#endif
