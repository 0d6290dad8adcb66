/*
 * The options that the benches share. Room: tools.
 */
#include "benchopt.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "stats_dir.h"
#include "secret.h"
#include "units.h"

#define MIN_BYTES (64u << 10)
#define MAX_BYTES (1ull << 40)

static int add_way(const struct fp_tool *tool, struct fp_benchopt *options, const char *way)
{
	if (options->n_ways == FP_BENCH_MAX_WAYS)
		return fp_tool_usage(tool, "at most %d transports and nodes", FP_BENCH_MAX_WAYS);
	options->ways[options->n_ways++] = way;
	return 0;
}

static int add_transports(const struct fp_tool *tool, struct fp_benchopt *options, char *list)
{
	static const char *const known[] = {"floor", "shm", "tcp"};
	char *rest = list;

	for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) {
		size_t i = 0;

		while (i < FP_ARRAY_LEN(known) && strcmp(name, known[i]) != 0)
			i++;
		if (i == FP_ARRAY_LEN(known))
			return fp_tool_usage(tool, "--transport %s: allowed are floor, shm, tcp", name);
		if (add_way(tool, options, known[i]))
			return FP_EXIT_USAGE;
	}
	return 0;
}

/* The others are compared with it. */
static void put_floor_first(struct fp_benchopt *options)
{
	for (unsigned i = 1; i < options->n_ways; i++)
		if (strcmp(options->ways[i], "floor") == 0) {
			const char *first = options->ways[0];

			options->ways[0] = options->ways[i];
			options->ways[i] = first;
		}
}

static int parse_size(const struct fp_tool *tool, const char *option, uint64_t *ret_bytes)
{
	uint64_t bytes;

	if (fp_size_parse(optarg, &bytes) < 0 || bytes < MIN_BYTES || bytes > MAX_BYTES)
		return fp_tool_usage(tool, "%s %s: not a size from 64K to 1T", option, optarg);
	*ret_bytes = bytes & ~4095ull;
	return 0;
}

static int parse_number(const struct fp_tool *tool, const char *option, uint64_t min, uint64_t max,
                        uint64_t *ret_value)
{
	if (fp_number_parse(optarg, min, max, ret_value) == 0)
		return 0;
	return fp_tool_usage(tool, "%s %s: not a number from %" PRIu64 " to %" PRIu64, option, optarg, min,
	                     max);
}

static int parse_modes(const struct fp_tool *tool, struct fp_benchopt *options)
{
	static const char *const names[] = {"thread", "inline", "both"};

	for (unsigned i = 0; i < FP_ARRAY_LEN(names); i++)
		if (strcmp(optarg, names[i]) == 0) {
			options->modes = i + 1; /* both bits */
			return 0;
		}
	return fp_tool_usage(tool, "--fault-mode %s: allowed are thread, inline, both", optarg);
}

static bool may_run_on(int cpu)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_ISSET(cpu, &set);
}

static int parse_option(const struct fp_tool *tool, struct fp_benchopt *options, int c)
{
	uint64_t value = 0;
	int status;

	switch (c) {
	case 'j':
		options->json = true;
		return 0;
	case 't':
		return add_transports(tool, options, optarg);
	case 'm':
		return parse_modes(tool, options);
	case 'n':
		return add_way(tool, options, optarg);
	case 'f':
		return fp_tool_secret(tool, optarg, &options->secret);
	case 's':
		return parse_size(tool, "--size", &options->map_bytes);
	case 'l':
		return parse_size(tool, "--local", &options->local_bytes);
	case 'p':
		status = parse_number(tool, "--pages", MIN_BYTES >> 12, MAX_BYTES >> 12, &value);
		options->map_bytes = value << 12;
		return status;
	case 'r':
		status = parse_number(tool, "--rounds", 1, FP_BENCH_MAX_ROUNDS, &value);
		options->rounds = (unsigned)value;
		return status;
	case 'c':
		status = parse_number(tool, "--cpu", 0, CPU_SETSIZE - 1, &value);
		options->cpu = (int)value;
		if (status == 0 && !may_run_on(options->cpu))
			status = fp_tool_usage(
			    tool, "--cpu %s: there is no such CPU, or this process may not run there",
			    optarg);
		return status;
	case 'S':
		return parse_number(tool, "--seed", 0, UINT64_MAX, &options->seed);
	default:
		return fp_tool_usage(tool, NULL);
	}
}

static int finish(const struct fp_tool *tool, struct fp_benchopt *options)
{
	put_floor_first(options);
	return fp_stats_dir_run_dir_create(tool->label, options->dir, sizeof(options->dir),
	                                   &options->dir_lock_fd) < 0;
}

bool fp_benchopt_parse(const struct fp_tool *tool, int argc, char **argv, const char *default_ways,
                       struct fp_benchopt *options, int *ret_status)
{
	static const struct option longs[] = {
	    {"json", no_argument, NULL, 'j'},
	    {"transport", required_argument, NULL, 't'},
	    {"fault-mode", required_argument, NULL, 'm'},
	    {"node", required_argument, NULL, 'n'},
	    {"secret-file", required_argument, NULL, 'f'},
	    {"size", required_argument, NULL, 's'},
	    {"local", required_argument, NULL, 'l'},
	    {"pages", required_argument, NULL, 'p'},
	    {"rounds", required_argument, NULL, 'r'},
	    {"cpu", required_argument, NULL, 'c'},
	    {"seed", required_argument, NULL, 'S'},
	    {"help", no_argument, NULL, 'h'},
	    {NULL, 0, NULL, 0},
	};
	char ways[32];
	bool any_list = false;
	int c, status = 0;

	options->cpu = sched_getcpu();
	options->seed = fp_clock_ns();
	options->dir_lock_fd = -1;
	while (status == 0 && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'h') {
			*ret_status = fp_tool_help(tool);
			return false;
		}
		any_list |= c == 't';
		status = parse_option(tool, options, c);
	}
	if (status == 0 && optind < argc)
		status = fp_tool_usage(tool, "%s: unexpected argument", argv[optind]);
	snprintf(ways, sizeof(ways), "%s", options->n_ways ? "floor" : default_ways);
	if (status == 0 && !any_list)
		status = add_transports(tool, options, ways);
	*ret_status = status ?: finish(tool, options);
	return *ret_status == 0;
}

void fp_benchopt_done(struct fp_benchopt *options)
{
	fp_stats_dir_run_dir_remove(options->dir);
	close(options->dir_lock_fd);
	fp_secret_free(options->secret);
}

int fp_benchopt_pin(const struct fp_benchopt *options)
{
	const struct timespec quiet = {.tv_nsec = 300 * (long)FP_NSEC_PER_MSEC};
	cpu_set_t set;
	int r;

	/* An agent holds the thread that filled its memory, until it has been quiet for a while. A
	 * pin that was made before would look like the agent's own, and be undone. */
	nanosleep(&quiet, NULL);
	CPU_ZERO(&set);
	CPU_SET(options->cpu, &set);
	r = sched_setaffinity(0, sizeof(set), &set) < 0 ? -errno : 0;
	if (r < 0)
		fp_log(FP_LOG_ERROR, "bench", "CPU %d: %s", options->cpu, strerror(-r));
	return r;
}

void fp_benchopt_json(const struct fp_benchopt *options)
{
	struct utsname system;

	uname(&system);
	fputs("{\"kernel\": ", stdout);
	fp_tool_json_string(stdout, system.release);
	printf(", \"cpu\": %d, \"seed\": %" PRIu64 ", \"rounds\": %u, \"map_bytes\": %" PRIu64
	       ", \"local_bytes\": %" PRIu64 ",\n ",
	       options->cpu, options->seed, options->rounds, options->map_bytes, options->local_bytes);
}
