/*
 * The options of a subcommand. Room: tools.
 */
#include "option.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "log.h"
#include "secret.h"
#include "settings.h"
#include "tool.h"
#include "units.h"

#define MAX_OPTIONS 24
#define INDENT      23 /* column where the help of an option begins */
#define LINE        99 /* columns of the longest line */
#define LEAST       30 /* columns of text behind an indent, even if the terminal has fewer */

void fp_option_switch(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	*(bool *)target = true;
}

void fp_option_text(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	*(const char **)target = text;
}

void fp_option_number(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	if (fp_number_parse(text, option->min, option->max, target) < 0)
		fp_tool_wrong(tool, "--%s %s: not a number from %llu to %llu", option->name, text,
		              (unsigned long long)option->min, (unsigned long long)option->max);
}

static void read_unit(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      uint64_t *ret_value, int (*parse)(const char *text, uint64_t *ret_value),
                      const char *(*format)(uint64_t value, char *buf, size_t len))
{
	char min[16], max[16];

	if (parse(text, ret_value) < 0 || *ret_value < option->min || *ret_value > option->max)
		fp_tool_wrong(tool, "--%s %s: wanted is %s to %s", option->name, text,
		              format(option->min, min, sizeof(min)), format(option->max, max, sizeof(max)));
}

void fp_option_size(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	read_unit(tool, option, text, target, fp_size_parse, fp_size_format);
	*(uint64_t *)target &= ~4095ull;
}

void fp_option_time(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	read_unit(tool, option, text, target, fp_time_parse, fp_time_format);
}

void fp_option_word(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	char allowed[128] = "";
	size_t len = 0;

	for (unsigned i = 0; option->words[i]; i++) {
		if (strcmp(option->words[i], text) == 0) {
			*(unsigned *)target = i;
			return;
		}
		len += (size_t)snprintf(allowed + len, sizeof(allowed) - len, "%s%s", i ? ", " : "",
		                        option->words[i]);
	}
	fp_tool_wrong(tool, "--%s %s: allowed are %s", option->name, text, allowed);
}

void fp_option_list(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	fp_autofree char *copy = strdup(text);
	char *rest = copy;

	for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ","))
		option->each(tool, option, item, target);
}

void fp_option_secret(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	char why[256], **secret = target;
	int r;

	fp_secret_free(fp_take_ptr(*secret));
	r = fp_secret_read(text, secret);
	if (r < 0)
		fp_tool_wrong(tool, "--%s %s: %s", option->name, text,
		              fp_secret_explain(r, text, "this user", why, sizeof(why)));
}

/* A secret that the command line does not name may be named by the environment, or by the file. */
static void take_secret(const struct fp_tool *tool, void *target)
{
	struct fp_agent_error error;

	for (const struct fp_option *option = tool->options; option && option->name; option++) {
		char **secret = (char **)((char *)target + option->at);

		if (option->read == fp_option_secret && !*secret &&
		    fp_settings_read_secret(secret, &error) < 0)
			fp_tool_wrong(tool, "%s", error.text);
	}
}

int fp_option_parse(const struct fp_tool *tool, int argc, char **argv, void *target)
{
	const struct fp_option *options = tool->options;
	struct option longs[MAX_OPTIONS + 3] = {{"help", no_argument, NULL, 'h'},
	                                        {"version", no_argument, NULL, 'V'}};
	int c;

	/*
	 * Each row returns its own index, which is less than any letter. Otherwise getopt_long(3)
	 * would accept ambiguous short forms.
	 */
	for (int i = 0; options && options[i].name && i < MAX_OPTIONS; i++)
		longs[i + 2] = (struct option){options[i].name,
		                               options[i].value ? required_argument : no_argument, NULL, i};
	while ((c = getopt_long(argc, argv, tool->runs_command ? "+hV" : "hV", longs, NULL)) != -1) {
		if (c == 'h')
			exit(fp_tool_help(tool));
		if (c == 'V')
			exit(fp_tool_version(tool));
		if (c == '?')
			fp_tool_wrong(tool, NULL);
		if (optarg && !*optarg)
			fp_tool_wrong(tool, "--%s: its value is empty", options[c].name);
		options[c].read(tool, &options[c], optarg, (char *)target + options[c].at);
	}
	if (optind < argc && !tool->takes_arguments && !tool->runs_command)
		fp_tool_wrong(tool, "%s: unexpected argument", argv[optind]);
	take_secret(tool, target);
	return optind;
}

void fp_option_print_text(const char *text, int column, int indent)
{
	int columns = FP_MIN((int)fp_tool_width(stdout) ?: LINE, LINE);
	size_t width = (size_t)FP_MAX(columns - indent, LEAST);

	for (; *text; column = 0) {
		size_t n = strcspn(text, "\n");

		if (n > width)
			for (n = width; n > 0 && text[n] != ' '; n--)
				;
		if (n == 0) /* an empty line, or a word that is too long */
			n = strcspn(text, " \n");
		printf("%*s%.*s\n", FP_MAX(indent - column, 0), "", (int)n, text);
		text += n + (text[n] != '\0');
	}
}

void fp_option_print_table(const struct fp_option *options)
{
	for (; options && options->name; options++)
		fp_option_print_text(options->help, printf("  --%s %s ", options->name, options->value ?: ""),
		                     INDENT);
	fp_option_print_text("print this help", printf("  -h, --help"), INDENT);
	fp_option_print_text("print the version of Farpage", printf("  -V, --version"), INDENT);
}
