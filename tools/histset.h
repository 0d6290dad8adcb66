/*
 * The figures that `farpage hist` shows: one histogram of one or several stats pages, added up,
 * less those of an earlier copy. Room: tools. A function that fails has logged why, under "hist". A
 * page whose counts contradict each other is damaged: opening it and looking at it fail with
 * -EBADMSG.
 */
#ifndef FP_HISTSET_H
#define FP_HISTSET_H

#include "phase.h"
#include "stats_dir.h"

/* A page and its name in messages. */
struct fp_histset_page {
	char *name;
	struct fp_statsview *view;
};

/* Zero-initialise it. */
struct fp_histset {
	struct fp_stats_dir running; /* owns the views of a running program */
	struct fp_histset_page *pages;
	size_t n;
	struct fp_histset_page since; /* view is NULL: nothing is taken off */
};

/* Opens a file, and adds its figures. 0 or a negative errno: -EINVAL also if set has the file. */
int fp_histset_add_file(struct fp_histset *set, const char *path);

/* Instead of files: opens the pages of a running program, one for each far memory; pid 0: those of
 * the only program. 0 or a negative errno. */
int fp_histset_open_program(struct fp_histset *set, pid_t pid);

/* Opens the earlier copy. Call it when all statistics pages are open. Returns 0 or a negative
 * errno: -EINVAL also if the copy is of another program, or if any of its counts is greater than
 * today's. */
int fp_histset_open_since(struct fp_histset *set, const char *path);

/* Reads all pages again, but not the earlier copy. 0 or a negative errno. */
int fp_histset_look(struct fp_histset *set);

/* True while any program still writes its page, as of the last look. */
bool fp_histset_is_live(const struct fp_histset *set);

/* The histogram of a phase, as of the last look. 0 and *ret_hist; -EINVAL: since is no earlier
 * copy; -ENOMEM. */
int fp_histset_sum(const struct fp_histset *set, const struct fp_phase *phase, struct fp_hist *ret_hist);

/* Writes the sum of all pages to a new stats file, for a later --since. 0 or a negative errno. */
int fp_histset_save(const struct fp_histset *set, const char *path);

/* "redis-server (4242)", or "3 programs", into buf, which is returned. */
const char *fp_histset_name(const struct fp_histset *set, char *buf, size_t len);

void fp_histset_done(struct fp_histset *set);

#endif
