/*
 * The table of programs. Room: tools.
 */
#include "pstable.h"

#include <inttypes.h>

#include "cleanup.h"
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

json_t *fp_pstable_nodes(const struct fp_statspage *page)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0]; i++) {
		const struct fp_stats_node *node = &page->node[i];

		json_array_append_new(
		    list,
		    json_pack("{s:o, s:o, s:b, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I}", "url",
		              fp_tool_json_string(node->url), "way", fp_tool_json_string(way(node)), "up",
		              (int)node->up, "state", fp_stats_node_state_name(node->state), "degraded",
		              (int)node->degraded, "spent", (int)node->spent, "leased_bytes",
		              (json_int_t)node->leased_bytes, "read_bytes", (json_int_t)node->read_bytes,
		              "written_bytes", (json_int_t)node->written_bytes, "failures",
		              (json_int_t)node->failures, "reconnects", (json_int_t)node->reconnects,
		              "heartbeat_ns", (json_int_t)node->heartbeat_ns));
	}
	return list;
}

json_t *fp_pstable_faults(const struct fp_statspage *page)
{
	json_t *faults = json_object();

	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		json_object_set_new(faults, fp_fault_kind_name(kind),
		                    json_integer((json_int_t)page->faults[kind]));
	return faults;
}

json_t *fp_pstable_kinds(const struct fp_smaps *kinds)
{
	json_t *object = json_pack("{s:I}", "by_rule_bytes", (json_int_t)kinds->rule_bytes);
	char name[32];

	for (unsigned i = 0; i < FP_SMAPS_KINDS; i++) {
		snprintf(name, sizeof(name), "%s_bytes", fp_smaps_kind_name(i));
		json_object_set_new(object, name, json_integer((json_int_t)kinds->bytes[i]));
	}
	return object;
}

static json_t *program(const struct fp_statspage *page)
{
	const struct {
		const char *name;
		uint64_t value;
	} numbers[] = {
	    {"mapped_bytes", page->mapped_bytes},
	    {"resident_bytes", page->resident_bytes},
	    {"resident_peak_bytes", page->resident_peak_bytes},
	    {"budget_bytes", page->budget_bytes},
	    {"remote_bytes", page->remote_bytes},
	    {"fetched_bytes", page->fetched_bytes},
	    {"written_bytes", page->written_bytes},
	    {"lost_pages", page->lost_pages},
	    {"fault_p50_ns", fp_hist_quantile(&page->fault_latency, 0.5)},
	    {"fault_p99_ns", fp_hist_quantile(&page->fault_latency, 0.99)},
	    {"far_start", page->far_start},
	    {"far_end", page->far_end},
	};
	struct fp_smaps kinds;
	bool known = fp_smaps_read(page, &kinds) == 0;
	json_t *object =
	    json_pack("{s:i, s:o, s:s, s:s}", "pid", page->pid, "command", fp_tool_json_string(page->command),
	              "fault_mode", page->fault_mode, "capture", page->capture);

	for (size_t i = 0; i < FP_ARRAY_LEN(numbers); i++)
		json_object_set_new(object, numbers[i].name, json_integer((json_int_t)numbers[i].value));
	json_object_set_new(object, "faults", fp_pstable_faults(page));
	json_object_set_new(object, "not_far", known ? fp_pstable_kinds(&kinds) : json_null());
	json_object_set_new(object, "nodes", fp_pstable_nodes(page));
	return object;
}

json_t *fp_pstable_json(const struct fp_stats_dir *pages)
{
	json_t *list = json_array();

	for (size_t i = 0; i < pages->n; i++)
		json_array_append_new(list, program(&pages->items[i]->page));
	return list;
}
