/*
 * Histograms by name, and their picture. Each phase has its own histogram. The drawing is XML, and
 * its curve stays in the frame and never falls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "phase.h"

static struct fp_statspage page;

static void each_is_another_histogram(void **state)
{
	unsigned n = 0;

	while (fp_phase_names[n])
		n++;
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < i; k++)
			assert_ptr_not_equal(fp_phase_hist(&fp_phases[i], &page),
			                     fp_phase_hist(&fp_phases[k], &page));
}

static char *drawn(const struct fp_hist *h)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	assert_int_equal(fp_phase_svg(h, "fault latency", out), 0);
	fclose(out);
	return text;
}

/* In SVG, y grows downwards. So y never grows along a curve that never falls. */
static void assert_curve(const char *svg)
{
	const char *at = strstr(svg, "points=\"") + strlen("points=\"");
	double last_x = 0, last_y = 1e9;
	unsigned n = 0;

	for (; *at != '"'; n++) {
		char *end;
		double x = strtod(at, &end), y;

		assert_int_equal(*end, ',');
		y = strtod(end + 1, &end);
		assert_true(x >= last_x && x <= 800);
		assert_true(y <= last_y && y >= 0 && y <= 420);
		last_x = x;
		last_y = y;
		at = end + strspn(end, " ");
	}
	assert_true(n > 100);
}

static void a_picture_is_whole(void **state)
{
	struct fp_hist *h = calloc(1, sizeof(*h));
	char *svg;

	assert_non_null(h);
	for (unsigned i = 0; i < 1000; i++)
		fp_hist_record(h, 5000 + (uint64_t)i * i);
	svg = drawn(h);
	assert_non_null(strstr(svg, "<svg xmlns="));
	assert_non_null(strstr(svg, "fault latency, 1000 samples"));
	assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
	assert_curve(svg);
	free(svg);
	free(h);
}

static void nothing_and_the_longest_fit(void **state)
{
	struct fp_hist *h = calloc(1, sizeof(*h));
	char *svg = drawn(h);

	assert_curve(svg);
	free(svg);
	fp_hist_record(h, UINT64_MAX);
	svg = drawn(h);
	assert_curve(svg);
	free(svg);
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_is_another_histogram),
	    cmocka_unit_test(a_picture_is_whole),
	    cmocka_unit_test(nothing_and_the_longest_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
