/*
 * The churn: threads use far memory at random in every way that a program may. They compare what
 * they read with a shadow copy in ordinary memory. Room: test/integration. It uses uffd's agent as
 * programs do, and looks inside only to explain a failure.
 *
 * A thread does not share its mappings with other threads, so its shadow is exact at every moment.
 * One more mapping belongs to all threads. In each of its pages, thread i of n writes only the
 * words whose number is i modulo n. All threads increase the last word of a page, so several
 * threads fault on one page at the same time.
 */
#ifndef FP_CHURNER_H
#define FP_CHURNER_H

#include <stddef.h>
#include <stdint.h>

struct fp_agent;

struct churn_options {
	struct fp_agent *agent;
	uint64_t seed;        /* the same seed gives each thread the same operations */
	unsigned n_threads;   /* at most CHURN_MAX_THREADS */
	size_t bytes;         /* at most so much far memory is mapped at once, by all threads together */
	uint64_t duration_ns; /* 0: no limit */
	uint64_t ops;         /* operations of each thread; 0: no limit */
};

struct churn_result {
	uint64_t ops;
	/* Layout calls that failed with -ENOMEM or -EINVAL; any other error ends the process. */
	uint64_t refused;
	uint64_t longest_ns; /* the time that the longest operation took */
};

#define CHURN_MAX_THREADS 64u

/*
 * Runs until the time or the operations are used up. Then it compares all bytes, and the pager's
 * records with the kernel's. A wrong byte or an unexpected error ends the process at once with
 * status 1 and a message with the seed. For a wrong byte the message also has the address, the
 * expected and the found byte, and the state of the page.
 */
void churn_run(const struct churn_options *options, struct churn_result *ret_result);

#endif
