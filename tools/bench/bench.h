/*
 * The benches: the subcommands of `farpage bench`. Room: tools/bench. They measure far memory
 * through the public API, links through the transport interface, and the bare kernel by floor.h. In
 * tools/ only the table of subcommands sees them, through tool.h.
 */
#ifndef FP_BENCH_H
#define FP_BENCH_H

#include "tool.h"

extern const struct fp_tool fp_tool_bench_fault, fp_tool_bench_link, fp_tool_bench_touch, fp_tool_bench_apps;

#endif
