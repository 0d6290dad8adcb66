/*
 * The farpage command: a table of subcommands. Room: tools. Each subcommand has a file of its own.
 */
#include <stdio.h>
#include <string.h>

#include "farpage/farpage.h"
#include "log.h"
#include "tool.h"

static const struct fp_tool *const commands[] = {
    &fp_tool_run, &fp_tool_hist, &fp_tool_ps, &fp_tool_top, &fp_tool_bench, &fp_tool_node, NULL,
};

static const struct fp_tool farpage = {
    .label = "command",
    .help = "usage: farpage [--help] [--version] COMMAND [ARG...]\n"
            "\n"
            "`farpage COMMAND --help` tells more. Commands:\n",
    .commands = commands,
};

int main(int argc, char **argv)
{
	fp_log_init("farpage", FP_LOG_NOTICE);
	if (argc > 1 && strcmp(argv[1], "--version") == 0)
		return printf("farpage %s\n", far_version()) < 0;
	return fp_tool_dispatch(&farpage, argc, argv);
}
