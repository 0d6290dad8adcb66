/*
 * JSON as aligned text. Room: tools; see json_table.h.
 */
#include "json_table.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "character.h"
#include "cleanup.h"
#include "clock.h"
#include "columns.h"
#include "printable.h"
#include "units.h"

#define MAX_COLUMNS 32
#define CELL_BYTES  256
#define GAP         2
#define CELL_LEAST  16 /* a column that must be short has room for this, or for its title */

static bool ends_with(const char *name, const char *tail)
{
	size_t len = strlen(name), tail_len = strlen(tail);

	return len > tail_len && strcmp(name + len - tail_len, tail) == 0;
}

static bool is_list(const json_t *value)
{
	return json_is_array(value) || json_is_object(value);
}

static bool is_table(const json_t *value)
{
	return json_is_array(value) &&
	       (json_array_size(value) == 0 || json_is_object(json_array_get(value, 0)));
}

/* Control and format characters become "?". */
static const char *printable(const char *text, char buf[CELL_BYTES])
{
	size_t left = strlen(text), n = 0, bytes;
	bool is_bad;

	for (; left; text += bytes, left -= bytes) {
		bytes = fp_printable_char(text, left, &is_bad);
		if (n + bytes >= CELL_BYTES)
			break;
		if (is_bad) {
			buf[n++] = '?';
			continue;
		}
		memcpy(buf + n, text, bytes);
		n += bytes;
	}
	buf[n] = '\0';
	return buf;
}

/*
 * The title of a field, such as "leased" for "leased_bytes", "grace" for "grace_ms", and "numa
 * node" for "numa_node".
 */
static const char *title_of(const char *name, char buf[CELL_BYTES])
{
	static const char *const units[] = {"_bytes", "_ns", "_ms", "_s"};

	printable(name, buf);
	for (size_t i = 0; i < FP_ARRAY_LEN(units); i++)
		if (ends_with(buf, units[i])) {
			buf[strlen(buf) - strlen(units[i])] = '\0';
			break;
		}
	for (char *c = buf; *c; c++)
		if (*c == '_')
			*c = ' ';
	return buf;
}

/* The unit of a time, by the end of the field's name; 0: the field is no time. */
static uint64_t unit_ns_of(const char *name)
{
	if (ends_with(name, "_ns"))
		return 1;
	if (ends_with(name, "_ms"))
		return FP_NSEC_PER_MSEC;
	return ends_with(name, "_s") ? FP_NSEC_PER_SEC : 0;
}

static const char *integer_text(const char *name, int64_t value, char buf[CELL_BYTES])
{
	uint64_t unit_ns = unit_ns_of(name);

	if (value == -1) /* the protocol's value for "none" */
		return "-";
	if (value >= 0 && ends_with(name, "_bytes"))
		return fp_size_format((uint64_t)value, buf, CELL_BYTES);
	if (value > 0 && unit_ns && (uint64_t)value < UINT64_MAX / unit_ns)
		return fp_time_format((uint64_t)value * unit_ns, buf, CELL_BYTES);
	snprintf(buf, CELL_BYTES, "%" PRId64, value);
	return buf;
}

static const char *real_text(double value, char buf[CELL_BYTES])
{
	snprintf(buf, CELL_BYTES, value < 1000 ? "%.4g" : "%.0f", value);
	return buf;
}

static const char *plain_text(const char *name, const json_t *value, char buf[CELL_BYTES])
{
	switch (json_typeof(value)) {
	case JSON_TRUE:
		return "yes";
	case JSON_FALSE:
		return "no";
	case JSON_INTEGER:
		return integer_text(name, json_integer_value(value), buf);
	case JSON_REAL:
		return real_text(json_real_value(value), buf);
	case JSON_STRING:
		return json_string_length(value) ? printable(json_string_value(value), buf) : "-";
	case JSON_NULL:
		return "-";
	default:
		return "...";
	}
}

static void append(char buf[CELL_BYTES], const char *name, const char *equals, const char *text)
{
	size_t len = strlen(buf);

	snprintf(buf + len, CELL_BYTES - len, "%s%s%s%s", len ? "," : "", name, equals, text);
}

/*
 * Returns the text of a value. A list gives its elements, separated by commas. Several measurements
 * give "median [min max]".
 */
static const char *value_text(const char *name, json_t *value, char buf[CELL_BYTES])
{
	char one[CELL_BYTES], title[CELL_BYTES], last[CELL_BYTES];
	double median, min, max;
	const char *key;
	json_t *item;
	size_t i;

	if (!is_list(value))
		return plain_text(name, value, buf);
	if (json_unpack(value, "{s:F, s:F, s:F}", "median", &median, "min", &min, "max", &max) == 0) {
		snprintf(buf, CELL_BYTES, "%.20s [%.20s %.20s]", real_text(median, one),
		         real_text(min, title), real_text(max, last));
		return buf;
	}
	buf[0] = '\0';
	json_array_foreach (value, i, item)
		append(buf, "", "", plain_text("", item, one));
	json_object_foreach (value, key, item)
		append(buf, printable(key, title), "=", plain_text(key, item, one));
	return buf[0] ? buf : "-";
}

/* The width of a text on a terminal. */
static int width_of(const char *text)
{
	unsigned width = 0;

	while (*text)
		width += fp_character_columns(fp_character_next(&text));
	return (int)width;
}

/* Where the text goes, and how it must fit. */
struct json_out {
	FILE *file;
	const struct fp_json_brief *brief;
	int column; /* in the line so far; print_members keeps it */
	bool cut;   /* something was left out */
};

struct json_column {
	const char *name;
	int width;      /* of its title and cells */
	bool idle;      /* no row says anything there but 0, false or nothing */
	bool is_spread; /* some row has "median [min max]" there, which must not be cut */
};

struct json_table {
	struct json_column columns[MAX_COLUMNS];
	unsigned n;
};

static bool says_nothing(const json_t *value)
{
	if (json_is_integer(value))
		return json_integer_value(value) == 0 || json_integer_value(value) == -1;
	return json_is_false(value) || json_is_null(value) ||
	       (json_is_string(value) && !json_string_length(value));
}

static struct json_column *column_of(struct json_table *table, const char *name)
{
	char title[CELL_BYTES];

	for (unsigned i = 0; i < table->n; i++)
		if (strcmp(table->columns[i].name, name) == 0)
			return &table->columns[i];
	if (table->n == MAX_COLUMNS)
		return NULL;
	table->columns[table->n] = (struct json_column){name, width_of(title_of(name, title)), true, false};
	return &table->columns[table->n++];
}

/* Makes a column for each name that any row has. */
static void measure_table(const json_t *list, struct json_table *table)
{
	char text[CELL_BYTES];
	const char *key;
	json_t *row, *value;
	size_t i;

	json_array_foreach (list, i, row)
		json_object_foreach (row, key, value) {
			struct json_column *column = column_of(table, key);

			if (!column)
				continue;
			column->width = FP_MAX(column->width, width_of(value_text(key, value, text)));
			column->idle &= says_nothing(value);
			column->is_spread |= json_object_get(value, "median") != NULL;
		}
}

/*
 * The place of a column in the order of importance. The columns that brief names come first, then
 * the others as they stand in the table, then the idle ones.
 */
static unsigned rank_of(const struct fp_json_brief *brief, const struct json_column *column, unsigned place)
{
	for (unsigned i = 0; brief->first && brief->first[i]; i++)
		if (strcmp(brief->first[i], column->name) == 0)
			return i;
	return (column->idle ? 2000 : 1000) + place;
}

/* Writes the width of each column, with the gap behind all but the last; 0: it is not shown. */
static void choose_columns(struct json_out *out, const struct json_table *table,
                           struct fp_column columns[MAX_COLUMNS], unsigned widths[MAX_COLUMNS])
{
	char title[CELL_BYTES];

	for (unsigned i = 0; i < table->n; i++) {
		const struct json_column *from = &table->columns[i];
		int short_of_it = FP_MAX(CELL_LEAST, width_of(title_of(from->name, title)));
		/* half a number is another number */
		int least = from->is_spread ? from->width : FP_MIN(from->width, short_of_it);
		unsigned gap = i + 1 < table->n;

		columns[i] = (struct fp_column){
		    .width = (unsigned)(out->brief->width ? least : from->width) + gap,
		    .max_width = (unsigned)from->width + gap,
		    .rank = rank_of(out->brief, from, i),
		    .left = true,
		};
	}
	fp_columns_fit(columns, table->n,
	               out->brief->width ? FP_MAX(out->brief->width, GAP + 0u) - GAP : UINT_MAX - 1, widths);
	for (unsigned i = 0; i < table->n; i++)
		out->cut |= widths[i] < columns[i].max_width;
}

/* Prints one line of a table: that of row, or the titles if row is NULL. */
static void print_row(struct json_out *out, const struct json_table *table, json_t *row,
                      const struct fp_column columns[MAX_COLUMNS], const unsigned widths[MAX_COLUMNS])
{
	char texts[MAX_COLUMNS][CELL_BYTES], line[MAX_COLUMNS * (CELL_BYTES + GAP)];
	const char *cells[MAX_COLUMNS];
	size_t len;

	for (unsigned c = 0; c < table->n; c++) {
		const char *name = table->columns[c].name;
		json_t *value = json_object_get(row, name);

		if (!row)
			cells[c] = title_of(name, texts[c]);
		else
			cells[c] = value ? value_text(name, value, texts[c]) : "-";
	}
	fp_columns_line(columns, table->n, widths, cells, line, sizeof(line));
	for (len = strlen(line); len && line[len - 1] == ' '; len--)
		;
	fprintf(out->file, "%*s%.*s\n", GAP, "", (int)len, line);
}

/* within: the name of the object that has the list; NULL: the outermost object. */
static void print_table(struct json_out *out, const char *name, const json_t *list, const char *within)
{
	struct fp_column columns[MAX_COLUMNS];
	unsigned widths[MAX_COLUMNS];
	struct json_table table = {.n = 0};
	size_t n = json_array_size(list), shown = out->brief->max_rows ? FP_MIN(n, out->brief->max_rows) : n;
	char text[CELL_BYTES];

	measure_table(list, &table);
	choose_columns(out, &table, columns, widths);
	if (within)
		fprintf(out->file, "%s ", title_of(within, text));
	fprintf(out->file, "%s:%s\n", title_of(name, text), n ? "" : " none");
	if (table.n)
		print_row(out, &table, NULL, columns, widths);
	for (size_t i = 0; i < shown; i++)
		print_row(out, &table, json_array_get(list, i), columns, widths);
	if (shown < n) {
		fprintf(out->file, "%*sand %zu more\n", GAP, "", n - shown);
		out->cut = true;
	}
}

static bool has_tables(json_t *object)
{
	const char *key;
	json_t *value;

	json_object_foreach (object, key, value)
		if (is_table(value) && json_array_size(value))
			return true;
	return false;
}

/*
 * Prints "name value, name value" for all members but tables, and goes on in a new line where the
 * width demands it. If `lists` is false, leaves out lists and objects too. True if it printed
 * anything.
 */
static bool print_members(struct json_out *out, json_t *object, bool lists)
{
	const char *comma = "", *key;
	char title[CELL_BYTES], text[CELL_BYTES];
	json_t *value;

	json_object_foreach (object, key, value) {
		const char *shown;
		int width;

		if (is_table(value) || (!lists && is_list(value)))
			continue;
		shown = value_text(key, value, text);
		width = width_of(title_of(key, title)) + 1 + width_of(shown);
		if (*comma && out->brief->width && out->column + width + 3 > (int)out->brief->width) {
			fprintf(out->file, ",\n%*s", GAP, "");
			out->column = GAP;
			comma = "";
		}
		out->column += fprintf(out->file, "%s", comma) + width;
		fprintf(out->file, "%s %s", title, shown);
		comma = ", ";
	}
	out->column = 0;
	return *comma;
}

/* Prints a name at the begin of a line. */
static void print_name(struct json_out *out, const char *name)
{
	char title[CELL_BYTES];

	out->column = width_of(title_of(name, title)) + 2;
	fprintf(out->file, "%s: ", title);
}

static void print_tables(struct json_out *out, json_t *object, const char *within)
{
	const char *key;
	json_t *value;

	json_object_foreach (object, key, value)
		if (is_table(value))
			print_table(out, key, value, within);
}

static void print_object(struct json_out *out, json_t *object)
{
	char text[CELL_BYTES];
	const char *key;
	json_t *value, *row;

	if (print_members(out, object, false))
		fputc('\n', out->file);
	json_object_foreach (object, key, value) {
		if (has_tables(json_array_get(value, 0))) {
			size_t i;

			json_array_foreach (value, i, row) {
				fputc('\n', out->file);
				print_name(out, key);
				print_object(out, row);
			}
		} else if (is_table(value)) {
			print_table(out, key, value, NULL);
		} else if (json_is_object(value)) {
			print_name(out, key);
			print_members(out, value, true);
			fputc('\n', out->file);
			print_tables(out, value, key);
		} else if (json_is_array(value)) {
			print_name(out, key);
			fprintf(out->file, "%s\n", value_text(key, value, text));
		}
	}
}

bool fp_json_table_print_brief(json_t *object, const struct fp_json_brief *brief, FILE *out)
{
	struct json_out to = {.file = out, .brief = brief};

	print_object(&to, object);
	return to.cut;
}

void fp_json_table_print(json_t *object, FILE *out)
{
	static const struct fp_json_brief all = {.width = 0};

	fp_json_table_print_brief(object, &all, out);
}
