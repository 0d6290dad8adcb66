/*
 * Watches a churning process from outside, through /proc: how much far memory is resident, and
 * whether the process still goes on. Room: test/integration. It knows nothing of the pager: every
 * mapping registered with a userfaultfd counts as far memory.
 */
#ifndef FP_CHURNWATCH_H
#define FP_CHURNWATCH_H

#include <stdint.h>
#include <sys/types.h>

struct churnwatch {
	uint64_t peak_bytes; /* the most far memory that was resident */
	uint64_t samples;
};

/*
 * Samples pid, a child, until it ends, and returns its wait status. Kills the child, and prints
 * why, if any sample shows more than limit_bytes resident, or if it lives longer than timeout_ns.
 * The wait status then shows the kill.
 */
int churnwatch_run(pid_t pid, uint64_t limit_bytes, uint64_t timeout_ns, struct churnwatch *ret_watch);

#endif
