/*
 * The statistics of one run: of the program and of all processes that it starts under Farpage.
 * Room: tools.
 */
#ifndef FP_RUNSTATS_H
#define FP_RUNSTATS_H

#include <stddef.h>

#include "smaps.h"
#include "statspage.h"

struct fp_runstats {
	int dir_fd;                /* not ours */
	struct fp_statspage *file; /* mapped; NULL: none was asked for */
	/* as of the last update: */
	struct fp_statspage sum;   /* of all processes */
	struct fp_statspage ended; /* of ended processes: their pages are gone from the folder */
	size_t n_processes, n_ended;
	struct fp_smaps kinds; /* memory of living processes that is not far, at its peak */
	uint64_t kinds_total;  /* sum of kinds; 0: no process was looked at */
};

/* dir_fd: the folder for the pages of the run's processes; the caller's. file: where their sum is
 * kept, or NULL. 0 and *ret_stats, or a negative errno (of creating file). */
int fp_runstats_open(int dir_fd, const char *file, struct fp_runstats **ret_stats);

/* Adds up all pages, and brings the file up to date. */
void fp_runstats_update(struct fp_runstats *stats);

/* NULL is fine. */
void fp_runstats_close(struct fp_runstats *stats);

#endif
