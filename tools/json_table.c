/*
 * JSON as aligned text. Room: tools; see outline.h.
 */
#include "json_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "clock.h"
#include "units.h"

#define MAX_COLUMNS 32
#define CELL_BYTES  256
#define GAP         2

static bool ends_with(const char *name, const char *tail)
{
	size_t len = strlen(name), tail_len = strlen(tail);

	return len > tail_len && strcmp(name + len - tail_len, tail) == 0;
}

static bool is_list(const struct fp_json *json)
{
	return json->type == FP_JSON_ARRAY || json->type == FP_JSON_OBJECT;
}

/* "leased_bytes" as "leased", "grace_ms" as "grace", "numa_node" as "numa node". */
static const char *title_of(const char *name, char buf[CELL_BYTES])
{
	static const char *const units[] = {"_bytes", "_ms", "_s"};
	size_t len = strlen(name);

	for (size_t i = 0; i < FP_ARRAY_LEN(units); i++)
		if (ends_with(name, units[i])) {
			len -= strlen(units[i]);
			break;
		}
	snprintf(buf, CELL_BYTES, "%.*s", (int)len, name);
	for (char *c = buf; *c; c++)
		if (*c == '_')
			*c = ' ';
	return buf;
}

static const char *number_text(const struct fp_json *json, char buf[CELL_BYTES])
{
	const char *name = json->name ? json->name : "";
	uint64_t value, unit_ns = ends_with(name, "_ms") ? FP_NSEC_PER_MSEC : FP_NSEC_PER_SEC;
	char *end;

	errno = 0;
	value = strtoull(json->text, &end, 10);
	if (strcmp(json->text, "-1") == 0) /* as the wire has "none" */
		return "-";
	if (errno || *end || *json->text == '-')
		return json->text;
	if (ends_with(name, "_bytes"))
		return fp_size_format(value, buf, CELL_BYTES);
	if ((ends_with(name, "_s") || ends_with(name, "_ms")) && value > 0 && value < UINT64_MAX / unit_ns)
		return fp_time_format(value * unit_ns, buf, CELL_BYTES);
	return json->text;
}

/* The text of a value, also of a list: what is in it, separated by commas. */
static const char *value_text(const struct fp_json *json, char buf[CELL_BYTES])
{
	char one[CELL_BYTES];
	size_t n = 0;

	switch (json->type) {
	case FP_JSON_NULL:
		return "-";
	case FP_JSON_BOOL:
		return strcmp(json->text, "true") == 0 ? "yes" : "no";
	case FP_JSON_NUMBER:
		return number_text(json, buf);
	case FP_JSON_STRING:
		return *json->text ? json->text : "-";
	default:
		break;
	}
	snprintf(buf, CELL_BYTES, "-");
	for (const struct fp_json *m = json->first; m && n < CELL_BYTES; m = m->next) {
		const char *comma = m == json->first ? "" : ",";

		n += (size_t)snprintf(buf + n, CELL_BYTES - n, "%s%s%s%s", comma, m->name ? m->name : "",
		                      m->name ? "=" : "", is_list(m) ? "..." : value_text(m, one));
	}
	return buf;
}

/* Columns as they appear on a terminal: bytes that do not continue a UTF-8 character. */
static int width_of(const char *text)
{
	int width = 0;

	for (; *text; text++)
		width += (*text & 0xc0) != 0x80;
	return width;
}

static void print_padded(const char *text, int width, FILE *out)
{
	fprintf(out, "%s%*s", text, FP_MAX(width - width_of(text), 0), "");
}

struct column {
	const char *name;
	int width;
};

struct table {
	struct column columns[MAX_COLUMNS];
	unsigned n;
};

static struct column *column_of(struct table *table, const char *name)
{
	char title[CELL_BYTES];

	for (unsigned i = 0; i < table->n; i++)
		if (strcmp(table->columns[i].name, name) == 0)
			return &table->columns[i];
	if (table->n == MAX_COLUMNS)
		return NULL;
	table->columns[table->n] = (struct column){name, width_of(title_of(name, title))};
	return &table->columns[table->n++];
}

/* A column for each name that any row has. */
static void measure_table(const struct fp_json *list, struct table *table)
{
	char text[CELL_BYTES];

	for (const struct fp_json *row = list->first; row; row = row->next)
		for (const struct fp_json *m = row->type == FP_JSON_OBJECT ? row->first : NULL; m;
		     m = m->next) {
			struct column *column = column_of(table, m->name);

			if (column)
				column->width = FP_MAX(column->width, width_of(value_text(m, text)));
		}
}

/* within: the name of the object that has the list; NULL: the outermost. */
static void print_table(const struct fp_json *list, const char *within, FILE *out)
{
	struct table table = {.n = 0};
	char text[CELL_BYTES];

	measure_table(list, &table);
	if (within)
		fprintf(out, "%s ", title_of(within, text));
	fprintf(out, "%s:%s\n", title_of(list->name, text), list->first ? "" : " none");
	for (unsigned i = 0; i < table.n; i++) {
		fprintf(out, "%*s", GAP, "");
		print_padded(title_of(table.columns[i].name, text),
		             i + 1 < table.n ? table.columns[i].width : 0, out);
	}
	if (table.n)
		fputc('\n', out);
	for (const struct fp_json *row = list->first; row; row = row->next) {
		for (unsigned i = 0; i < table.n; i++) {
			const struct fp_json *m = fp_json_member(row, table.columns[i].name);

			fprintf(out, "%*s", GAP, "");
			print_padded(m ? value_text(m, text) : "-",
			             i + 1 < table.n ? table.columns[i].width : 0, out);
		}
		fputc('\n', out);
	}
}

static bool is_table(const struct fp_json *json)
{
	return json->type == FP_JSON_ARRAY && (!json->first || json->first->type == FP_JSON_OBJECT);
}

/* "name value, name value", of all but tables. lists: those too that are no plain values. */
static void print_members(const struct fp_json *object, bool lists, FILE *out)
{
	const char *comma = "";
	char title[CELL_BYTES], text[CELL_BYTES];

	for (const struct fp_json *m = object->first; m; m = m->next) {
		if (is_table(m) || (!lists && is_list(m)))
			continue;
		fprintf(out, "%s%s %s", comma, title_of(m->name, title), value_text(m, text));
		comma = ", ";
	}
	fputc('\n', out);
}

void fp_json_table_print(const struct fp_json *object, FILE *out)
{
	char title[CELL_BYTES], text[CELL_BYTES];

	print_members(object, false, out);
	for (const struct fp_json *m = object->first; m; m = m->next) {
		if (is_table(m)) {
			print_table(m, NULL, out);
		} else if (m->type == FP_JSON_OBJECT) {
			fprintf(out, "%s: ", title_of(m->name, title));
			print_members(m, true, out);
			for (const struct fp_json *inner = m->first; inner; inner = inner->next)
				if (is_table(inner))
					print_table(inner, m->name, out);
		} else if (m->type == FP_JSON_ARRAY) {
			fprintf(out, "%s: %s\n", title_of(m->name, title), value_text(m, text));
		}
	}
}
