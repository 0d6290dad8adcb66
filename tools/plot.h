/*
 * A picture (SVG) of curves over two axes. Room: tools. It knows no figures: its callers say what
 * an axis means. Coordinates are in units of the axes. Points outside of the plot are drawn at its
 * edge. Titles and names may hold anything, because they may name a program or a node. Labels and
 * notes are our own texts.
 */
#ifndef FP_PLOT_H
#define FP_PLOT_H

#include <stdbool.h>
#include <stdio.h>

struct fp_plot {
	FILE *out;
	double left, right; /* what the left and the right edge stand for */
	double bottom, top; /* the lower and the upper edge */
	unsigned n_legend;  /* lines of the legend so far; 0 at first */
};

/* Begins a picture of n panels. Each plot fills one panel. */
void fp_plot_open_picture(FILE *out, const char *title, unsigned n);

/* Begins the plot in a panel of the picture. The note stands below the title, x_name below the x
 * axis. */
void fp_plot_open(const struct fp_plot *plot, unsigned panel, const char *title, const char *note,
                  const char *x_name);

/* A line across the plot, with a label if it is not NULL. Lines without a label are fine ones. */
void fp_plot_x_line(const struct fp_plot *plot, double x, const char *label);
void fp_plot_y_line(const struct fp_plot *plot, double y, const char *label);

/* Draws a curve: open, points, close. Each number of a curve has its own colour. */
void fp_plot_open_curve(const struct fp_plot *plot, unsigned number);
void fp_plot_point(const struct fp_plot *plot, double x, double y);
void fp_plot_close_curve(const struct fp_plot *plot);

/* A dot on a curve. Its label stands below to the right; if the dot is the curve's end, above to
 * the left. label may be NULL. */
void fp_plot_dot(const struct fp_plot *plot, unsigned number, double x, double y, const char *label,
                 bool is_end);

/*
 * Adds a line to the legend in the upper left corner: the colour of a curve, its name, a label.
 * Call it after all curves are drawn, because it lies above them.
 */
void fp_plot_legend(struct fp_plot *plot, unsigned number, const char *name, const char *label);

void fp_plot_close(const struct fp_plot *plot);

/* 0 or a negative errno of the stream. */
int fp_plot_close_picture(FILE *out);

#endif
