/*
 * The table of programs that `farpage ps` and `farpage top` show. Room: tools.
 */
#ifndef FP_PSTABLE_H
#define FP_PSTABLE_H

#include <stdint.h>
#include <stdio.h>

#include "stats_dir.h"

/*
 * A line for each page. rates (pages->n of them, may be NULL) replaces the faults so far by faults
 * a second.
 */
void fp_pstable_text(const struct fp_stats_dir *pages, const uint64_t *rates, FILE *out);

/* An array with an object for each page. */
void fp_pstable_json(const struct fp_stats_dir *pages, FILE *out);

#endif
