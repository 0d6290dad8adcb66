/*
 * `farpage hist --live` on a terminal. Room: tools.
 */
#include "histlive.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "screen.h"
#include "units.h"

#define INTERVAL_MS  1000
#define ROW_COLUMNS  22
#define TIME_COLUMNS 9

/* A histogram now, and what came into it since the look before. */
struct live_hist {
	struct fp_hist all, last;
};

struct live_view {
	struct fp_histset *set;
	unsigned phase, kind;
	bool bars_of_last;
	bool ended;
	unsigned looks;
	uint64_t look_ns; /* when the last look was */
	bool gap;         /* that is much longer ago than an interval, such as after ^Z */
	struct live_hist phases[FP_PHASES], kinds[FP_PHASE_KINDS];
	struct fp_hist before; /* for take() */
};

static const char *const help[] = {
    "farpage hist --live",
    "",
    "  p                   next phase: fault, fetch, writeback,",
    "                      evict",
    "  n                   next kind: all, zero, read, write,",
    "                      protect, waited",
    "  i                   bars of all that was counted, or of",
    "                      the last second",
    "",
    NULL,
};

static int take(struct live_view *view, const struct fp_phase *phase, struct live_hist *h)
{
	int r;

	memcpy(&view->before, &h->all, sizeof(view->before));
	r = fp_histset_sum(view->set, phase, &h->all);
	if (r < 0)
		return r;
	memcpy(&h->last, &h->all, sizeof(h->last));
	fp_hist_subtract(&h->last, view->looks && !view->gap ? &view->before : &h->all);
	return 0;
}

static int look(void *user)
{
	struct live_view *view = user;
	uint64_t now_ns = fp_clock_ns();
	int r = 0;

	if (view->ended)
		return 0;
	view->gap = now_ns - view->look_ns > 2 * INTERVAL_MS * FP_NSEC_PER_MSEC;
	view->look_ns = now_ns;
	if (view->looks)
		r = fp_histset_look(view->set);
	for (unsigned i = 0; r == 0 && i < FP_PHASES; i++)
		r = take(view, &fp_phases[i], &view->phases[i]);
	for (unsigned i = 0; r == 0 && i < FP_PHASE_KINDS; i++)
		r = take(view, &fp_phase_kinds[i], &view->kinds[i]);
	view->looks++;
	view->ended = !fp_histset_is_live(view->set);
	return r;
}

static void next(int key, void *user)
{
	struct live_view *view = user;

	if (key == 'p') {
		view->phase = (view->phase + 1) % FP_PHASES;
		view->kind = 0;
	} else if (key == 'n') {
		view->kind = view->phase ? 0 : (view->kind + 1) % FP_PHASE_KINDS;
		view->phase = 0;
	} else if (key == 'i') {
		view->bars_of_last = !view->bars_of_last;
	}
}

/*
 * The columns of the table. Where width is scarce, those with the greatest rank are left out first.
 */
static const struct {
	const char *name;
	double q; /* < 0: the mean */
	unsigned rank;
} columns[] = {{"mean", -1, 6},  {"p50", 0.5, 1},     {"p90", 0.9, 5},
               {"p99", 0.99, 2}, {"p99.9", 0.999, 4}, {"max", 1, 3}};

static void add_cell(char *line, size_t len, const char *text)
{
	size_t used = strlen(line);

	/* "µ" is two bytes, which printf would count as two columns */
	snprintf(line + used, len - used, "%*s", TIME_COLUMNS + (strstr(text, "µ") != NULL), text);
}

/* A line of the table: figures of h, or the names if h is NULL. */
static void draw_row(struct fp_screen *screen, const char *begin, const struct fp_hist *h)
{
	unsigned width = fp_screen_width(screen),
	         n = width > ROW_COLUMNS ? (width - ROW_COLUMNS) / TIME_COLUMNS : 0;
	char line[160], text[16];

	snprintf(line, sizeof(line), "%s", begin);
	for (unsigned i = 0; i < FP_ARRAY_LEN(columns); i++) {
		double q = columns[i].q;
		uint64_t ns = h ? q < 0 ? (uint64_t)fp_hist_mean(h) : fp_hist_quantile(h, q) : 0;

		if (columns[i].rank > n)
			continue;
		snprintf(text, sizeof(text), "%s", h ? "-" : columns[i].name);
		add_cell(line, sizeof(line),
		         h && fp_hist_count(h) ? fp_time_format(ns, text, sizeof(text)) : text);
	}
	fp_screen_head(screen, h ? FP_SCREEN_PLAIN : FP_SCREEN_STRONG, "%s", line);
}

static void draw_figures(struct fp_screen *screen, const char *name, bool has_bars, const struct fp_hist *h)
{
	char begin[64];

	snprintf(begin, sizeof(begin), "%s %-9s%11" PRIu64, has_bars ? ">" : " ", name, fp_hist_count(h));
	draw_row(screen, begin, h);
}

static void draw_bar(void *user, const char *text)
{
	fp_screen_body(user, FP_SCREEN_PLAIN, "%s", text);
}

static void draw(struct fp_screen *screen, void *user)
{
	const struct live_view *view = user;
	const struct live_hist *h = view->kind ? &view->kinds[view->kind] : &view->phases[view->phase];
	const struct fp_phase *phase = view->kind ? &fp_phase_kinds[view->kind] : &fp_phases[view->phase];
	const struct fp_hist *bars = view->bars_of_last ? &h->last : &h->all;
	char name[64];

	fp_screen_head(screen, FP_SCREEN_REVERSE, "farpage hist  %s%s  %s",
	               fp_histset_name(view->set, name, sizeof(name)), view->ended ? ", ended" : "",
	               phase->title);
	draw_row(screen, "               counted", NULL);
	draw_figures(screen, view->set->since.view ? "since" : "all", !view->bars_of_last, &h->all);
	draw_figures(screen, "last 1 s", view->bars_of_last, &h->last);
	fp_screen_head(screen, FP_SCREEN_PLAIN, "%s", "");
	if (fp_hist_count(bars) == 0)
		fp_screen_body(screen, FP_SCREEN_PLAIN, "Nothing counted%s.",
		               view->bars_of_last ? " in the last second" : " yet");
	else
		fp_hist_bars(bars, fp_screen_height(screen), fp_screen_width(screen), draw_bar, screen);
}

int fp_histlive_run(struct fp_histset *set, unsigned phase, unsigned kind)
{
	fp_autofree struct live_view *live = calloc(1, sizeof(*live));
	const struct fp_screen_view view = {
	    .keys = "p phase  n kind  i interval",
	    .help = help,
	    .look = look,
	    .draw = draw,
	    .key = next,
	    .user = live,
	};

	if (!live) {
		fp_log(FP_LOG_ERROR, "hist", "no memory");
		return -ENOMEM;
	}
	live->set = set;
	live->phase = phase;
	live->kind = kind;
	return fp_screen_run(&view, INTERVAL_MS);
}
