/*
 * The statistics of one run. Room: tools.
 */
#include "runstats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "log.h"
#include "stats_dir.h"

static int open_file(struct fp_runstats *stats, const char *path)
{
	int r = fp_statspage_create(path, false, &stats->file);

	if (r < 0)
		return r;
	stats->file_fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
	return stats->file_fd < 0 ? -errno : 0;
}

/* What can't be written now is written with the next update. */
static void write_file(const struct fp_runstats *stats, const void *bytes, size_t len, size_t at)
{
	if (stats->file && stats->file_fd >= 0 && pwrite(stats->file_fd, bytes, len, (off_t)at) < 0)
		fp_log(FP_LOG_DEBUG, "stats", "stats file: not written");
}

int fp_runstats_open(int dir_fd, const char *file, struct fp_runstats **ret_stats)
{
	struct fp_runstats *stats = calloc(1, sizeof(*stats));
	int r = stats ? 0 : -ENOMEM;

	if (r == 0 && file)
		r = open_file(stats, file);
	if (r < 0) {
		fp_runstats_close(stats);
		return r;
	}
	stats->dir_fd = dir_fd;
	*ret_stats = stats;
	return 0;
}

/*
 * The page of an ended process is final. So it is counted once and then removed, which keeps a run
 * of many processes cheap.
 */
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
	struct fp_smaps sum = {0}, kinds;
	uint64_t total = 0;

	for (size_t i = 0; i < living->n; i++)
		if (fp_smaps_read(&living->items[i]->page, &kinds) == 0)
			for (unsigned k = 0; k < FP_SMAPS_KINDS; k++) {
				sum.bytes[k] += kinds.bytes[k];
				total += kinds.bytes[k];
			}
	if (total <= stats->kinds_total)
		return;
	stats->kinds = sum;
	stats->kinds_total = total;
}

void fp_runstats_update(struct fp_runstats *stats)
{
	struct fp_stats_dir living = {0};

	(void)fp_stats_dir_read_dir(&living, stats->dir_fd, fold_ended,
	                            stats); /* a page that can't be read now is read next time */
	memcpy(&stats->sum, &stats->ended, sizeof(stats->sum));
	for (size_t i = 0; i < living.n; i++)
		fp_stats_dir_add(&stats->sum, &living.items[i]->page);
	stats->n_processes = stats->n_ended + living.n;
	note_kinds(stats, &living);
	fp_stats_dir_done(&living);
	if (stats->sum.magic)
		write_file(stats, &stats->sum, sizeof(stats->sum), 0);
}

void fp_runstats_close(struct fp_runstats *stats)
{
	const uint64_t exited = 1;

	if (!stats)
		return;
	write_file(stats, &exited, sizeof(exited), offsetof(struct fp_statspage, exited));
	if (stats->file && stats->file_fd >= 0)
		close(stats->file_fd);
	fp_statspage_close(stats->file);
	free(stats);
}
