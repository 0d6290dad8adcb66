/*
 * The report that `farpage run --report` prints at the end. Room: tools.
 */
#ifndef FP_REPORT_H
#define FP_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "runstats.h"

/*
 * Prints the report of one run to out, with the numbers of the last fp_runstats_update. name: the
 * program's name. wall_ns: how long the program ran.
 */
void fp_report_print(const struct fp_runstats *stats, const char *name, uint64_t wall_ns, FILE *out);

#endif
