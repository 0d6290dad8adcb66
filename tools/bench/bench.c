/*
 * farpage bench: a table of benches. Room: tools.
 */
#include <string.h>

#include "bench.h"

static const struct fp_tool *const benches[] = {&fp_tool_bench_fault, &fp_tool_bench_link,
                                                &fp_tool_bench_touch, NULL};

static int bench_main(int argc, char **argv)
{
	const struct fp_tool *bench;

	if (argc < 2)
		return fp_tool_usage(&fp_tool_bench, "which one?");
	if (strcmp(argv[1], "--help") == 0)
		return fp_tool_help(&fp_tool_bench);
	bench = fp_tool_find(benches, argv[1]);
	if (!bench)
		return fp_tool_usage(&fp_tool_bench, "%s: there is no such bench", argv[1]);
	return fp_tool_start(bench, argc - 1, argv + 1);
}

const struct fp_tool fp_tool_bench = {
    .name = "bench",
    .label = "bench",
    .summary = "what faults, links and whole passes over far memory cost here",
    .help =
        "usage: farpage bench fault|link|touch [--json] [OPTION...]\n"
        "\n"
        "  fault  what one fault costs, beside the bare floor, over each transport\n"
        "  link   what a READ, a WRITE and a two-sided call cost over a link, by size and depth\n"
        "  touch  µs a page of sequential reads, random reads and random writes with little local memory\n"
        "\n"
        "`farpage bench fault --help` and so on tell more.\n",
    .main = bench_main,
};
