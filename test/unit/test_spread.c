/* Medians and means of the benches. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "spread.h"

static void medians(void **state)
{
	double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2}, one[] = {7};

	assert_true(fp_spread_median(odd, 3) == 2);
	assert_true(fp_spread_median(even, 4) == 2.5);
	assert_true(fp_spread_median(one, 1) == 7);
	assert_true(isnan(fp_spread_median(NULL, 0)));
}

static void geometric_means(void **state)
{
	const double both_ways[] = {2, 0.5}, powers[] = {1, 10, 100}, one[] = {3};

	assert_true(fabs(fp_spread_geomean(both_ways, 2) - 1) < 1e-9);
	assert_true(fabs(fp_spread_geomean(powers, 3) - 10) < 1e-9);
	assert_true(fabs(fp_spread_geomean(one, 1) - 3) < 1e-9);
	assert_true(isnan(fp_spread_geomean(NULL, 0)));
}

static void documents(void **state)
{
	double values[] = {5, 1, 3}, missing[] = {NAN}, median, min, max;
	json_t *spread = fp_spread_json(values, 3), *nothing = fp_spread_json(missing, 1),
	       *none = fp_spread_json(NULL, 0);

	assert_int_equal(json_unpack(spread, "{s:F, s:F, s:F!}", "median", &median, "min", &min, "max", &max),
	                 0);
	assert_true(median == 3 && min == 1 && max == 5);
	assert_true(json_is_null(nothing) && json_is_null(none));
	json_decref(spread);
	json_decref(nothing);
	json_decref(none);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(medians),
	    cmocka_unit_test(geometric_means),
	    cmocka_unit_test(documents),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
