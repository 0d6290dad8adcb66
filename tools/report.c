/*
 * The report at the end of a run. Room: tools.
 */
#include "report.h"

#include "json_table.h"
#include "phase.h"
#include "pstable.h"
#include "units.h"

#define ENOUGH_FAULTS 2000u /* with fewer, there is no advice */

/* Returns the percentiles of each phase in which anything was counted. */
static json_t *latencies(const struct fp_statspage *sum)
{
	json_t *list = json_array();

	for (unsigned i = 0; fp_phase_names[i]; i++) {
		const struct fp_hist *h = fp_phase_hist(&fp_phases[i], sum);

		if (fp_hist_count(h))
			json_array_append_new(
			    list, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "of", fp_phase_names[i],
			                    "count", fp_tool_json_number(fp_hist_count(h)), "p50_ns",
			                    fp_tool_json_number(fp_hist_quantile(h, 0.5)), "p90_ns",
			                    fp_tool_json_number(fp_hist_quantile(h, 0.9)), "p99_ns",
			                    fp_tool_json_number(fp_hist_quantile(h, 0.99)), "p99.9_ns",
			                    fp_tool_json_number(fp_hist_quantile(h, 0.999)), "max_ns",
			                    fp_tool_json_number(fp_hist_max(h))));
	}
	return list;
}

static json_t *report_of(const struct fp_runstats *stats)
{
	const struct fp_statspage *sum = &stats->sum;
	json_t *faults = fp_pstable_faults(sum);

	json_object_set_new(faults, "waited_for_room", fp_tool_json_number(sum->waits_for_room));
	return json_pack(
	    "{s:o, s:o, s:o, s:{s:o, s:o}, s:{s:o, s:o}, s:o, s:o, s:{s:o, s:o, s:o}, s:{s:o, s:o, s:o, "
	    "s:o}, "
	    "s:o, s:o}",
	    "faults_counted", fp_tool_json_number(fp_stats_dir_faults(sum)), "lost_pages",
	    fp_tool_json_number(sum->lost_pages), "kept_local_bytes", fp_tool_json_number(sum->not_far_bytes),
	    "local_memory", "peak_bytes", fp_tool_json_number(sum->resident_peak_bytes), "budget_bytes",
	    fp_tool_json_number(sum->budget_bytes), "far_memory", "mapped_peak_bytes",
	    fp_tool_json_number(sum->mapped_peak_bytes), "remote_at_end_bytes",
	    fp_tool_json_number(sum->remote_bytes), "not_far",
	    stats->kinds_total ? fp_pstable_kinds(&stats->kinds) : json_null(), "faults", faults, "moved",
	    "fetched_bytes", fp_tool_json_number(sum->fetched_bytes), "written_bytes",
	    fp_tool_json_number(sum->written_bytes), "prefetched_pages",
	    fp_tool_json_number(sum->prefetched_pages), "evicted_pages", "clean",
	    fp_tool_json_number(sum->evicted_clean), "dirty", fp_tool_json_number(sum->evicted_dirty), "zero",
	    fp_tool_json_number(sum->evicted_zero), "refused", fp_tool_json_number(sum->evict_refused),
	    "latency", latencies(sum), "nodes", fp_pstable_nodes(sum));
}

/*
 * Several threads that fault by turns must wake each other through the one fault thread. Inline,
 * each serves its own faults.
 */
static void advise(const struct fp_statspage *sum, FILE *out)
{
	uint64_t faults = fp_stats_dir_faults(sum);

	if (faults >= ENOUGH_FAULTS && sum->thread_changes > faults / 4)
		fputs("advice: several threads fault by turns. They may be faster with --fault-mode inline\n",
		      out);
}

/* An operator who sees little far memory must know why. */
static void tell_of_mallocs(const struct fp_statspage *sum, size_t n_processes, FILE *out)
{
	uint64_t n = sum->own_mallocs;

	if (n)
		fprintf(out,
		        "malloc: %llu of %zu process%s %s a malloc of its own. What it does not map by the C "
		        "library's mmap is not far, but anonymous\n",
		        (unsigned long long)n, n_processes, n_processes > 1 ? "es" : "",
		        n > 1 ? "have" : "has");
}

void fp_report_print(const struct fp_runstats *stats, const char *name, uint64_t wall_ns, FILE *out)
{
	static const char *const important[] = {"url",           "state",    "read_bytes",
	                                        "written_bytes", "failures", NULL};
	const struct fp_json_brief brief = {.width = fp_tool_width(out), .first = important};
	const struct fp_statspage *sum = &stats->sum;
	size_t n_processes = stats->n_processes;
	char wall[16];
	json_t *report;

	fprintf(out, "farpage: report: %s, %s wall time", name, fp_time_format(wall_ns, wall, sizeof(wall)));
	if (n_processes == 0) {
		fputs(
		    ": no statistics: no process of it had far memory, or none had room for its page (then a "
		    "line above says so)\n",
		    out);
		return;
	}
	if (n_processes > 1)
		fprintf(out, ", %zu processes\n(counters added; local and far peak of the largest)",
		        n_processes);
	putc('\n', out);
	report = report_of(stats);
	if (fp_json_table_print_brief(report, &brief, out))
		fputs("(shortened to the terminal: 2>FILE has all columns)\n", out);
	json_decref(report);
	tell_of_mallocs(sum, n_processes, out);
	advise(sum, out);
	fp_hist_print(&sum->fault_latency, FP_HIST_TEXT, fp_phases->title, brief.width, out);
}
