/*
 * A picture of curves. Room: tools; see plot.h.
 */
#include "plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "cleanup.h"

/* A panel, and the place of the plot inside it, in SVG user units. */
enum { WIDTH = 800, HEIGHT = 440, LEFT = 80, RIGHT = 30, TOP = 80, BOTTOM = 55, LABEL_WIDTH = 100 };

#define CHAR_WIDTH 6.5 /* of the legend, about */

#define COLUMNS 2 /* of panels in a picture */
#define COLOURS 8 /* curves beyond are dashed ones of the same colours */

/* The colours are seen on a light and on a dark ground. */
static const char style[] =
    "<style>\n"
    ".back{fill:#ffffff}.text{fill:#1f2328}.note{fill:#59636e}\n"
    ".grid{stroke:#c4ccd4;fill:none}.fine{stroke:#eaeef2;fill:none}\n"
    ".curve{stroke-width:2;stroke-linejoin:round;fill:none}.more{stroke-dasharray:6 3}\n"
    ".c0{color:#2f81f7}.c1{color:#e36f1e}.c2{color:#2da44e}.c3{color:#a371f7}\n"
    ".c4{color:#db4c8f}.c5{color:#b8860b}.c6{color:#17a2a2}.c7{color:#8c959f}\n"
    ".curve{stroke:currentColor}.point{fill:currentColor}\n"
    "@media (prefers-color-scheme: dark) {\n"
    ".back{fill:#0d1117}.text{fill:#f0f6fc}.note{fill:#9198a1}\n"
    ".grid{stroke:#444c56}.fine{stroke:#21262d}\n"
    "}\n"
    "</style>\n";

static double share(double low, double high, double value)
{
	return fmin(fmax((value - low) / (high - low), 0), 1);
}

static double x_of(const struct fp_plot *plot, double x)
{
	return LEFT + share(plot->left, plot->right, x) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct fp_plot *plot, double y)
{
	return HEIGHT - BOTTOM - share(plot->bottom, plot->top, y) * (HEIGHT - TOP - BOTTOM);
}

/* The name of a program may hold anything. */
static void print_escaped(const char *text, FILE *out)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '&' || c == '<' || c == '>')
			fprintf(out, "&#%d;", c);
		else
			fputc(c < ' ' || c > '~' ? '?' : c, out);
	}
}

static const char *dash_of(unsigned number)
{
	return number / COLOURS % 2 ? " more" : "";
}

void fp_plot_open_picture(FILE *out, const char *title, unsigned n)
{
	unsigned columns = FP_MIN(n, (unsigned)COLUMNS), rows = (n + COLUMNS - 1) / COLUMNS;
	unsigned width = WIDTH * columns, height = HEIGHT * rows;

	fprintf(out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %u %u\" width=\"%u\" height=\"%u\" "
	        "font-family=\"system-ui,sans-serif\" font-size=\"12\" role=\"img\">\n<title>",
	        width, height, width, height);
	print_escaped(title, out);
	fprintf(out, "</title>\n%s<rect class=\"back\" width=\"%u\" height=\"%u\"/>\n", style, width, height);
}

void fp_plot_open(const struct fp_plot *plot, unsigned panel, const char *title, const char *note,
                  const char *x_name)
{
	fprintf(plot->out,
	        "<g transform=\"translate(%u,%u)\">\n"
	        "<text class=\"text\" x=\"%d\" y=\"32\" font-size=\"17\" font-weight=\"600\">",
	        panel % COLUMNS * WIDTH, panel / COLUMNS * HEIGHT, LEFT);
	print_escaped(title, plot->out);
	fprintf(plot->out,
	        "</text>\n<text class=\"note\" x=\"%d\" y=\"53\">%s</text>\n"
	        "<text class=\"note\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
	        LEFT, note, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_name);
}

void fp_plot_x_line(const struct fp_plot *plot, double x, const char *label)
{
	fprintf(plot->out, "<path class=\"%s\" d=\"M%.1f %dV%d\"/>\n", label ? "grid" : "fine", x_of(plot, x),
	        HEIGHT - BOTTOM, TOP);
	if (label)
		fprintf(plot->out,
		        "<text class=\"note\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
		        x_of(plot, x), HEIGHT - BOTTOM + 18, label);
}

void fp_plot_y_line(const struct fp_plot *plot, double y, const char *label)
{
	fprintf(plot->out, "<path class=\"%s\" d=\"M%d %.1fH%d\"/>\n", label ? "grid" : "fine", LEFT,
	        y_of(plot, y), WIDTH - RIGHT);
	if (label)
		fprintf(plot->out, "<text class=\"note\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
		        LEFT - 8, y_of(plot, y) + 4, label);
}

void fp_plot_open_curve(const struct fp_plot *plot, unsigned number)
{
	fprintf(plot->out, "<polyline class=\"curve c%u%s\" points=\"", number % COLOURS, dash_of(number));
}

void fp_plot_point(const struct fp_plot *plot, double x, double y)
{
	fprintf(plot->out, "%.1f,%.1f ", x_of(plot, x), y_of(plot, y));
}

void fp_plot_close_curve(const struct fp_plot *plot)
{
	fputs("\"/>\n", plot->out);
}

void fp_plot_dot(const struct fp_plot *plot, unsigned number, double x, double y, const char *label,
                 bool is_end)
{
	double cx = x_of(plot, x), cy = y_of(plot, y);
	bool left = is_end && cx > LEFT + LABEL_WIDTH;

	fprintf(plot->out, "<circle class=\"point c%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n",
	        number % COLOURS, cx, cy);
	if (label)
		fprintf(plot->out,
		        "<text class=\"text\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
		        left ? cx : cx + 8, is_end ? cy - 9 : cy + 16, left ? "end" : "start", label);
}

void fp_plot_legend(struct fp_plot *plot, unsigned number, const char *name, const char *label)
{
	unsigned y = TOP + 18 + 18 * plot->n_legend++;
	double width = 44 + CHAR_WIDTH * (double)(strlen(name) + strlen(label));

	/* curves behind it stay visible, but can't make it illegible */
	fprintf(
	    plot->out,
	    "<rect class=\"back\" fill-opacity=\"0.8\" x=\"%d\" y=\"%u\" width=\"%.0f\" height=\"18\"/>\n",
	    LEFT + 6, y - 13, fmin(width, WIDTH - LEFT - RIGHT - 12));
	fprintf(plot->out,
	        "<path class=\"curve c%u%s\" d=\"M%d %uh24\"/>"
	        "<text class=\"text\" x=\"%d\" y=\"%u\">",
	        number % COLOURS, dash_of(number), LEFT + 12, y - 4, LEFT + 44, y);
	print_escaped(name, plot->out);
	fprintf(plot->out, "%s</text>\n", label);
}

void fp_plot_close(const struct fp_plot *plot)
{
	fputs("</g>\n", plot->out);
}

int fp_plot_close_picture(FILE *out)
{
	fputs("</svg>\n", out);
	return ferror(out) ? -EIO : 0;
}
