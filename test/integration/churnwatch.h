/*
 * Looks at a churning process from outside, through /proc: how much far memory it has resident, and
 * whether it still moves. Room: test/integration. It knows nothing of the pager: far memory is what
 * is registered with a userfaultfd.
 */
#ifndef FP_CHURNWATCH_H
#define FP_CHURNWATCH_H

#include <stdint.h>
#include <sys/types.h>

struct churnwatch {
	uint64_t peak_bytes; /* of resident far memory */
	uint64_t samples;
};

/*
 * Samples pid, a child, until it ends, and returns its wait status. A child that has more than
 * limit_bytes resident at any sample, or lives longer than timeout_ns, is killed, with a message
 * that says so; the status is then that of the kill.
 */
int churnwatch_run(pid_t pid, uint64_t limit_bytes, uint64_t timeout_ns, struct churnwatch *ret_watch);

#endif
