/*
 * JSON for a person: the status of a memory node, the results of benches. Room: tools. It knows no
 * field by name: it shows each field that a node sends, and requires none. So old and new versions
 * work together.
 */
#ifndef FP_JSON_TABLE_H
#define FP_JSON_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/*
 * Prints a JSON object: plain members in one line, then each object in a line of its own. A list of
 * objects becomes a table, also inside such an object. If the objects of a list contain tables
 * themselves, each is printed as an object. Names that end in _bytes, _s, _ms or _ns give the unit
 * of their numbers. An object with median, min and max is shown as "median [min max]". Strings are
 * cut at 255 bytes, and their control characters become "?", because a node may have sent them and
 * a terminal may show them.
 */
void fp_json_table_print(json_t *object, FILE *out);

/* How to make it shorter. */
struct fp_json_brief {
	unsigned width;           /* members and tables have no wider lines; 0: any width */
	unsigned max_rows;        /* of a table; 0: any number */
	const char *const *first; /* the most important columns, then NULL; NULL: none is named */
};

/*
 * Prints a JSON object in a shorter form. A table that is too wide loses its least important
 * columns. Columns that say nothing (0, false or empty in each row) go first, and those that brief
 * names go last. Cells may be cut. Returns true if anything was left out.
 */
bool fp_json_table_print_brief(json_t *object, const struct fp_json_brief *brief, FILE *out);

#endif
