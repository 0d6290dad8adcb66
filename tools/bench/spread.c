/*
 * Medians and means. Room: tools/bench; see spread.h.
 */
#include "spread.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

double fp_spread_median(double *values, size_t n)
{
	if (n == 0)
		return NAN;
	qsort(values, n, sizeof(*values), by_value);
	return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

json_t *fp_spread_json(double *values, size_t n)
{
	double median;

	if (n == 0 || isnan(values[0]))
		return json_null();
	median = fp_spread_median(values, n);
	return json_pack("{s:f, s:f, s:f}", "median", median, "min", values[0], "max", values[n - 1]);
}

double fp_spread_geomean(const double *values, size_t n)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += log(values[i]);
	return n ? exp(sum / (double)n) : (double)NAN;
}
