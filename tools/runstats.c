/*
 * The statistics of one run. Room: tools.
 */
#include "runstats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "stats_dir.h"

struct fp_runstats {
	int dir_fd;                /* not ours */
	struct fp_statspage *file; /* mapped; NULL: none was asked for */
	struct fp_statspage
	    ended; /* sum of the processes that have ended: their pages are gone from the folder */
	struct fp_statspage sum; /* of all */
	size_t n_ended, n_living;
	struct fp_smaps kinds; /* of the living, at their most */
	uint64_t kinds_total;
};

static void free_stats(struct fp_runstats **stats)
{
	fp_runstats_close(*stats);
}

int fp_runstats_open(int dir_fd, const char *file, struct fp_runstats **ret_stats)
{
	FP_CLEANUP(free_stats) struct fp_runstats *stats = calloc(1, sizeof(*stats));
	int r = 0;

	if (!stats)
		return -ENOMEM;
	stats->dir_fd = dir_fd;
	if (file)
		r = fp_statspage_create(file, false, &stats->file);
	if (r < 0)
		return r;
	*ret_stats = fp_take_ptr(stats);
	return 0;
}

/* The page of a process that has ended is final: it is counted once and removed, so that a run of
 * many is no burden. */
static bool fold_ended(const struct fp_statsview *view, void *user)
{
	struct fp_runstats *stats = user;

	if (!view->dead)
		return false;
	fp_stats_dir_add(&stats->ended, &view->page);
	stats->n_ended++;
	return true;
}

static void note_kinds(struct fp_runstats *stats, const struct fp_stats_dir *living)
{
	struct fp_smaps sum = {.rule_bytes = 0}, kinds;
	uint64_t total;

	for (size_t i = 0; i < living->n; i++)
		if (fp_smaps_read(&living->items[i]->page, &kinds) == 0)
			fp_smaps_add(&sum, &kinds);
	total = sum.rule_bytes;
	for (unsigned i = 0; i < FP_SMAPS_KINDS; i++)
		total += sum.bytes[i];
	if (total <= stats->kinds_total)
		return;
	stats->kinds = sum;
	stats->kinds_total = total;
}

const struct fp_smaps *fp_runstats_kinds(const struct fp_runstats *stats)
{
	return stats->kinds_total ? &stats->kinds : NULL;
}

void fp_runstats_update(struct fp_runstats *stats)
{
	struct fp_stats_dir living = {0};

	(void)fp_stats_dir_read_dir(&living, stats->dir_fd, fold_ended,
	                            stats); /* what can't be read now comes next time */
	memcpy(&stats->sum, &stats->ended, sizeof(stats->sum));
	for (size_t i = 0; i < living.n; i++)
		fp_stats_dir_add(&stats->sum, &living.items[i]->page);
	stats->n_living = living.n;
	note_kinds(stats, &living);
	fp_stats_dir_done(&living);
	if (stats->file && stats->sum.magic)
		memcpy(stats->file, &stats->sum, sizeof(stats->sum));
}

const struct fp_statspage *fp_runstats_sum(const struct fp_runstats *stats)
{
	return &stats->sum;
}

size_t fp_runstats_processes(const struct fp_runstats *stats)
{
	return stats->n_ended + stats->n_living;
}

void fp_runstats_close(struct fp_runstats *stats)
{
	if (!stats)
		return;
	if (stats->file)
		stats->file->exited = 1;
	fp_statspage_close(stats->file);
	free(stats);
}
