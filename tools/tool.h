/*
 * The common part of the subcommands: their structure, exit statuses, and help, usage errors and
 * output in one style. Room: tools. It reaches programs and nodes only through the public API, the
 * wire protocol and the stats page.
 */
#ifndef FP_TOOL_H
#define FP_TOOL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "option.h"

#define FP_EXIT_USAGE 2
/*
 * The exit statuses that env(1), nohup(1) and timeout(1) use. They let a caller tell an error of
 * Farpage from one of the program.
 */
#define FP_EXIT_RUN_FAILED     125
#define FP_EXIT_NOT_EXECUTABLE 126
#define FP_EXIT_NOT_FOUND      127

struct fp_tool {
	const char *name;
	const char *label; /* the name in messages: "bench fault" */
	const char *summary;
	const char *help;                /* --help before the options; the first line is the usage */
	const struct fp_option *options; /* NULL: it has only those that every command has */
	/* Its own subcommands: an array that ends with a NULL element. NULL if it has none. */
	const struct fp_tool *const *commands;
	/* The columns that its tables keep longest on a narrow terminal, as in fp_json_brief. */
	const char *const *first_columns;
	bool takes_arguments;
	/*
	 * The first argument is a command to run, and the options end there. A usage error then
	 * gives the exit status 125.
	 */
	bool runs_command;
	int (*main)(int argc, char **argv); /* argv[0] is the subcommand's name; returns the exit status */
};

extern const struct fp_tool fp_tool_run, fp_tool_hist, fp_tool_ps, fp_tool_top, fp_tool_node, fp_tool_bench;

/*
 * Runs the subcommand that argv[1] names, or prints help: without any argument, for --help, and for
 * the word help with names of subcommands. Returns the exit status.
 */
int fp_tool_dispatch(const struct fp_tool *tool, int argc, char **argv);

/* Prints "farpage: LABEL: text" on stderr (unless format is NULL) and the usage, and ends the
 * process. */
_Noreturn void fp_tool_wrong(const struct fp_tool *tool, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints the help on stdout. Returns the exit status. */
int fp_tool_help(const struct fp_tool *tool);

/* Prints the version of Farpage on stdout. Returns the exit status. */
int fp_tool_version(const struct fp_tool *tool);

/*
 * Returns text as a JSON string. A program's name may be any bytes, so if text is not UTF-8, each
 * byte beyond ASCII becomes "?". NULL: no memory.
 */
json_t *fp_tool_json_string(const char *text);

/* Returns value as a JSON number. JSON's greatest is INT64_MAX, which stands for all beyond. */
json_t *fp_tool_json_number(uint64_t value);

/*
 * Prints the result of a command on stdout, as JSON or for a person (json_table.h). Tables lose
 * columns that the terminal has no room for; a pipe gets all. The JSON is
 * ASCII: a terminal may show it, and a program's name may have any characters. Takes over the
 * document; NULL means that there was no memory for it. Returns the exit status.
 */
int fp_tool_show(const struct fp_tool *tool, json_t *document, bool as_json);

/* The columns and the rows of the terminal at out; 0: it is no terminal. */
unsigned fp_tool_width(FILE *out);
unsigned fp_tool_height(FILE *out);

/*
 * From now on SIGINT, SIGTERM and SIGHUP end the process at once with status 0, also while it waits
 * for the reader of a full pipe.
 */
void fp_tool_end_by_signal(void);

/*
 * Ends a command that wrote to stdout. Returns 0, or 1 with a message if something could not be
 * written.
 */
int fp_tool_flush(const struct fp_tool *tool);

#endif
