/*
 * JSON as aligned text. Room: tools; see json_table.h.
 */
#include "json_table.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
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

static bool is_list(const json_t *value)
{
	return json_is_array(value) || json_is_object(value);
}

static bool is_table(const json_t *value)
{
	return json_is_array(value) &&
	       (json_array_size(value) == 0 || json_is_object(json_array_get(value, 0)));
}

/*
 * True for a control character: U+0000 to U+001F, or U+007F to U+009F, which begin with 0xc2 in
 * UTF-8.
 */
static bool is_control(const unsigned char *c)
{
	return *c < ' ' || *c == 0x7f || (*c == 0xc2 && c[1] < 0xa0);
}

static const char *printable(const char *text, char buf[CELL_BYTES])
{
	const unsigned char *from = (const unsigned char *)text;
	size_t n = 0;

	for (; *from && n < CELL_BYTES - 1; from++) {
		bool control = is_control(from);

		buf[n++] = control ? '?' : (char)*from;
		from += control && *from == 0xc2;
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

/* The width of a text on a terminal: counts the bytes that begin a UTF-8 character. */
static int width_of(const char *text)
{
	int width = 0;

	for (; *text; text++)
		width += (*text & 0xc0) != 0x80;
	return width;
}

static void print_cell(const char *text, int width, FILE *out)
{
	fprintf(out, "%*s%s%*s", GAP, "", text, FP_MAX(width - width_of(text), 0), "");
}

struct json_column {
	const char *name;
	int width; /* 0 for the last column */
};

struct json_table {
	struct json_column columns[MAX_COLUMNS];
	unsigned n;
};

static struct json_column *column_of(struct json_table *table, const char *name)
{
	char title[CELL_BYTES];

	for (unsigned i = 0; i < table->n; i++)
		if (strcmp(table->columns[i].name, name) == 0)
			return &table->columns[i];
	if (table->n == MAX_COLUMNS)
		return NULL;
	table->columns[table->n] = (struct json_column){name, width_of(title_of(name, title))};
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

			if (column)
				column->width = FP_MAX(column->width, width_of(value_text(key, value, text)));
		}
	if (table->n)
		table->columns[table->n - 1].width = 0;
}

/* within: the name of the object that has the list; NULL: the outermost object. */
static void print_table(const char *name, const json_t *list, const char *within, FILE *out)
{
	struct json_table table = {.n = 0};
	const struct json_column *columns = table.columns;
	char text[CELL_BYTES];
	json_t *row;
	size_t i;

	measure_table(list, &table);
	if (within)
		fprintf(out, "%s ", title_of(within, text));
	fprintf(out, "%s:%s\n", title_of(name, text), json_array_size(list) ? "" : " none");
	for (unsigned c = 0; c < table.n; c++)
		print_cell(title_of(columns[c].name, text), columns[c].width, out);
	if (table.n)
		fputc('\n', out);
	json_array_foreach (list, i, row) {
		for (unsigned c = 0; c < table.n; c++) {
			json_t *value = json_object_get(row, columns[c].name);

			print_cell(value ? value_text(columns[c].name, value, text) : "-", columns[c].width,
			           out);
		}
		fputc('\n', out);
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
 * Prints "name value, name value" for all members but tables. If `lists` is false, leaves out lists
 * and objects too. True if it printed anything.
 */
static bool print_members(json_t *object, bool lists, FILE *out)
{
	const char *comma = "", *key;
	char title[CELL_BYTES], text[CELL_BYTES];
	json_t *value;

	json_object_foreach (object, key, value) {
		if (is_table(value) || (!lists && is_list(value)))
			continue;
		fprintf(out, "%s%s %s", comma, title_of(key, title), value_text(key, value, text));
		comma = ", ";
	}
	return *comma;
}

static void print_tables(json_t *object, const char *within, FILE *out)
{
	const char *key;
	json_t *value;

	json_object_foreach (object, key, value)
		if (is_table(value))
			print_table(key, value, within, out);
}

void fp_json_table_print(json_t *object, FILE *out)
{
	char title[CELL_BYTES], text[CELL_BYTES];
	const char *key;
	json_t *value, *row;

	if (print_members(object, false, out))
		fputc('\n', out);
	json_object_foreach (object, key, value) {
		if (has_tables(json_array_get(value, 0))) {
			size_t i;

			json_array_foreach (value, i, row) {
				fprintf(out, "\n%s: ", title_of(key, title));
				fp_json_table_print(row, out);
			}
		} else if (is_table(value)) {
			print_table(key, value, NULL, out);
		} else if (json_is_object(value)) {
			fprintf(out, "%s: ", title_of(key, title));
			print_members(value, true, out);
			fputc('\n', out);
			print_tables(value, key, out);
		} else if (json_is_array(value)) {
			fprintf(out, "%s: %s\n", title_of(key, title), value_text(key, value, text));
		}
	}
}

int fp_json_table_print_text(const char *text, FILE *out)
{
	json_t *object = json_loads(text, 0, NULL);
	bool is_object = json_is_object(object);

	if (is_object)
		fp_json_table_print(object, out);
	json_decref(object);
	return is_object ? 0 : -EINVAL;
}
