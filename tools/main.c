/*
 * The farpage command: a table of subcommands. Room: tools. Each subcommand has a file of its own.
 */
#include <locale.h>

#include "log.h"
#include "tool.h"

static const struct fp_tool *const commands[] = {
    &fp_tool_run, &fp_tool_hist, &fp_tool_ps, &fp_tool_top, &fp_tool_bench, &fp_tool_node, NULL,
};

static const struct fp_tool farpage = {
    .label = "command",
    .help = "usage: farpage [OPTION] COMMAND [ARG...]\n"
            "\n"
            "`farpage help COMMAND` tells more; man farpage-COMMAND tells all. Commands:\n",
    .commands = commands,
};

int main(int argc, char **argv)
{
	setlocale(LC_CTYPE, ""); /* no other category: numbers keep their decimal point */
	fp_log_init("farpage", FP_LOG_NOTICE);
	return fp_tool_dispatch(&farpage, argc, argv);
}
