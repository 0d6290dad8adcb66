/*
 * The picture of a histogram: its curve stays in the plot and never falls, its axis is logarithmic,
 * percentiles are marked, and no title breaks it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "histsvg.h"

static struct fp_hist h;

static int clear(void **state)
{
	memset(&h, 0, sizeof(h));
	return 0;
}

static char *drawn(const char *title)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	assert_int_equal(fp_histsvg_print(&h, title, out), 0);
	fclose(out);
	assert_string_equal(text + len - 7, "</svg>\n");
	return text;
}

/* In SVG, y grows downwards. So y never grows along a curve that never falls. */
static void assert_curve(const char *svg)
{
	const char *at = strstr(svg, "points=\"");
	double last_x = 0, last_y = 440;
	unsigned n = 0;

	assert_non_null(at);
	for (at += strlen("points=\""); *at != '"'; n++) {
		char *end;
		double x = strtod(at, &end), y;

		assert_int_equal(*end, ',');
		y = strtod(end + 1, &end);
		assert_true(x >= last_x && x >= 80 && x <= 770);
		assert_true(y <= last_y && y >= 80 && y <= 385);
		last_x = x;
		last_y = y;
		at = end + strspn(end, " ");
	}
	assert_true(n > 100);
}

/* The height of the grid line with this label. */
static double height_of(const char *svg, const char *label)
{
	char text[64];
	const char *at;

	snprintf(text, sizeof(text), "\">%s</text>", label);
	at = strstr(svg, text);
	if (!at)
		fail_msg("no %s", label);
	while (strncmp(at, "y=\"", 3) != 0)
		at--;
	return strtod(at + 3, NULL);
}

static void percentiles_are_marked(void **state)
{
	fp_autofree char *svg = NULL;

	for (unsigned i = 1; i <= 1000; i++)
		fp_hist_record(&h, i * 10000);
	svg = drawn("redis (42): fault latency");
	assert_curve(svg);
	assert_non_null(strstr(svg, "<title>redis (42): fault latency</title>"));
	assert_non_null(strstr(svg, ">1000 counted, mean 5.01 ms, max 10.0 ms<"));
	assert_non_null(strstr(svg, ">p50 5.01 ms<"));
	assert_non_null(strstr(svg, ">p90 8.98 ms<"));
	assert_non_null(strstr(svg, ">p99 9.90 ms<"));
	assert_non_null(strstr(svg, ">max 10.0 ms<"));
	assert_null(strstr(svg, ">p99.99 ")); /* there are too few values for this mark */
	assert_non_null(strstr(svg, "@media (prefers-color-scheme: dark)"));
}

static void each_power_of_ten_takes_the_same_height(void **state)
{
	fp_autofree char *svg = NULL;
	double step;

	fp_hist_record(&h, 2000);
	fp_hist_record(&h, 3000000000);
	svg = drawn("");
	step = height_of(svg, "1 µs") - height_of(svg, "10 µs");
	assert_true(step > 20);
	assert_true(fabs(height_of(svg, "10 µs") - height_of(svg, "100 µs") - step) < 0.2);
	assert_true(fabs(height_of(svg, "100 ms") - height_of(svg, "1 s") - step) < 0.2);
	assert_true(fabs(height_of(svg, "1 s") - height_of(svg, "10 s") - step) < 0.2);
}

/* The number behind the last occurrence of name in text before end. */
static double number_before(const char *text, const char *end, const char *name)
{
	do
		end--;
	while (end > text && strncmp(end, name, strlen(name)) != 0);
	return strtod(end + strlen(name), NULL);
}

static void the_curve_ends_at_the_longest(void **state)
{
	fp_autofree char *svg = NULL;
	const char *mark, *end;
	double x, y;

	fp_hist_record(&h, 1000);
	fp_hist_record(&h, 3000000000);
	svg = drawn("");
	mark = strstr(svg, ">max 3.00 s<");
	end = strstr(strstr(svg, "points=\""), " \"/>");
	assert_true(mark && end);
	x = number_before(svg, end, " ");
	y = number_before(svg, end, ",");
	assert_true(fabs(x - number_before(svg, mark, "cx=\"")) < 0.1);
	assert_true(fabs(y - number_before(svg, mark, "cy=\"")) < 0.1);
}

static void nothing_is_said(void **state)
{
	fp_autofree char *svg = drawn("idle");

	assert_non_null(strstr(svg, ">nothing counted<"));
	assert_null(strstr(svg, "polyline"));
	assert_null(strstr(svg, "0 ns"));
}

static void any_value_fits(void **state)
{
	static const uint64_t values[] = {0, 1, 999, 1000, 3600000000000, UINT64_MAX};

	for (unsigned i = 0; i < FP_ARRAY_LEN(values); i++) {
		fp_autofree char *alone = NULL, *all = NULL;
		static struct fp_hist before;

		memcpy(&before, &h, sizeof(h));
		clear(NULL);
		fp_hist_record(&h, values[i]);
		alone = drawn("");
		assert_curve(alone);
		fp_hist_merge(&h, &before);
		all = drawn("");
		assert_curve(all);
	}
}

static void any_title_is_escaped(void **state)
{
	fp_autofree char *svg = drawn("<&>\"\n\xff");

	assert_non_null(strstr(svg, "<title>&#60;&#38;&#62;\""
	                            "?"
	                            "?"
	                            "</title>"));
}

static void several_are_compared(void **state)
{
	static struct fp_hist slow, none;
	const struct fp_hist *const hists[] = {&h, &slow, &none};
	const char *const names[] = {"shm", "tcp://<a>", "idle"};
	fp_autofree char *svg = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&svg, &len);

	fp_hist_record(&h, 5000);
	fp_hist_record(&slow, 5000000);
	assert_int_equal(fp_histsvg_compare(hists, names, 3, "two", out), 0);
	fclose(out);
	assert_curve(svg);
	assert_curve(strstr(svg, "polyline class=\"curve c1\""));
	assert_null(strstr(svg, "polyline class=\"curve c2\""));
	assert_null(strstr(strstr(svg, "fill-opacity"), "polyline")); /* the legend lies above all curves */
	assert_non_null(strstr(svg, ">shm: p50 5.00 µs, p99 5.00 µs<"));
	assert_non_null(strstr(svg, ">tcp://&#60;a&#62;: p50 5.00 ms, p99 5.00 ms<"));
	assert_non_null(strstr(svg, ">idle: nothing counted<"));
	assert_true(height_of(svg, "1 µs") > height_of(svg, "1 ms"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(percentiles_are_marked, clear),
	    cmocka_unit_test_setup(each_power_of_ten_takes_the_same_height, clear),
	    cmocka_unit_test_setup(the_curve_ends_at_the_longest, clear),
	    cmocka_unit_test_setup(nothing_is_said, clear),
	    cmocka_unit_test_setup(any_value_fits, clear),
	    cmocka_unit_test_setup(any_title_is_escaped, clear),
	    cmocka_unit_test_setup(several_are_compared, clear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
