/*
 * Rings of io_uring that refuse IORING_OP_MADVISE. Room: preload/syscalls. Only in fault mode
 * thread: elsewhere rings are refused.
 *
 * By this operation a program can drop far memory: we don't see it in the ring, and the kernel does
 * not report it. So we set the ring up disabled, tell the kernel to refuse that one operation (its
 * completion says EACCES), and enable the ring.
 *
 * Two kinds of rings stay as they are: rings that the program sets up disabled, to restrict them or
 * hand them on, and rings without a descriptor.
 */
#ifndef FP_URING_H
#define FP_URING_H

#include <linux/io_uring.h>

/*
 * io_uring_setup(2): returns the ring's descriptor, or a negative errno. *params is memory of the
 * program.
 */
long fp_uring_setup(unsigned entries, struct io_uring_params *params);

/* The type of liburing's functions that set up a ring, and of libaio's that set up a context. */
typedef int fp_uring_fn(long a, long b, long c);

/*
 * Carries out io_uring_queue_init(entries, ring, flags) or io_uring_queue_init_params(entries,
 * ring, params). real is liburing's own function.
 */
int fp_uring_queue(fp_uring_fn *real, long entries, long ring, long flags);
int fp_uring_queue_params(fp_uring_fn *real, long entries, long ring, long params);

#endif
