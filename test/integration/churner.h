/*
 * The churn: threads use far memory in every way that a program may, at random, and compare what
 * they read with a shadow copy in ordinary memory. Room: test/integration; it stands on uffd's
 * front door, and looks inside only to say what went wrong.
 *
 * A thread owns its mappings alone, so that its shadow is exact at every moment. One more mapping
 * belongs to all: thread i of n writes only the words that are i modulo n in a page, and the last
 * word of a page is a counter that all of them increase, so that several threads fault on one page
 * at the same time.
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
	size_t bytes;         /* of far memory that all threads together map at once, at most */
	uint64_t duration_ns; /* 0: no limit */
	uint64_t ops;         /* of each thread; 0: no limit */
};

struct churn_result {
	uint64_t ops;
	uint64_t
	    refused; /* layout calls that failed with -ENOMEM or -EINVAL; any other error ends the process */
	uint64_t longest_ns; /* the operation that took longest */
};

#define CHURN_MAX_THREADS 64u

/*
 * Runs until the time or the operations are used up, then compares everything, and the pager's
 * books with the kernel's. A wrong byte, or a call that fails as it must not, is printed (address,
 * expected, found, state of the page, seed) and ends the process with status 1 at once.
 */
void churn_run(const struct churn_options *options, struct churn_result *ret_result);

#endif
