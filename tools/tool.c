/*
 * Help, usage errors and output of the subcommands. Room: tools.
 */
#include "tool.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cleanup.h"
#include "json_table.h"
#include "log.h"

#define COMMAND_INDENT 9 /* column where the summary of a command begins */

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

static bool is_option(int argc, char **argv, const char *letter, const char *word)
{
	return argc > 1 && (strcmp(argv[1], letter) == 0 || strcmp(argv[1], word) == 0);
}

/* NULL, with a message: the tool has no such subcommand. */
static const struct fp_tool *find_command(const struct fp_tool *tool, const char *name)
{
	for (const struct fp_tool *const *t = tool->commands; *t; t++)
		if (strcmp((*t)->name, name) == 0)
			return *t;
	fp_log(FP_LOG_ERROR, name, "no such command");
	print_usage(tool);
	return NULL;
}

/* `farpage help bench fault`: names are those after the word help. */
static int help_on(const struct fp_tool *tool, char **names)
{
	for (; tool && tool->commands && *names; names++)
		tool = find_command(tool, *names);
	return tool ? fp_tool_help(tool) : FP_EXIT_USAGE;
}

int fp_tool_dispatch(const struct fp_tool *tool, int argc, char **argv)
{
	const struct fp_tool *command;

	if (argc <= 1 || is_option(argc, argv, "-h", "--help"))
		return fp_tool_help(tool);
	if (is_option(argc, argv, "-V", "--version"))
		return fp_tool_version(tool);
	if (strcmp(argv[1], "help") == 0)
		return help_on(tool, argv + 2);
	command = find_command(tool, argv[1]);
	return command ? start(command, argc - 1, argv + 1) : FP_EXIT_USAGE;
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
	fp_option_print_text(tool->help, 0, 0);
	for (const struct fp_tool *const *t = tool->commands; t && *t; t++)
		fp_option_print_text((*t)->summary, printf("  %-6s ", (*t)->name), COMMAND_INDENT);
	if (tool->commands)
		puts("\nOptions:");
	fp_option_print_table(tool->options);
	return fp_tool_flush(tool);
}

int fp_tool_version(const struct fp_tool *tool)
{
	puts("farpage " FP_VERSION);
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

json_t *fp_tool_json_number(uint64_t value)
{
	return json_integer((json_int_t)FP_MIN(value, (uint64_t)INT64_MAX));
}

int fp_tool_show(const struct fp_tool *tool, json_t *document, bool as_json)
{
	if (!document) {
		fp_log(FP_LOG_ERROR, tool->label, "no memory");
		return 1;
	}
	if (as_json) {
		json_dumpf(document, stdout, JSON_REAL_PRECISION(6) | JSON_ENSURE_ASCII);
		putchar('\n');
	} else {
		const struct fp_json_brief brief = {.width = fp_tool_width(stdout),
		                                    .first = tool->first_columns};

		if (fp_json_table_print_brief(document, &brief, stdout))
			puts("(shortened to the terminal: a pipe shows all columns)");
	}
	json_decref(document);
	return fp_tool_flush(tool);
}

/* All 0 if out is no terminal. */
static struct winsize terminal_size(FILE *out)
{
	struct winsize size;
	int fd = fileno(out);

	return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size : (struct winsize){0};
}

unsigned fp_tool_width(FILE *out)
{
	return terminal_size(out).ws_col;
}

unsigned fp_tool_height(FILE *out)
{
	return terminal_size(out).ws_row;
}

static void end_now(int signal)
{
	_exit(0);
}

void fp_tool_end_by_signal(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
	const struct sigaction action = {.sa_handler = end_now};
	sigset_t set;

	sigemptyset(&set);
	for (unsigned i = 0; i < FP_ARRAY_LEN(ends); i++) {
		sigaction(ends[i], &action, NULL);
		sigaddset(&set, ends[i]);
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int fp_tool_flush(const struct fp_tool *tool)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fp_log(FP_LOG_ERROR, tool->label, "standard output: %s", strerror(errno));
	return 1;
}
