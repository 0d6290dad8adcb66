/*
 * farpage top: the table of `farpage ps`, each second, with what the programs did in it. Room:
 * tools.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include "pstable.h"
#include "screen.h"
#include "tool.h"
#include "toptable.h"
#include "topview.h"

static const struct fp_option options[] = {
    {"json", NULL, "a line with one JSON object for each second: farpage-json(5)", .read = fp_option_switch},
    {.name = NULL},
};

static int show_text(const struct fp_toptable *table)
{
	int status = fp_tool_show(&fp_tool_top, fp_toptable_text(table), false);

	putchar('\n');
	return status ?: fp_tool_flush(&fp_tool_top);
}

/* The first look has nothing to compare with. */
static int show_json(const struct fp_toptable *table)
{
	return table->passed_ns ? fp_tool_show(&fp_tool_top, fp_toptable_json(table), true) : 0;
}

/* Shows one table after the other. Returns the exit status after an error: else a signal ends
 * it. */
static int show_all(bool json)
{
	const struct timespec second = {.tv_sec = 1};
	struct fp_toptable table = {.rows = NULL};
	int status;

	fp_tool_end_by_signal();
	do
		status = fp_toptable_look(&table) < 0 ? 1 : json ? show_json(&table) : show_text(&table);
	while (status == 0 && nanosleep(&second, NULL) == 0);
	fp_toptable_done(&table);
	return status;
}

static int top_main(int argc, char **argv)
{
	bool json = false;

	fp_option_parse(&fp_tool_top, argc, argv, &json);
	if (!json && fp_screen_possible())
		return fp_topview_run() < 0;
	return show_all(json);
}

const struct fp_tool fp_tool_top = {
    .name = "top",
    .label = "top",
    .summary = "the same, refreshed each second, with fault rates",
    .help = "usage: farpage top [--json]\n\n"
            "Shows the programs that `farpage ps` lists, with what they did in the last second: faults, "
            "and median and 99th percentile of their latency, beside those since the start. It fills the "
            "terminal; ? shows keys and columns, q quits. Where input or output is no terminal, one "
            "table follows the other until ^C.\n\n",
    .options = options,
    .first_columns = fp_pstable_columns,
    .main = top_main,
};
