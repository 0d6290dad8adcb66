/*
 * Histograms as a picture. Room: tools. A curve rises to the right. So the space right below a
 * point of it is free for the point's label, and so is the space left above its end, where the
 * legend is.
 */
#include "histsvg.h"

#include <inttypes.h>
#include <math.h>

#include "cleanup.h"
#include "plot.h"
#include "units.h"

#define NINES   5 /* the plot ends at 99.999 % */
#define POINTS  250
#define TOP_EXP 12 /* 1000 s: longer times are drawn there */

/* The axis of latency: whole powers of ten, with space below the least value for a label. */
static struct fp_plot fit(const struct fp_hist *const *hists, unsigned n, FILE *out)
{
	double least = (double)FP_HIST_MAX_NS, most = 10;
	struct fp_plot plot = {.out = out, .right = NINES};

	for (unsigned i = 0; i < n; i++) {
		if (fp_hist_count(hists[i]))
			least = fmin(least, (double)fp_hist_min(hists[i]));
		most = fmax(most, (double)fp_hist_max(hists[i]));
	}
	plot.top = fmin(ceil(log10(most)), TOP_EXP);
	plot.bottom = fmin(floor(log10(fmax(least * 0.7, 1))), plot.top - 1);
	return plot;
}

static void draw_percentiles(const struct fp_plot *plot)
{
	static const char *const labels[NINES + 1] = {"0", "90", "99", "99.9", "99.99", "99.999"};

	for (unsigned i = 0; i <= NINES; i++)
		fp_plot_x_line(plot, i, labels[i]);
}

/* A line for each power of ten, and fine ones for its multiples. */
static void draw_times(const struct fp_plot *plot)
{
	static const char *const units[] = {"ns", "µs", "ms", "s"};
	char label[32];

	for (int exp = (int)plot->bottom; exp <= (int)plot->top; exp++) {
		int unit = FP_MIN(exp / 3, 3);

		for (int i = 2; exp < (int)plot->top && i < 10; i++)
			fp_plot_y_line(plot, exp + log10(i), NULL);
		snprintf(label, sizeof(label), "%.0f %s", pow(10, exp - 3 * unit), units[unit]);
		fp_plot_y_line(plot, exp, label);
	}
}

/* The percentile of the longest of the values: the curve ends there. */
static double last_nines(const struct fp_hist *h)
{
	return fmin(log10((double)fp_hist_count(h)), NINES);
}

static double height_of(double ns)
{
	return log10(fmax(ns, 1));
}

static void draw_curve(const struct fp_hist *h, const struct fp_plot *plot, unsigned number)
{
	double last = last_nines(h);

	fp_plot_open_curve(plot, number);
	for (unsigned i = 0; i <= POINTS; i++) {
		double nines = last * i / POINTS;

		fp_plot_point(plot, nines, height_of((double)fp_hist_quantile(h, 1 - pow(10, -nines))));
	}
	if (last < NINES) /* the curve ends at the greatest value */
		fp_plot_point(plot, last, height_of((double)fp_hist_max(h)));
	fp_plot_close_curve(plot);
}

static void draw_marks(const struct fp_hist *h, const struct fp_plot *plot)
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
			fp_plot_dot(plot, 0, nines, height_of((double)ns), label, false);
	}
	snprintf(label, sizeof(label), "max %s", fp_time_format(fp_hist_max(h), time, sizeof(time)));
	if (last < NINES) /* else the longest lies beyond the plot */
		fp_plot_dot(plot, 0, last, height_of((double)fp_hist_max(h)), label, true);
}

int fp_histsvg_print(const struct fp_hist *h, const char *title, FILE *out)
{
	struct fp_plot plot = fit(&h, 1, out);
	char note[96] = "nothing counted", mean[16], max[16];

	if (fp_hist_count(h))
		snprintf(note, sizeof(note), "%" PRIu64 " counted, mean %s, max %s", fp_hist_count(h),
		         fp_time_format((uint64_t)fp_hist_mean(h), mean, sizeof(mean)),
		         fp_time_format(fp_hist_max(h), max, sizeof(max)));
	fp_plot_open_picture(out, title, 1);
	fp_plot_open(&plot, 0, title, note, "percentile");
	draw_percentiles(&plot);
	if (fp_hist_count(h)) {
		draw_times(&plot);
		draw_curve(h, &plot, 0);
		draw_marks(h, &plot);
	}
	fp_plot_close(&plot);
	return fp_plot_close_picture(out);
}

static void name_curve(const struct fp_hist *h, const char *name, struct fp_plot *plot, unsigned number)
{
	char label[64] = ": nothing counted", p50[16], p99[16];

	if (fp_hist_count(h))
		snprintf(label, sizeof(label), ": p50 %s, p99 %s",
		         fp_time_format(fp_hist_quantile(h, 0.5), p50, sizeof(p50)),
		         fp_time_format(fp_hist_quantile(h, 0.99), p99, sizeof(p99)));
	fp_plot_legend(plot, number, name, label);
}

int fp_histsvg_compare(const struct fp_hist *const *hists, const char *const *names, unsigned n,
                       const char *title, FILE *out)
{
	struct fp_plot plot = fit(hists, n, out);

	fp_plot_open_picture(out, title, 1);
	fp_plot_open(&plot, 0, title, "each touch of a page that is not local", "percentile");
	draw_percentiles(&plot);
	draw_times(&plot);
	for (unsigned i = 0; i < n; i++)
		if (fp_hist_count(hists[i]))
			draw_curve(hists[i], &plot, i);
	for (unsigned i = 0; i < n; i++)
		name_curve(hists[i], names[i], &plot, i);
	fp_plot_close(&plot);
	return fp_plot_close_picture(out);
}
