/*
 * Several measurements of one thing. Room: tools.
 */
#include "spread.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

struct fp_spread fp_spread_of(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), by_value);
	return (struct fp_spread){
	    .median = (values[(n - 1) / 2] + values[n / 2]) / 2,
	    .min = values[0],
	    .max = values[n - 1],
	};
}

void fp_spread_print(struct fp_spread spread, int width, int decimals, FILE *out)
{
	char range[48];

	snprintf(range, sizeof(range), "[%.*f %.*f]", decimals, spread.min, decimals, spread.max);
	fprintf(out, "%*.*f %-15s", width, decimals, spread.median, range);
}

void fp_spread_json(const char *name, struct fp_spread spread, FILE *out)
{
	fprintf(out, "\"%s\": {\"median\": %.3f, \"min\": %.3f, \"max\": %.3f}", name, spread.median,
	        spread.min, spread.max);
}
