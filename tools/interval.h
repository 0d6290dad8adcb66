/*
 * What a program did between two looks at its stats page. Room: tools. Pure.
 */
#ifndef FP_INTERVAL_H
#define FP_INTERVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "statsview.h"

struct fp_interval {
	bool known;     /* false: the program was not seen before, and all figures are 0 */
	uint64_t timed; /* faults whose latency was measured */
	uint64_t faults_per_s;
	uint64_t fetched_bytes_per_s;
	uint64_t written_bytes_per_s;
	uint64_t p50_ns, p99_ns; /* of the faults that were timed; 0: there were none */
};

/*
 * before is an earlier look at the page of the parameter now, or NULL if there was none. A look at
 * another page counts as none: one of an earlier program with the same process number, or of
 * another far memory of the process.
 */
void fp_interval_of(const struct fp_statsview *before, const struct fp_statsview *now, uint64_t passed_ns,
                    struct fp_interval *ret_interval);

#endif
