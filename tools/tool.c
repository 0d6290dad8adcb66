/*
 * Help, usage errors and output of the subcommands. Room: tools.
 */
#include "tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "json_table.h"
#include "log.h"

static int start(const struct fp_tool *tool, int argc, char **argv)
{
	char name[32];

	snprintf(name, sizeof(name), "farpage: %s", tool->label);
	argv[0] = name; /* getopt begins its messages with this name */
	return tool->main(argc, argv);
}

static void print_usage(const struct fp_tool *tool)
{
	fprintf(stderr, "%.*s\n", (int)strcspn(tool->help, "\n"), tool->help);
}

int fp_tool_dispatch(const struct fp_tool *tool, int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--help") == 0)
		return fp_tool_help(tool);
	for (const struct fp_tool *const *t = tool->commands; argc > 1 && *t; t++)
		if (strcmp((*t)->name, argv[1]) == 0)
			return start(*t, argc - 1, argv + 1);
	fp_log(FP_LOG_ERROR, argc > 1 ? argv[1] : tool->label, "no such command");
	print_usage(tool);
	return FP_EXIT_USAGE;
}

void fp_tool_wrong(const struct fp_tool *tool, const char *format, ...)
{
	char text[512];
	va_list args;

	if (format) {
		va_start(args, format);
		vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		fp_log(FP_LOG_ERROR, tool->label, "%s", text);
	}
	print_usage(tool);
	exit(tool->runs_command ? FP_EXIT_RUN_FAILED : FP_EXIT_USAGE);
}

int fp_tool_help(const struct fp_tool *tool)
{
	fp_option_print_help(tool->help, tool->options);
	for (const struct fp_tool *const *t = tool->commands; t && *t; t++)
		printf("  %-6s %s\n", (*t)->name, (*t)->summary);
	return fp_tool_flush(tool);
}

json_t *fp_tool_json_string(const char *text)
{
	json_t *string = json_string(text);
	fp_autofree char *plain = string ? NULL : strdup(text);

	for (char *c = plain; c && *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	return string ?: json_string(plain);
}

int fp_tool_show(const struct fp_tool *tool, json_t *document, bool as_json)
{
	if (!document) {
		fp_log(FP_LOG_ERROR, tool->label, "no memory");
		return 1;
	}
	if (as_json) {
		json_dumpf(document, stdout, JSON_REAL_PRECISION(6));
		putchar('\n');
	} else {
		fp_json_table_print(document, stdout);
	}
	json_decref(document);
	return fp_tool_flush(tool);
}

int fp_tool_flush(const struct fp_tool *tool)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fp_log(FP_LOG_ERROR, tool->label, "standard output: %s", strerror(errno));
	return 1;
}
