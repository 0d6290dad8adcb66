/*
 * Rings of io_uring that refuse IORING_OP_MADVISE. Room: preload/syscalls.
 *
 * We don't see what a program writes into a ring, and the kernel does not tell us that such an
 * operation drops far memory. So we set the ring up disabled, tell the kernel to refuse that one
 * operation (its completion says EACCES), and enable the ring. Two kinds of rings stay as they are:
 * rings that the program sets up disabled, to restrict them or hand them on, and rings without a
 * descriptor. Only in fault mode thread: elsewhere rings are refused.
 */
#ifndef FP_URING_H
#define FP_URING_H

#include <linux/io_uring.h>

/* io_uring_setup(2): the ring, or a negative errno. params is the program's. */
long fp_uring_setup(unsigned entries, struct io_uring_params *params);

/* A function of liburing's, or any of its shape. */
typedef int fp_uring_fn(long a, long b, long c);

/* io_uring_queue_init(entries, ring, flags) and io_uring_queue_init_params(entries, ring, params),
 * carried out by real.
 */
int fp_uring_queue(fp_uring_fn *real, long entries, long ring, long flags);
int fp_uring_queue_params(fp_uring_fn *real, long entries, long ring, long params);

#endif
