/*
 * Stats pages of several programs: found in a folder, sorted, and summed. Other files are left
 * alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "phase.h"
#include "stats_dir.h"

static char folder[PATH_MAX];
static int folder_fd = -1;

static int begin(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/farpage-statsdir.XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return folder_fd < 0 ? -1 : 0;
}

static int end(void **state)
{
	close(folder_fd);
	return rmdir(folder);
}

/* Writes a page as a program with that pid would leave it. */
static void write_page(int pid, uint64_t faults)
{
	struct fp_statspage *page = calloc(1, sizeof(*page));
	char name[32];
	int fd;

	assert_non_null(page);
	page->magic = FP_STATSPAGE_MAGIC;
	page->version = FP_STATSPAGE_VERSION;
	page->size_bytes = sizeof(*page);
	page->pid = pid;
	page->faults[FP_FAULT_READ] = faults;
	snprintf(name, sizeof(name), "%d" FP_STATSPAGE_SUFFIX, pid);
	fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, page, sizeof(*page)), sizeof(*page));
	close(fd);
	free(page);
}

static void write_text(const char *name, const char *text)
{
	int fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static bool is_seven(const struct fp_statsview *view, void *user)
{
	++*(unsigned *)user;
	return view->page.pid == 7;
}

static const struct fp_statsview *find(const struct fp_stats_dir *pages, int pid, uint64_t start_realtime_ns)
{
	static struct fp_statspage page;

	page.pid = pid;
	page.start_realtime_ns = start_realtime_ns;
	return fp_stats_dir_find(pages, &page);
}

static void pages_are_found_in_order(void **state)
{
	struct fp_stats_dir pages = {0};

	write_page(300, 1);
	write_page(7, 2);
	write_page(41, 3);
	assert_int_equal(fp_stats_dir_read_dir(&pages, folder_fd, NULL, NULL), 0);
	assert_int_equal(pages.n, 3);
	assert_int_equal(pages.items[0]->page.pid, 7);
	assert_int_equal(pages.items[1]->page.pid, 41);
	assert_int_equal(pages.items[2]->page.pid, 300);
	assert_ptr_equal(find(&pages, 41, 0), pages.items[1]);
	assert_null(find(&pages, 42, 0));
	assert_null(find(&pages, 41, 1)); /* another far memory of the process */
	fp_stats_dir_done(&pages);
	assert_int_equal(pages.n, 0);
}

/* Only the pages in the folder are read. Only files with the name of a dropped page are removed. */
static void other_files_stay(void **state)
{
	struct fp_stats_dir pages = {0};
	unsigned n_asked = 0;

	write_text("8.stats", "cut short");
	write_text("9.stats.old", "not a page's name");
	write_text("readme", "nor this");
	assert_int_equal(fp_stats_dir_read_dir(&pages, folder_fd, is_seven, &n_asked), 0);
	assert_int_equal(pages.n, 2);
	assert_int_equal(n_asked, 3);
	assert_null(find(&pages, 7, 0));
	fp_stats_dir_done(&pages);
	assert_int_equal(faccessat(folder_fd, "7.stats", F_OK, 0), -1);
	assert_int_equal(unlinkat(folder_fd, "8.stats", 0), 0);
	assert_int_equal(unlinkat(folder_fd, "9.stats.old", 0), 0);
	assert_int_equal(unlinkat(folder_fd, "readme", 0), 0);
	assert_int_equal(unlinkat(folder_fd, "41.stats", 0), 0);
	assert_int_equal(unlinkat(folder_fd, "300.stats", 0), 0);
}

static void set_node(struct fp_statspage *page, unsigned i, const char *url, uint64_t leased_bytes)
{
	snprintf(page->node[i].url, sizeof(page->node[i].url), "%s", url);
	page->node[i].up = 1;
	page->node[i].leased_bytes = leased_bytes;
}

static const struct fp_stats_node *node_of(const struct fp_statspage *page, const char *url)
{
	for (unsigned i = 0; i < FP_STATSPAGE_NODES; i++)
		if (!strcmp(page->node[i].url, url))
			return &page->node[i];
	return NULL;
}

/*
 * Counters add up, also those of nodes with the same URL. Peaks and the budget are those of the
 * largest program.
 */
static void sums_are_right(void **state)
{
	struct fp_statspage *sum = calloc(1, sizeof(*sum)), *one = calloc(1, sizeof(*one));

	assert_true(sum && one);
	one->magic = FP_STATSPAGE_MAGIC;
	one->pid = 11;
	one->faults[FP_FAULT_READ] = 3;
	one->faults[FP_FAULT_ZERO] = 4;
	one->resident_peak_bytes = one->budget_bytes = 1 << 20;
	set_node(one, 0, "tcp://a", 100);
	fp_stats_dir_add(sum, one);
	one->pid = 12;
	one->resident_peak_bytes = 1 << 10;
	one->budget_bytes = 1 << 30;
	set_node(one, 0, "tcp://b", 10);
	set_node(one, 1, "tcp://a", 1);
	one->node[1].up = 0;
	fp_stats_dir_add(sum, one);

	assert_int_equal(sum->pid, 11);
	assert_int_equal(fp_stats_dir_faults(sum), 14);
	assert_int_equal(sum->resident_peak_bytes, 1 << 20);
	assert_int_equal(sum->budget_bytes, 1 << 20);
	assert_int_equal(node_of(sum, "tcp://a")->leased_bytes, 101);
	assert_int_equal(node_of(sum, "tcp://a")->up, 0);
	assert_int_equal(node_of(sum, "tcp://b")->leased_bytes, 10);
	assert_int_equal(node_of(sum, "tcp://b")->up, 1);
	free(sum);
	free(one);
}

/* A process that has not needed the node says nothing of it, whichever page comes first. */
static void unasked_nodes_count_last(void **state)
{
	static const struct {
		enum fp_stats_node_state first, second, sum;
	} cases[] = {
	    {FP_STATS_NODE_UP, FP_STATS_NODE_UNASKED, FP_STATS_NODE_UP},
	    {FP_STATS_NODE_UNASKED, FP_STATS_NODE_UP, FP_STATS_NODE_UP},
	    {FP_STATS_NODE_UNASKED, FP_STATS_NODE_OPEN, FP_STATS_NODE_OPEN},
	    {FP_STATS_NODE_LOST, FP_STATS_NODE_UNASKED, FP_STATS_NODE_LOST},
	    {FP_STATS_NODE_UNASKED, FP_STATS_NODE_UNASKED, FP_STATS_NODE_UNASKED},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct fp_statspage *sum = calloc(1, sizeof(*sum)), *one = calloc(1, sizeof(*one));

		assert_true(sum && one);
		one->magic = FP_STATSPAGE_MAGIC;
		set_node(one, 0, "tcp://a", 1);
		one->node[0].state = cases[i].first;
		one->node[0].up = cases[i].first == FP_STATS_NODE_UP;
		fp_stats_dir_add(sum, one);
		one->node[0].state = cases[i].second;
		one->node[0].up = cases[i].second == FP_STATS_NODE_UP;
		fp_stats_dir_add(sum, one);
		assert_int_equal(sum->node[0].state, cases[i].sum);
		assert_int_equal(sum->node[0].up, cases[i].sum == FP_STATS_NODE_UP);
		free(sum);
		free(one);
	}
	assert_false(fp_stats_node_is_trouble(FP_STATS_NODE_UNASKED));
	assert_string_equal(fp_stats_node_state_name(FP_STATS_NODE_UNASKED), "not yet connected");
}

/* Each histogram is added to its own. */
static void histograms_add_up(void **state)
{
	struct fp_statspage *sum = calloc(1, sizeof(*sum)), *one = calloc(1, sizeof(*one));

	assert_true(sum && one);
	for (unsigned i = 0; i < FP_PHASES + FP_PHASE_KINDS; i++) {
		const struct fp_phase *phase = i < FP_PHASES ? &fp_phases[i] : &fp_phase_kinds[i - FP_PHASES];

		if (i == FP_PHASES) /* the kind "all" has the histogram of the first phase */
			continue;
		fp_hist_record((struct fp_hist *)fp_phase_hist(phase, one), 1000 + i);
		fp_stats_dir_add(sum, one);
		assert_int_equal(fp_hist_count(fp_phase_hist(phase, sum)), 1);
		assert_int_equal(fp_hist_max(fp_phase_hist(phase, sum)), 1000 + i);
		memset(one, 0, sizeof(*one));
	}
	free(sum);
	free(one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(pages_are_found_in_order), cmocka_unit_test(other_files_stay),
	    cmocka_unit_test(sums_are_right),           cmocka_unit_test(unasked_nodes_count_last),
	    cmocka_unit_test(histograms_add_up),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
