/*
 * The histograms of a stats page by name. Room: tools.
 */
#include "phase.h"

#include <stddef.h>

#define PHASE(text, field)                                                                                   \
	{                                                                                                    \
		text, offsetof(struct fp_statspage, field)                                                   \
	}

const char *const fp_phase_names[FP_PHASES + 1] = {"fault", "fetch", "writeback", "evict", NULL};

const struct fp_phase fp_phases[FP_PHASES] = {
    PHASE("fault latency", fault_latency),
    PHASE("fetch latency (over shm: one in 8 timed)", fetch_latency),
    PHASE("write-back latency", writeback_latency),
    PHASE("eviction latency", evict_latency),
};

const char *const fp_phase_kind_names[FP_PHASE_KINDS + 1] = {"all",     "zero",   "read", "write",
                                                             "protect", "waited", NULL};

const struct fp_phase fp_phase_kinds[FP_PHASE_KINDS] = {
    PHASE("fault latency", fault_latency),
    PHASE("fault latency, pages never written", kind_latency[FP_FAULT_ZERO]),
    PHASE("fault latency, reads", kind_latency[FP_FAULT_READ]),
    PHASE("fault latency, writes", kind_latency[FP_FAULT_WRITE]),
    PHASE("fault latency, writes to clean pages", kind_latency[FP_FAULT_PROTECT]),
    PHASE("fault latency, waited for local memory", waited_latency),
};

const struct fp_hist *fp_phase_hist(const struct fp_phase *phase, const struct fp_statspage *page)
{
	return (const struct fp_hist *)((const char *)page + phase->offset);
}
