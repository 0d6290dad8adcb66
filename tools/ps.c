/*
 * farpage ps: the programs of this user that have far memory. Room: tools.
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "stats_dir.h"
#include "pstable.h"
#include "tool.h"

static int ps_main(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
	struct fp_stats_dir pages = {0};
	bool json = false;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'h')
			return fp_tool_help(&fp_tool_ps);
		if (c != 'j')
			return fp_tool_usage(&fp_tool_ps, NULL);
		json = true;
	}
	if (optind < argc)
		return fp_tool_usage(&fp_tool_ps, "%s: unexpected argument", argv[optind]);
	if (fp_stats_dir_read_live(&pages, "ps") < 0)
		return 1;
	if (json)
		fp_pstable_json(&pages, stdout);
	else
		fp_pstable_text(&pages, NULL, stdout);
	fp_stats_dir_done(&pages);
	return fp_tool_flush(&fp_tool_ps);
}

const struct fp_tool fp_tool_ps = {
    .name = "ps",
    .label = "ps",
    .summary = "programs of this user that have far memory",
    .help =
        "usage: farpage ps [--json]\n"
        "\n"
        "Lists the programs of this user that run under Farpage or use libfarpage, and removes what dead "
        "ones\n"
        "left behind. Columns: far memory mapped, local memory against the budget, far memory that has a "
        "home\n"
        "on a node, faults so far, median and 99th percentile of the fault latency, nodes (! if lost, ? "
        "if cut\n"
        "off, ~ if reached over a lesser transport). Below: what of the program is not far: mappings that a "
        "rule\n"
        "keeps local, and what is resident of code, files, shared memory, its stack and other anonymous "
        "memory.\n"
        "\n"
        "  --json  an array with an object for each program; sizes in bytes, times in ns\n",
    .main = ps_main,
};
