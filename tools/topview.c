/*
 * `farpage top` on a terminal. Room: tools; see topview.h.
 */
#include "topview.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "columns.h"
#include "pstable.h"
#include "screen.h"
#include "toptable.h"
#include "units.h"

#define INTERVAL_MS   1000
#define CELL_BYTES    256
#define LINE_BYTES    2048
#define PID_MIN_WIDTH 5
#define RANK_MORE     11 /* from here: columns for wide terminals */

/* ---- cells ---- */

/* At most five characters: "63.0M", "512M", "1.5G". */
static void size_text(uint64_t bytes, char *buf)
{
	static const char names[] = "BKMGTPE";
	double value = (double)bytes;
	unsigned i = 0;

	for (; value >= 999.5 && names[i + 1]; i++)
		value /= 1024;
	if (bytes == 0)
		strcpy(buf, "0");
	else
		snprintf(buf, CELL_BYTES, i == 0 || value >= 99.95 ? "%.0f%c" : "%.1f%c", value, names[i]);
}

/* At most six characters: "4.21µs". Nothing was measured: "-". */
static void time_text(uint64_t ns, char *buf)
{
	char text[16], *blank;

	fp_time_format(ns, text, sizeof(text));
	blank = strchr(text, ' ');
	*blank = '\0';
	snprintf(buf, CELL_BYTES, "%s%s", ns ? text : "-", ns ? blank + 1 : "");
}

static void number_text(uint64_t number, char *buf)
{
	snprintf(buf, CELL_BYTES, "%" PRIu64, number);
}

static void user_text(const struct fp_toprow *row, char *buf)
{
	snprintf(buf, CELL_BYTES, "%s", row->user);
}

static void command_text(const struct fp_toprow *row, char *buf)
{
	snprintf(buf, CELL_BYTES, "%s", row->view->page.command);
}

static void mode_text(const struct fp_toprow *row, char *buf)
{
	snprintf(buf, CELL_BYTES, "%s", row->view->page.fault_mode);
}

static void nodes_text(const struct fp_toprow *row, char *buf)
{
	fp_pstable_ways(&row->view->page, buf, CELL_BYTES);
}

static uint64_t pid_of(const struct fp_toprow *row)
{
	return (uint64_t)row->view->page.pid;
}

static uint64_t rate_of(const struct fp_toprow *row)
{
	return row->interval.faults_per_s;
}

static uint64_t p50_of(const struct fp_toprow *row)
{
	return row->interval.p50_ns;
}

static uint64_t p99_of(const struct fp_toprow *row)
{
	return row->interval.p99_ns;
}

static uint64_t all50_of(const struct fp_toprow *row)
{
	return fp_hist_quantile(&row->view->page.fault_latency, 0.5);
}

static uint64_t all99_of(const struct fp_toprow *row)
{
	return fp_hist_quantile(&row->view->page.fault_latency, 0.99);
}

static uint64_t local_of(const struct fp_toprow *row)
{
	return row->view->page.resident_bytes;
}

static uint64_t budget_of(const struct fp_toprow *row)
{
	return row->view->page.budget_bytes;
}

static uint64_t far_of(const struct fp_toprow *row)
{
	return row->view->page.mapped_bytes;
}

static uint64_t remote_of(const struct fp_toprow *row)
{
	return row->view->page.remote_bytes;
}

static uint64_t read_of(const struct fp_toprow *row)
{
	return row->interval.fetched_bytes_per_s;
}

static uint64_t write_of(const struct fp_toprow *row)
{
	return row->interval.written_bytes_per_s;
}

/* ---- columns ---- */

/* A column has a text, or a value and the way to write it. */
struct top_column {
	struct fp_column column;
	int key; /* sorts by it; 0: no key */
	const char *name;
	uint64_t (*value)(const struct fp_toprow *row);
	void (*write)(uint64_t value, char *buf);
	void (*text)(const struct fp_toprow *row, char *buf);
};

enum { PID, USER, COMMAND, RATE, N_COLUMNS = 16 };

/*
 * Columns are chosen by rank. First come those that 60 columns must hold: all up to LOCAL. Then
 * come those for 80 columns, then USER, then the others.
 */
static const struct top_column columns[] = {
    [PID] = {{"PID", PID_MIN_WIDTH, 0, 0, false}, 'p', "PID", pid_of, number_text, NULL},
    [USER] = {{"USER", 6, 10, 10, true}, 'u', "user", NULL, NULL, user_text},
    [COMMAND] = {{"COMMAND", 8, 15, 1, true}, 'c', "command", NULL, NULL, command_text},
    [RATE] = {{"FAULTS/S", 8, 0, 2, false}, 'f', "faults/s", rate_of, number_text, NULL},
    {{"P50", 6, 0, 3, false}, '5', "P50", p50_of, time_text, NULL},
    {{"P99", 6, 0, 4, false}, '9', "P99", p99_of, time_text, NULL},
    {{"P50ALL", 6, 0, 6, false}, 0, "P50ALL", all50_of, time_text, NULL},
    {{"P99ALL", 6, 0, 5, false}, 'a', "P99ALL", all99_of, time_text, NULL},
    {{"LOCAL", 6, 0, 7, false}, 'l', "local memory", local_of, size_text, NULL},
    {{"BUDGET", 6, 0, 8, false}, 0, "budget", budget_of, size_text, NULL},
    {{"FAR", 6, 0, 9, false}, 'm', "far memory", far_of, size_text, NULL},
    {{"REMOTE", 6, 0, 13, false}, 0, "remote", remote_of, size_text, NULL},
    {{"READ/S", 6, 0, 11, false}, 'r', "bytes read", read_of, size_text, NULL},
    {{"WRITE/S", 7, 0, 12, false}, 'w', "bytes written", write_of, size_text, NULL},
    {{"MODE", 6, 0, 15, true}, 0, "mode", NULL, NULL, mode_text},
    {{"NODES", 12, 100, 14, true}, 0, "nodes", NULL, NULL, nodes_text},
};

static_assert(FP_ARRAY_LEN(columns) == N_COLUMNS, "count the columns");

/* A rate is known after two looks at the program. */
static void write_value(const struct top_column *column, const struct fp_toprow *row, char *buf)
{
	bool is_rate = column->value == rate_of || column->value == read_of || column->value == write_of;

	if (is_rate && !row->interval.known)
		strcpy(buf, "-");
	else
		column->write(column->value(row), buf);
}

static const char *const help[] = {
    "farpage top: programs that have far memory, each second.",
    "",
    "  FAULTS/S         faults of all kinds in the last second",
    "  P50, P99         latency of these faults, if it was timed",
    "  P50ALL, P99ALL   latency since the program's start",
    "  LOCAL, BUDGET    far memory in local DRAM, and its limit",
    "  FAR              far memory mapped",
    "  REMOTE           far memory that has a home on a node",
    "  READ/S, WRITE/S  bytes from and to nodes, last second",
    "  NODES            ! lost, ? cut off, ~ lesser transport",
    "-: nothing was measured. Bold: a node is not up.",
    "A wider terminal shows more columns.",
    "",
    "These keys sort by a column: the highest number or the first",
    "name on top. The same key again turns the order round:",
    "  f faults/s   5 P50   9 P99   a P99ALL   l local   m far",
    "  r read/s   w write/s   p PID   u user   c command",
    "",
    NULL,
};

/* ---- order ---- */

struct top_view {
	struct fp_toptable table;
	const struct top_column *sorted_by;
	bool reversed;
};

/* One process may have several far memories, with a row each. */
static int compare_programs(const struct fp_toprow *a, const struct fp_toprow *b)
{
	if (pid_of(a) != pid_of(b))
		return pid_of(a) < pid_of(b) ? -1 : 1;
	return a->view->page.start_realtime_ns < b->view->page.start_realtime_ns ? -1 : 1;
}

/*
 * Sorts numbers with the greatest first, but PIDs with the least first. Sorts texts by the
 * alphabet.
 */
static int compare(const void *a, const void *b, void *user)
{
	const struct top_view *view = user;
	const struct top_column *by = view->sorted_by;
	char x_text[CELL_BYTES], y_text[CELL_BYTES];
	int order;

	if (by->value) {
		uint64_t x = by->value(a), y = by->value(b);

		order = by == &columns[PID] ? (x > y) - (x < y) : (x < y) - (x > y);
	} else {
		by->text(a, x_text);
		by->text(b, y_text);
		order = strcmp(x_text, y_text);
	}
	if (!order)
		return compare_programs(a, b);
	return view->reversed ? -order : order;
}

static void sort(struct top_view *view)
{
	if (view->table.rows)
		qsort_r(view->table.rows, view->table.pages.n, sizeof(*view->table.rows), compare, view);
}

static void sort_by_key(int key, void *user)
{
	struct top_view *view = user;

	for (unsigned i = 0; i < N_COLUMNS; i++)
		if (key && columns[i].key == key) {
			view->reversed = view->sorted_by == &columns[i] && !view->reversed;
			view->sorted_by = &columns[i];
			sort(view);
			return;
		}
}

/* ---- drawing ---- */

struct top_sum {
	bool knows_rate; /* the rate of at least one program is known */
	uint64_t rate, local_bytes, budget_bytes, far_bytes;
	unsigned cut_off, lost;
};

/* Writes to troubled, if not NULL, the program's nodes that are not up. Returns their number. */
static unsigned node_troubles(const struct fp_toprow *row, const struct fp_stats_node **troubled)
{
	const struct fp_stats_node *node = row->view->page.node;
	unsigned n = 0;

	for (unsigned i = 0; i < FP_STATSPAGE_NODES && node[i].url[0]; i++) {
		if (!fp_stats_node_is_trouble(node[i].state))
			continue;
		if (troubled)
			troubled[n] = &node[i];
		n++;
	}
	return n;
}

/* Orders nodes by their URL. A node that is lost for some program comes first. */
static int by_url(const void *a, const void *b)
{
	const struct fp_stats_node *const *x = a, *const *y = b;
	int order = strcmp((*x)->url, (*y)->url);

	return order ? order : ((*y)->state == FP_STATS_NODE_LOST) - ((*x)->state == FP_STATS_NODE_LOST);
}

/* Counts each node once, however many programs it serves. Without memory, counts none. */
static void count_troubles(const struct fp_toptable *table, struct top_sum *sum)
{
	fp_autofree const struct fp_stats_node **nodes =
	    calloc(table->pages.n * FP_STATSPAGE_NODES + 1, sizeof(*nodes));
	size_t n = 0;

	for (size_t i = 0; nodes && i < table->pages.n; i++)
		n += node_troubles(&table->rows[i], &nodes[n]);
	if (n)
		qsort(nodes, n, sizeof(*nodes), by_url);
	for (size_t i = 0; i < n; i++) {
		bool lost = nodes[i]->state == FP_STATS_NODE_LOST;

		if (i && strcmp(nodes[i]->url, nodes[i - 1]->url) == 0)
			continue;
		sum->lost += lost;
		sum->cut_off += !lost;
	}
}

static void draw_title(struct fp_screen *screen, const struct top_view *view)
{
	size_t n = view->table.pages.n;
	time_t now = time(NULL);
	struct tm local;
	char clock[16];

	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
	fp_screen_head(screen, FP_SCREEN_REVERSE, "farpage top  %s  %zu program%s  by %s%s", clock, n,
	               n == 1 ? "" : "s", view->sorted_by->name, view->reversed ? ", reversed" : "");
}

static void draw_sum(struct fp_screen *screen, const struct top_view *view)
{
	char rate[CELL_BYTES] = "-", local[CELL_BYTES], budget[CELL_BYTES], far[CELL_BYTES],
	     nodes[CELL_BYTES] = "";
	struct top_sum sum = {.rate = 0};

	for (size_t i = 0; i < view->table.pages.n; i++) {
		const struct fp_toprow *row = &view->table.rows[i];

		sum.knows_rate |= row->interval.known;
		sum.rate += rate_of(row);
		sum.local_bytes += local_of(row);
		sum.budget_bytes += budget_of(row);
		sum.far_bytes += far_of(row);
	}
	count_troubles(&view->table, &sum);
	if (sum.knows_rate)
		number_text(sum.rate, rate);
	size_text(sum.local_bytes, local);
	size_text(sum.budget_bytes, budget);
	size_text(sum.far_bytes, far);
	if (sum.lost || sum.cut_off)
		snprintf(nodes, sizeof(nodes), "nodes: %u lost, %u cut off  ", sum.lost, sum.cut_off);
	fp_screen_head(screen, *nodes ? FP_SCREEN_STRONG : FP_SCREEN_PLAIN,
	               "%s%s faults/s  %s of %s local  %s far", nodes, rate, local, budget, far);
}

/* True if another user's program is among them. */
static bool has_other_users(const struct top_view *view)
{
	for (size_t i = 0; i < view->table.pages.n; i++)
		if (view->table.rows[i].view->uid != geteuid())
			return true;
	return false;
}

/* The columns for this drawing. PIDs take what they need. Commands get their room before the
 * columns that may be missing. */
static void choose_columns(const struct fp_screen *screen, const struct top_view *view,
                           struct fp_column chosen[N_COLUMNS], unsigned widths[N_COLUMNS])
{
	for (unsigned i = 0; i < N_COLUMNS; i++) {
		chosen[i] = columns[i].column;
		chosen[i].width = chosen[i].rank < RANK_MORE ? chosen[i].width : 0;
	}
	for (size_t i = 0; i < view->table.pages.n; i++) {
		char pid[CELL_BYTES];

		number_text(pid_of(&view->table.rows[i]), pid);
		chosen[PID].width = FP_MAX(chosen[PID].width, (unsigned)strlen(pid));
	}
	if (!has_other_users(view))
		chosen[USER].width = 0;
	fp_columns_fit(chosen, N_COLUMNS, fp_screen_width(screen), widths);
	chosen[COMMAND].width = widths[COMMAND];
	for (unsigned i = 0; i < N_COLUMNS; i++)
		if (chosen[i].rank >= RANK_MORE)
			chosen[i].width = columns[i].column.width;
	fp_columns_fit(chosen, N_COLUMNS, fp_screen_width(screen), widths);
}

static void draw_row(struct fp_screen *screen, const struct fp_toprow *row,
                     const struct fp_column chosen[N_COLUMNS], const unsigned widths[N_COLUMNS])
{
	char texts[N_COLUMNS][CELL_BYTES], line[LINE_BYTES];
	const char *cells[N_COLUMNS];

	for (unsigned i = 0; i < N_COLUMNS; i++) {
		cells[i] = texts[i];
		texts[i][0] = '\0';
		if (widths[i] && columns[i].value)
			write_value(&columns[i], row, texts[i]);
		else if (widths[i])
			columns[i].text(row, texts[i]);
	}
	fp_screen_body(screen, node_troubles(row, NULL) ? FP_SCREEN_STRONG : FP_SCREEN_PLAIN, "%s",
	               fp_columns_line(chosen, N_COLUMNS, widths, cells, line, sizeof(line)));
}

static void draw(struct fp_screen *screen, void *user)
{
	const struct top_view *view = user;
	struct fp_column chosen[N_COLUMNS];
	unsigned widths[N_COLUMNS];
	char line[LINE_BYTES];

	choose_columns(screen, view, chosen, widths);
	draw_title(screen, view);
	draw_sum(screen, view);
	fp_screen_head(screen, FP_SCREEN_STRONG, "%s",
	               fp_columns_line(chosen, N_COLUMNS, widths, NULL, line, sizeof(line)));
	for (size_t i = 0; i < view->table.pages.n; i++)
		draw_row(screen, &view->table.rows[i], chosen, widths);
	if (view->table.pages.n == 0) {
		fp_screen_body(screen, FP_SCREEN_PLAIN, "%s", fp_pstable_none());
		fp_screen_body(screen, FP_SCREEN_PLAIN,
		               "`farpage run -- COMMAND` starts one; it appears here.");
	}
}

static int look(void *user)
{
	struct top_view *view = user;
	int r = fp_toptable_look(&view->table);

	if (r == 0)
		sort(view);
	return r;
}

int fp_topview_run(void)
{
	struct top_view top = {.sorted_by = &columns[RATE]};
	const struct fp_screen_view view = {
	    .keys = "sort: f 5 9 a l m r w p u c",
	    .help = help,
	    .look = look,
	    .draw = draw,
	    .key = sort_by_key,
	    .user = &top,
	};
	int r = fp_screen_run(&view, INTERVAL_MS);

	fp_toptable_done(&top.table);
	return r;
}
