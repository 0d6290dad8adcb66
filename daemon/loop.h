/*
 * The io_uring loop: one thread that submits operations, and calls their owners back on completion.
 * One system call submits all operations of a round, and waits for the next completion. Room:
 * daemon. It knows operations and buffers, never the protocol.
 */
#ifndef FP_LOOP_H
#define FP_LOOP_H

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

#include "yamlconf.h"

#define FP_LOOP_BUF_BYTES 32768u /* of one receive buffer */
#define FP_LOOP_BUFS      128u

/*
 * Part of the object that owns an operation. That object stays in place until done was called
 * without IORING_CQE_F_MORE.
 */
struct fp_op {
	void (*done)(struct fp_op *op, int res, unsigned flags);
};

struct fp_loop {
	struct io_uring ring;
	struct io_uring_buf_ring *bufs; /* receive buffers that all connections share */
	uint8_t *buf_memory;
	bool stopped;
	/* Called before the completions of each round are looked at, unless NULL. */
	void (*begin_round)(struct fp_loop *loop);
	/* Called after each round of completions, unless NULL. True: the next round must not wait
	 * for a completion. */
	bool (*between_rounds)(struct fp_loop *loop);
};

/*
 * Sets the ring up. 0; else a negative errno, and error->text names the setting of the host that
 * prevents it. Release with fp_loop_done, on the same thread.
 */
int fp_loop_init(struct fp_loop *loop, struct fp_conf_error *error);
void fp_loop_done(struct fp_loop *loop);

/* Runs until fp_loop_stop. 0, or the negative errno with which the ring failed. */
int fp_loop_run(struct fp_loop *loop);
void fp_loop_stop(struct fp_loop *loop);

/*
 * Returns a submission whose completion calls op. Prepare it with io_uring_prep_* and
 * fp_loop_sqe_set. Never NULL.
 */
struct io_uring_sqe *fp_loop_sqe(struct fp_loop *loop);
/* Call it after io_uring_prep_*. op NULL: nobody is told of the completion. */
void fp_loop_sqe_set(struct io_uring_sqe *sqe, struct fp_op *op);

/* Submits a read. */
void fp_loop_read(struct fp_loop *loop, struct fp_op *op, int fd, void *buf, unsigned len);

/* Submits a timeout: calls op once when ts has passed. ts stays in place until then. */
void fp_loop_timeout(struct fp_loop *loop, struct fp_op *op, struct __kernel_timespec *ts);

/* Returns the shared buffer that a completion with these flags filled. fp_loop_buf_put gives it
 * back to the kernel. */
void *fp_loop_buf(struct fp_loop *loop, unsigned cqe_flags);
void fp_loop_buf_put(struct fp_loop *loop, unsigned cqe_flags);

#endif
