/*
 * The table of programs. Room: tools.
 */
#include "pstable.h"

#include <inttypes.h>

#include "smaps.h"
#include "tool.h"
#include "units.h"

static const char *way(const struct fp_stats_node *node)
{
	return node->way[0] ? node->way : node->url;
}

static const char *mark(const struct fp_stats_node *node)
{
	switch ((enum fp_stats_node_state)node->state) {
	case FP_STATS_NODE_UP:
		return node->degraded ? "~" : "";
	case FP_STATS_NODE_LOST:
		return "!";
	default:
		return "?";
	}
}

static void print_nodes(const struct fp_statspage *page, FILE *out)
{
	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0]; i++)
		fprintf(out, "%s%s%s", i ? "," : "", way(&page->node[i]), mark(&page->node[i]));
}

static void print_line(const struct fp_statspage *page, uint64_t faults, FILE *out)
{
	const struct fp_hist *h = &page->fault_latency;
	char mapped[16], local[16], budget[16], remote[16], p50[16], p99[16];

	fprintf(out, "%7d %-15.15s %-6s %10s %10s/%-10s %10s %10" PRIu64 " %9s %9s  ", page->pid,
	        page->command, page->fault_mode, fp_size_format(page->mapped_bytes, mapped, sizeof(mapped)),
	        fp_size_format(page->resident_bytes, local, sizeof(local)),
	        fp_size_format(page->budget_bytes, budget, sizeof(budget)),
	        fp_size_format(page->remote_bytes, remote, sizeof(remote)), faults,
	        fp_time_format(fp_hist_quantile(h, 0.5), p50, sizeof(p50)),
	        fp_time_format(fp_hist_quantile(h, 0.99), p99, sizeof(p99)));
	print_nodes(page, out);
	putc('\n', out);
}

/* What is not far, under the line of its program. Who has ended meanwhile has none. */
static void print_kinds(const struct fp_statspage *page, FILE *out)
{
	struct fp_smaps kinds;
	char size[16];

	if (fp_smaps_read(page, &kinds) < 0)
		return;
	fprintf(out, "%7s not far: %s by rule; resident:", "",
	        fp_size_format(kinds.rule_bytes, size, sizeof(size)));
	for (unsigned i = 0; i < FP_SMAPS_KINDS; i++)
		fprintf(out, "%s %s %s", i ? "," : "", fp_smaps_kind_name(i),
		        fp_size_format(kinds.bytes[i], size, sizeof(size)));
	putc('\n', out);
}

void fp_pstable_text(const struct fp_stats_dir *pages, const uint64_t *rates, FILE *out)
{
	fprintf(out, "%7s %-15s %-6s %10s %10s/%-10s %10s %10s %9s %9s  %s\n", "PID", "COMMAND", "MODE",
	        "FAR", "LOCAL", "BUDGET", "REMOTE", rates ? "FAULTS/S" : "FAULTS", "P50", "P99", "NODES");
	for (size_t i = 0; i < pages->n; i++) {
		const struct fp_statspage *page = &pages->items[i]->page;

		print_line(page, rates ? rates[i] : fp_stats_dir_faults(page), out);
		if (!rates)
			print_kinds(page, out);
	}
}

static void print_nodes_json(const struct fp_statspage *page, FILE *out)
{
	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0]; i++) {
		const struct fp_stats_node *node = &page->node[i];

		fputs(i ? ", {\"url\": " : "{\"url\": ", out);
		fp_tool_json_string(out, node->url);
		fputs(", \"way\": ", out);
		fp_tool_json_string(out, way(node));
		fprintf(out,
		        ", \"up\": %s, \"state\": \"%s\", \"degraded\": %s, \"spent\": %s"
		        ", \"leased_bytes\": %" PRIu64 ", \"read_bytes\": %" PRIu64
		        ", \"written_bytes\": %" PRIu64 ", \"failures\": %" PRIu64
		        ", \"reconnects\": %" PRIu64 ", \"heartbeat_ns\": %" PRIu64 "}",
		        node->up ? "true" : "false", fp_stats_node_state_name(node->state),
		        node->degraded ? "true" : "false", node->spent ? "true" : "false", node->leased_bytes,
		        node->read_bytes, node->written_bytes, node->failures, node->reconnects,
		        node->heartbeat_ns);
	}
}

static void print_faults_json(const struct fp_statspage *page, FILE *out)
{
	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		fprintf(out, "%s\"%s\": %" PRIu64, kind ? ", " : "", fp_fault_kind_name(kind),
		        page->faults[kind]);
}

static void print_kinds_json(const struct fp_statspage *page, FILE *out)
{
	struct fp_smaps kinds;

	if (fp_smaps_read(page, &kinds) < 0) {
		fputs("null", out);
		return;
	}
	fprintf(out, "{\"by_rule_bytes\": %" PRIu64, kinds.rule_bytes);
	for (unsigned i = 0; i < FP_SMAPS_KINDS; i++)
		fprintf(out, ", \"%s_bytes\": %" PRIu64, fp_smaps_kind_name(i), kinds.bytes[i]);
	putc('}', out);
}

static void print_object(const struct fp_statspage *page, FILE *out)
{
	const struct fp_hist *h = &page->fault_latency;

	fprintf(out, "{\"pid\": %d, \"command\": ", page->pid);
	fp_tool_json_string(out, page->command);
	fprintf(out,
	        ", \"fault_mode\": \"%s\", \"capture\": \"%s\", \"mapped_bytes\": %" PRIu64
	        ", \"resident_bytes\": %" PRIu64 ", \"resident_peak_bytes\": %" PRIu64
	        ", \"budget_bytes\": %" PRIu64 ", \"remote_bytes\": %" PRIu64 ", \"fetched_bytes\": %" PRIu64
	        ", \"written_bytes\": %" PRIu64 ", \"lost_pages\": %" PRIu64 ", \"fault_p50_ns\": %" PRIu64
	        ", \"fault_p99_ns\": %" PRIu64 ", \"faults\": {",
	        page->fault_mode, page->capture, page->mapped_bytes, page->resident_bytes,
	        page->resident_peak_bytes, page->budget_bytes, page->remote_bytes, page->fetched_bytes,
	        page->written_bytes, page->lost_pages, fp_hist_quantile(h, 0.5), fp_hist_quantile(h, 0.99));
	print_faults_json(page, out);
	fprintf(out,
	        "}, \"far_start\": %" PRIu64 ", \"far_end\": %" PRIu64 ", \"not_far\": ", page->far_start,
	        page->far_end);
	print_kinds_json(page, out);
	fputs(", \"nodes\": [", out);
	print_nodes_json(page, out);
	fputs("]}", out);
}

void fp_pstable_json(const struct fp_stats_dir *pages, FILE *out)
{
	putc('[', out);
	for (size_t i = 0; i < pages->n; i++) {
		fputs(i ? ",\n " : "", out);
		print_object(&pages->items[i]->page, out);
	}
	fputs("]\n", out);
}
