/*
 * The bare floor: the least that a page fault through userfaultfd can cost, as the yardstick of
 * `farpage bench`. Room: tools. Of fault mode thread: one thread on the faulting core reads
 * messages, blocking, and copies a page. Of inline: the handler of SIGBUS copies it. No state, no
 * policy, no eviction, no network. It is deliberately independent of uffd/: a yardstick must not
 * bend with what it measures.
 */
#ifndef FP_FLOOR_H
#define FP_FLOOR_H

#include <stdbool.h>
#include <stddef.h>

struct fp_floor;

/*
 * Maps bytes (a multiple of the page size) whose faults are served by a thread on cpu from a copy
 * of their own, which starts as zeros. 0 and *ret_floor; -ENOSYS and -EPERM: no userfaultfd here.
 * Needs no privilege: it asks for faults of user mode alone. Release with fp_floor_close.
 */
int fp_floor_open(size_t bytes, int cpu, bool is_inline, struct fp_floor **ret_floor);

/* Between these, touches are served: inline, SIGBUS has another handler at other times. One floor
 * at a time.
 */
int fp_floor_enter(struct fp_floor *floor);
void fp_floor_leave(struct fp_floor *floor);

/* Where touches fault. */
void *fp_floor_memory(const struct fp_floor *floor);

/* What the pages are filled with, the same length: write there what the touches shall find. */
void *fp_floor_source(const struct fp_floor *floor);

/* Takes all pages away, so that the next touch of each faults again. No touch may be under way. 0
 * or a negative errno. */
int fp_floor_reset(struct fp_floor *floor);

/* NULL is fine. */
void fp_floor_close(struct fp_floor *floor);

#endif
