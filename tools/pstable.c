/*
 * The table of programs. Room: tools.
 */
#include "pstable.h"

#include <pwd.h>

#include "cleanup.h"
#include "json_table.h"

const char *const fp_pstable_columns[] = {"pid",          "command", "far_bytes", "local_bytes",
                                          "budget_bytes", "p99_ns",  "user",      "p50_ns",
                                          "faults/s",     "faults",  NULL};

static const char *way(const struct fp_stats_node *node)
{
	return node->way[0] ? node->way : node->url;
}

static const char *mark(const struct fp_stats_node *node)
{
	switch ((enum fp_stats_node_state)node->state) {
	case FP_STATS_NODE_UP:
		return node->degraded ? "~" : "";
	case FP_STATS_NODE_UNASKED:
		return "";
	case FP_STATS_NODE_LOST:
		return "!";
	default:
		return "?";
	}
}

const char *fp_pstable_ways(const struct fp_statspage *page, char *buf, size_t len)
{
	size_t at = 0;

	snprintf(buf, len, "-");
	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0] && at < len; i++)
		at += (size_t)snprintf(buf + at, len - at, "%s%s%s", i ? "," : "", way(&page->node[i]),
		                       mark(&page->node[i]));
	return buf;
}

static json_t *ways(const struct fp_statspage *page)
{
	json_t *list = json_array();
	char text[sizeof(page->node->way) + 1];

	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0]; i++) {
		snprintf(text, sizeof(text), "%s%s", way(&page->node[i]), mark(&page->node[i]));
		json_array_append_new(list, fp_tool_json_string(text));
	}
	return list;
}

const char *fp_pstable_none(void)
{
	return fp_stats_dir_sees_all_users() ? "No program has far memory now."
	                                     : "No program of this user has far memory now.";
}

const char *fp_pstable_user(uid_t uid, char *buf, size_t len)
{
	const struct passwd *user = getpwuid(uid);

	if (user)
		snprintf(buf, len, "%s", user->pw_name);
	else
		snprintf(buf, len, "%u", uid);
	return buf;
}

static json_t *user_json(uid_t uid)
{
	char name[FP_PSTABLE_USER_LEN];

	return fp_tool_json_string(fp_pstable_user(uid, name, sizeof(name)));
}

/* Of nothing there is no quantile: "-" in the table. */
static json_t *quantile(const struct fp_hist *h, double q)
{
	return fp_hist_count(h) ? fp_tool_json_number(fp_hist_quantile(h, q)) : json_null();
}

static json_t *row(const struct fp_statsview *view)
{
	const struct fp_statspage *page = &view->page;
	json_t *object = json_pack("{s:i}", "pid", page->pid);

	if (fp_stats_dir_sees_all_users())
		json_object_set_new(object, "user", user_json(view->uid));
	json_object_update_new(object, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "command",
	                                         fp_tool_json_string(page->command), "mode",
	                                         fp_tool_json_string(page->fault_mode), "far_bytes",
	                                         fp_tool_json_number(page->mapped_bytes), "local_bytes",
	                                         fp_tool_json_number(page->resident_bytes), "budget_bytes",
	                                         fp_tool_json_number(page->budget_bytes), "remote_bytes",
	                                         fp_tool_json_number(page->remote_bytes), "p50_ns",
	                                         quantile(&page->fault_latency, 0.5), "p99_ns",
	                                         quantile(&page->fault_latency, 0.99)));
	return object;
}

/* Appends how much memory is not far. Appends nothing for a program that has just ended. */
static void append_kinds(json_t *list, const struct fp_statspage *page)
{
	struct fp_smaps kinds;
	json_t *object;

	if (fp_smaps_read(page, &kinds) < 0)
		return;
	object = json_pack("{s:i}", "pid", page->pid);
	json_object_update_new(object, fp_pstable_kinds(&kinds));
	json_array_append_new(list, object);
}

/* Appends the nodes of a program that are not up. A narrow terminal has no room for their
 * column. */
static void append_away(json_t *list, const struct fp_statspage *page)
{
	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0]; i++)
		if (fp_stats_node_is_trouble(page->node[i].state))
			json_array_append_new(list,
			                      json_pack("{s:i, s:o, s:s}", "pid", page->pid, "node",
			                                fp_tool_json_string(way(&page->node[i])), "state",
			                                fp_stats_node_state_name(page->node[i].state)));
}

json_t *fp_pstable_text(const struct fp_stats_dir *pages, const int64_t *rates)
{
	json_t *programs = json_array(), *kinds = json_array(), *away = json_array(), *object;

	for (size_t i = 0; i < pages->n; i++) {
		const struct fp_statspage *page = &pages->items[i]->page;

		object = row(pages->items[i]);
		json_object_set_new(object, rates ? "faults/s" : "faults",
		                    rates ? json_integer(rates[i])
		                          : fp_tool_json_number(fp_stats_dir_faults(page)));
		json_object_set_new(object, "nodes", ways(page));
		json_array_append_new(programs, object);
		if (!rates) {
			append_kinds(kinds, page);
			append_away(away, page);
		}
	}
	object = json_pack("{s:o}", "programs", programs);
	if (json_array_size(away))
		json_object_set(object, "nodes_not_up", away);
	if (json_array_size(kinds))
		json_object_set(object, "not_far", kinds);
	json_decref(kinds);
	json_decref(away);
	return object;
}

json_t *fp_pstable_nodes(const struct fp_statspage *page)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < FP_STATSPAGE_NODES && page->node[i].url[0]; i++) {
		const struct fp_stats_node *node = &page->node[i];

		json_array_append_new(
		    list, json_pack("{s:o, s:o, s:b, s:s, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "url",
		                    fp_tool_json_string(node->url), "way", fp_tool_json_string(way(node)),
		                    "up", (int)node->up, "state", fp_stats_node_state_name(node->state),
		                    "degraded", (int)node->degraded, "spent", (int)node->spent,
		                    "leased_bytes", fp_tool_json_number(node->leased_bytes), "read_bytes",
		                    fp_tool_json_number(node->read_bytes), "written_bytes",
		                    fp_tool_json_number(node->written_bytes), "failures",
		                    fp_tool_json_number(node->failures), "reconnects",
		                    fp_tool_json_number(node->reconnects), "heartbeat_ns",
		                    fp_tool_json_number(node->heartbeat_ns)));
	}
	return list;
}

json_t *fp_pstable_faults(const struct fp_statspage *page)
{
	json_t *faults = json_object();

	for (unsigned kind = 0; kind < FP_FAULT_KINDS; kind++)
		json_object_set_new(faults, fp_fault_kind_name(kind),
		                    fp_tool_json_number(page->faults[kind]));
	return faults;
}

json_t *fp_pstable_kinds(const struct fp_smaps *kinds)
{
	json_t *object = json_object();
	char name[32];

	for (unsigned i = 0; i < FP_SMAPS_KINDS; i++) {
		snprintf(name, sizeof(name), "%s_bytes", fp_smaps_kind_name(i));
		json_object_set_new(object, name, fp_tool_json_number(kinds->bytes[i]));
	}
	return object;
}

json_t *fp_pstable_program(const struct fp_statsview *view)
{
	const struct fp_statspage *page = &view->page;
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
	json_t *object = json_pack(
	    "{s:i, s:I, s:o, s:o, s:o, s:o}", "pid", page->pid, "uid", (json_int_t)view->uid, "user",
	    user_json(view->uid), "command", fp_tool_json_string(page->command), "fault_mode",
	    fp_tool_json_string(page->fault_mode), "capture", fp_tool_json_string(page->capture));

	for (size_t i = 0; i < FP_ARRAY_LEN(numbers); i++)
		json_object_set_new(object, numbers[i].name, fp_tool_json_number(numbers[i].value));
	json_object_set_new(object, "faults", fp_pstable_faults(page));
	json_object_set_new(object, "nodes", fp_pstable_nodes(page));
	return object;
}

json_t *fp_pstable_json(const struct fp_stats_dir *pages)
{
	json_t *list = json_array();

	for (size_t i = 0; i < pages->n; i++) {
		json_t *program = fp_pstable_program(pages->items[i]);
		struct fp_smaps kinds;
		bool known = fp_smaps_read(&pages->items[i]->page, &kinds) == 0;

		json_object_set_new(program, "not_far", known ? fp_pstable_kinds(&kinds) : json_null());
		json_array_append_new(list, program);
	}
	return list;
}
