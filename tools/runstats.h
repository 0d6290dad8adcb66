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
	int dir_fd; /* owned by the caller */
	/*
	 * NULL: no file was asked for. The mapping only keeps the file's lock. Touching it would
	 * end us by SIGBUS if somebody cuts the file short, so the sum is written through file_fd.
	 */
	struct fp_statspage *file;
	int file_fd;
	/* the values at the last update: */
	struct fp_statspage sum; /* the sum of the pages of all processes */
	/* The sum of the pages of ended processes. These pages are no longer in the folder. */
	struct fp_statspage ended;
	size_t n_processes, n_ended;
	struct fp_smaps kinds; /* the largest amount of living processes' memory that was not far */
	uint64_t kinds_total;  /* sum of kinds; 0: no process was looked at */
};

/*
 * dir_fd: the folder for the pages of the run's processes; the caller owns this descriptor. file: a
 * path for the sum of these pages, or NULL. 0 and *ret_stats, or the negative errno of creating the
 * file.
 */
int fp_runstats_open(int dir_fd, const char *file, struct fp_runstats **ret_stats);

/* Adds up all pages, and writes the sum to the file. */
void fp_runstats_update(struct fp_runstats *stats);

/* NULL is fine. */
void fp_runstats_close(struct fp_runstats *stats);

#endif
