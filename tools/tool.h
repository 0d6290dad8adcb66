/*
 * What the subcommands share: the shape of one, exit statuses, and help and usage errors in one
 * voice. Room: tools, which speaks to both sides only through the public API, the wire protocol and
 * the stats page.
 */
#ifndef FP_TOOL_H
#define FP_TOOL_H

#include <stdint.h>
#include <stdio.h>

#define FP_EXIT_USAGE 2
/* What env(1), nohup(1) and timeout(1) end with, so that a caller can tell our trouble from the
 * program's. */
#define FP_EXIT_RUN_FAILED     125
#define FP_EXIT_NOT_EXECUTABLE 126
#define FP_EXIT_NOT_FOUND      127

struct fp_tool {
	const char *name;
	const char *label; /* as messages name it: "bench fault" */
	const char *summary;
	const char *help;                   /* all of --help; the first line is the usage */
	int (*main)(int argc, char **argv); /* argv[0] is the name; returns the exit status */
};

extern const struct fp_tool fp_tool_run, fp_tool_hist, fp_tool_ps, fp_tool_top, fp_tool_node, fp_tool_bench;

/* Finds name in a table that ends with NULL. NULL if it is not there. */
const struct fp_tool *fp_tool_find(const struct fp_tool *const *table, const char *name);

/* Runs it. Returns its exit status. */
int fp_tool_start(const struct fp_tool *tool, int argc, char **argv);

/* Prints "farpage: LABEL: text" on stderr (unless format is NULL) and how to get help. Returns
 * FP_EXIT_USAGE.
 */
int fp_tool_usage(const struct fp_tool *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints the help on stdout. Returns 0. */
int fp_tool_help(const struct fp_tool *tool);

/*
 * Reads the secret in the file that the option --secret-file names, in place of the one in *secret
 * (NULL: none). 0, or FP_EXIT_USAGE after a message. Release with fp_secret_free.
 */
int fp_tool_secret(const struct fp_tool *tool, const char *path, char **secret);

/* Writes text to out as a JSON string, quotes included. What is not ASCII is taken for Latin-1:
 * valid, whatever it is. */
void fp_tool_json_string(FILE *out, const char *text);

/* Ends a command that wrote to stdout: 0, or 1 with a message if something could not be written. */
int fp_tool_flush(const struct fp_tool *tool);

#endif
