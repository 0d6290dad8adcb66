/*
 * What a program did between two looks. Room: tools; see interval.h.
 */
#include "interval.h"

#include "cleanup.h"
#include "clock.h"
#include "stats_dir.h"

/* Counters of another program's file may be anything: no difference is below 0. */
static uint64_t per_s(uint64_t before, uint64_t now, uint64_t passed_ns)
{
	uint64_t since = now - FP_MIN(before, now);
	double rate = (double)since * (double)FP_NSEC_PER_SEC / (double)FP_MAX(passed_ns, 1u) + 0.5;

	return rate < (double)INT64_MAX ? (uint64_t)rate : (uint64_t)INT64_MAX;
}

void fp_interval_of(const struct fp_statsview *before, const struct fp_statsview *now, uint64_t passed_ns,
                    struct fp_interval *ret_interval)
{
	const struct fp_statspage *from, *to = &now->page;
	struct fp_hist latency = to->fault_latency;
	uint64_t faults = fp_stats_dir_faults(to);

	*ret_interval = (struct fp_interval){.known = false};
	if (!before || !fp_statspage_same(&before->page, to))
		return;
	from = &before->page;
	fp_hist_subtract(&latency, &from->fault_latency);
	*ret_interval = (struct fp_interval){
	    .known = true,
	    .timed = fp_hist_count(&latency),
	    .faults_per_s = per_s(fp_stats_dir_faults(from), faults, passed_ns),
	    .fetched_bytes_per_s = per_s(from->fetched_bytes, to->fetched_bytes, passed_ns),
	    .written_bytes_per_s = per_s(from->written_bytes, to->written_bytes, passed_ns),
	    .p50_ns = fp_hist_quantile(&latency, 0.5),
	    .p99_ns = fp_hist_quantile(&latency, 0.99),
	};
}
