/*
 * The options of a subcommand. Each row has the help of one option, the reader of its value, and
 * the place of the value. Room: tools.
 */
#ifndef FP_OPTION_H
#define FP_OPTION_H

#include <stddef.h>
#include <stdint.h>

struct fp_tool;
struct fp_option;

/* Reads text, the value of an option, into target. Ends the process by fp_tool_wrong if it
 * can't. */
typedef void fp_option_read(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                            void *target);

struct fp_option {
	const char *name;  /* without dashes; NULL ends a table */
	const char *value; /* as --help calls it; NULL: a switch */
	const char *help;
	fp_option_read *read;
	size_t at;                /* offset of the value in the tool's structure */
	uint64_t min, max;        /* of numbers, sizes and times */
	const char *const *words; /* of fp_option_word; NULL ends them */
	fp_option_read *each;     /* of fp_option_list */
};

fp_option_read fp_option_switch; /* bool */
fp_option_read fp_option_text;   /* const char *: points into the command line */
fp_option_read fp_option_number; /* uint64_t */
fp_option_read fp_option_size;   /* uint64_t, bytes, rounded down to whole pages */
fp_option_read fp_option_time;   /* uint64_t, ns */
fp_option_read fp_option_word;   /* unsigned: the index in words */
fp_option_read fp_option_list;   /* elements between commas, to each */
fp_option_read fp_option_secret; /* char *: the secret in the file; release with fp_secret_free */

/*
 * Reads the options of tool into target, each to the place in its row. Returns the index in argv of
 * the first argument that is no option. Ends the process after --help, and after a message if an
 * option is wrong.
 */
int fp_option_parse(const struct fp_tool *tool, int argc, char **argv, void *target);

/* Prints text, then each row, on stdout, in lines of about 100 columns. */
void fp_option_print_help(const char *text, const struct fp_option *options);

#endif
