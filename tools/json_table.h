/*
 * What a memory node says of itself, for a person. Room: tools. It knows no field by name: whatever a node
 * sends is shown, whatever it does not send is left out, so that old and new fit each other.
 */
#ifndef FP_JSON_TABLE_H
#define FP_JSON_TABLE_H

#include <stdio.h>

#include "json.h"

/*
 * Prints an object: plain members in one line, then each that is an object in a line of its own, and each
 * list of objects, also one in such an object, as a table. Names that end in _bytes, _s or _ms say the unit
 * of their numbers.
 */
void fp_json_table_print(const struct fp_json *object, FILE *out);

#endif
