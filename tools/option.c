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
#include "tool.h"
#include "units.h"

#define MAX_OPTIONS 24
#define HELP_COLUMN 23
#define HELP_WIDTH  76
#define HELP        256 /* what getopt_long returns; rows return their place */

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

void fp_option_size(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	char min[16], max[16];
	uint64_t bytes;

	if (fp_size_parse(text, &bytes) < 0 || bytes < option->min || bytes > option->max)
		fp_tool_wrong(tool, "--%s %s: not a size from %s to %s", option->name, text,
		              fp_size_format(option->min, min, sizeof(min)),
		              fp_size_format(option->max, max, sizeof(max)));
	*(uint64_t *)target = bytes & ~4095ull;
}

void fp_option_time(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                    void *target)
{
	char min[16], max[16];
	uint64_t ns;

	if (fp_time_parse(text, &ns) < 0 || ns < option->min || ns > option->max)
		fp_tool_wrong(tool, "--%s %s: not a time from %s to %s", option->name, text,
		              fp_time_format(option->min, min, sizeof(min)),
		              fp_time_format(option->max, max, sizeof(max)));
	*(uint64_t *)target = ns;
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

void fp_option_secret(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	char reason[64], **secret = target;
	int r;

	fp_secret_free(fp_take_ptr(*secret));
	r = fp_secret_read(text, secret);
	if (r < 0)
		fp_tool_wrong(tool, "--%s %s: %s", option->name, text,
		              fp_strerror(r, reason, sizeof(reason)));
}

int fp_option_parse(const struct fp_tool *tool, int argc, char **argv, void *target)
{
	const struct fp_option *options = tool->options;
	struct option longs[MAX_OPTIONS + 2] = {{"help", no_argument, NULL, HELP}};
	int c;

	/* No two return the same: getopt_long(3) would not tell that a short form is ambiguous. */
	for (int i = 0; options && options[i].name && i < MAX_OPTIONS; i++)
		longs[i + 1] = (struct option){options[i].name,
		                               options[i].value ? required_argument : no_argument, NULL, i};
	while ((c = getopt_long(argc, argv, tool->runs_command ? "+" : "", longs, NULL)) != -1) {
		if (c == HELP)
			exit(fp_tool_help(tool));
		if (c == '?')
			fp_tool_wrong(tool, NULL);
		if (optarg && !*optarg)
			fp_tool_wrong(tool, "--%s: its value is empty", options[c].name);
		options[c].read(tool, &options[c], optarg, (char *)target + options[c].at);
	}
	if (optind < argc && !tool->takes_arguments && !tool->runs_command)
		fp_tool_wrong(tool, "%s: unexpected argument", argv[optind]);
	return optind;
}

void fp_option_print_help(const struct fp_option *options, FILE *out)
{
	for (; options && options->name; options++) {
		int column = fprintf(out, "  --%s %s", options->name, options->value ?: "");

		for (const char *line = options->help; *line; column = 0) {
			size_t n = strlen(line);

			if (n > HELP_WIDTH)
				for (n = HELP_WIDTH; line[n] != ' '; n--)
					;
			fprintf(out, "%*s%.*s\n", FP_MAX(HELP_COLUMN - column, 2), "", (int)n, line);
			line += n + strspn(line + n, " ");
		}
	}
}
