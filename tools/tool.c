/*
 * Help, usage errors and small output helpers of the subcommands. Room: tools.
 */
#include "tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "log.h"
#include "secret.h"

const struct fp_tool *fp_tool_find(const struct fp_tool *const *table, const char *name)
{
	for (; *table; table++)
		if (strcmp((*table)->name, name) == 0)
			return *table;
	return NULL;
}

int fp_tool_start(const struct fp_tool *tool, int argc, char **argv)
{
	char name[32];

	snprintf(name, sizeof(name), "farpage: %s", tool->label);
	argv[0] = name; /* with which getopt begins its complaints */
	return tool->main(argc, argv);
}

int fp_tool_usage(const struct fp_tool *tool, const char *format, ...)
{
	char text[512];
	va_list args;

	if (format) {
		va_start(args, format);
		vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		fp_log(FP_LOG_ERROR, tool->label, "%s", text);
	}
	fprintf(stderr, "%.*s\n", (int)strcspn(tool->help, "\n"), tool->help);
	return FP_EXIT_USAGE;
}

int fp_tool_help(const struct fp_tool *tool)
{
	fputs(tool->help, stdout);
	return fp_tool_flush(tool);
}

int fp_tool_secret(const struct fp_tool *tool, const char *path, char **secret)
{
	char reason[64];
	int r;

	fp_secret_free(fp_take_ptr(*secret));
	r = fp_secret_read(path, secret);
	if (r == 0)
		return 0;
	return fp_tool_usage(tool, "--secret-file %s: %s", path, fp_strerror(r, reason, sizeof(reason)));
}

void fp_tool_json_string(FILE *out, const char *text)
{
	putc('"', out);
	for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
		if (*c == '"' || *c == '\\')
			fprintf(out, "\\%c", *c);
		else if (*c < 0x20 || *c >= 0x7f)
			fprintf(out, "\\u%04x", *c);
		else
			putc(*c, out);
	}
	putc('"', out);
}

int fp_tool_flush(const struct fp_tool *tool)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fp_log(FP_LOG_ERROR, tool->label, "standard output: %s", strerror(errno));
	return 1;
}
