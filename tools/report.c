/*
 * The report at the end of a run. Room: tools.
 */
#include "report.h"

#include <inttypes.h>

#include "stats_dir.h"
#include "phase.h"
#include "units.h"

static void print_faults(const struct fp_statspage *sum, FILE *out)
{
	fprintf(out, "  faults           %" PRIu64 ":", fp_stats_dir_faults(sum));
	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		fprintf(out, "%s %s %" PRIu64, kind ? "," : "", fp_fault_kind_name(kind), sum->faults[kind]);
	putc('\n', out);
}

static void print_memory(const struct fp_statspage *sum, FILE *out)
{
	char peak[16], budget[16], mapped[16], remote[16], elsewhere[16];

	fprintf(out, "  local memory     %s at the peak, budget %s\n",
	        fp_size_format(sum->resident_peak_bytes, peak, sizeof(peak)),
	        fp_size_format(sum->budget_bytes, budget, sizeof(budget)));
	fprintf(out, "  far memory       %s mapped at the peak, %s with a home on a node at the end\n",
	        fp_size_format(sum->mapped_peak_bytes, mapped, sizeof(mapped)),
	        fp_size_format(sum->remote_bytes, remote, sizeof(remote)));
	if (sum->not_far_bytes)
		fprintf(out, "  kept local       %s that the rules do not make far\n",
		        fp_size_format(sum->not_far_bytes, elsewhere, sizeof(elsewhere)));
}

static void print_traffic(const struct fp_statspage *sum, FILE *out)
{
	char fetched[16], written[16];

	fprintf(out, "  moved            %s fetched, %s written back, %" PRIu64 " pages prefetched\n",
	        fp_size_format(sum->fetched_bytes, fetched, sizeof(fetched)),
	        fp_size_format(sum->written_bytes, written, sizeof(written)), sum->prefetched_pages);
	fprintf(out,
	        "  evicted pages    %" PRIu64 " clean, %" PRIu64 " dirty, %" PRIu64 " zero; %" PRIu64
	        " refused; %" PRIu64 " faults waited for room\n",
	        sum->evicted_clean, sum->evicted_dirty, sum->evicted_zero, sum->evict_refused,
	        sum->waits_for_room);
	if (sum->lost_pages)
		fprintf(out, "  LOST PAGES       %" PRIu64 ": a node did not give them back\n",
		        sum->lost_pages);
}

static void print_phases(const struct fp_statspage *sum, FILE *out)
{
	char p50[16], p90[16], p99[16], p999[16], max[16];

	for (const struct fp_phase *phase = fp_phases; phase->name; phase++) {
		const struct fp_hist *h = fp_phase_hist(phase, sum);

		if (fp_hist_count(h) == 0)
			continue;
		fprintf(out, "  %-18s p50 %s, p90 %s, p99 %s, p99.9 %s, max %s\n", phase->title,
		        fp_time_format(fp_hist_quantile(h, 0.5), p50, sizeof(p50)),
		        fp_time_format(fp_hist_quantile(h, 0.9), p90, sizeof(p90)),
		        fp_time_format(fp_hist_quantile(h, 0.99), p99, sizeof(p99)),
		        fp_time_format(fp_hist_quantile(h, 0.999), p999, sizeof(p999)),
		        fp_time_format(fp_hist_max(h), max, sizeof(max)));
	}
}

static const char *state_text(const struct fp_stats_node *node)
{
	switch ((enum fp_stats_node_state)node->state) {
	case FP_STATS_NODE_UP:
		return node->degraded ? "up, degraded" : "up";
	case FP_STATS_NODE_LOST:
		return "LOST";
	default:
		return node->spent ? "CUT OFF, and pages waited in vain" : "CUT OFF";
	}
}

/* How its link did, where there is one. */
static void print_link(const struct fp_stats_node *node, FILE *out)
{
	char heartbeat[16];

	if (node->heartbeat_ns == 0 && node->failures == 0)
		return;
	fprintf(out, "    link over %s: cut off %" PRIu64 " times, resumed %" PRIu64 " times",
	        node->way[0] ? node->way : node->url, node->failures, node->reconnects);
	if (node->heartbeat_ns)
		fprintf(out, ", heartbeat %s",
		        fp_time_format(node->heartbeat_ns, heartbeat, sizeof(heartbeat)));
	putc('\n', out);
}

static void print_nodes(const struct fp_statspage *sum, FILE *out)
{
	char leased[16], read[16], written[16];

	for (unsigned i = 0; i < FP_STATSPAGE_NODES && sum->node[i].url[0]; i++) {
		const struct fp_stats_node *node = &sum->node[i];

		fprintf(out, "  node %s: %s, %s leased, %s read, %s written\n", node->url, state_text(node),
		        fp_size_format(node->leased_bytes, leased, sizeof(leased)),
		        fp_size_format(node->read_bytes, read, sizeof(read)),
		        fp_size_format(node->written_bytes, written, sizeof(written)));
		print_link(node, out);
	}
}

/* Nobody looks at a program that ends before the first look. */
static void print_kinds(const struct fp_smaps *kinds, FILE *out)
{
	char size[16];

	if (!kinds) {
		fputs("  not far          not looked at: it ended too soon\n", out);
		return;
	}
	fprintf(out, "  not far          %s mapped by rule; resident at most:",
	        fp_size_format(kinds->rule_bytes, size, sizeof(size)));
	for (unsigned i = 0; i < FP_SMAPS_KINDS; i++)
		fprintf(out, "%s %s %s", i ? "," : "", fp_smaps_kind_name(i),
		        fp_size_format(kinds->bytes[i], size, sizeof(size)));
	putc('\n', out);
}

void fp_report_print(const struct fp_runstats *stats, const char *name, uint64_t wall_ns, FILE *out)
{
	const struct fp_statspage *sum = fp_runstats_sum(stats);
	size_t n_processes = fp_runstats_processes(stats);
	char wall[16];

	fprintf(out, "farpage: report: %s, %s wall time", name, fp_time_format(wall_ns, wall, sizeof(wall)));
	if (n_processes == 0) {
		fputs(": no process of it had far memory\n", out);
		return;
	}
	if (n_processes > 1)
		fprintf(out, ", %zu processes (counters added; local and far peak of the largest)",
		        n_processes);
	putc('\n', out);
	print_memory(sum, out);
	print_kinds(fp_runstats_kinds(stats), out);
	print_faults(sum, out);
	print_traffic(sum, out);
	print_phases(sum, out);
	print_nodes(sum, out);
	fp_hist_print(&sum->fault_latency, FP_HIST_TEXT, fp_phases->title, out);
}
