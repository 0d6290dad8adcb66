/*
 * farpage bench link: the cost of a request over each transport, without pages and faults. It
 * measures READ and WRITE by size and depth, and a two-sided call for comparison. Room:
 * tools/bench.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench.h"
#include "benchnode.h"
#include "cleanup.h"
#include "clock.h"
#include "linkbed.h"
#include "log.h"
#include "secret.h"
#include "units.h"

#define DEFAULT_SIZES   "64,256,1K,4K,16K,64K,16x4K,64x4K"
#define DEFAULT_DEPTHS  "1,4,16,64"
#define DEFAULT_NS      (200 * FP_NSEC_PER_MSEC)
#define DEFAULT_SPIN_NS (200 * FP_NSEC_PER_USEC) /* a few times the cost of a sleep and a wake-up */
#define PAGE_BYTES      4096u
#define MAX_LIST        16
#define MAX_WAYS        8
#define POOL_BYTES      (64ull << 20) /* of a private node */
#define GIB             ((double)(1ull << 30))

static const char *const op_names[] = {"read", "write", "rpc", NULL};

struct shape {
	unsigned n_segs;
	uint32_t seg_bytes;
};

struct bench_link {
	bool json;
	unsigned ops; /* bits */
	const char *protocol_name;
	enum fp_protocol protocol;
	uint64_t seed;
	uint64_t duration_ns; /* of a cell */
	uint64_t spin_ns;
	char *secret; /* secret of the nodes that the user named; NULL: none */
	unsigned n_shapes, n_depths;
	struct shape shapes[MAX_LIST];
	unsigned depths[MAX_LIST];
	struct fp_benchnode nodes;
};

/* One way to a node, while it is measured. */
struct way {
	const char *name;
	struct fp_linkbed *bed;
	json_t *cells;
	double page_us[FP_LINKBED_RPC + 1]; /* p50 of moving one page at a time; 0: not measured */
};

/* ---- the command line ---- */

/* Parses a size: "4K", or "16x4K" for a request of 16 segments. */
static int parse_shape(const char *text, struct shape *ret_shape)
{
	uint64_t segs = 1, bytes;
	const char *x = strchr(text, 'x');
	char count[8] = "";

	if (x && (size_t)(x - text) < sizeof(count))
		memcpy(count, text, (size_t)(x - text));
	if (x && fp_number_parse(count, 1, FP_IO_MAX_SEGS, &segs) < 0)
		return -EINVAL;
	if (fp_size_parse(x ? x + 1 : text, &bytes) < 0 || bytes < 8 || bytes > FP_SEG_MAX_BYTES || bytes % 8)
		return -EINVAL;
	*ret_shape = (struct shape){(unsigned)segs, (uint32_t)bytes};
	return 0;
}

static void add_size(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                     void *target)
{
	struct bench_link *bench = target;

	if (bench->n_shapes == MAX_LIST || parse_shape(text, &bench->shapes[bench->n_shapes++]) < 0)
		fp_tool_wrong(tool,
		              "--sizes %s: wanted are up to %d multiples of 8 from 8 to 64K, or NxSIZE for a "
		              "request of N such pieces, N to %d",
		              text, MAX_LIST, FP_IO_MAX_SEGS);
}

static void add_depth(const struct fp_tool *tool, const struct fp_option *option, const char *text,
                      void *target)
{
	struct bench_link *bench = target;
	uint64_t value;

	if (bench->n_depths == MAX_LIST || fp_number_parse(text, 1, FP_LINKBED_MAX_DEPTH, &value) < 0)
		fp_tool_wrong(tool, "--depths %s: wanted are up to %d numbers from 1 to %u", text, MAX_LIST,
		              FP_LINKBED_MAX_DEPTH);
	bench->depths[bench->n_depths++] = (unsigned)value;
}

static void add_op(const struct fp_tool *tool, const struct fp_option *option, const char *text, void *target)
{
	unsigned op;

	fp_option_word(tool, option, text, &op);
	*(unsigned *)target |= 1u << op;
}

static void read_protocol(const struct fp_tool *tool, const struct fp_option *option, const char *name,
                          void *target)
{
	struct bench_link *bench = target;

	if (fp_protocol_parse(name, &bench->protocol) < 0)
		fp_tool_wrong(tool, "--protocol %s: allowed are auto, inline, eager, registered", name);
	bench->protocol_name = name;
}

static const struct fp_option options[] = {
    {"sizes", "LIST", "bytes of a request; 16x4K is one of 16 pieces of 4 KiB; default " DEFAULT_SIZES,
     .read = fp_option_list, .each = add_size},
    {"depths", "LIST", "requests under way at once, 1 to 256; default " DEFAULT_DEPTHS,
     .read = fp_option_list, .each = add_depth},
    {"op", "LIST",
     "of read and write: one-sided, over rdma the READ and the WRITE of its queue pair; and rpc: two-sided, "
     "a PING over the session's connection, which is TCP for rdma, too; default all",
     .read = fp_option_list, .at = offsetof(struct bench_link, ops), .words = op_names, .each = add_op},
    {"seconds", "TIME", "for which each cell of the table is measured; default 0.2", .read = fp_option_time,
     .at = offsetof(struct bench_link, duration_ns), FP_NSEC_PER_MSEC, 3600 * FP_NSEC_PER_SEC},
    {"spin", "TIME",
     "for which a READ or WRITE is waited for awake, then asleep; an rpc always sleeps; default 200us; 0 "
     "compares like with like",
     .read = fp_option_time, .at = offsetof(struct bench_link, spin_ns), 0, UINT64_MAX},
    {"protocol", "NAME",
     "how bytes get to an RDMA device: auto, inline, eager or registered; what one cannot carry goes eager; "
     "default auto",
     .read = read_protocol},
    {"secret-file", "FILE", "the shared secret of the nodes named", .read = fp_option_secret,
     .at = offsetof(struct bench_link, secret)},
    {"seed", "N", "of the contents; default: the clock", .read = fp_option_number,
     .at = offsetof(struct bench_link, seed), 0, INT64_MAX},
    {"json", NULL, "one object, times in µs", .read = fp_option_switch,
     .at = offsetof(struct bench_link, json)},
    {.name = NULL},
};

/* ---- measuring ---- */

static size_t largest_cell_bytes(const struct bench_link *bench)
{
	size_t bytes = 0;

	for (unsigned s = 0; s < bench->n_shapes; s++)
		for (unsigned d = 0; d < bench->n_depths; d++)
			bytes = FP_MAX(bytes, (size_t)bench->shapes[s].n_segs * bench->shapes[s].seg_bytes *
			                          bench->depths[d]);
	return bytes;
}

static double us(uint64_t ns)
{
	return (double)ns / FP_NSEC_PER_USEC;
}

static json_t *row_of(const struct fp_linkbed_cell *cell, const struct fp_linkbed_result *result)
{
	size_t bytes = fp_linkbed_request_bytes(cell);
	double per_s = (double)result->requests * FP_NSEC_PER_SEC / (double)FP_MAX(result->elapsed_ns, 1u);

	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "op",
	                 op_names[cell->op], "segments", cell->n_segs, "segment_bytes", cell->seg_bytes,
	                 "request_bytes", (int)bytes, "depth", cell->depth, "in_flight", result->in_flight,
	                 "requests", (json_int_t)result->requests, "min_us", us(result->min_ns), "p50_us",
	                 us(result->p50_ns), "p99_us", us(result->p99_ns), "p999_us", us(result->p999_ns),
	                 "gib_per_second", per_s * (double)bytes / GIB, "requests_per_second", per_s);
}

static int measure(const struct bench_link *bench, struct way *way, struct fp_linkbed_cell cell)
{
	struct fp_linkbed_result result;
	char reason[64];
	int r;

	cell.duration_ns = bench->duration_ns;
	r = fp_linkbed_run(way->bed, &cell, &result);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench link", "%s: %s of %zu bytes, %u at a time: %s (seed %" PRIu64 ")",
		       way->name, op_names[cell.op], fp_linkbed_request_bytes(&cell), cell.depth,
		       r == -EBADMSG ? "WRONG BYTES" : fp_strerror(r, reason, sizeof(reason)), bench->seed);
		return r;
	}
	if (cell.depth == 1 && cell.n_segs == 1 && cell.seg_bytes == PAGE_BYTES)
		way->page_us[cell.op] = us(result.p50_ns);
	json_array_append_new(way->cells, row_of(&cell, &result));
	return 0;
}

static int measure_one_sided(const struct bench_link *bench, struct way *way, enum fp_linkbed_op op)
{
	int r = 0;

	for (unsigned s = 0; r == 0 && s < bench->n_shapes; s++)
		for (unsigned d = 0; r == 0 && d < bench->n_depths; d++)
			r = measure(bench, way,
			            (struct fp_linkbed_cell){.op = op,
			                                     .n_segs = bench->shapes[s].n_segs,
			                                     .seg_bytes = bench->shapes[s].seg_bytes,
			                                     .depth = bench->depths[d]});
	return r;
}

/*
 * Measures an empty call, and then a call with one segment, in each of the sizes that a call can
 * carry.
 */
static int measure_rpc(const struct bench_link *bench, struct way *way)
{
	struct fp_linkbed_cell cell = {.op = FP_LINKBED_RPC, .n_segs = 1, .depth = 1};
	int r = measure(bench, way, cell);

	for (unsigned s = 0; r == 0 && s < bench->n_shapes; s++) {
		cell.seg_bytes = bench->shapes[s].seg_bytes;
		if (bench->shapes[s].n_segs == 1 && cell.seg_bytes <= FP_PING_MAX_BYTES)
			r = measure(bench, way, cell);
	}
	return r;
}

static json_t *way_of(const struct way *way)
{
	double read_us = way->page_us[FP_LINKBED_READ], rpc_us = way->page_us[FP_LINKBED_RPC];
	json_t *object = json_pack("{s:o, s:s}", "over", fp_tool_json_string(way->name), "transport",
	                           fp_linkbed_transport(way->bed));

	if (read_us > 0 && rpc_us > 0) {
		json_object_set_new(object, "one_sided_read_4k_us", json_real(read_us));
		json_object_set_new(object, "two_sided_rpc_4k_us", json_real(rpc_us));
		json_object_set_new(object, "rpc_to_read_4k", json_real(rpc_us / read_us));
	}
	json_object_set(object, "cells", way->cells);
	return object;
}

static int run_way(struct bench_link *bench, const char *name, json_t *ret_ways)
{
	struct fp_linkbed_options bed = {
	    .protocol = bench->protocol,
	    .seed = bench->seed,
	    .spin_ns = bench->spin_ns,
	    .buffer_bytes = largest_cell_bytes(bench),
	};
	struct way way = {.name = name};
	char error[FP_EXPLAIN_LEN];
	bool is_own;
	int r;

	bed.url = fp_benchnode_url(&bench->nodes, name, &is_own);
	if (!bed.url)
		return -EHOSTUNREACH;
	bed.secret = is_own ? NULL : bench->secret;
	r = fp_linkbed_open(&bed, error, sizeof(error), &way.bed);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench link", "%s: %s", name, error);
		return r;
	}
	way.cells = json_array();
	for (enum fp_linkbed_op op = FP_LINKBED_READ; r == 0 && op <= FP_LINKBED_WRITE; op++)
		if (bench->ops >> op & 1)
			r = measure_one_sided(bench, &way, op);
	if (r == 0 && bench->ops >> FP_LINKBED_RPC & 1)
		r = measure_rpc(bench, &way);
	json_array_append_new(ret_ways, way_of(&way));
	json_decref(way.cells);
	fp_linkbed_close(way.bed);
	return r;
}

static int run(struct bench_link *bench, const char *const *names)
{
	json_t *ways = json_array();
	struct utsname system;
	int r = 0;

	for (; r == 0 && *names; names++)
		r = run_way(bench, *names, ways);
	if (r < 0) {
		json_decref(ways);
		return 1;
	}
	uname(&system);
	return fp_tool_show(&fp_tool_bench_link,
	                    json_pack("{s:s, s:I, s:f, s:f, s:s, s:o}", "kernel", system.release, "seed",
	                              (json_int_t)bench->seed, "seconds",
	                              (double)bench->duration_ns / FP_NSEC_PER_SEC, "spin_us",
	                              us(bench->spin_ns), "protocol", bench->protocol_name, "ways", ways),
	                    bench->json);
}

static int link_main(int argc, char **argv)
{
	static const char *const private_ways[] = {"shm", "tcp", NULL};
	struct bench_link bench = {
	    .protocol_name = "auto",
	    .seed = fp_clock_ns(),
	    .duration_ns = DEFAULT_NS,
	    .spin_ns = DEFAULT_SPIN_NS,
	    .nodes = {.label = "bench link", .pool_bytes = POOL_BYTES},
	};
	int first, status;

	first = fp_option_parse(&fp_tool_bench_link, argc, argv, &bench);
	if (!bench.n_shapes)
		fp_option_list(&fp_tool_bench_link, &options[0], DEFAULT_SIZES, &bench);
	if (!bench.n_depths)
		fp_option_list(&fp_tool_bench_link, &options[1], DEFAULT_DEPTHS, &bench);
	if (!bench.ops)
		bench.ops = ~0u;
	if (argc - first > MAX_WAYS)
		fp_tool_wrong(&fp_tool_bench_link, "at most %d nodes", MAX_WAYS);
	status = run(&bench, first < argc ? (const char *const *)argv + first : private_ways);
	fp_benchnode_close(&bench.nodes);
	fp_secret_free(bench.secret);
	return status;
}

static const char *const first_columns[] = {"op",     "request_bytes",  "depth", "p50_us",
                                            "p99_us", "gib_per_second", NULL};

const struct fp_tool fp_tool_bench_link = {
    .name = "link",
    .label = "bench link",
    .summary = "what a READ, a WRITE and a two-sided call cost over a link, by size and depth",
    .help = "usage: farpage bench link [URL...] [OPTION...]\n\n"
            "Leases 8 MiB at each node and measures requests over one link, without pages and faults: "
            "latency from submission to completion and throughput of READ and WRITE by size and by how "
            "many are under way at once, and of a two-sided call (rpc), one at a time. Without a URL, "
            "over shm and tcp to nodes started for it. What was moved is verified.\n\n",
    .options = options,
    .first_columns = first_columns,
    .takes_arguments = true,
    .main = link_main,
};
