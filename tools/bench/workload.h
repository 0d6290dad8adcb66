/*
 * The workloads of `farpage bench apps` that are our own: pure computation on memory of malloc, as
 * an unmodified program does it. Room: tools/bench. A workload knows no far memory.
 */
#ifndef FP_WORKLOAD_H
#define FP_WORKLOAD_H

#include <stdint.h>
#include <stdio.h>

struct fp_workload {
	const char *name;
	/*
	 * Makes the data, about size_bytes of memory, from the seed. 0 and *ret_data, which is
	 * released by release(); or -ENOMEM. Fills memory in order, because this part is not timed.
	 */
	int (*prepare)(uint64_t size_bytes, uint64_t seed, void **ret_data);
	/* The timed part. It is done once for each preparation. */
	void (*run)(void *data);
	/* A number that depends on every result, and on nothing but size_bytes and seed. */
	uint64_t (*checksum)(void *data);
	void (*release)(void *data); /* NULL is fine */
};

extern const struct fp_workload fp_workload_quicksort, fp_workload_kmeans, fp_workload_graph,
    fp_workload_hash, fp_workload_stream, fp_workload_columns;

/* The names of all of them, ended by NULL. */
extern const char *const fp_workload_names[];

/* The workload whose name stands at this index of fp_workload_names. */
const struct fp_workload *fp_workload_get(unsigned index);

/* What one run of a workload came to. Also programs of other languages print it. */
struct fp_workload_result {
	double seconds; /* the timed part */
	double setup_seconds;
	uint64_t checksum;
};

/* Does all parts of a workload in this process. 0 and *ret_result, or -ENOMEM. */
int fp_workload_measure(const struct fp_workload *workload, uint64_t size_bytes, uint64_t seed,
                        struct fp_workload_result *ret_result);

/* Writes the result as one line. */
void fp_workload_print(const struct fp_workload_result *result, FILE *out);

/* Reads such a line. 0 and *ret_result, or -EINVAL. */
int fp_workload_parse(const char *line, struct fp_workload_result *ret_result);

#endif
