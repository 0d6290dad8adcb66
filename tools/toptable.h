/*
 * What `farpage top` shows: the living programs, and what each did since the last look. Room:
 * tools.
 */
#ifndef FP_TOPTABLE_H
#define FP_TOPTABLE_H

#include <jansson.h>
#include <stdint.h>

#include "interval.h"
#include "pstable.h"
#include "stats_dir.h"

struct fp_toprow {
	const struct fp_statsview *view; /* owned by the table */
	char user[FP_PSTABLE_USER_LEN];  /* its user's name: to look it up may take long */
	struct fp_interval interval;
};

/* Zero-initialise it. */
struct fp_toptable {
	struct fp_stats_dir pages;
	struct fp_toprow *rows; /* one for each page */
	uint64_t look_ns;       /* when pages were read; 0: never */
	uint64_t passed_ns;     /* since the look before; 0: there was none */
};

/* Looks at all programs again. Rows are ordered by pid. 0, or a negative errno after a message. */
int fp_toptable_look(struct fp_toptable *table);

void fp_toptable_done(struct fp_toptable *table);

/* For a person, without a screen: tables as of fp_pstable_text. The caller owns it. */
json_t *fp_toptable_text(const struct fp_toptable *table);

/* One object for this look: farpage-json(5). The caller owns it; NULL: no memory. */
json_t *fp_toptable_json(const struct fp_toptable *table);

#endif
