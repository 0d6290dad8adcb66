/*
 * The table of workloads, and a run of one. Room: tools/bench; see workload.h.
 */
#include "workload.h"

#include <errno.h>
#include <inttypes.h>

#include "cleanup.h"
#include "clock.h"

static const struct fp_workload *const workloads[] = {
    &fp_workload_quicksort, &fp_workload_kmeans, &fp_workload_graph,
    &fp_workload_hash,      &fp_workload_stream, &fp_workload_columns,
};

const char *const fp_workload_names[] = {"quicksort", "kmeans", "graph", "hash", "stream", "columns", NULL};

_Static_assert(FP_ARRAY_LEN(workloads) + 1 == FP_ARRAY_LEN(fp_workload_names), "a workload has no name");

const struct fp_workload *fp_workload_get(unsigned index)
{
	return workloads[index];
}

static double seconds_since(uint64_t start_ns)
{
	return (double)(fp_clock_kernel_ns() - start_ns) / FP_NSEC_PER_SEC;
}

int fp_workload_measure(const struct fp_workload *workload, uint64_t size_bytes, uint64_t seed,
                        struct fp_workload_result *ret_result)
{
	struct fp_workload_result result;
	uint64_t start_ns = fp_clock_kernel_ns();
	void *data;
	int r = workload->prepare(size_bytes, seed, &data);

	if (r < 0)
		return r;
	result.setup_seconds = seconds_since(start_ns);
	start_ns = fp_clock_kernel_ns();
	workload->run(data);
	result.seconds = seconds_since(start_ns);
	result.checksum = workload->checksum(data);
	workload->release(data);
	*ret_result = result;
	return 0;
}

void fp_workload_print(const struct fp_workload_result *result, FILE *out)
{
	fprintf(out, "seconds %.9f setup_seconds %.9f checksum %016" PRIx64 "\n", result->seconds,
	        result->setup_seconds, result->checksum);
}

int fp_workload_parse(const char *line, struct fp_workload_result *ret_result)
{
	struct fp_workload_result result;
	int len = 0;

	if (sscanf(line, "seconds %lf setup_seconds %lf checksum %16" SCNx64 "%n", &result.seconds,
	           &result.setup_seconds, &result.checksum, &len) != 3 ||
	    line[len] != '\n' || !(result.seconds >= 0) || !(result.setup_seconds >= 0))
		return -EINVAL;
	*ret_result = result;
	return 0;
}
