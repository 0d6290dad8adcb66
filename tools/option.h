/*
 * The options of a subcommand. Each row of a table has one option's help, the function that reads
 * its value, and where the value goes. Room: tools.
 */
#ifndef FP_OPTION_H
#define FP_OPTION_H

#include <stddef.h>
#include <stdint.h>

struct fp_tool;
struct fp_option;

/*
 * Reads the value of an option from the string text into target. If the value is wrong, ends the
 * process by fp_tool_wrong.
 */
typedef void fp_option_read(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                            void *target);

struct fp_option {
	const char *name;  /* the option without its dashes; NULL ends a table */
	const char *value; /* the value's name in --help; NULL: a switch without a value */
	const char *help;
	fp_option_read *read;
	size_t at;                /* offset of the value in the tool's structure */
	uint64_t min, max;        /* limits of numbers, sizes and times */
	const char *const *words; /* fp_option_word: the words, ended by NULL */
	fp_option_read *each;     /* fp_option_list: the reader of each element */
};

fp_option_read fp_option_switch; /* bool */
fp_option_read fp_option_text;   /* const char *, which points into the command line */
fp_option_read fp_option_number; /* uint64_t */
fp_option_read fp_option_size;   /* uint64_t, bytes, rounded down to whole pages */
fp_option_read fp_option_time;   /* uint64_t, ns */
fp_option_read fp_option_word;   /* unsigned: the index in words */
fp_option_read fp_option_list;   /* elements between commas; the member each reads one */
/* char *: the secret that the file holds; release with fp_secret_free. Without the option: that of
 * FARPAGE_SECRET_FILE, or of the file that FARPAGE_CONFIG names. */
fp_option_read fp_option_secret;

/*
 * Reads the options of a subcommand into target, each into the place that its row names. Returns
 * the index in argv of the first argument that is no option. Ends the process after --help or
 * --version. After a wrong option, prints a message and ends the process.
 */
int fp_option_parse(const struct fp_tool *tool, int argc, char **argv, void *target);

/*
 * Prints text on stdout, in lines that fit the terminal, and of 99 columns at most. Each begins
 * with so many blanks as indent says. The cursor is in the given column before the first line.
 */
void fp_option_print_text(const char *text, int column, int indent);

/* Prints the help of each row, and of the options that every command has, in the same way. */
void fp_option_print_table(const struct fp_option *options);

#endif
