/*
 * What a memory node says about itself, for a person. Room: tools. It knows no field by name: it
 * shows what a node sends and leaves out what a node does not send. So old and new versions fit
 * each other.
 */
#ifndef FP_JSON_TABLE_H
#define FP_JSON_TABLE_H

#include <stdio.h>

/*
 * Prints the JSON object in text: plain members in one line, then each object in a line of its own.
 * A list of objects becomes a table, also one that lies in such an object. Names that end in
 * _bytes, _s or _ms give the unit of their numbers. Strings are cut at 255 bytes, and their control
 * characters become "?": they come from a node and go to a terminal. 0; -EINVAL, and nothing is
 * printed: text is not a JSON object.
 */
int fp_json_table_print(const char *text, FILE *out);

#endif
