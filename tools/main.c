/*
 * The farpage command: a table of subcommands. Room: tools. Each subcommand has a file of its own.
 */
#include <stdio.h>
#include <string.h>

#include "farpage/farpage.h"
#include "log.h"
#include "tool.h"

static const struct fp_tool *const tools[] = {
    &fp_tool_run, &fp_tool_hist, &fp_tool_ps, &fp_tool_top, &fp_tool_bench, &fp_tool_node, NULL,
};

static void print_usage(FILE *out)
{
	fputs("usage: farpage [--help] [--version] COMMAND [ARG...]\n\ncommands:\n", out);
	for (const struct fp_tool *const *t = tools; *t; t++)
		fprintf(out, "  %-6s %s\n", (*t)->name, (*t)->summary);
	fputs("\n`farpage COMMAND --help` tells more.\n", out);
}

int main(int argc, char **argv)
{
	const struct fp_tool *tool;

	fp_log_init("farpage", FP_LOG_NOTICE);
	if (argc < 2) {
		print_usage(stderr);
		return FP_EXIT_USAGE;
	}
	if (strcmp(argv[1], "--version") == 0)
		return printf("farpage %s\n", far_version()) < 0;
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
		print_usage(stdout);
		return 0;
	}
	tool = fp_tool_find(tools, argv[1]);
	if (!tool) {
		fp_log(FP_LOG_ERROR, argv[1], "no such command");
		print_usage(stderr);
		return FP_EXIT_USAGE;
	}
	return fp_tool_start(tool, argc - 1, argv + 1);
}
