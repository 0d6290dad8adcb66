/*
 * farpage hist: a latency histogram of a program, while it runs or afterwards. Room: tools.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "stats_dir.h"
#include "phase.h"
#include "tool.h"

struct hist_options {
	uint64_t pid;           /* 0: not given */
	const char *stats_file; /* NULL: not given */
	bool live;
	unsigned phase;  /* index in fp_phases */
	unsigned format; /* enum fp_hist_format, or FORMAT_SVG */
};

#define FORMAT_SVG (FP_HIST_HGRM + 1)

static const char *const format_names[] = {"text", "json", "csv", "hgrm", "svg", NULL};

static const struct fp_option options_table[] = {
    {"pid", "PID", "the running program with this process number", .read = fp_option_number,
     .at = offsetof(struct hist_options, pid), 1, INT_MAX},
    {"stats-file", "FILE", "what `farpage run --stats-file FILE` wrote", .read = fp_option_text,
     .at = offsetof(struct hist_options, stats_file)},
    {"live", NULL, "again each second, until ^C or the program's end", .read = fp_option_switch,
     .at = offsetof(struct hist_options, live)},
    {"phase", "NAME",
     "fault (default): message read to thread woken; fetch: the remote read alone; writeback: the remote "
     "write of a batch; evict: a batch of evictions",
     .read = fp_option_word, .at = offsetof(struct hist_options, phase), .words = fp_phase_names},
    {"format", "FORMAT", "text (default), json, csv, hgrm (HdrHistogram's plotter), svg",
     .read = fp_option_word, .at = offsetof(struct hist_options, format), .words = format_names},
    {.name = NULL},
};

static void say_look(const char *file, int r)
{
	char reason[64];

	if (r == -EINVAL)
		fp_log(FP_LOG_ERROR, "hist", "%s: not a stats file of Farpage", file);
	else if (r == -ENODATA)
		fp_log(FP_LOG_ERROR, "hist", "%s: a stats file of Farpage that was cut short", file);
	else if (r == -EPROTO)
		fp_log(FP_LOG_ERROR, "hist", "%s: written by another version of Farpage", file);
	else
		fp_log(FP_LOG_ERROR, "hist", "%s: %s", file, fp_strerror(r, reason, sizeof(reason)));
}

/* Returns the page of process pid, or of the only process if pid is 0. NULL after a message. */
static struct fp_statsview *choose_page(const struct fp_stats_dir *pages, pid_t pid)
{
	struct fp_statsview *view = pid ? fp_stats_dir_find(pages, pid) : NULL;

	if (pid && !view)
		fp_log(FP_LOG_ERROR, "hist",
		       "process %d: no statistics of it. It does not run under Farpage, is another user's, "
		       "or has "
		       "ended (`farpage ps` lists programs; --stats-file keeps the figures of one)",
		       (int)pid);
	else if (!pid && pages->n == 0)
		fp_log(FP_LOG_ERROR, "hist", "no program of this user runs under Farpage (see --stats-file)");
	else if (!pid && pages->n > 1)
		fp_log(FP_LOG_ERROR, "hist",
		       "%zu programs run under Farpage: choose one with --pid (`farpage ps` "
		       "lists them)",
		       pages->n);
	else
		view = view ?: pages->items[0];
	return view;
}

static int print(const struct hist_options *options, const struct fp_statspage *page)
{
	const struct fp_phase *phase = &fp_phases[options->phase];
	const struct fp_hist *h = fp_phase_hist(phase, page);

	if (options->format == FORMAT_SVG)
		return fp_phase_svg(h, phase->title, stdout);
	return fp_hist_print(h, (enum fp_hist_format)options->format, phase->title, 0, stdout);
}

/* Looks at the page. 0 or a negative errno after a message that names the file. */
static int look(struct fp_statsview *view)
{
	char self[32], file[PATH_MAX] = "";
	int r = fp_statsview_look(view);

	snprintf(self, sizeof(self), "/proc/self/fd/%d", view->fd);
	if (r < 0 && readlink(self, file, sizeof(file) - 1) >= 0)
		say_look(file, r);
	return r;
}

/* Prints the histogram and flushes. 0 or a negative errno after a message. */
static int print_now(const struct hist_options *options, const struct fp_statspage *page)
{
	int r = print(options, page);

	if (r < 0) {
		char reason[64];

		fp_log(FP_LOG_ERROR, "hist", "standard output: %s", fp_strerror(r, reason, sizeof(reason)));
	}
	return r < 0 ? r : fp_tool_flush(&fp_tool_hist);
}

/*
 * Prints the histogram each second until a ^C or the program's end. On a terminal each print
 * replaces the last one; elsewhere each follows the last one.
 */
static int print_live(const struct hist_options *options, struct fp_statsview *view)
{
	const struct timespec second = {.tv_sec = 1};
	bool alive = true;
	sigset_t ends;
	int r = 0;

	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	while (r == 0 && alive) {
		alive = fp_statspage_alive(&view->page) && !view->page.exited;
		r = look(view);
		if (r == 0 && isatty(STDOUT_FILENO))
			fputs("\033[H\033[J", stdout);
		if (r == 0)
			r = print_now(options, &view->page);
		if (r == 0 && alive && sigtimedwait(&ends, NULL, &second) > 0)
			return 0;
	}
	return r;
}

static int hist_main(int argc, char **argv)
{
	struct hist_options options = {0};
	struct fp_statsview *view = NULL;
	struct fp_stats_dir pages = {0};
	int status, r;

	fp_option_parse(&fp_tool_hist, argc, argv, &options);
	if (options.pid && options.stats_file)
		fp_tool_wrong(&fp_tool_hist, "--pid and --stats-file exclude each other");
	pages.follow = options.live;
	if (options.stats_file) {
		r = fp_statsview_open(options.stats_file, &view);
		if (r < 0)
			say_look(options.stats_file, r);
	} else if (fp_stats_dir_read_live(&pages, "hist") == 0)
		view = choose_page(&pages, (pid_t)options.pid);
	if (!view)
		status = 1;
	else
		status = (options.live ? print_live(&options, view) : print_now(&options, &view->page)) != 0;
	if (options.stats_file)
		fp_statsview_close(view);
	fp_stats_dir_done(&pages);
	return status;
}

const struct fp_tool fp_tool_hist = {
    .name = "hist",
    .label = "hist",
    .summary = "latency histogram of a program, live or from its stats file",
    .help =
        "usage: farpage hist [--pid PID | --stats-file FILE] [--live] [--phase NAME] [--format FORMAT]\n\n"
        "Prints how long the faults of a program took. With neither --pid nor --stats-file: of the "
        "only program of this user that runs under Farpage.\n\n",
    .options = options_table,
    .main = hist_main,
};
