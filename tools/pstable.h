/*
 * The table of programs that `farpage ps` and `farpage top` show. Room: tools.
 */
#ifndef FP_PSTABLE_H
#define FP_PSTABLE_H

#include <jansson.h>
#include <stdint.h>

#include "smaps.h"
#include "stats_dir.h"
#include "tool.h"

/*
 * Returns tables for a person (json_table.h), with a row for each page. rates: the fault rate of
 * each page (-1: not known), or NULL. With rates, the tables show them instead of the faults so
 * far, and leave out memory that is not far.
 */
json_t *fp_pstable_text(const struct fp_stats_dir *pages, const int64_t *rates);

/* The columns of such tables that a narrow terminal keeps longest: first_columns of a command. */
extern const char *const fp_pstable_columns[];

/*
 * Returns an array with an object for each page. The caller owns it, and also the objects of the
 * functions below.
 */
json_t *fp_pstable_json(const struct fp_stats_dir *pages);

/* Such an object without the memory that is not far, which takes a while to find out. */
json_t *fp_pstable_program(const struct fp_statsview *view);

/* Parts of such an object: its nodes, faults by kind, and memory that is not far. */
json_t *fp_pstable_nodes(const struct fp_statspage *page);
json_t *fp_pstable_faults(const struct fp_statspage *page);
json_t *fp_pstable_kinds(const struct fp_smaps *kinds);

/* The ways to its nodes, as a table shows them: "tcp://a:7460,shm:/b!". Returns buf. */
const char *fp_pstable_ways(const struct fp_statspage *page, char *buf, size_t len);

/* What to say if there is no program. */
const char *fp_pstable_none(void);

#define FP_PSTABLE_USER_LEN 33

/* The name of a user, or the number of one without a name. Returns buf. */
const char *fp_pstable_user(uid_t uid, char *buf, size_t len);

#endif
