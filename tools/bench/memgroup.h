/*
 * A control group with a limit of memory, of version 2 or 1, for one program of a bench. Room:
 * tools/bench. Needs root.
 */
#ifndef FP_MEMGROUP_H
#define FP_MEMGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A plain value: a copy serves as well. Zeros: no group. */
struct fp_memgroup {
	char dir[192];
	bool is_v2;
};

/*
 * Makes a group of its own at the top of the hierarchy. Its processes may use limit_bytes of
 * memory, and swap without limit. Changes no other group: if the kernel offers no limit without
 * such a change, this fails. 0 and *ret_group; else a negative errno and a text in error. Remove it
 * with fp_memgroup_remove.
 */
int fp_memgroup_make(uint64_t limit_bytes, char *error, size_t error_len, struct fp_memgroup *ret_group);

/* Moves the calling process into the group. For a child between fork and exec. 0 or a negative
 * errno. */
int fp_memgroup_enter(const struct fp_memgroup *group);

/* True if the kernel has killed a process of the group for want of memory. */
bool fp_memgroup_has_killed(const struct fp_memgroup *group);

/*
 * Kills the group's processes and removes it. Waits for their end, for some seconds at most. 0, or
 * a negative errno if the group is still there. Zeros are fine.
 */
int fp_memgroup_remove(const struct fp_memgroup *group);

#endif
