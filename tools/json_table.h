/*
 * JSON for a person: the status of a memory node, the results of benches. Room: tools. It knows no
 * field by name: it shows all fields that a node sends, and expects none. So old and new versions
 * fit each other.
 */
#ifndef FP_JSON_TABLE_H
#define FP_JSON_TABLE_H

#include <jansson.h>
#include <stdio.h>

/*
 * Prints a JSON object: plain members in one line, then each object in a line of its own. A list of
 * objects becomes a table, also inside such an object. If the objects of a list have tables of
 * their own, each is printed as an object. Names that end in _bytes, _s, _ms or _ns give the unit
 * of their numbers. An object with median, min and max is shown as "median [min max]". Strings are
 * cut at 255 bytes, and their control characters become "?": they may come from a node and go to a
 * terminal.
 */
void fp_json_table_print(json_t *object, FILE *out);

/* The same for JSON text. 0; -EINVAL, and nothing is printed: it is not a JSON object. */
int fp_json_table_print_text(const char *text, FILE *out);

#endif
