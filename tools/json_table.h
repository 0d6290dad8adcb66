/*
 * JSON for a person: the status of a memory node, the results of benches. Room: tools. It knows no
 * field by name: it shows each field that a node sends, and requires none. So old and new versions
 * work together.
 */
#ifndef FP_JSON_TABLE_H
#define FP_JSON_TABLE_H

#include <jansson.h>
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

/*
 * Prints JSON text in the same way. 0; -EINVAL: the text is not a JSON object, and nothing is
 * printed.
 */
int fp_json_table_print_text(const char *text, FILE *out);

#endif
