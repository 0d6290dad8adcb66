/*
 * The common part of the benches of faults. Room: tools/bench.
 */
#include "rounds.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "cleanup.h"
#include "clock.h"
#include "histsvg.h"
#include "log.h"
#include "pattern.h"
#include "picture.h"
#include "secret.h"
#include "spread.h"
#include "units.h"

#define MIN_BYTES (64u << 10)
#define MAX_BYTES (1ull << 40)
/* The floor and bare tcp are measured on at most 64 MiB. */
#define BARE_PAGES (size_t)((64u << 20) / FP_PATTERN_PAGE_BYTES)
#define INLINE     1
#define BOTH       2

static const char *const mode_names[] = {"thread", "inline", "both", NULL};

/* ---- options ---- */

static void add_way(const struct fp_tool *tool, const struct fp_option *option, const char *way, void *target)
{
	struct fp_rounds *rounds = target;

	if (rounds->n_ways == FP_ROUNDS_WAYS)
		fp_tool_wrong(tool, "at most %d transports and nodes", FP_ROUNDS_WAYS);
	rounds->ways[rounds->n_ways++] = way;
}

static void add_transport(const struct fp_tool *tool, const struct fp_option *option, const char *name,
                          void *target)
{
	static const char *const known[] = {"floor", "bare-tcp", "shm", "tcp", NULL};
	const struct fp_option word = {.name = "transport", .words = known};
	struct fp_rounds *rounds = target;
	unsigned i;

	fp_option_word(tool, &word, name, &i);
	rounds->lists = true;
	if (i == 0)
		rounds->floor = true;
	else if (i == 1)
		rounds->bare_tcp = true;
	else
		add_way(tool, option, known[i], target);
}

static void add_delay(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	struct fp_rounds *rounds = target;
	uint64_t us;
	char *name;

	if (fp_number_parse(text, 0, FP_BENCHNODE_MAX_DELAY_US, &us) < 0)
		fp_tool_wrong(tool, "--link-delay %s: wanted are µs, 0 to %u", text,
		              FP_BENCHNODE_MAX_DELAY_US);
	add_way(tool, option, NULL, target); /* first, as it looks whether there is room */
	name = rounds->delayed[rounds->n_ways - 1];
	snprintf(name, FP_BENCHNODE_WAY_LEN, "tcp+%uus", (unsigned)us);
	rounds->ways[rounds->n_ways - 1] = name;
}

static void read_pages(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                       void *target)
{
	fp_option_number(tool, option, text, target);
	*(uint64_t *)target *= FP_PATTERN_PAGE_BYTES;
}

static void read_cpu(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                     void *target)
{
	uint64_t *cpu = target;
	cpu_set_t set;

	fp_option_number(tool, option, text, cpu);
	if (sched_getaffinity(0, sizeof(set), &set) < 0 || !CPU_ISSET((int)*cpu, &set))
		fp_tool_wrong(tool, "--cpu %s: there is no such CPU, or this process may not run there",
		              text);
}

const struct fp_option fp_rounds_options[] = {
    {"transport", "LIST",
     "of floor, bare-tcp, shm, tcp (the latter two over a node started for it); default: all",
     .read = fp_option_list, .each = add_transport},
    {"link-delay", "LIST",
     "in µs: for each, also over a tcp node started for it that spins so long before it answers a READ",
     .read = fp_option_list, .each = add_delay},
    {"fault-mode", "MODE", "thread, inline or both; default of fault: both, of touch: thread",
     .read = fp_option_word, .at = offsetof(struct fp_rounds, modes), .words = mode_names},
    {"node", "URL", "over this node; without --transport, beside the floor alone", .read = add_way},
    {"secret-file", "FILE", "the shared secret of the nodes named", .read = fp_option_secret,
     .at = offsetof(struct fp_rounds, secret)},
    {"size", "SIZE", "how much is mapped and touched; default of fault: 64M, of touch: 256M",
     .read = fp_option_size, .at = offsetof(struct fp_rounds, map_bytes), MIN_BYTES, MAX_BYTES},
    {"pages", "N", "the same in pages of 4 KiB", .read = read_pages,
     .at = offsetof(struct fp_rounds, map_bytes), MIN_BYTES / FP_PATTERN_PAGE_BYTES,
     MAX_BYTES / FP_PATTERN_PAGE_BYTES},
    {"local", "SIZE",
     "how much of it may be local; default of fault: enough for all of it, so that eviction takes no part; "
     "of "
     "touch: a quarter",
     .read = fp_option_size, .at = offsetof(struct fp_rounds, local_bytes), MIN_BYTES, MAX_BYTES},
    {"rounds", "N", "default: 5", .read = fp_option_number, .at = offsetof(struct fp_rounds, rounds), 1,
     FP_ROUNDS_MAX},
    {"cpu", "N", "where the touching thread runs; default: where it starts", .read = read_cpu,
     .at = offsetof(struct fp_rounds, cpu), 0, CPU_SETSIZE - 1},
    {"seed", "N", "of contents and order; default: the clock", .read = fp_option_number,
     .at = offsetof(struct fp_rounds, seed), 0, INT64_MAX},
    {"json", NULL, "one object, times in µs", .read = fp_option_switch,
     .at = offsetof(struct fp_rounds, json)},
    {"svg", "FILE", "also draws the latencies of random reads, a curve for each contender",
     .read = fp_picture_option, .at = offsetof(struct fp_rounds, svg)},
    {.name = NULL},
};

static void parse(struct fp_rounds *rounds, const struct fp_rounds_bench *bench, int argc, char **argv)
{
	rounds->cpu = (uint64_t)sched_getcpu();
	rounds->seed = fp_clock_ns();
	rounds->modes = bench->modes;
	rounds->rounds = bench->rounds;
	rounds->map_bytes = bench->map_bytes;
	fp_option_parse(bench->tool, argc, argv, rounds);
	if (!rounds->lists)
		fp_option_list(bench->tool, &fp_rounds_options[0],
		               rounds->n_ways ? "floor" : "floor,bare-tcp,shm,tcp", rounds);
	if (!rounds->local_bytes)
		rounds->local_bytes =
		    FP_MAX(rounds->map_bytes / 100 * bench->local_percent & ~4095ull, MIN_BYTES);
}

/* ---- contenders ---- */

const char *fp_rounds_mode(const struct fp_contender *contender)
{
	return contender->kind == FP_BED_BARE_TCP ? NULL : mode_names[contender->is_inline];
}

const struct fp_contender *fp_rounds_floor(const struct fp_rounds *rounds,
                                           const struct fp_contender *contender)
{
	for (unsigned i = 0; i < rounds->n; i++) {
		const struct fp_contender *c = &rounds->contender[i];

		if (c->kind == FP_BED_FLOOR && c->is_inline == contender->is_inline)
			return c;
	}
	return NULL;
}

const struct fp_contender *fp_rounds_bare_tcp(const struct fp_rounds *rounds)
{
	return rounds->bare_tcp ? &rounds->contender[0] : NULL;
}

static struct fp_contender *add_contender(struct fp_rounds *rounds, enum fp_bed_kind kind, const char *name,
                                          bool is_inline)
{
	struct fp_contender *c = &rounds->contender[rounds->n++];

	c->kind = kind;
	c->name = name;
	c->is_inline = is_inline;
	c->n_pages = rounds->map_bytes / FP_PATTERN_PAGE_BYTES;
	if (kind != FP_BED_FAR)
		c->n_pages = FP_MIN(c->n_pages, BARE_PAGES);
	for (unsigned m = 0; m < FP_ROUNDS_METRICS; m++)
		for (unsigned round = 0; round < FP_ROUNDS_MAX; round++)
			c->values[m][round] = NAN;
	return c;
}

static int open_bed(struct fp_rounds *rounds, const struct fp_rounds_bench *bench, struct fp_contender *c)
{
	struct fp_bed_options bed = {
	    .kind = c->kind,
	    .is_inline = c->is_inline,
	    .seed = rounds->seed,
	    .n_pages = c->n_pages,
	    .local_bytes = rounds->local_bytes,
	    .readahead_pages = bench->readahead_pages,
	};
	bool is_own = false;
	char error[768];
	int r;

	if (c->kind == FP_BED_FAR && !(bed.url = fp_benchnode_url(&rounds->nodes, c->name, &is_own)))
		return -EHOSTUNREACH;
	bed.secret = is_own ? NULL : rounds->secret;
	r = fp_bed_open(&bed, error, sizeof(error), &c->bed);
	if (r < 0)
		fp_log(FP_LOG_ERROR, bench->tool->label, "%s", error);
	return r;
}

/*
 * Measures one contender. A floor is opened anew in each round, so that no page of it is touched
 * yet. Its thread runs on this thread's CPU.
 */
static int measure(struct fp_rounds *rounds, const struct fp_rounds_bench *bench, struct fp_contender *c,
                   unsigned round)
{
	bool is_floor = c->kind == FP_BED_FLOOR;
	int r = is_floor ? open_bed(rounds, bench, c) : 0;

	if (r == 0)
		r = bench->measure(rounds, c, round);
	if (is_floor)
		fp_bed_close(fp_take_ptr(c->bed));
	return r;
}

/*
 * Opens all contenders. In each fault mode the floor comes first, because the others are compared
 * with it. Before all comes bare tcp, which forks: so no agent has threads yet.
 */
static int open_all(struct fp_rounds *rounds, const struct fp_rounds_bench *bench)
{
	int r = 0;

	rounds->nodes.pool_bytes = 3 * rounds->map_bytes + (256u << 20); /* enough for both modes */
	rounds->order = calloc(rounds->map_bytes / FP_PATTERN_PAGE_BYTES, sizeof(*rounds->order));
	if (!rounds->order)
		return -ENOMEM;
	if (rounds->bare_tcp)
		r = open_bed(rounds, bench, add_contender(rounds, FP_BED_BARE_TCP, "bare-tcp", false));
	for (unsigned mode = 0; r == 0 && mode < BOTH; mode++) {
		if (rounds->modes != mode && rounds->modes != BOTH)
			continue;
		if (rounds->floor)
			add_contender(rounds, FP_BED_FLOOR, "floor", mode == INLINE);
		for (unsigned i = 0; r == 0 && i < rounds->n_ways; i++)
			r = open_bed(rounds, bench,
			             add_contender(rounds, FP_BED_FAR, rounds->ways[i], mode == INLINE));
	}
	return r;
}

/*
 * Keeps this thread, and threads that it starts from now on, on one CPU. The agents' threads follow
 * it there.
 */
static int pin(const struct fp_rounds *rounds, const struct fp_tool *tool)
{
	cpu_set_t set;
	int r;

	CPU_ZERO(&set);
	CPU_SET((int)rounds->cpu, &set);
	r = sched_setaffinity(0, sizeof(set), &set) < 0 ? -errno : 0;
	if (r < 0)
		fp_log(FP_LOG_ERROR, tool->label, "CPU %d: %s", (int)rounds->cpu, strerror(-r));
	return r;
}

/* ---- results ---- */

static json_t *document_of(struct fp_rounds *rounds, const struct fp_rounds_bench *bench)
{
	json_t *document, *list = json_array();
	struct utsname system;

	for (unsigned i = 0; i < rounds->n; i++) {
		struct fp_contender *c = &rounds->contender[i];
		json_t *row = json_pack("{s:o, s:s?}", "over", fp_tool_json_string(c->name), "fault_mode",
		                        fp_rounds_mode(c));

		for (unsigned m = 0; bench->metrics[m]; m++)
			json_object_set_new(row, bench->metrics[m],
			                    fp_spread_json(c->values[m], rounds->rounds));
		json_array_append_new(list, row);
	}
	uname(&system);
	document = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "kernel", system.release, "cpu",
	                     (json_int_t)rounds->cpu, "seed", (json_int_t)rounds->seed, "rounds",
	                     (json_int_t)rounds->rounds, "map_bytes", (json_int_t)rounds->map_bytes,
	                     "local_bytes", (json_int_t)rounds->local_bytes, "contenders", list);
	if (bench->add)
		bench->add(rounds, document);
	return document;
}

static int draw(const struct fp_rounds *rounds, const struct fp_tool *tool)
{
	char names[FP_ROUNDS_BEDS][192], title[64];
	const char *name[FP_ROUNDS_BEDS];
	const struct fp_hist *hist[FP_ROUNDS_BEDS];

	for (unsigned i = 0; i < rounds->n; i++) {
		const struct fp_contender *c = &rounds->contender[i];
		const char *mode = fp_rounds_mode(c);

		snprintf(names[i], sizeof(names[i]), "%s%s%s", c->name, mode ? ", " : "", mode ? mode : "");
		name[i] = names[i];
		hist[i] = &c->latency;
	}
	snprintf(title, sizeof(title), "farpage %s: latency of random reads", tool->label);
	return fp_picture_close(tool, rounds->svg,
	                        fp_histsvg_compare(hist, name, rounds->n, title, rounds->svg));
}

static int run(struct fp_rounds *rounds, const struct fp_rounds_bench *bench)
{
	int r = open_all(rounds, bench);

	/* Only now: the agents' threads exist already, so they do not inherit the mask. */
	if (r == 0)
		r = pin(rounds, bench->tool);
	for (unsigned round = 0; r == 0 && round < rounds->rounds; round++)
		for (unsigned i = 0; r == 0 && i < rounds->n; i++)
			r = measure(rounds, bench, &rounds->contender[i], round);
	if (r < 0)
		return 1;
	r = fp_tool_show(bench->tool, document_of(rounds, bench), rounds->json);
	return rounds->svg ? draw(rounds, bench->tool) ?: r : r;
}

int fp_rounds_main(const struct fp_rounds_bench *bench, int argc, char **argv)
{
	fp_autofree struct fp_rounds *rounds = calloc(1, sizeof(*rounds));
	int status;

	if (!rounds)
		return 1;
	parse(rounds, bench, argc, argv);
	rounds->nodes.label = bench->tool->label;
	status = run(rounds, bench);
	while (rounds->n > 0)
		fp_bed_close(rounds->contender[--rounds->n].bed);
	fp_benchnode_close(&rounds->nodes);
	free(rounds->order);
	fp_secret_free(rounds->secret);
	return status;
}
