/*
 * The benches, subcommands of `farpage bench`. Room: tools/bench. It measures far memory through
 * the public API, links through the transport interface, and the kernel alone (floor.h). Nothing of
 * tools/ sees it but the table of subcommands, through tool.h.
 */
#ifndef FP_BENCH_H
#define FP_BENCH_H

#include "tool.h"

extern const struct fp_tool fp_tool_bench_fault, fp_tool_bench_link, fp_tool_bench_touch;

#endif
