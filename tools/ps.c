/*
 * farpage ps: the programs that have far memory. Room: tools.
 */
#include <stddef.h>
#include <stdio.h>

#include "stats_dir.h"
#include "pstable.h"
#include "tool.h"

static const struct fp_option options[] = {
    {"json", NULL, "an array with an object for each program: farpage-json(5)", .read = fp_option_switch},
    {.name = NULL},
};

static int ps_main(int argc, char **argv)
{
	struct fp_stats_dir pages = {0};
	bool json = false;
	int status;

	fp_option_parse(&fp_tool_ps, argc, argv, &json);
	if (fp_stats_dir_read_live(&pages, "ps") < 0)
		return 1;
	if (json)
		status = fp_tool_show(&fp_tool_ps, fp_pstable_json(&pages), true);
	else if (pages.n)
		status = fp_tool_show(&fp_tool_ps, fp_pstable_text(&pages, NULL), false);
	else
		status = puts(fp_pstable_none()) < 0 ? 1 : fp_tool_flush(&fp_tool_ps);
	fp_stats_dir_done(&pages);
	return status;
}

const struct fp_tool fp_tool_ps = {
    .name = "ps",
    .label = "ps",
    .summary = "programs that have far memory",
    .help = "usage: farpage ps [--json]\n\n"
            "Lists the programs of this user, for root of all users, that run under Farpage or use "
            "libfarpage, and removes what this user's dead ones left behind. Columns: far memory mapped, "
            "local memory against the budget, far memory that has a home on a node, median and 99th "
            "percentile of the fault latency, faults so far, nodes (! if lost, ? if cut off, ~ if reached "
            "over a lesser transport). Below: what of the program is not far: mappings that a rule keeps "
            "local, and what is resident of code, files, shared memory, its stack and other anonymous "
            "memory.\n\n",
    .options = options,
    .first_columns = fp_pstable_columns,
    .main = ps_main,
};
