/*
 * The table of programs that `farpage ps` and `farpage top` show. Room: tools.
 */
#ifndef FP_PSTABLE_H
#define FP_PSTABLE_H

#include <jansson.h>
#include <stdint.h>

#include "smaps.h"
#include "stats_dir.h"

/*
 * Returns tables for a person (json_table.h), with a row for each page. rates: the fault rate of
 * each page, or NULL. With rates, the tables show them instead of the faults so far, and leave out
 * memory that is not far.
 */
json_t *fp_pstable_text(const struct fp_stats_dir *pages, const uint64_t *rates);

/*
 * Returns an array with an object for each page. The caller owns it, and also the objects of the
 * functions below.
 */
json_t *fp_pstable_json(const struct fp_stats_dir *pages);

/* Parts of such an object: its nodes, faults by kind, and memory that is not far. */
json_t *fp_pstable_nodes(const struct fp_statspage *page);
json_t *fp_pstable_faults(const struct fp_statspage *page);
json_t *fp_pstable_kinds(const struct fp_smaps *kinds);

#endif
