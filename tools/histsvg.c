/*
 * A histogram as a picture. Room: tools. The curve rises to the right. So the space right below a
 * point of it is free for the point's label, and so is the space left above its end.
 */
#include "histsvg.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "cleanup.h"
#include "units.h"

/* The place of the plot inside the picture, in SVG user units. */
enum { WIDTH = 800, HEIGHT = 440, LEFT = 80, RIGHT = 30, TOP = 80, BOTTOM = 55, LABEL_WIDTH = 100 };

#define NINES   5 /* the plot ends at 99.999 % */
#define POINTS  250
#define TOP_EXP 12 /* 1000 s: longer times are drawn there */

static const char style[] =
    "<style>\n"
    ".back{fill:#ffffff}.text{fill:#1f2328}.note{fill:#59636e}\n"
    ".grid{stroke:#c4ccd4;fill:none}.fine{stroke:#eaeef2;fill:none}\n"
    ".curve{stroke:#0969da;stroke-width:2;stroke-linejoin:round;fill:none}.point{fill:#0969da}\n"
    "@media (prefers-color-scheme: dark) {\n"
    ".back{fill:#0d1117}.text{fill:#f0f6fc}.note{fill:#9198a1}\n"
    ".grid{stroke:#444c56}.fine{stroke:#21262d}\n"
    ".curve{stroke:#58a6ff}.point{fill:#58a6ff}\n"
    "}\n"
    "</style>\n";

/* The axis of latency: from 10^low to 10^high ns. */
struct axis {
	int low, high;
};

static double x_of(double nines)
{
	return LEFT + nines / NINES * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct axis *axis, double ns)
{
	double share = (log10(fmax(ns, 1)) - axis->low) / (axis->high - axis->low);

	return HEIGHT - BOTTOM - fmin(fmax(share, 0), 1) * (HEIGHT - TOP - BOTTOM);
}

/* Whole powers of ten, with space below the least value for a label. */
static struct axis fit_axis(const struct fp_hist *h)
{
	double least = (double)fp_hist_min(h), most = (double)fp_hist_max(h);
	struct axis axis = {.low = (int)floor(log10(fmax(least * 0.7, 1))),
	                    .high = (int)ceil(log10(fmax(most, 10)))};

	axis.high = FP_MIN(axis.high, TOP_EXP);
	axis.low = FP_MIN(axis.low, axis.high - 1);
	return axis;
}

/* The name of a program may hold anything. */
static void print_escaped(const char *text, FILE *out)
{
	for (; *text; text++) {
		if (*text == '&' || *text == '<' || *text == '>')
			fprintf(out, "&#%d;", *text);
		else
			fputc(*text < ' ' || *text > '~' ? '?' : *text, out);
	}
}

static void print_head(const struct fp_hist *h, const char *title, FILE *out)
{
	char mean[16], max[16];

	fprintf(out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
	        "font-family=\"system-ui,sans-serif\" font-size=\"12\" role=\"img\">\n<title>",
	        WIDTH, HEIGHT, WIDTH, HEIGHT);
	print_escaped(title, out);
	fprintf(out,
	        "</title>\n%s<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n"
	        "<text class=\"text\" x=\"%d\" y=\"32\" font-size=\"17\" font-weight=\"600\">",
	        style, WIDTH, HEIGHT, LEFT);
	print_escaped(title, out);
	fprintf(out, "</text>\n<text class=\"note\" x=\"%d\" y=\"53\">", LEFT);
	if (fp_hist_count(h))
		fprintf(out, "%" PRIu64 " counted, mean %s, max %s", fp_hist_count(h),
		        fp_time_format((uint64_t)fp_hist_mean(h), mean, sizeof(mean)),
		        fp_time_format(fp_hist_max(h), max, sizeof(max)));
	else
		fputs("nothing counted", out);
	fputs("</text>\n", out);
}

static void draw_percentiles(FILE *out)
{
	static const char *const labels[NINES + 1] = {"0", "90", "99", "99.9", "99.99", "99.999"};

	for (unsigned i = 0; i <= NINES; i++)
		fprintf(out,
		        "<path class=\"grid\" d=\"M%.1f %dV%d\"/>"
		        "<text class=\"note\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
		        x_of(i), HEIGHT - BOTTOM, TOP, x_of(i), HEIGHT - BOTTOM + 18, labels[i]);
	fprintf(out, "<text class=\"note\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">percentile</text>\n",
	        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
}

/* A line for each power of ten, and fine ones for its multiples. */
static void draw_times(const struct axis *axis, FILE *out)
{
	static const char *const units[] = {"ns", "µs", "ms", "s"};

	for (int exp = axis->low; exp <= axis->high; exp++) {
		int unit = FP_MIN(exp / 3, 3);
		double y = y_of(axis, pow(10, exp));

		for (int i = 2; exp < axis->high && i < 10; i++)
			fprintf(out, "<path class=\"fine\" d=\"M%d %.1fH%d\"/>", LEFT,
			        y_of(axis, i * pow(10, exp)), WIDTH - RIGHT);
		fprintf(out,
		        "<path class=\"grid\" d=\"M%d %.1fH%d\"/>"
		        "<text class=\"note\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f %s</text>\n",
		        LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, pow(10, exp - 3 * unit), units[unit]);
	}
}

/* The percentile of the longest of the values: the curve ends there. */
static double last_nines(const struct fp_hist *h)
{
	return fmin(log10((double)fp_hist_count(h)), NINES);
}

static double value_at(const struct fp_hist *h, double nines)
{
	return (double)fp_hist_quantile(h, 1 - pow(10, -nines));
}

static void draw_curve(const struct fp_hist *h, const struct axis *axis, FILE *out)
{
	fputs("<polyline class=\"curve\" points=\"", out);
	for (unsigned i = 0; i <= POINTS; i++) {
		double nines = last_nines(h) * i / POINTS;

		fprintf(out, "%.1f,%.1f ", x_of(nines), y_of(axis, value_at(h, nines)));
	}
	if (last_nines(h) < NINES) /* the curve ends at the greatest value */
		fprintf(out, "%.1f,%.1f ", x_of(last_nines(h)), y_of(axis, (double)fp_hist_max(h)));
	fputs("\"/>\n", out);
}

/* A point of the curve, and its label on the side that is free. */
static void draw_mark(double x, double y, const char *label, bool is_end, FILE *out)
{
	bool left = is_end && x > LEFT + LABEL_WIDTH;

	fprintf(out,
	        "<circle class=\"point\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>"
	        "<text class=\"text\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
	        x, y, left ? x : x + 8, is_end ? y - 9 : y + 16, left ? "end" : "start", label);
}

static void draw_marks(const struct fp_hist *h, const struct axis *axis, FILE *out)
{
	static const struct {
		const char *name;
		double q;
	} marks[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}};
	char label[32], time[16];
	double last = last_nines(h);

	for (unsigned i = 0; i < FP_ARRAY_LEN(marks); i++) {
		double nines = -log10(1 - marks[i].q);
		uint64_t ns = fp_hist_quantile(h, marks[i].q);

		snprintf(label, sizeof(label), "%s %s", marks[i].name,
		         fp_time_format(ns, time, sizeof(time)));
		if (nines < last - 0.01)
			draw_mark(x_of(nines), y_of(axis, (double)ns), label, false, out);
	}
	snprintf(label, sizeof(label), "max %s", fp_time_format(fp_hist_max(h), time, sizeof(time)));
	if (last < NINES) /* else the longest lies beyond the plot */
		draw_mark(x_of(last), y_of(axis, (double)fp_hist_max(h)), label, true, out);
}

int fp_histsvg_print(const struct fp_hist *h, const char *title, FILE *out)
{
	struct axis axis = fit_axis(h);

	print_head(h, title, out);
	draw_percentiles(out);
	if (fp_hist_count(h)) {
		draw_times(&axis, out);
		draw_curve(h, &axis, out);
		draw_marks(h, &axis, out);
	}
	fputs("</svg>\n", out);
	return ferror(out) ? -EIO : 0;
}
