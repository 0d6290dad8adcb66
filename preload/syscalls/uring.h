/*
 * Rings of io_uring that take no IORING_OP_MADVISE. Room: preload.
 *
 * Nobody sees what a program writes into a ring, and the kernel tells nobody that it drops far
 * memory. So a ring is set up disabled, the kernel is told to refuse that one operation (its
 * completion says EACCES), and then it is enabled. Rings that the program itself sets up disabled,
 * to restrict them or to hand them on, and those without a descriptor, stay as they are. Fault mode
 * thread alone: elsewhere rings are refused.
 */
#ifndef FP_URING_H
#define FP_URING_H

#include <linux/io_uring.h>

/* io_uring_setup(2): the ring, or a negative errno. params is the program's. */
long fp_uring_setup(unsigned entries, struct io_uring_params *params);

/* A function of liburing's, or any of its shape. */
typedef int fp_uring_fn(long a, long b, long c);

/* io_uring_queue_init(entries, ring, flags) and io_uring_queue_init_params(entries, ring, params),
 * by real.
 */
int fp_uring_queue(fp_uring_fn *real, long entries, long ring, long flags);
int fp_uring_queue_params(fp_uring_fn *real, long entries, long ring, long params);

#endif
