/*
 * farpage hist: a latency histogram of a program, while it runs or afterwards. Room: tools.
 */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include "histlive.h"
#include "histset.h"
#include "histsvg.h"
#include "log.h"
#include "screen.h"
#include "tool.h"

struct hist_options {
	uint64_t pid;           /* 0: not given */
	const char *stats_file; /* NULL: not given */
	const char *since;      /* NULL: not given */
	const char *save;       /* NULL: not given */
	bool live;
	unsigned phase;  /* index in fp_phases */
	unsigned kind;   /* index in fp_phase_kinds */
	unsigned format; /* enum fp_hist_format, or FORMAT_SVG */
};

#define FORMAT_SVG (FP_HIST_HGRM + 1)

static void read_stats_file(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                            void *target)
{
	if (*(const char **)target)
		fp_tool_wrong(tool, "--stats-file twice: name further files without an option");
	fp_option_text(tool, option, text, target);
}

static const char *const format_names[] = {"text", "json", "csv", "hgrm", "svg", NULL};

static const struct fp_option options_table[] = {
    {"pid", "PID", "the running program with this process number", .read = fp_option_number,
     .at = offsetof(struct hist_options, pid), 1, INT_MAX},
    {"stats-file", "FILE", "what `farpage run --stats-file FILE` wrote; the same as FILE alone",
     .read = read_stats_file, .at = offsetof(struct hist_options, stats_file)},
    {"phase", "NAME",
     "fault (default): from the message read to the thread woken; fetch: the read from the node alone; "
     "writeback: the write of a batch to the nodes; evict: a batch of evictions",
     .read = fp_option_word, .at = offsetof(struct hist_options, phase), .words = fp_phase_names},
    {"kind", "NAME",
     "which faults: all (default); zero: of pages never written; read, write: of pages fetched from a "
     "node; protect: writes to clean local pages; waited: of any kind, without free local memory",
     .read = fp_option_word, .at = offsetof(struct hist_options, kind), .words = fp_phase_kind_names},
    {"since", "FILE", "only what was counted since FILE was made, by --save", .read = fp_option_text,
     .at = offsetof(struct hist_options, since)},
    {"save", "FILE", "write all figures to FILE, for a later --since, and print nothing; replaces FILE",
     .read = fp_option_text, .at = offsetof(struct hist_options, save)},
    {"live", NULL, "again each second: on a terminal until q or ^C, else until ^C or the program's end",
     .read = fp_option_switch, .at = offsetof(struct hist_options, live)},
    {"format", "FORMAT", "text (default), json, csv, hgrm (HdrHistogram's plotter), svg",
     .read = fp_option_word, .at = offsetof(struct hist_options, format), .words = format_names},
    {.name = NULL},
};

static const struct fp_phase *phase_of(const struct hist_options *options)
{
	return options->kind ? &fp_phase_kinds[options->kind] : &fp_phases[options->phase];
}

static int print_svg(const struct fp_histset *set, const struct fp_hist *h, const char *title)
{
	char name[64], text[256];

	snprintf(text, sizeof(text), "%s: %s", fp_histset_name(set, name, sizeof(name)), title);
	return fp_histsvg_print(h, text, stdout);
}

/* Prints the histogram and flushes. 0 or a negative errno after a message. */
static int print_now(const struct hist_options *options, const struct fp_histset *set)
{
	const char *title = phase_of(options)->title;
	static struct fp_hist h;
	int r = fp_histset_sum(set, phase_of(options), &h);
	char reason[64];

	if (r < 0)
		return r;
	r = options->format == FORMAT_SVG ? print_svg(set, &h, title)
	                                  : fp_hist_print(&h, (enum fp_hist_format)options->format, title,
	                                                  fp_tool_width(stdout), stdout);
	if (r < 0)
		fp_log(FP_LOG_ERROR, "hist", "standard output: %s", fp_strerror(r, reason, sizeof(reason)));
	return r < 0 ? r : fp_tool_flush(&fp_tool_hist);
}

/* Prints the histogram each second, one block after the other, until a ^C or the end of all
 * programs. */
static int print_live(const struct hist_options *options, struct fp_histset *set)
{
	const struct timespec second = {.tv_sec = 1};
	bool live;
	int r = 0;

	fp_tool_end_by_signal();
	while (r == 0) {
		live = fp_histset_is_live(set);
		r = print_now(options, set);
		if (r < 0 || !live)
			break;
		nanosleep(&second, NULL);
		r = fp_histset_look(set);
	}
	return r;
}

static int show(const struct hist_options *options, struct fp_histset *set)
{
	if (options->save)
		return fp_histset_save(set, options->save);
	if (!options->live)
		return print_now(options, set);
	if (options->format == FP_HIST_TEXT && fp_screen_possible())
		return fp_histlive_run(set, options->phase, options->kind);
	return print_live(options, set);
}

static void check_options(const struct hist_options *options, int n_files)
{
	const struct fp_tool *tool = &fp_tool_hist;

	if (options->pid && (options->stats_file || n_files))
		fp_tool_wrong(tool, "--pid and stats files exclude each other");
	if (options->kind && options->phase)
		fp_tool_wrong(tool, "--kind %s: only faults have kinds: leave out --phase %s",
		              fp_phase_kind_names[options->kind], fp_phase_names[options->phase]);
	if (options->live && options->format == FORMAT_SVG)
		fp_tool_wrong(tool, "--live --format svg: a file holds one picture: leave out --live");
	if (options->save && (options->live || options->since))
		fp_tool_wrong(tool, "--save and --%s exclude each other", options->live ? "live" : "since");
	if (options->save && (options->phase || options->kind || options->format))
		fp_tool_wrong(tool, "--save writes all figures, in a form of its own: leave out --%s",
		              options->phase  ? "phase"
		              : options->kind ? "kind"
		                              : "format");
}

/* Opens the file of --stats-file and FILE..., or else a running program. */
static int open_set(const struct hist_options *options, char **files, int n_files, struct fp_histset *set)
{
	int r = options->stats_file ? fp_histset_add_file(set, options->stats_file) : 0;

	if (!options->stats_file && n_files == 0)
		return fp_histset_open_program(set, (pid_t)options->pid);
	for (int i = 0; r == 0 && i < n_files; i++)
		r = fp_histset_add_file(set, files[i]);
	return r;
}

static int hist_main(int argc, char **argv)
{
	struct hist_options options = {0};
	struct fp_histset set = {0};
	int first = fp_option_parse(&fp_tool_hist, argc, argv, &options), r;

	check_options(&options, argc - first);
	r = open_set(&options, argv + first, argc - first, &set);
	if (r == 0 && options.since)
		r = fp_histset_open_since(&set, options.since);
	if (r == 0)
		r = show(&options, &set);
	fp_histset_done(&set);
	return r != 0;
}

const struct fp_tool fp_tool_hist = {
    .name = "hist",
    .label = "hist",
    .summary = "latency histogram of a program, live or from its stats file",
    .help = "usage: farpage hist [--pid PID | FILE...] [--phase NAME | --kind NAME] [OPTION...]\n\n"
            "Prints how long the faults of a program took, or of several: the figures of all stats files are "
            "added up. With neither --pid nor FILE: of the only program that runs under Farpage.\n\n",
    .options = options_table,
    .takes_arguments = true,
    .main = hist_main,
};
