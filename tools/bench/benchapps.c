/*
 * farpage bench apps: whole programs with part of their memory local. Room: tools/bench.
 *
 * Farpage competes with the kernel's swap. Each round runs a workload plain, and then under each
 * contender with each share of local memory. So a machine that becomes slower affects all of them.
 * A run before the first round shows the peak of the workload's memory, and the checksum that all
 * runs must have.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps.h"
#include "appsvg.h"
#include "bench.h"
#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "picture.h"
#include "program.h"
#include "settings.h"
#include "units.h"
#include "workload.h"

#define LABEL      "bench apps"
#define MIN_BYTES  (1u << 20)
#define MAX_BYTES  (64ull << 30)
#define POOL_SPARE (1ull << 30)
/* Bytes of swap and of a pool, in units of the workload's size: more than any workload takes. */
#define POOL_SIZES 4
#define SWAP_SIZES 2

/* ---- options ---- */

static void add_bit(const struct fp_tool *tool, const struct fp_option *option, const char *const *words,
                    const char *text, unsigned *bits)
{
	const struct fp_option word = {.name = option->name, .words = words};
	unsigned i;

	fp_option_word(tool, &word, text, &i);
	*bits |= 1u << i;
}

static void add_contender(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                          void *target)
{
	add_bit(tool, option, fp_apps_contenders, text, &((struct fp_apps *)target)->contenders);
}

static void add_load(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                     void *target)
{
	add_bit(tool, option, fp_appload_names, text, &((struct fp_apps *)target)->loads);
}

static void add_local(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	struct fp_apps *apps = target;
	uint64_t local;

	if (fp_percent_parse(text, &local) < 0)
		fp_tool_wrong(tool, "--%s %s: wanted is a part in percent, such as 12.5, at most 100",
		              option->name, text);
	for (unsigned i = 0; i < apps->n_locals; i++)
		if (apps->locals[i] == local)
			return;
	if (apps->n_locals == FP_APPS_LOCALS_MAX)
		fp_tool_wrong(tool, "--%s: at most %d parts", option->name, FP_APPS_LOCALS_MAX);
	apps->locals[apps->n_locals++] = local;
}

static void read_transport(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                           void *target)
{
	struct fp_apps *apps = target;

	fp_option_word(tool, option, text, &apps->transport);
	apps->names_transport = true;
}

static void add_node(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                     void *target)
{
	struct fp_apps *apps = target;

	if (apps->n_nodes == FP_APPS_NODES_MAX)
		fp_tool_wrong(tool, "--%s: at most %d nodes", option->name, FP_APPS_NODES_MAX);
	apps->nodes[apps->n_nodes++] = text;
}

static const char *const transports[] = {"shm", "tcp", NULL};

static const struct fp_option options[] = {
    {"contender", "LIST", "of plain, thread, inline, zram, loop; default: all that are possible here",
     .read = fp_option_list, .each = add_contender},
    {"workload", "LIST",
     "of quicksort, kmeans, graph, hash, stream, columns, python, sort, redis; default: all that are "
     "installed",
     .read = fp_option_list, .each = add_load},
    {"local", "LIST", "how much of its peak may be local, in percent; default: 50,25", .read = fp_option_list,
     .each = add_local},
    {"transport", "WHAT", "shm (default) or tcp: over a node started for it", .read = read_transport,
     .words = transports},
    {"node", "URL", "over this node; may be repeated", .read = add_node},
    {"secret-file", "FILE", "the shared secret of the nodes named", .read = fp_option_text,
     .at = offsetof(struct fp_apps, secret_file)},
    {"size", "SIZE", "memory of each workload, about; default 256M", .read = fp_option_size,
     .at = offsetof(struct fp_apps, scene.size_bytes), MIN_BYTES, MAX_BYTES},
    {"rounds", "N", "default 5", .read = fp_option_number, .at = offsetof(struct fp_apps, rounds), 1,
     FP_APPS_ROUNDS_MAX},
    {"seed", "N", "of the workloads' data; default: the clock", .read = fp_option_number,
     .at = offsetof(struct fp_apps, scene.seed), 0, INT64_MAX},
    {"run", "NAME",
     "only run this workload in this process, and print a line with its seconds and checksum: so the bench "
     "runs its own workloads",
     .read = fp_option_word, .at = offsetof(struct fp_apps, run), .words = fp_workload_names},
    {"json", NULL, "one object", .read = fp_option_switch, .at = offsetof(struct fp_apps, json)},
    {"svg", "FILE", "also draws the slowdown over the share of local memory, a line for each contender",
     .read = fp_picture_option, .at = offsetof(struct fp_apps, svg)},
    {.name = NULL},
};

/* The set with a bit for each word. */
static unsigned all_of(const char *const *words)
{
	unsigned bits = 0;

	for (unsigned i = 0; words[i]; i++)
		bits |= 1u << i;
	return bits;
}

static void parse(struct fp_apps *apps, int argc, char **argv)
{
	apps->run = UINT_MAX;
	apps->rounds = 5;
	apps->scene.size_bytes = 256u << 20;
	apps->scene.seed = fp_clock_ns();
	apps->scene.text_fd = apps->scene.sorted_fd = -1;
	fp_option_parse(&fp_tool_bench_apps, argc, argv, apps);
	if (apps->names_transport && apps->n_nodes)
		fp_tool_wrong(&fp_tool_bench_apps,
		              "--transport: no private node is started, because --node names one");
	if (apps->secret_file && !apps->n_nodes)
		fp_tool_wrong(&fp_tool_bench_apps, "--secret-file: it is for nodes that --node names");
	apps->over = apps->n_nodes ? apps->nodes[0] : transports[apps->transport];
	if (!apps->contenders)
		apps->contenders = all_of(fp_apps_contenders);
	if (!apps->loads)
		apps->loads = all_of(fp_appload_names);
	if (!apps->n_locals) {
		apps->locals[apps->n_locals++] = 5000;
		apps->locals[apps->n_locals++] = 2500;
	}
}

/* ---- the way of a contender ---- */

static bool is_swap(unsigned contender)
{
	return contender == FP_APPS_ZRAM || contender == FP_APPS_LOOP;
}

static bool is_far(unsigned contender)
{
	return contender == FP_APPS_THREAD || contender == FP_APPS_INLINE;
}

static void add_words(struct fp_appway *way, const char *first, const char *second)
{
	way->words[way->n_words++] = first;
	way->words[way->n_words++] = second;
}

/* local: the text of --local-memory, which must live as long as *ret_way. */
static void take_far_way(const struct fp_apps *apps, unsigned contender, const char *local,
                         struct fp_appway *ret_way)
{
	struct fp_appway way = {.name = fp_apps_contenders[contender]};

	add_words(&way, apps->scene.self, "run");
	add_words(&way, "--fault-mode", fp_apps_contenders[contender]);
	add_words(&way, "--local-memory", local);
	for (unsigned i = 0; i < apps->n_nodes; i++)
		add_words(&way, "--node", apps->nodes[i]);
	if (apps->secret_file)
		add_words(&way, "--secret-file", apps->secret_file);
	way.words[way.n_words++] = "--";
	*ret_way = way;
}

static int swap_on(struct fp_apps *apps, unsigned contender, uint64_t limit_bytes,
                   struct fp_memgroup *ret_group)
{
	const struct fp_guardian_swap swap = {
	    .kind = contender == FP_APPS_ZRAM ? FP_SWAPDEV_ZRAM : FP_SWAPDEV_LOOP,
	    .swap_bytes = SWAP_SIZES * apps->scene.size_bytes + (64u << 20),
	    .limit_bytes = limit_bytes,
	};
	char error[256];
	int r = fp_guardian_swap_on(&apps->guardian, &swap, error, sizeof(error), ret_group);

	if (r < 0) {
		fp_apps_skip(apps, fp_apps_contenders[contender], error);
		apps->contenders &= ~(1u << contender);
	}
	return r;
}

static int swap_off(struct fp_apps *apps)
{
	char error[256];
	int r = fp_guardian_swap_off(&apps->guardian, error, sizeof(error));

	if (r < 0)
		fp_log(FP_LOG_ERROR, LABEL, "%s", error);
	return r;
}

/* ---- what is possible here ---- */

/* Lets `farpage run` start a program that does nothing. Its messages say what is wrong. */
static void try_far(struct fp_apps *apps, unsigned contender)
{
	char path[PATH_MAX];
	const char *argv[] = {path, NULL};
	struct fp_apprun_end end = {.status = 1};
	struct fp_apprun run;
	struct fp_appway way;

	take_far_way(apps, contender, "1M", &way);
	if (fp_program_find("true", path, sizeof(path)) == 0 &&
	    fp_apprun_start(&way, argv, -1, -1, &run) == 0)
		fp_apprun_wait(&run, &end);
	if (end.status == 0)
		return;
	fp_apps_skip(apps, fp_apps_contenders[contender],
	             "farpage run cannot start a program: see its message");
	apps->contenders &= ~(1u << contender);
}

static int try_swap(struct fp_apps *apps, unsigned contender)
{
	struct fp_memgroup group;

	if (geteuid() != 0) {
		fp_apps_skip(apps, fp_apps_contenders[contender],
		             "only root may swap to a device of its own");
		apps->contenders &= ~(1u << contender);
		return 0;
	}
	return swap_on(apps, contender, FP_APPS_SLACK_BYTES, &group) == 0 ? swap_off(apps) : 0;
}

static int try_all(struct fp_apps *apps)
{
	int r = 0;

	for (unsigned c = 0; r == 0 && c < FP_APPS_CONTENDERS; c++) {
		if (!(apps->contenders >> c & 1))
			continue;
		if (is_far(c))
			try_far(apps, c);
		if (is_swap(c))
			r = try_swap(apps, c);
	}
	return r;
}

/* ---- measuring ---- */

static void show_progress(const char *load, unsigned round, const char *contender, double percent)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "farpage: bench apps: %s, round %u, %s, %g %% local\n", load, round + 1,
		        contender, percent);
}

/* Keeps a result. A program that has computed something else is an end of the bench. */
static int note(const struct fp_apps *apps, unsigned load, const char *contender,
                const struct fp_appload_result *result, struct fp_apps_cell *cell)
{
	if (result->killed) {
		cell->killed++;
		return 0;
	}
	if (result->checksum != apps->checksum[load]) {
		fp_log(FP_LOG_ERROR, LABEL,
		       "%s, %s: WRONG RESULT: its checksum is %016" PRIx64
		       ", that of the plain run was %016" PRIx64 " (seed %" PRIu64 ", size %" PRIu64 ")",
		       fp_appload_get(load)->name, contender, result->checksum, apps->checksum[load],
		       apps->scene.seed, apps->scene.size_bytes);
		return -EBADMSG;
	}
	cell->seconds[cell->n] = result->seconds;
	cell->setup_seconds[cell->n++] = result->setup_seconds;
	return 0;
}

static int measure_plain(struct fp_apps *apps, unsigned load, unsigned round,
                         struct fp_appload_result *ret_result)
{
	const struct fp_appload *what = fp_appload_get(load);
	const struct fp_appway way = {.name = fp_apps_contenders[FP_APPS_PLAIN]};

	show_progress(what->name, round, fp_apps_contenders[FP_APPS_PLAIN], 100);
	return what->measure(&apps->scene, what, &way, ret_result);
}

static int measure_swap_with(struct fp_apps *apps, unsigned load, unsigned contender, uint64_t limit_bytes,
                             struct fp_appload_result *ret_result)
{
	const struct fp_appload *what = fp_appload_get(load);
	struct fp_memgroup group;
	const struct fp_appway way = {.name = fp_apps_contenders[contender], .group = &group};
	int r = swap_on(apps, contender, limit_bytes, &group), off;

	if (r < 0)
		return r;
	r = what->measure(&apps->scene, what, &way, ret_result);
	off = swap_off(apps);
	return r ?: off;
}

/* Gives a program that is killed more slack, and keeps that for the next rounds. */
static int measure_swap(struct fp_apps *apps, unsigned load, unsigned local, unsigned contender,
                        struct fp_appload_result *ret_result)
{
	struct fp_apps_cell *cell = &apps->cell[load][local][contender];
	uint64_t local_bytes = fp_apps_local_bytes(apps, load, local), slack_bytes;
	int r;

	for (slack_bytes = cell->slack_bytes ?: FP_APPS_SLACK_BYTES;; slack_bytes *= 2) {
		r = measure_swap_with(apps, load, contender, local_bytes + slack_bytes, ret_result);
		if (r < 0 || !ret_result->killed || slack_bytes >= FP_APPS_SLACK_MOST_BYTES)
			break;
	}
	cell->slack_bytes = slack_bytes;
	return r;
}

static int measure_far(struct fp_apps *apps, unsigned load, unsigned local, unsigned contender,
                       struct fp_appload_result *ret_result)
{
	const struct fp_appload *what = fp_appload_get(load);
	struct fp_appway way;
	char bytes[24];

	snprintf(bytes, sizeof(bytes), "%" PRIu64, fp_apps_local_bytes(apps, load, local));
	take_far_way(apps, contender, bytes, &way);
	return what->measure(&apps->scene, what, &way, ret_result);
}

static int measure(struct fp_apps *apps, unsigned load, unsigned round, unsigned local, unsigned contender)
{
	struct fp_appload_result result = {.killed = false};
	int r;

	if (!(apps->contenders >> contender & 1))
		return 0;
	show_progress(fp_appload_get(load)->name, round, fp_apps_contenders[contender],
	              (double)apps->locals[local] / 100);
	r = (is_swap(contender) ? measure_swap : measure_far)(apps, load, local, contender, &result);
	if (r < 0 && !(apps->contenders >> contender & 1))
		return 0; /* left out from now on, and the list says why */
	return r < 0 ? r
	             : note(apps, load, fp_apps_contenders[contender], &result,
	                    &apps->cell[load][local][contender]);
}

static int measure_round(struct fp_apps *apps, unsigned load, unsigned round)
{
	struct fp_appload_result result = {.killed = false};
	int r = measure_plain(apps, load, round, &result);

	if (r == 0)
		r = note(apps, load, fp_apps_contenders[FP_APPS_PLAIN], &result, &apps->plain[load]);
	for (unsigned local = 0; r == 0 && local < apps->n_locals; local++)
		for (unsigned c = FP_APPS_PLAIN + 1; r == 0 && c < FP_APPS_CONTENDERS; c++)
			r = measure(apps, load, round, local, c);
	return r;
}

static int measure_load(struct fp_apps *apps, unsigned load)
{
	struct fp_appload_result result = {.killed = false};
	char error[256];
	int r;

	if (fp_appload_find(fp_appload_get(load), &apps->scene, error, sizeof(error)) < 0) {
		fp_apps_skip(apps, fp_appload_get(load)->name, error);
		return 0;
	}
	r = measure_plain(apps, load, 0, &result);
	apps->peak_bytes[load] = result.peak_bytes;
	apps->checksum[load] = result.checksum;
	for (unsigned round = 0; r == 0 && round < apps->rounds; round++)
		r = measure_round(apps, load, round);
	return r;
}

/* ---- the whole ---- */

static int find_self(struct fp_apps *apps)
{
	ssize_t n = readlink("/proc/self/exe", apps->scene.self, sizeof(apps->scene.self) - 1);

	if (n < 0)
		return -errno;
	apps->scene.self[n] = '\0';
	return 0;
}

/* Starts the private node, unless nodes are named or nobody uses them. */
static int find_nodes(struct fp_apps *apps)
{
	bool is_own;

	if (apps->n_nodes || !(apps->contenders & (1u << FP_APPS_THREAD | 1u << FP_APPS_INLINE)))
		return 0;
	apps->private_nodes.label = LABEL;
	apps->private_nodes.pool_bytes = POOL_SIZES * apps->scene.size_bytes + POOL_SPARE;
	apps->nodes[0] = fp_benchnode_url(&apps->private_nodes, transports[apps->transport], &is_own);
	apps->n_nodes = apps->nodes[0] ? 1 : 0;
	apps->secret_file = FP_SETTINGS_NO_SECRET;
	return apps->nodes[0] ? 0 : -EHOSTUNREACH;
}

static int measure_all(struct fp_apps *apps)
{
	int r = find_self(apps);

	if (r == 0)
		r = find_nodes(apps);
	if (r == 0)
		r = try_all(apps);
	for (unsigned load = 0; r == 0 && fp_appload_names[load]; load++)
		if (apps->loads >> load & 1)
			r = measure_load(apps, load);
	return r;
}

static int bench(struct fp_apps *apps)
{
	json_t *document = NULL;
	int r, drawn = 0;

	apps->skipped = json_array();
	r = apps->skipped ? fp_guardian_start(&apps->guardian) : -ENOMEM;
	if (r < 0) {
		fp_log(FP_LOG_ERROR, LABEL, "%s", strerror(-r));
		json_decref(apps->skipped);
		return 1;
	}
	apps->scene.dir = apps->guardian.dir;
	r = measure_all(apps);
	if (r == 0)
		document = fp_apps_document(apps);
	if (document && apps->svg)
		drawn =
		    fp_picture_close(&fp_tool_bench_apps, apps->svg, fp_appsvg_print(document, apps->svg));
	fp_guardian_stop(&apps->guardian);
	fp_benchnode_close(&apps->private_nodes);
	fp_appload_done(&apps->scene);
	json_decref(apps->skipped);
	return r < 0 ? 1 : fp_tool_show(&fp_tool_bench_apps, document, apps->json) ?: drawn;
}

static int run_workload(const struct fp_apps *apps)
{
	struct fp_workload_result result;
	int r = fp_workload_measure(fp_workload_get(apps->run), apps->scene.size_bytes, apps->scene.seed,
	                            &result);

	if (r < 0) {
		fp_log(FP_LOG_ERROR, LABEL, "%s: %s", fp_workload_names[apps->run], strerror(-r));
		return 1;
	}
	fp_workload_print(&result, stdout);
	return fp_tool_flush(&fp_tool_bench_apps);
}

static int apps_main(int argc, char **argv)
{
	fp_autofree struct fp_apps *apps = calloc(1, sizeof(*apps));

	if (!apps)
		return 1;
	parse(apps, argc, argv);
	return apps->run == UINT_MAX ? bench(apps) : run_workload(apps);
}

static const char *const first_columns[] = {"workload", "local_percent", "contender", "seconds",
                                            "slowdown", "what",          "reason",    NULL};

const struct fp_tool fp_tool_bench_apps = {
    .name = "apps",
    .label = "bench apps",
    .summary = "whole programs with part of their memory local, beside the kernel's swap",
    .help = "usage: farpage bench apps [--json] [--contender LIST] [--workload LIST] [OPTION...]\n\n"
            "Runs workloads plain, under `farpage run` in both fault modes, and in a control group whose "
            "limit makes "
            "the kernel swap to zram or to a loop device. All take turns in each round, and all must come to "
            "the same "
            "result. Seconds: median [least greatest] of the rounds. zram and loop need root.\n\n",
    .options = options,
    .first_columns = first_columns,
    .main = apps_main,
};
