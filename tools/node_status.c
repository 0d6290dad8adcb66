/*
 * The status of a memory node for a person. Room: tools; see node_status.h.
 */
#include "node_status.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "json_table.h"
#include "units.h"

#define BRIEF_ROWS   10
#define PROMPT_LINES 2 /* of a shell, which follow the output */

/* Columns by importance, of all tables. */
static const char *const important[] = {
    "name",       "cause",      "count",       "client",       "state",
    "size_bytes", "used_bytes", "free_bytes",  "leased_bytes", "quota_bytes",
    "sessions",   "transport",  "age_s",       "read_bytes",   "written_bytes",
    "leases",     "backing",    "last_client", "last_age_s",   "grace_left_ms",
    NULL,
};

/* The sum of a number over the objects of a list. A node may send anything. */
static uint64_t sum_of(json_t *list, const char *name)
{
	uint64_t sum = 0;
	json_t *item;
	size_t i;

	json_array_foreach (list, i, item)
		sum += (uint64_t)json_integer_value(json_object_get(item, name));
	return sum;
}

/* How many of the list's objects have this state. */
static size_t count_state(json_t *list, const char *state)
{
	size_t n = 0, i;
	json_t *item;

	json_array_foreach (list, i, item) {
		const char *text = json_string_value(json_object_get(item, "state"));

		n += text && strcmp(text, state) == 0;
	}
	return n;
}

/* "serving: 8.0 MiB of 96.0 MiB leased, 88.0 MiB free; 2 sessions, 1 cut off", in two lines if that
 * is wider than width (0: any). Nothing for a node that does not say so much. */
static void print_summary(json_t *status, unsigned width, FILE *out)
{
	json_t *pools = json_object_get(status, "pools"), *sessions = json_object_get(status, "sessions");
	const char *state = json_string_value(json_object_get(status, "state"));
	uint64_t omitted = (uint64_t)json_integer_value(json_object_get(status, "sessions_omitted"));
	size_t cut_off = count_state(sessions, "cut off");
	uint64_t n = json_array_size(sessions) + omitted;
	char used[16], size[16], free_text[16], memory[96], count[64];
	int len;

	if (!json_array_size(pools) || !json_is_array(sessions) || !state ||
	    strspn(state, "abcdefghijklmnopqrstuvwxyz") != strlen(state))
		return;
	snprintf(memory, sizeof(memory), "%.20s: %s of %s leased, %s free;", state,
	         fp_size_format(sum_of(pools, "used_bytes"), used, sizeof(used)),
	         fp_size_format(sum_of(pools, "size_bytes"), size, sizeof(size)),
	         fp_size_format(sum_of(pools, "free_bytes"), free_text, sizeof(free_text)));
	len = snprintf(count, sizeof(count), "%" PRIu64 " session%s", n, n == 1 ? "" : "s");
	if (cut_off)
		snprintf(count + len, sizeof(count) - (size_t)len, ", %zu cut off", cut_off);
	fprintf(out, "%s%s%s\n", memory, width && strlen(memory) + 1 + strlen(count) > width ? "\n  " : " ",
	        count);
}

static int by_leased_bytes(const void *a, const void *b)
{
	json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "leased_bytes"));
	json_int_t y = json_integer_value(json_object_get(*(json_t *const *)b, "leased_bytes"));

	return (x < y) - (x > y);
}

/* Puts those with the most memory first. Without memory for it the order stays. */
static void sort_by_leased_bytes(json_t *list)
{
	size_t n = json_array_size(list);
	fp_autofree json_t **items = n ? calloc(n, sizeof(json_t *)) : NULL;

	if (!items)
		return;
	for (size_t i = 0; i < n; i++)
		items[i] = json_incref(json_array_get(list, i));
	qsort(items, n, sizeof(*items), by_leased_bytes);
	for (size_t i = 0; i < n; i++)
		json_array_set_new(list, i, items[i]);
}

/* Returns the text with so many rows in each table. The caller frees it. NULL: no memory. */
static char *brief_text(json_t *status, unsigned width, unsigned rows)
{
	const struct fp_json_brief brief = {width, rows, important};
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return NULL;
	print_summary(status, width, out);
	if (fp_json_table_print_brief(status, &brief, out))
		fputs("(shortened: --sessions shows all rows and columns)\n", out);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

static unsigned lines_of(const char *text)
{
	unsigned n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

/* Takes as many rows as fit the height, but one at least. 0, or -ENOMEM before anything is
 * printed. */
static int print_brief(json_t *status, unsigned width, unsigned height, FILE *out)
{
	sort_by_leased_bytes(json_object_get(status, "sessions"));
	sort_by_leased_bytes(json_object_get(status, "clients"));
	for (unsigned rows = BRIEF_ROWS;; rows--) {
		fp_autofree char *text = brief_text(status, width, rows);
		bool fits;

		if (!text)
			return -ENOMEM;
		fits = !height || lines_of(text) + PROMPT_LINES <= height;
		if (!fits && rows > 1)
			continue;
		fputs(text, out);
		if (!fits)
			print_summary(status, width, out);
		return 0;
	}
}

/* A quota of 0 is none. A person would take "0 B" for a client that gets nothing. */
static void show_no_quota_as_none(json_t *clients)
{
	json_t *client;
	size_t i;

	json_array_foreach (clients, i, client) {
		json_t *quota = json_object_get(client, "quota_bytes");

		if (json_is_integer(quota) && json_integer_value(quota) == 0)
			json_object_set_new(client, "quota_bytes", json_string("none"));
	}
}

int fp_node_status_print(const char *text, bool all, unsigned width, unsigned height, FILE *out)
{
	json_t *status = json_loads(text, 0, NULL);
	int r = json_is_object(status) ? 0 : -EINVAL;

	show_no_quota_as_none(json_object_get(status, "clients"));
	if (r == 0 && all) {
		print_summary(status, 0, out);
		fp_json_table_print(status, out);
	} else if (r == 0) {
		r = print_brief(status, width, height, out);
	}
	json_decref(status);
	return r;
}
