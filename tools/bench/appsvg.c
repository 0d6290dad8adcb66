/*
 * Slowdown over the share of local memory. Room: tools/bench; see appsvg.h. The share falls to the
 * right, so a curve rises to the right, and the upper left corner is free for the legend.
 */
#include "appsvg.h"

#include <math.h>
#include <string.h>

#include "apps.h"
#include "cleanup.h"
#include "plot.h"

static const char *text_of(const json_t *row, const char *key)
{
	return json_string_value(json_object_get(row, key));
}

static double slowdown_of(const json_t *row)
{
	return json_number_value(json_object_get(row, "slowdown")); /* 0: it was always killed */
}

static double percent_of(const json_t *row)
{
	return json_number_value(json_object_get(row, "local_percent"));
}

/*
 * The row of the results with the next smaller share of local memory than below. NULL: the last.
 * contender: NULL for any.
 */
static const json_t *next_row(const json_t *document, const char *workload, const char *contender,
                              double below)
{
	const json_t *row, *found = NULL;
	size_t i;

	json_array_foreach (json_object_get(document, "results"), i, row) {
		if (strcmp(text_of(row, "workload"), workload) != 0 ||
		    (contender && strcmp(text_of(row, "contender"), contender) != 0) ||
		    json_is_null(json_object_get(row, "local_percent")) || percent_of(row) >= below)
			continue;
		if (!found || percent_of(row) > percent_of(found))
			found = row;
	}
	return found;
}

/* Draws the line of one contender, with a dot for each share. */
static void draw_contender(const struct fp_plot *plot, const json_t *document, const char *workload,
                           unsigned contender)
{
	const char *name = fp_apps_contenders[contender];
	const json_t *first = next_row(document, workload, name, INFINITY), *row;

	if (!first)
		return;
	fp_plot_open_curve(plot, contender);
	for (row = first; row; row = next_row(document, workload, name, percent_of(row)))
		if (slowdown_of(row) > 0)
			fp_plot_point(plot, percent_of(row), log10(slowdown_of(row)));
	fp_plot_close_curve(plot);
	for (row = first; row; row = next_row(document, workload, name, percent_of(row)))
		if (slowdown_of(row) > 0)
			fp_plot_dot(plot, contender, percent_of(row), log10(slowdown_of(row)), NULL, false);
}

/* Names the line of a contender. Says how much more memory it had, and where it was killed. */
static void name_contender(struct fp_plot *plot, const json_t *document, const char *workload,
                           unsigned contender)
{
	const char *name = fp_apps_contenders[contender];
	const json_t *first = next_row(document, workload, name, INFINITY), *row;
	char killed[32] = "", label[96] = "";
	double slack_mib = 0;

	for (row = first; row; row = next_row(document, workload, name, percent_of(row))) {
		slack_mib =
		    fmax(slack_mib, json_number_value(json_object_get(row, "slack_bytes")) / (1u << 20));
		if (slowdown_of(row) == 0 && !*killed)
			snprintf(killed, sizeof(killed), ", killed from %g %% on", percent_of(row));
	}
	if (slack_mib > 0)
		snprintf(label, sizeof(label), ", with up to %g MiB more%s", slack_mib, killed);
	if (first)
		fp_plot_legend(plot, contender, name, *label ? label : killed);
}

static void draw_shares(const struct fp_plot *plot, const json_t *document, const char *workload)
{
	const json_t *row = next_row(document, workload, NULL, INFINITY);
	char label[16];

	for (; row; row = next_row(document, workload, NULL, percent_of(row))) {
		snprintf(label, sizeof(label), "%g", percent_of(row));
		fp_plot_x_line(plot, percent_of(row), label);
	}
}

/* Lines at 1, 2, 5, 10, 20 and so on. */
static void draw_slowdowns(const struct fp_plot *plot)
{
	static const double steps[] = {1, 2, 5};
	char label[32];

	for (double power = 1; log10(power) <= plot->top; power *= 10)
		for (unsigned i = 0; i < FP_ARRAY_LEN(steps); i++) {
			snprintf(label, sizeof(label), "%g x", power * steps[i]);
			if (log10(power * steps[i]) <= plot->top + 0.001)
				fp_plot_y_line(plot, log10(power * steps[i]), label);
		}
}

static double most_slowdown(const json_t *document)
{
	const json_t *row;
	double most = 10;
	size_t i;

	json_array_foreach (json_object_get(document, "results"), i, row)
		most = fmax(most, slowdown_of(row));
	return most;
}

int fp_appsvg_print(const json_t *document, FILE *out)
{
	const json_t *loads = json_object_get(document, "workloads"), *load;
	struct fp_plot plot = {.out = out, .left = 100, .top = ceil(log10(most_slowdown(document)))};
	size_t i;

	fp_plot_open_picture(out, "farpage bench apps: slowdown", (unsigned)json_array_size(loads));
	json_array_foreach (loads, i, load) {
		const char *name = text_of(load, "workload");

		plot.n_legend = 0;
		fp_plot_open(&plot, (unsigned)i, name, "how many times as long as with all memory local",
		             "percent of the peak that may be local");
		draw_shares(&plot, document, name);
		draw_slowdowns(&plot);
		for (unsigned c = FP_APPS_PLAIN + 1; c < FP_APPS_CONTENDERS; c++)
			draw_contender(&plot, document, name, c);
		for (unsigned c = FP_APPS_PLAIN + 1; c < FP_APPS_CONTENDERS; c++)
			name_contender(&plot, document, name, c);
		fp_plot_close(&plot);
	}
	return fp_plot_close_picture(out);
}
