/*
 * The figures that `farpage hist` shows. Room: tools.
 */
#include "histset.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"

#define LABEL "hist"
/* A copy made while threads record may contradict itself: then it is made again, a little later. */
#define LOOKS 20

static int say_look(const char *file, int r)
{
	char reason[64];

	if (r == -EINVAL)
		fp_log(FP_LOG_ERROR, LABEL, "%s: not a stats file of Farpage", file);
	else if (r == -ENODATA)
		fp_log(FP_LOG_ERROR, LABEL, "%s: a stats file of Farpage that was cut short", file);
	else if (r == -EPROTO)
		fp_log(FP_LOG_ERROR, LABEL, "%s: written by another version of Farpage", file);
	else
		fp_log(FP_LOG_ERROR, LABEL, "%s: %s", file, fp_strerror(r, reason, sizeof(reason)));
	return r;
}

static int no_memory(void)
{
	return say_look("figures", -ENOMEM);
}

static bool is_sound(const struct fp_statspage *page)
{
	for (unsigned i = 0; i < FP_PHASES; i++)
		if (fp_hist_check(fp_phase_hist(&fp_phases[i], page)) < 0)
			return false;
	for (unsigned i = 1; i < FP_PHASE_KINDS; i++)
		if (fp_hist_check(fp_phase_hist(&fp_phase_kinds[i], page)) < 0)
			return false;
	return true;
}

/* Looks until the copy is without contradictions. */
static int look(const struct fp_histset_page *page)
{
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};

	for (unsigned looks = 0; looks < LOOKS; looks++) {
		int r = fp_statsview_look(page->view);

		if (r < 0)
			return say_look(page->name, r);
		if (is_sound(&page->view->page))
			return 0;
		nanosleep(&pause, NULL);
	}
	fp_log(FP_LOG_ERROR, LABEL, "%s: damaged: the counts in its histograms contradict each other",
	       page->name);
	return -EBADMSG;
}

static void close_page(struct fp_histset_page *page)
{
	fp_statsview_close(page->view);
	free(page->name);
}

static int open_page(const char *path, struct fp_histset_page *ret_page)
{
	struct fp_histset_page page = {.name = strdup(path)};
	int r = page.name ? fp_statsview_open(path, &page.view) : -ENOMEM;

	r = r < 0 ? say_look(path, r) : look(&page);
	if (r < 0)
		close_page(&page);
	else
		*ret_page = page;
	return r;
}

/* True if set has the file of page already, perhaps under another name. */
static bool has_file(const struct fp_histset *set, const struct fp_histset_page *page)
{
	struct stat st = {0}, other = {0};
	bool found = false;

	fstat(page->view->fd, &st);
	for (size_t i = 0; !found && i < set->n; i++) {
		fstat(set->pages[i].view->fd, &other);
		found = st.st_dev == other.st_dev && st.st_ino == other.st_ino;
	}
	return found;
}

int fp_histset_add_file(struct fp_histset *set, const char *path)
{
	struct fp_histset_page *pages = reallocarray(set->pages, set->n + 1, sizeof(*pages));
	int r;

	if (!pages)
		return no_memory();
	set->pages = pages;
	r = open_page(path, &pages[set->n]);
	if (r == 0 && has_file(set, &pages[set->n])) {
		fp_log(FP_LOG_ERROR, LABEL, "%s: named twice: it would count twice", path);
		r = -EINVAL;
		close_page(&pages[set->n]);
	}
	set->n += r == 0;
	return r;
}

static size_t n_processes(const struct fp_stats_dir *pages)
{
	size_t n = 0;

	for (size_t i = 0; i < pages->n; i++)
		n += i == 0 || pages->items[i]->page.pid != pages->items[i - 1]->page.pid;
	return n;
}

/* 0 if all pages are of process pid, or of the only process if pid is 0. -ESRCH after a message. */
static int check_process(const struct fp_stats_dir *pages, pid_t pid)
{
	size_t n = n_processes(pages);

	if (n == 1)
		return 0;
	if (pid)
		fp_log(FP_LOG_ERROR, LABEL,
		       "process %d: no statistics of it. It does not run under Farpage, or has ended%s "
		       "(programs: `farpage ps`; figures that stay: `farpage run --stats-file`)",
		       (int)pid, fp_stats_dir_sees_all_users() ? "" : ", or is another user's");
	else if (n == 0)
		fp_log(FP_LOG_ERROR, LABEL,
		       "no program%s runs under Farpage (of one that has ended: `farpage hist FILE`)",
		       fp_stats_dir_sees_all_users() ? "" : " of this user");
	else
		fp_log(FP_LOG_ERROR, LABEL,
		       "%zu programs run under Farpage: choose one with --pid (`farpage ps` lists them)", n);
	return -ESRCH;
}

/* The path of the file that is open there, which messages name. */
static char *path_of(int fd)
{
	char self[32], path[PATH_MAX] = "";

	snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
	return readlink(self, path, sizeof(path) - 1) < 0 ? strdup("stats file") : strdup(path);
}

int fp_histset_open_program(struct fp_histset *set, pid_t pid)
{
	int r;

	set->running.follow = true;
	set->running.only_pid = pid;
	r = fp_stats_dir_read_live(&set->running, LABEL);
	if (r == 0)
		r = check_process(&set->running, pid);
	if (r < 0)
		return r;
	set->pages = calloc(set->running.n, sizeof(*set->pages));
	if (!set->pages)
		return no_memory();
	for (size_t i = 0; i < set->running.n; i++) {
		set->pages[i].view = set->running.items[i];
		set->pages[i].name = path_of(set->pages[i].view->fd);
		set->n++;
		if (!set->pages[i].name)
			return no_memory();
	}
	return fp_histset_look(set);
}

int fp_histset_look(struct fp_histset *set)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < set->n; i++)
		r = look(&set->pages[i]);
	return r;
}

bool fp_histset_is_live(const struct fp_histset *set)
{
	for (size_t i = 0; i < set->n; i++)
		if (!set->pages[i].view->dead && !set->pages[i].view->page.exited)
			return true;
	return false;
}

/*
 * True if --since is a copy of another program. Only the page of a running program tells: the file
 * of a run names any of its processes.
 */
static bool is_of_another(const struct fp_histset *set)
{
	return set->running.n && !fp_statspage_same(&set->pages->view->page, &set->since.view->page);
}

int fp_histset_open_since(struct fp_histset *set, const char *path)
{
	fp_autofree struct fp_hist *h = malloc(sizeof(*h));
	int r = h ? open_page(path, &set->since) : no_memory();

	if (r == 0 && is_of_another(set)) {
		fp_log(FP_LOG_ERROR, LABEL, "--since %s: of another program: %s (%d)", path,
		       set->since.view->page.command, set->since.view->page.pid);
		return -EINVAL;
	}
	for (unsigned i = 0; r == 0 && i < FP_PHASES; i++)
		r = fp_histset_sum(set, &fp_phases[i], h);
	for (unsigned i = 0; r == 0 && i < FP_PHASE_KINDS; i++)
		r = fp_histset_sum(set, &fp_phase_kinds[i], h);
	return r;
}

static int take_off_since(const struct fp_histset *set, const struct fp_phase *phase, struct fp_hist *h)
{
	const struct fp_hist *before = fp_phase_hist(phase, &set->since.view->page);

	if (!fp_hist_covers(h, before)) {
		fp_log(FP_LOG_ERROR, LABEL,
		       "--since %s: not an earlier copy of %s, which counts less (--save makes a copy)",
		       set->since.name, set->n == 1 ? set->pages->name : "these files");
		return -EINVAL;
	}
	fp_hist_subtract(h, before);
	return 0;
}

int fp_histset_sum(const struct fp_histset *set, const struct fp_phase *phase, struct fp_hist *ret_hist)
{
	fp_autofree struct fp_hist *sum = calloc(1, sizeof(*sum));
	int r = 0;

	if (!sum)
		return no_memory();
	for (size_t i = 0; i < set->n; i++)
		fp_hist_merge(sum, fp_phase_hist(phase, &set->pages[i].view->page));
	if (set->since.view)
		r = take_off_since(set, phase, sum);
	if (r == 0)
		memcpy(ret_hist, sum, sizeof(*sum));
	return r;
}

int fp_histset_save(const struct fp_histset *set, const char *path)
{
	fp_autofree struct fp_statspage *sum = calloc(1, sizeof(*sum));
	char reason[FP_STATSPAGE_EXPLAIN_LEN];
	struct fp_statspage *file;
	int r;

	if (!sum)
		return no_memory();
	for (size_t i = 0; i < set->n; i++)
		fp_stats_dir_add(sum, &set->pages[i].view->page);
	sum->exited = 1;
	r = fp_statspage_create(path, true, &file);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, LABEL, "--save %s: %s", path,
		       fp_statspage_explain(r, reason, sizeof(reason)));
		return r;
	}
	memcpy(file, sum, sizeof(*file));
	fp_statspage_close(file);
	return 0;
}

const char *fp_histset_name(const struct fp_histset *set, char *buf, size_t len)
{
	if (set->n == 1 || set->running.n)
		snprintf(buf, len, "%s (%d)", set->pages->view->page.command, set->pages->view->page.pid);
	else
		snprintf(buf, len, "%zu programs", set->n);
	return buf;
}

void fp_histset_done(struct fp_histset *set)
{
	for (size_t i = 0; i < set->n; i++) {
		if (!set->running.n)
			fp_statsview_close(set->pages[i].view);
		free(set->pages[i].name);
	}
	free(set->pages);
	close_page(&set->since);
	fp_stats_dir_done(&set->running);
	*set = (struct fp_histset){0};
}
