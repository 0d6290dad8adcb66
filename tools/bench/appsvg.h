/*
 * The results of `farpage bench apps` as a picture (SVG). Room: tools/bench.
 */
#ifndef FP_APPSVG_H
#define FP_APPSVG_H

#include <jansson.h>
#include <stdio.h>

/*
 * Draws the document that fp_apps_document made: a panel for each workload, with its slowdown over
 * the share of local memory, and a line for each contender. 0 or a negative errno.
 */
int fp_appsvg_print(const json_t *document, FILE *out);

#endif
