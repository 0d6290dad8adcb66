/*
 * The programs of `farpage top`. Room: tools; see toptable.h.
 */
#include "toptable.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "pstable.h"

int fp_toptable_look(struct fp_toptable *table)
{
	struct fp_toptable now = {.look_ns = fp_clock_ns()};
	int r = fp_stats_dir_read_live(&now.pages, "top");

	if (r == 0) {
		now.rows = calloc(now.pages.n + 1, sizeof(*now.rows));
		r = now.rows ? 0 : -ENOMEM;
		if (r < 0)
			fp_log(FP_LOG_ERROR, "top", "no memory");
	}
	if (r < 0) {
		fp_toptable_done(&now);
		return r;
	}
	now.passed_ns = table->look_ns ? now.look_ns - table->look_ns : 0;
	for (size_t i = 0; i < now.pages.n; i++) {
		struct fp_toprow *row = &now.rows[i];

		row->view = now.pages.items[i];
		if (i && row->view->uid == row[-1].view->uid)
			memcpy(row->user, row[-1].user, sizeof(row->user));
		else
			fp_pstable_user(row->view->uid, row->user, sizeof(row->user));
		fp_interval_of(fp_stats_dir_find(&table->pages, &row->view->page), row->view, now.passed_ns,
		               &row->interval);
	}
	fp_toptable_done(table);
	*table = now;
	return 0;
}

void fp_toptable_done(struct fp_toptable *table)
{
	fp_stats_dir_done(&table->pages);
	free(table->rows);
	*table = (struct fp_toptable){.rows = NULL};
}

json_t *fp_toptable_text(const struct fp_toptable *table)
{
	fp_autofree int64_t *rates = calloc(table->pages.n + 1, sizeof(*rates));

	for (size_t i = 0; rates && i < table->pages.n; i++)
		rates[i] = table->rows[i].interval.known
		               ? (int64_t)FP_MIN(table->rows[i].interval.faults_per_s, (uint64_t)INT64_MAX)
		               : -1;
	return rates ? fp_pstable_text(&table->pages, rates) : NULL;
}

static void add_integer(json_t *object, const char *name, bool known, uint64_t value)
{
	json_object_set_new(object, name, known ? fp_tool_json_number(value) : json_null());
}

static json_t *program(const struct fp_toprow *row)
{
	const struct fp_interval *interval = &row->interval;
	bool timed = interval->known && interval->timed;
	json_t *object = fp_pstable_program(row->view);

	add_integer(object, "faults_per_s", interval->known, interval->faults_per_s);
	add_integer(object, "fetched_bytes_per_s", interval->known, interval->fetched_bytes_per_s);
	add_integer(object, "written_bytes_per_s", interval->known, interval->written_bytes_per_s);
	add_integer(object, "interval_fault_p50_ns", timed, interval->p50_ns);
	add_integer(object, "interval_fault_p99_ns", timed, interval->p99_ns);
	return object;
}

json_t *fp_toptable_json(const struct fp_toptable *table)
{
	json_t *programs = json_array();
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	for (size_t i = 0; i < table->pages.n; i++)
		json_array_append_new(programs, program(&table->rows[i]));
	return json_pack("{s:I, s:I, s:o}", "time_ms",
	                 (json_int_t)((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / FP_NSEC_PER_MSEC),
	                 "interval_ns", (json_int_t)table->passed_ns, "programs", programs);
}
