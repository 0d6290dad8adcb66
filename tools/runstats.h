/*
 * The statistics of one run: of the program and of all processes that it starts under Farpage.
 * Room: tools.
 */
#ifndef FP_RUNSTATS_H
#define FP_RUNSTATS_H

#include <stddef.h>

#include "smaps.h"
#include "statspage.h"

struct fp_runstats;

/*
 * dir_fd: the folder in which the processes of the run leave their pages; the caller's. file: where
 * the sum of them is kept, or NULL. 0 and *ret_stats, or a negative errno (of creating file).
 */
int fp_runstats_open(int dir_fd, const char *file, struct fp_runstats **ret_stats);

/* Adds up all pages there are, and brings the file up to date. */
void fp_runstats_update(struct fp_runstats *stats);

/* As of the last update. */
const struct fp_statspage *fp_runstats_sum(const struct fp_runstats *stats);
/*
 * What was not far of the processes that lived at an update, where that was most; NULL: none lived
 * at any.
 */
const struct fp_smaps *fp_runstats_kinds(const struct fp_runstats *stats);
size_t fp_runstats_processes(const struct fp_runstats *stats);

/* NULL is fine. */
void fp_runstats_close(struct fp_runstats *stats);

#endif
