/*
 * The environment of `farpage run`. Room: tools; see runenv.h.
 */
#include "runenv.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "settings.h"

#define PREFIX "FARPAGE_"

static void say_typo(const char *name, const char *meant)
{
	fp_log(FP_LOG_WARNING, "run", "%s has no effect: is %s meant?", name, meant);
}

void fp_runenv_warn(void)
{
	fp_settings_find_typos(say_typo);
}

/*
 * Prints a value. If it has other characters than these plain ones, prints it in double quotes: a
 * shell and systemd read both forms alike.
 */
static void print_value(const char *value, FILE *out)
{
	static const char plain[] =
	    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-[]";

	if (value[strspn(value, plain)] == '\0') {
		fputs(value, out);
		return;
	}
	fputc('"', out);
	for (; *value; value++) {
		if (strchr("\"\\$`", *value))
			fputc('\\', out);
		fputc(*value, out);
	}
	fputc('"', out);
}

static char *absolute(const char *before, const char *path)
{
	char folder[PATH_MAX], *text;

	if (*path == '/')
		return asprintf(&text, "%s%s", before, path) < 0 ? NULL : text;
	if (!getcwd(folder, sizeof(folder)))
		return NULL;
	return asprintf(&text, "%s%s/%s", before, folder, path) < 0 ? NULL : text;
}

/* shm:@NAME is no path. */
static bool has_path(const char *url)
{
	return strncmp(url, "shm:", 4) == 0 && url[4] != '@';
}

/* Quotes the list as a whole: systemd takes a quote inside a value as part of the value. */
static int print_nodes(const struct fp_settings *settings, FILE *out)
{
	fp_autofree char *list = strdup("");

	for (unsigned i = 0; list && i < settings->n_urls; i++) {
		const char *url = settings->urls[i];
		fp_autofree char *text = has_path(url) ? absolute("shm:", url + 4) : strdup(url);
		fp_autofree char *before = fp_take_ptr(list);

		if (!text || asprintf(&list, "%s%s%s", before, i ? "," : "", text) < 0)
			list = NULL;
	}
	if (!list)
		return -ENOMEM;
	fputs(PREFIX "NODES=", out);
	print_value(list, out);
	fputc('\n', out);
	return 0;
}

/* True for a variable that only `farpage run` reads, and for the one that print_nodes prints. */
static bool is_left_out(const char *name)
{
	static const char *const names[] = {"NODES",   "REPORT",  "POOL_SIZE", "RUN_DIR",
	                                    "KEPT_FD", "PRELOAD", "DAEMON"};

	for (size_t i = 0; i < FP_ARRAY_LEN(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

static bool is_path(const char *name)
{
	return strcmp(name, "CONFIG") == 0 || strcmp(name, "SECRET_FILE") == 0 ||
	       strcmp(name, "STATS_FILE") == 0 || strcmp(name, "RUNTIME_DIR") == 0;
}

/* entry: FARPAGE_NAME=VALUE. */
static int print_variable(const char *entry, FILE *out)
{
	const char *value = strchr(entry, '=') + 1;
	fp_autofree char *text = NULL;
	char name[64];
	bool is_file;

	snprintf(name, sizeof(name), "%.*s", (int)(value - 1 - entry - strlen(PREFIX)),
	         entry + strlen(PREFIX));
	if (!*value || is_left_out(name)) /* an empty variable counts as not set */
		return 0;
	is_file = is_path(name) && strcmp(value, FP_SETTINGS_NO_SECRET) != 0;
	text = is_file ? absolute("", value) : strdup(value);
	if (!text)
		return -ENOMEM;
	fprintf(out, PREFIX "%s=", name);
	print_value(text, out);
	fputc('\n', out);
	return 0;
}

int fp_runenv_print(const char *preload, const struct fp_settings *settings, FILE *out)
{
	const char *theirs = getenv("LD_PRELOAD");
	fp_autofree char *both = NULL;
	int r;

	if (asprintf(&both, "%s%s%s", preload, theirs && *theirs ? ":" : "", theirs ?: "") < 0)
		return -ENOMEM;
	fputs("LD_PRELOAD=", out);
	print_value(both, out);
	fputc('\n', out);
	r = print_nodes(settings, out);
	for (char **entry = environ; r == 0 && *entry; entry++)
		if (strncmp(*entry, PREFIX, strlen(PREFIX)) == 0 && strchr(*entry, '='))
			r = print_variable(*entry, out);
	return r;
}
