/*
 * The histograms of a stats page by name, and as a picture. Room: tools.
 */
#include "phase.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "units.h"

/* The place of the plot inside the picture, in SVG user units. */
enum { WIDTH = 800, HEIGHT = 420, LEFT = 90, RIGHT = 20, TOP = 50, BOTTOM = 50 };

#define NINES 5  /* the curve ends at five nines: 99.999 % */
#define STEPS 50 /* points for each nine */

const char *const fp_phase_names[] = {"fault", "fetch", "writeback", "evict", NULL};

const struct fp_phase fp_phases[] = {
    {"fault latency", offsetof(struct fp_statspage, fault_latency)},
    {"fetch latency", offsetof(struct fp_statspage, fetch_latency)},
    {"write-back latency", offsetof(struct fp_statspage, writeback_latency)},
    {"eviction latency", offsetof(struct fp_statspage, evict_latency)},
};

const struct fp_hist *fp_phase_hist(const struct fp_phase *phase, const struct fp_statspage *page)
{
	return (const struct fp_hist *)((const char *)page + phase->offset);
}

static double x_of(double nines)
{
	return LEFT + nines / NINES * (WIDTH - LEFT - RIGHT);
}

static double y_of(double share)
{
	return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

/* The top of the scale: the smallest of 1, 2, 5, 10, 20, ... ns that is not below the curve. */
static double scale_top(uint64_t max_ns)
{
	double top = pow(10, floor(log10(max_ns ? (double)max_ns : 1)));

	for (unsigned i = 0; top < (double)max_ns; i++)
		top *= i % 3 == 1 ? 2.5 : 2;
	return top;
}

static void draw_grid(double top_ns, FILE *out)
{
	static const char *const label[NINES + 1] = {"0", "90", "99", "99.9", "99.99", "99.999"};
	char text[32];

	for (unsigned i = 0; i <= NINES; i++)
		fprintf(out,
		        "<path class=\"g\" d=\"M%.1f %.1fV%.1f\"/><text x=\"%.1f\" y=\"%d\" "
		        "text-anchor=\"middle\">%s</text>\n",
		        x_of(i), y_of(0), y_of(1), x_of(i), HEIGHT - BOTTOM + 18, label[i]);
	for (unsigned i = 0; i <= 5; i++)
		fprintf(out,
		        "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
		        "text-anchor=\"end\">%s</text>\n",
		        LEFT, y_of(i / 5.0), WIDTH - RIGHT, LEFT - 8, y_of(i / 5.0) + 4,
		        fp_time_format((uint64_t)(top_ns * i / 5), text, sizeof(text)));
}

static void draw_curve(const struct fp_hist *h, double top_ns, FILE *out)
{
	fputs("<polyline class=\"c\" points=\"", out);
	for (unsigned i = 0; i <= NINES * STEPS; i++) {
		double nines = (double)i / STEPS;
		double value = (double)fp_hist_quantile(h, 1 - pow(10, -nines));

		fprintf(out, "%.1f,%.1f ", x_of(nines), y_of(value / top_ns));
	}
	fputs("\"/>\n", out);
}

int fp_phase_svg(const struct fp_hist *h, const char *title, FILE *out)
{
	double top_ns = scale_top(fp_hist_quantile(h, 1 - pow(10, -NINES)));

	fprintf(out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
	        "font-size=\"12\">\n"
	        "<style>.g{stroke:#ccc;fill:none}.c{stroke:#06c;stroke-width:2;fill:none}</style>\n"
	        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
	        "<text x=\"%d\" y=\"28\" font-size=\"16\">%s, %llu samples</text>\n"
	        "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">percentile</text>\n",
	        WIDTH, HEIGHT, LEFT, title, (unsigned long long)fp_hist_count(h), WIDTH / 2, HEIGHT - 10);
	draw_grid(top_ns, out);
	draw_curve(h, top_ns, out);
	fputs("</svg>\n", out);
	return ferror(out) ? -EIO : 0;
}
