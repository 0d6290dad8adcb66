/*
 * The status of a memory node for a person. Room: tools. It sums up the fields that it knows, and
 * shows all others as well (json_table.h). So old and new versions work together.
 */
#ifndef FP_NODE_STATUS_H
#define FP_NODE_STATUS_H

#include <stdbool.h>
#include <stdio.h>

/*
 * Prints the JSON text of a node: a line that sums it up, then its members and tables. Unless all
 * is true, it fits width columns: tables have their most important columns, and sessions and
 * clients are those with the most memory. They are ten at most, and fewer if height (0: any)
 * demands it. If even that is too high, the first line is repeated as the last one. Returns 0, or,
 * before it prints anything, -EINVAL (the text is not a JSON object) or -ENOMEM.
 */
int fp_node_status_print(const char *text, bool all, unsigned width, unsigned height, FILE *out);

#endif
