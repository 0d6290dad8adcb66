/*
 * farpage bench link: what a request costs over each transport, without pages and faults: READ and
 * WRITE by size and depth, and a two-sided call beside them. Room: tools.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench.h"
#include "cleanup.h"
#include "clock.h"
#include "linkbed.h"
#include "log.h"
#include "stats_dir.h"
#include "privnode.h"
#include "secret.h"
#include "tool.h"
#include "units.h"

#define DEFAULT_SIZES   "64,256,1K,4K,16K,64K,16x4K,64x4K"
#define DEFAULT_DEPTHS  "1,4,16,64"
#define DEFAULT_NS      (200 * FP_NSEC_PER_MSEC)
#define DEFAULT_SPIN_NS (200 * FP_NSEC_PER_USEC) /* a few times what a sleep and a wake-up cost */
#define MAX_SECONDS     3600u
#define PAGE_BYTES      4096u
#define MAX_LIST        16
#define MAX_WAYS        8
#define MAX_CELLS       (2 * MAX_LIST * MAX_LIST + MAX_LIST + 1)
#define POOL_BYTES      (64ull << 20) /* of a private node */
#define GIB             ((double)(1ull << 30))

static const char *const op_names[] = {"read", "write", "rpc"};

struct shape {
	unsigned n_segs;
	uint32_t seg_bytes;
};

struct measurement {
	struct fp_linkbed_cell cell;
	struct fp_linkbed_result result;
};

/* One way to a node, and what it came to. */
struct way {
	const char *name; /* "shm", "tcp": over a private node; else a URL */
	char transport[16];
	unsigned n;
	struct measurement *items; /* MAX_CELLS */
};

struct bench_link {
	bool json;
	bool named; /* nodes were; else private ones are started */
	bool ops[FP_ARRAY_LEN(op_names)];
	enum fp_protocol protocol;
	uint64_t seed;
	uint64_t duration_ns; /* of a cell */
	uint64_t spin_ns;
	char *secret; /* of the nodes that were named; NULL: none */
	unsigned n_shapes, n_depths, n_ways;
	struct shape shapes[MAX_LIST];
	unsigned depths[MAX_LIST];
	struct way ways[MAX_WAYS];
	char dir[PATH_MAX - 16]; /* for sockets */
	int dir_lock_fd;         /* -1: dir was not made */
};

/* ---- the command line ---- */

/* "4K", or "16x4K": a request of 16 segments. */
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

static int add_shape(struct bench_link *bench, const char *text)
{
	if (bench->n_shapes == MAX_LIST || parse_shape(text, &bench->shapes[bench->n_shapes]) < 0)
		return fp_tool_usage(
		    &fp_tool_bench_link,
		    "--sizes %s: wanted are up to %d multiples of 8 from 8 to 64K, or NxSIZE "
		    "for a request of N such pieces, N to %d",
		    text, MAX_LIST, FP_IO_MAX_SEGS);
	bench->n_shapes++;
	return 0;
}

static int add_depth(struct bench_link *bench, const char *text)
{
	uint64_t value;

	if (bench->n_depths == MAX_LIST || fp_number_parse(text, 1, FP_LINKBED_MAX_DEPTH, &value) < 0)
		return fp_tool_usage(&fp_tool_bench_link,
		                     "--depths %s: wanted are up to %d numbers from 1 to %u", text, MAX_LIST,
		                     FP_LINKBED_MAX_DEPTH);
	bench->depths[bench->n_depths++] = (unsigned)value;
	return 0;
}

static int add_op(struct bench_link *bench, const char *text)
{
	for (size_t i = 0; i < FP_ARRAY_LEN(op_names); i++)
		if (strcmp(text, op_names[i]) == 0) {
			bench->ops[i] = true;
			return 0;
		}
	return fp_tool_usage(&fp_tool_bench_link, "--op %s: allowed are read, write, rpc", text);
}

/* Replaces the default list, or an earlier one. */
static int parse_list(struct bench_link *bench, const char *text,
                      int (*add)(struct bench_link *, const char *))
{
	fp_autofree char *copy = strdup(text);
	char *rest = copy;
	int status = copy ? 0 : 1;

	for (char *item = strsep(&rest, ","); status == 0 && item; item = strsep(&rest, ","))
		status = add(bench, item);
	return status;
}

static int parse_seconds(struct bench_link *bench)
{
	if (fp_time_parse(optarg, &bench->duration_ns) == 0 && bench->duration_ns >= FP_NSEC_PER_MSEC &&
	    bench->duration_ns <= MAX_SECONDS * FP_NSEC_PER_SEC)
		return 0;
	return fp_tool_usage(&fp_tool_bench_link, "--seconds %s: not a time from 1ms to 1h", optarg);
}

static int parse_option(struct bench_link *bench, int c)
{
	switch (c) {
	case 'j':
		bench->json = true;
		return 0;
	case 's':
		bench->n_shapes = 0;
		return parse_list(bench, optarg, add_shape);
	case 'd':
		bench->n_depths = 0;
		return parse_list(bench, optarg, add_depth);
	case 'o':
		memset(bench->ops, 0, sizeof(bench->ops));
		return parse_list(bench, optarg, add_op);
	case 't':
		return parse_seconds(bench);
	case 'w':
		if (fp_time_parse(optarg, &bench->spin_ns) == 0)
			return 0;
		return fp_tool_usage(&fp_tool_bench_link, "--spin %s: not a time", optarg);
	case 'f':
		return fp_tool_secret(&fp_tool_bench_link, optarg, &bench->secret);
	case 'p':
		if (fp_protocol_parse(optarg, &bench->protocol) < 0)
			return fp_tool_usage(&fp_tool_bench_link,
			                     "--protocol %s: allowed are auto, inline, eager, registered",
			                     optarg);
		return 0;
	case 'S':
		if (fp_number_parse(optarg, 0, UINT64_MAX, &bench->seed) < 0)
			return fp_tool_usage(&fp_tool_bench_link, "--seed %s: not a number", optarg);
		return 0;
	default:
		return fp_tool_usage(&fp_tool_bench_link, NULL);
	}
}

static int finish(struct bench_link *bench, char **urls)
{
	static const char *const private_ways[] = {"shm", "tcp", NULL};
	int status = 0;

	bench->named = *urls;
	if (!bench->n_shapes)
		status = parse_list(bench, DEFAULT_SIZES, add_shape);
	if (status == 0 && !bench->n_depths)
		status = parse_list(bench, DEFAULT_DEPTHS, add_depth);
	for (const char *const *name = bench->named ? (const char *const *)urls : private_ways; *name;
	     name++) {
		if (bench->n_ways == MAX_WAYS)
			return fp_tool_usage(&fp_tool_bench_link, "at most %d nodes", MAX_WAYS);
		bench->ways[bench->n_ways++].name = *name;
	}
	return status;
}

static bool parse(struct bench_link *bench, int argc, char **argv, int *ret_status)
{
	static const struct option longs[] = {
	    {"json", no_argument, NULL, 'j'},
	    {"sizes", required_argument, NULL, 's'},
	    {"depths", required_argument, NULL, 'd'},
	    {"seconds", required_argument, NULL, 't'},
	    {"op", required_argument, NULL, 'o'},
	    {"secret-file", required_argument, NULL, 'f'},
	    {"protocol", required_argument, NULL, 'p'},
	    {"seed", required_argument, NULL, 'S'},
	    {"spin", required_argument, NULL, 'w'},
	    {"help", no_argument, NULL, 'h'},
	    {NULL, 0, NULL, 0},
	};
	int c, status = 0;

	while (status == 0 && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'h') {
			*ret_status = fp_tool_help(&fp_tool_bench_link);
			return false;
		}
		status = parse_option(bench, c);
	}
	*ret_status = status ?: finish(bench, argv + optind);
	return *ret_status == 0;
}

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

static int measure(const struct bench_link *bench, struct way *way, struct fp_linkbed *bed,
                   const struct fp_linkbed_cell *cell)
{
	struct measurement *m = &way->items[way->n];
	char reason[64];
	int r;

	m->cell = *cell;
	m->cell.duration_ns = bench->duration_ns;
	r = fp_linkbed_run(bed, &m->cell, &m->result);
	if (r == 0)
		way->n++;
	else if (r == -EBADMSG)
		fp_log(FP_LOG_ERROR, "bench link", "%s: %s of %zu bytes: WRONG BYTES (seed %" PRIu64 ")",
		       way->name, op_names[cell->op], fp_linkbed_request_bytes(cell), bench->seed);
	else
		fp_log(FP_LOG_ERROR, "bench link", "%s: %s of %zu bytes, %u at a time: %s", way->name,
		       op_names[cell->op], fp_linkbed_request_bytes(cell), cell->depth,
		       fp_strerror(r, reason, sizeof(reason)));
	return r;
}

static int measure_one_sided(const struct bench_link *bench, struct way *way, struct fp_linkbed *bed,
                             enum fp_linkbed_op op)
{
	int r = 0;

	for (unsigned s = 0; r == 0 && s < bench->n_shapes; s++)
		for (unsigned d = 0; r == 0 && d < bench->n_depths; d++)
			r = measure(bench, way, bed,
			            &(struct fp_linkbed_cell){.op = op,
			                                      .n_segs = bench->shapes[s].n_segs,
			                                      .seg_bytes = bench->shapes[s].seg_bytes,
			                                      .depth = bench->depths[d]});
	return r;
}

/* An empty call, and each size of one piece that a call can carry. */
static int measure_rpc(const struct bench_link *bench, struct way *way, struct fp_linkbed *bed)
{
	struct fp_linkbed_cell cell = {.op = FP_LINKBED_RPC, .n_segs = 1, .depth = 1};
	int r = measure(bench, way, bed, &cell);

	for (unsigned s = 0; r == 0 && s < bench->n_shapes; s++) {
		cell.seg_bytes = bench->shapes[s].seg_bytes;
		if (bench->shapes[s].n_segs == 1 && cell.seg_bytes <= FP_PING_MAX_BYTES)
			r = measure(bench, way, bed, &cell);
	}
	return r;
}

static int measure_way(const struct bench_link *bench, struct way *way, const char *url, const char *secret)
{
	const struct fp_linkbed_options options = {
	    .url = url,
	    .secret = secret,
	    .protocol = bench->protocol,
	    .seed = bench->seed,
	    .spin_ns = bench->spin_ns,
	    .buffer_bytes = largest_cell_bytes(bench),
	};
	struct fp_linkbed *bed;
	char error[FP_EXPLAIN_LEN];
	int r = fp_linkbed_open(&options, error, sizeof(error), &bed);

	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench link", "%s: %s", way->name, error);
		return r;
	}
	snprintf(way->transport, sizeof(way->transport), "%s", fp_linkbed_transport(bed));
	for (enum fp_linkbed_op op = FP_LINKBED_READ; r == 0 && op <= FP_LINKBED_WRITE; op++)
		if (bench->ops[op])
			r = measure_one_sided(bench, way, bed, op);
	if (r == 0 && bench->ops[FP_LINKBED_RPC])
		r = measure_rpc(bench, way, bed);
	fp_linkbed_close(bed);
	return r;
}

static int run_way(struct bench_link *bench, struct way *way)
{
	bool shm = strcmp(way->name, "shm") == 0;
	struct fp_privnode *node = NULL;
	const struct fp_privnode_options options = {
	    .kind = shm ? FP_PRIVNODE_SHM : FP_PRIVNODE_TCP,
	    .dir = bench->dir,
	    .pool_bytes = POOL_BYTES,
	};
	char error[768];
	int r;

	way->items = calloc(MAX_CELLS, sizeof(*way->items));
	if (!way->items)
		return -ENOMEM;
	if (bench->named)
		return measure_way(bench, way, way->name, bench->secret);
	r = fp_privnode_start(&options, error, sizeof(error), &node);
	if (r < 0) {
		fp_log(FP_LOG_ERROR, "bench link", "%s: %s", way->name, error);
		return r;
	}
	r = measure_way(bench, way, fp_privnode_url(node), NULL);
	fp_privnode_stop(node);
	return r;
}

/* ---- what it came to ---- */

static double us(uint64_t ns)
{
	return (double)ns / FP_NSEC_PER_USEC;
}

static double requests_per_s(const struct measurement *m)
{
	return (double)m->result.requests * FP_NSEC_PER_SEC / (double)FP_MAX(m->result.elapsed_ns, 1u);
}

static double gib_per_s(const struct measurement *m)
{
	return requests_per_s(m) * (double)fp_linkbed_request_bytes(&m->cell) / GIB;
}

/* The cell of one page, one at a time; NULL if it was not measured. */
static const struct measurement *find_page_cell(const struct way *way, enum fp_linkbed_op op)
{
	for (unsigned i = 0; i < way->n; i++) {
		const struct fp_linkbed_cell *cell = &way->items[i].cell;

		if (cell->op == op && cell->n_segs == 1 && cell->seg_bytes == PAGE_BYTES && cell->depth == 1)
			return &way->items[i];
	}
	return NULL;
}

/* p50 of the call to that of the READ; 0 if one of them was not measured. */
static double rpc_to_read(const struct way *way)
{
	const struct measurement *read = find_page_cell(way, FP_LINKBED_READ);
	const struct measurement *rpc = find_page_cell(way, FP_LINKBED_RPC);

	return read && rpc ? (double)rpc->result.p50_ns / (double)FP_MAX(read->result.p50_ns, 1u) : 0;
}

static void print_size(const struct fp_linkbed_cell *cell)
{
	char one[16], text[32];

	fp_size_format(cell->seg_bytes, one, sizeof(one));
	if (cell->n_segs > 1)
		snprintf(text, sizeof(text), "%u x %s", cell->n_segs, one);
	else
		snprintf(text, sizeof(text), "%s", one);
	printf("%-6s %13s", op_names[cell->op], text);
}

static void print_way(const struct way *way)
{
	printf("\nover %s%s%s%s\n", way->name, strcmp(way->name, way->transport) ? " (" : "",
	       strcmp(way->name, way->transport) ? way->transport : "",
	       strcmp(way->name, way->transport) ? ")" : "");
	printf("%-6s %13s %6s %9s %9s %9s %9s %9s %11s\n", "", "size", "depth", "min", "p50", "p99", "p99.9",
	       "GiB/s", "requests/s");
	for (unsigned i = 0; i < way->n; i++) {
		const struct measurement *m = &way->items[i];

		print_size(&m->cell);
		printf(" %6u %9.2f %9.2f %9.2f %9.2f %9.3f %11.0f\n", m->result.in_flight,
		       us(m->result.min_ns), us(m->result.p50_ns), us(m->result.p99_ns),
		       us(m->result.p999_ns), gib_per_s(m), requests_per_s(m));
	}
}

/* Who does the work of a READ, by transport. */
static const char *served_by(const char *transport)
{
	if (strncmp(transport, "rdma", 4) == 0)
		return "the node's device answers a READ, its CPU an RPC";
	if (strcmp(transport, "shm") == 0)
		return "a READ is a copy made here, an RPC wakes the daemon";
	return "the node's CPU answers both";
}

static void print_comparison(const struct way *way)
{
	const struct measurement *read = find_page_cell(way, FP_LINKBED_READ);
	const struct measurement *rpc = find_page_cell(way, FP_LINKBED_RPC);

	if (read && rpc)
		printf("%s: one-sided READ of 4 KiB: %.2f µs, two-sided RPC that carries 4 KiB each way: "
		       "%.2f µs, "
		       "ratio %.2f (p50; %s)\n",
		       way->name, us(read->result.p50_ns), us(rpc->result.p50_ns), rpc_to_read(way),
		       served_by(way->transport));
}

static void print_text(const struct bench_link *bench)
{
	printf("bench link: %.3g s a cell, awake for %.0f µs of a wait, seed %" PRIu64
	       ", what was moved is verified; µs from submission to completion\n",
	       (double)bench->duration_ns / FP_NSEC_PER_SEC, us(bench->spin_ns), bench->seed);
	for (unsigned i = 0; i < bench->n_ways; i++)
		print_way(&bench->ways[i]);
	putchar('\n');
	for (unsigned i = 0; i < bench->n_ways; i++)
		print_comparison(&bench->ways[i]);
}

static void print_cell_json(const struct measurement *m)
{
	printf("{\"op\": \"%s\", \"segments\": %u, \"segment_bytes\": %u, \"request_bytes\": %zu, \"depth\": "
	       "%u, "
	       "\"in_flight\": %u, \"requests\": %" PRIu64
	       ", \"min_us\": %.3f, \"p50_us\": %.3f, \"p99_us\": %.3f, "
	       "\"p999_us\": %.3f, \"gib_per_second\": %.6f, \"requests_per_second\": %.1f}",
	       op_names[m->cell.op], m->cell.n_segs, m->cell.seg_bytes, fp_linkbed_request_bytes(&m->cell),
	       m->cell.depth, m->result.in_flight, m->result.requests, us(m->result.min_ns),
	       us(m->result.p50_ns), us(m->result.p99_ns), us(m->result.p999_ns), gib_per_s(m),
	       requests_per_s(m));
}

static void print_json(const struct bench_link *bench)
{
	static const char *const protocols[] = {"auto", "inline", "eager", "registered"};
	struct utsname system;

	uname(&system);
	fputs("{\"kernel\": ", stdout);
	fp_tool_json_string(stdout, system.release);
	printf(", \"seed\": %" PRIu64
	       ", \"seconds\": %.3f, \"spin_us\": %.3f, \"protocol\": \"%s\",\n \"ways\": [",
	       bench->seed, (double)bench->duration_ns / FP_NSEC_PER_SEC, us(bench->spin_ns),
	       protocols[bench->protocol]);
	for (unsigned i = 0; i < bench->n_ways; i++) {
		const struct way *way = &bench->ways[i];

		fputs(i ? ",\n  {\"over\": " : "\n  {\"over\": ", stdout);
		fp_tool_json_string(stdout, way->name);
		printf(", \"transport\": \"%s\"", way->transport);
		if (rpc_to_read(way) > 0)
			printf(", \"rpc_to_read_4k\": %.3f", rpc_to_read(way));
		fputs(", \"cells\": [", stdout);
		for (unsigned c = 0; c < way->n; c++) {
			fputs(c ? ",\n   " : "\n   ", stdout);
			print_cell_json(&way->items[c]);
		}
		fputs("]}", stdout);
	}
	puts("]}");
}

/* ---- all of it ---- */

static void done(struct bench_link *bench)
{
	for (unsigned i = 0; i < bench->n_ways; i++)
		free(bench->ways[i].items);
	if (bench->dir_lock_fd >= 0) {
		fp_stats_dir_run_dir_remove(bench->dir);
		close(bench->dir_lock_fd);
	}
	fp_secret_free(bench->secret);
}

static int link_main(int argc, char **argv)
{
	struct bench_link bench = {
	    .ops = {true, true, true},
	    .seed = fp_clock_ns(),
	    .duration_ns = DEFAULT_NS,
	    .spin_ns = DEFAULT_SPIN_NS,
	    .dir_lock_fd = -1,
	};
	int status, r = -EINVAL;

	if (parse(&bench, argc, argv, &status)) {
		r = bench.named ? 0
		                : fp_stats_dir_run_dir_create("bench link", bench.dir, sizeof(bench.dir),
		                                              &bench.dir_lock_fd);
		for (unsigned i = 0; r == 0 && i < bench.n_ways; i++)
			r = run_way(&bench, &bench.ways[i]);
		if (r == 0)
			(bench.json ? print_json : print_text)(&bench);
		status = r < 0 ? 1 : fp_tool_flush(&fp_tool_bench_link);
	}
	done(&bench);
	return status;
}

const struct fp_tool fp_tool_bench_link = {
    .name = "link",
    .label = "bench link",
    .summary = "what a READ, a WRITE and a two-sided call cost over a link, by size and depth",
    .help =
        "usage: farpage bench link [URL...] [OPTION...]\n"
        "\n"
        "Leases 8 MiB at each node and measures requests over one link, without pages and faults: latency "
        "from\n"
        "submission to completion and throughput of READ and WRITE by size and by how many are under way at\n"
        "once, and of a two-sided call (rpc), one at a time. Without a URL, over shm and tcp to nodes "
        "started\n"
        "for it. What was moved is verified.\n"
        "\n"
        "  --sizes LIST         bytes of a request; 16x4K is one of 16 pieces of 4 KiB; default\n"
        "                       " DEFAULT_SIZES "\n"
        "  --depths LIST        requests under way at once, 1 to 256; default " DEFAULT_DEPTHS "\n"
        "  --op LIST            of read and write: one-sided, over rdma the READ and the WRITE of its queue "
        "pair;\n"
        "                       and rpc: two-sided, over rdma a SEND there and a SEND back; default all\n"
        "  --seconds TIME       for which each cell of the table is measured; default 0.2\n"
        "  --spin TIME          for which a READ or WRITE is waited for awake, then asleep; an rpc always "
        "sleeps;\n"
        "                       default 200us; 0 compares like with like\n"
        "  --protocol NAME      how bytes get to an RDMA device: auto, inline, eager or registered; what "
        "one\n"
        "                       cannot carry goes eager; default auto\n"
        "  --secret-file FILE   the shared secret of the nodes named\n"
        "  --seed N             of the contents; default: the clock\n"
        "  --json               one object, times in µs\n",
    .main = link_main,
};
