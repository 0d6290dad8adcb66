/*
 * farpage bench: a table of benches. Room: tools/bench.
 */
#include "bench.h"

static const struct fp_tool *const benches[] = {&fp_tool_bench_fault, &fp_tool_bench_link,
                                                &fp_tool_bench_touch, &fp_tool_bench_apps, NULL};

static int bench_main(int argc, char **argv)
{
	return fp_tool_dispatch(&fp_tool_bench, argc, argv);
}

const struct fp_tool fp_tool_bench = {
    .name = "bench",
    .label = "bench",
    .summary = "what faults, links, passes over far memory and whole programs cost here",
    .help = "usage: farpage bench fault|link|touch|apps [--json] [OPTION...]\n"
            "\n"
            "`farpage help bench fault` and so on tell more. Benches:\n",
    .commands = benches,
    .main = bench_main,
};
