/*
 * farpage ps: the programs of this user that have far memory. Room: tools.
 */
#include <stddef.h>

#include "stats_dir.h"
#include "pstable.h"
#include "tool.h"

static const struct fp_option options[] = {
    {"json", NULL, "an array with an object for each program; sizes in bytes, times in ns",
     .read = fp_option_switch},
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
	status =
	    fp_tool_show(&fp_tool_ps, json ? fp_pstable_json(&pages) : fp_pstable_text(&pages, NULL), json);
	fp_stats_dir_done(&pages);
	return status;
}

const struct fp_tool fp_tool_ps = {
    .name = "ps",
    .label = "ps",
    .summary = "programs of this user that have far memory",
    .help = "usage: farpage ps [--json]\n\n"
            "Lists the programs of this user that run under Farpage or use libfarpage, and removes what "
            "dead ones left behind. Columns: far memory mapped, local memory against the budget, far "
            "memory that has a home on a node, faults so far, median and 99th percentile of the fault "
            "latency, nodes (! if lost, ? if cut off, ~ if reached over a lesser transport). Below: what "
            "of the program is not far: mappings that a rule keeps local, and what is resident of code, "
            "files, shared memory, its stack and other anonymous memory.\n\n",
    .options = options,
    .main = ps_main,
};
