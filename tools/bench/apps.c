/*
 * The figures of `farpage bench apps` as a document. Room: tools/bench; see apps.h.
 */
#include "apps.h"

#include <math.h>
#include <sys/utsname.h>

#include "cleanup.h"
#include "spread.h"
#include "tool.h"

#define WHOLE             10000 /* hundredths of a percent */
#define LOCAL_BYTES_LEAST (64ull << 10)

const char *const fp_apps_contenders[] = {"plain", "thread", "inline", "zram", "loop", NULL};

uint64_t fp_apps_local_bytes(const struct fp_apps *apps, unsigned load, unsigned local)
{
	uint64_t bytes = apps->peak_bytes[load] / WHOLE * apps->locals[local] & ~4095ull;

	return FP_MAX(bytes, LOCAL_BYTES_LEAST);
}

void fp_apps_skip(struct fp_apps *apps, const char *what, const char *reason)
{
	json_array_append_new(apps->skipped,
	                      json_pack("{s:s, s:o}", "what", what, "reason", fp_tool_json_string(reason)));
}

static json_t *real_or_null(double value)
{
	return isnan(value) ? json_null() : json_real(value);
}

/* NAN if no round came to an end. */
static double median_of(struct fp_apps_cell *cell)
{
	return fp_spread_median(cell->seconds, cell->n);
}

static bool took_part(const struct fp_apps_cell *cell)
{
	return cell->n + cell->killed > 0;
}

/* local: the index of the share of local memory; -1: plain, which has none. */
static json_t *row_of(struct fp_apps *apps, unsigned load, int local, unsigned contender)
{
	struct fp_apps_cell *plain = &apps->plain[load],
	                    *cell = local < 0 ? plain : &apps->cell[load][local][contender];
	double plain_seconds = median_of(plain), setup_seconds = NAN;
	json_t *percent = json_null(), *bytes = json_null(), *slack = json_null();

	if (local >= 0) {
		percent = json_real((double)apps->locals[local] / 100);
		bytes = json_integer((json_int_t)fp_apps_local_bytes(apps, load, (unsigned)local));
	}
	if (cell->slack_bytes)
		slack = json_integer((json_int_t)cell->slack_bytes);
	if (cell->n && !isnan(cell->setup_seconds[0]))
		setup_seconds = fp_spread_median(cell->setup_seconds, cell->n);
	return json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:I}", "workload",
	                 fp_appload_get(load)->name, "local_percent", percent, "contender",
	                 fp_apps_contenders[contender], "seconds", fp_spread_json(cell->seconds, cell->n),
	                 "slowdown", real_or_null(median_of(cell) / plain_seconds), "setup_seconds",
	                 real_or_null(setup_seconds), "local_bytes", bytes, "slack_bytes", slack,
	                 "killed_rounds", (json_int_t)cell->killed);
}

static void add_rows(struct fp_apps *apps, unsigned load, json_t *list)
{
	json_array_append_new(list, row_of(apps, load, -1, FP_APPS_PLAIN));
	for (unsigned local = 0; local < apps->n_locals; local++)
		for (unsigned c = FP_APPS_PLAIN + 1; c < FP_APPS_CONTENDERS; c++)
			if (took_part(&apps->cell[load][local][c]))
				json_array_append_new(list, row_of(apps, load, (int)local, c));
}

/* How many times as long zram takes, in the mean of the workloads that both finished. */
static json_t *mean_of(struct fp_apps *apps, unsigned local, unsigned contender)
{
	double ratios[FP_APPS_LOADS_MAX];
	size_t n = 0;

	for (unsigned load = 0; load < FP_APPS_LOADS_MAX; load++) {
		struct fp_apps_cell *cells = apps->cell[load][local];

		if (cells[FP_APPS_ZRAM].n && cells[contender].n)
			ratios[n++] = median_of(&cells[FP_APPS_ZRAM]) / median_of(&cells[contender]);
	}
	return json_pack("{s:s, s:f, s:o, s:I}", "contender", fp_apps_contenders[contender], "local_percent",
	                 (double)apps->locals[local] / 100, "speedup_to_zram",
	                 real_or_null(fp_spread_geomean(ratios, n)), "workloads", (json_int_t)n);
}

static json_t *means_of(struct fp_apps *apps)
{
	json_t *list = json_array();

	for (unsigned local = 0; apps->contenders >> FP_APPS_ZRAM & 1 && local < apps->n_locals; local++)
		for (unsigned c = FP_APPS_PLAIN + 1; c < FP_APPS_CONTENDERS; c++)
			if (apps->contenders >> c & 1)
				json_array_append_new(list, mean_of(apps, local, c));
	return list;
}

json_t *fp_apps_document(struct fp_apps *apps)
{
	json_t *loads = json_array(), *results = json_array();
	struct utsname system;

	for (unsigned load = 0; load < FP_APPS_LOADS_MAX; load++) {
		if (!took_part(&apps->plain[load]))
			continue;
		json_array_append_new(loads, json_pack("{s:s, s:I}", "workload", fp_appload_get(load)->name,
		                                       "peak_bytes", (json_int_t)apps->peak_bytes[load]));
		add_rows(apps, load, results);
	}
	uname(&system);
	return json_pack(
	    "{s:s, s:I, s:I, s:I, s:o, s:I, s:s, s:o, s:o, s:o, s:O}", "kernel", system.release, "seed",
	    (json_int_t)apps->scene.seed, "rounds", (json_int_t)apps->rounds, "size_bytes",
	    (json_int_t)apps->scene.size_bytes, "over", fp_tool_json_string(apps->over), "swap_slack_bytes",
	    (json_int_t)FP_APPS_SLACK_BYTES, "swap_slack_reason",
	    "zram and loop have this much more than the budget, because a tight limit ends in an OOM kill; a "
	    "program that is killed runs again with twice as much",
	    "workloads", loads, "results", results, "means", means_of(apps), "skipped", apps->skipped);
}
