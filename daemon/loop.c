/*
 * The io_uring loop. Room: daemon; see loop.h.
 */
#include "loop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"
#include "log.h"

#define SQ_ENTRIES 1024
#define CQ_ENTRIES 4096
#define BUF_GROUP  0

/* Linux 6.1 has all of these flags. */
static int setup_ring(struct io_uring *ring)
{
	struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
	                                          IORING_SETUP_CQSIZE,
	                                 .cq_entries = CQ_ENTRIES};

	return io_uring_queue_init_params(SQ_ENTRIES, ring, &params);
}

static int explain_refusal(int r, struct fp_conf_error *error)
{
	const char *remedy = "see io_uring_setup(2)";
	char reason[64];

	if (r == -EPERM || r == -EACCES)
		remedy = "set 'sysctl kernel.io_uring_disabled=0'; in a container, use a seccomp profile "
		         "that allows "
		         "io_uring_setup, io_uring_enter and io_uring_register";
	else if (r == -ENOSYS || r == -EINVAL)
		remedy = "this kernel is older than Linux 6.1 or built without io_uring, or a seccomp "
		         "profile hides it";
	else if (r == -EMFILE)
		remedy = "raise the limit of open files (LimitNOFILE=, ulimit -n)";
	else if (r == -ENOMEM)
		remedy = "raise the limit of locked memory (LimitMEMLOCK=, ulimit -l)";
	snprintf(error->text, sizeof(error->text), "io_uring is refused (%s): %s",
	         fp_strerror(r, reason, sizeof(reason)), remedy);
	return r;
}

static int setup_bufs(struct fp_loop *loop)
{
	struct io_uring_buf_reg reg = {.ring_entries = FP_LOOP_BUFS, .bgid = BUF_GROUP};
	size_t ring_bytes = FP_LOOP_BUFS * sizeof(struct io_uring_buf);
	int r;

	loop->bufs = mmap(NULL, ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (loop->bufs == MAP_FAILED)
		loop->bufs = NULL;
	loop->buf_memory = aligned_alloc(4096, (size_t)FP_LOOP_BUFS * FP_LOOP_BUF_BYTES);
	if (!loop->bufs || !loop->buf_memory)
		return -ENOMEM;
	io_uring_buf_ring_init(loop->bufs);
	reg.ring_addr = (uintptr_t)loop->bufs;
	r = io_uring_register_buf_ring(&loop->ring, &reg, 0);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < FP_LOOP_BUFS; i++)
		io_uring_buf_ring_add(loop->bufs, loop->buf_memory + (size_t)i * FP_LOOP_BUF_BYTES,
		                      FP_LOOP_BUF_BYTES, (unsigned short)i,
		                      io_uring_buf_ring_mask(FP_LOOP_BUFS), (int)i);
	io_uring_buf_ring_advance(loop->bufs, (int)FP_LOOP_BUFS);
	return 0;
}

void fp_loop_done(struct fp_loop *loop)
{
	io_uring_queue_exit(&loop->ring);
	if (loop->bufs)
		munmap(loop->bufs, FP_LOOP_BUFS * sizeof(struct io_uring_buf));
	free(loop->buf_memory);
}

int fp_loop_init(struct fp_loop *loop, struct fp_conf_error *error)
{
	int r;

	*loop = (struct fp_loop){0};
	r = setup_ring(&loop->ring);
	if (r < 0)
		return explain_refusal(r, error);
	r = setup_bufs(loop);
	if (r < 0) {
		fp_loop_done(loop);
		return explain_refusal(r, error);
	}
	return 0;
}

static void dispatch(const struct io_uring_cqe *cqe)
{
	struct fp_op *op = io_uring_cqe_get_data(cqe);

	if (op)
		op->done(op, cqe->res, cqe->flags);
}

int fp_loop_run(struct fp_loop *loop)
{
	bool busy = false;

	while (!loop->stopped) {
		struct io_uring_cqe *cqe;
		unsigned head, n = 0;
		int r = busy ? io_uring_submit_and_get_events(&loop->ring)
		             : io_uring_submit_and_wait(&loop->ring, 1);

		if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
			return r;
		if (loop->begin_round)
			loop->begin_round(loop);
		io_uring_for_each_cqe(&loop->ring, head, cqe)
		{
			dispatch(cqe);
			n++;
		}
		io_uring_cq_advance(&loop->ring, n);
		busy = loop->between_rounds && loop->between_rounds(loop);
	}
	return 0;
}

void fp_loop_stop(struct fp_loop *loop)
{
	loop->stopped = true;
}

struct io_uring_sqe *fp_loop_sqe(struct fp_loop *loop)
{
	struct io_uring_sqe *sqe;

	while (!(sqe = io_uring_get_sqe(&loop->ring)))
		io_uring_submit(&loop->ring);
	return sqe;
}

void fp_loop_sqe_set(struct io_uring_sqe *sqe, struct fp_op *op)
{
	io_uring_sqe_set_data(sqe, op);
}

void fp_loop_read(struct fp_loop *loop, struct fp_op *op, int fd, void *buf, unsigned len)
{
	struct io_uring_sqe *sqe = fp_loop_sqe(loop);

	io_uring_prep_read(sqe, fd, buf, len, 0);
	fp_loop_sqe_set(sqe, op);
}

void fp_loop_timeout(struct fp_loop *loop, struct fp_op *op, struct __kernel_timespec *ts)
{
	struct io_uring_sqe *sqe = fp_loop_sqe(loop);

	io_uring_prep_timeout(sqe, ts, 0, 0);
	fp_loop_sqe_set(sqe, op);
}

void *fp_loop_buf(struct fp_loop *loop, unsigned cqe_flags)
{
	return loop->buf_memory + (size_t)(cqe_flags >> IORING_CQE_BUFFER_SHIFT) * FP_LOOP_BUF_BYTES;
}

void fp_loop_buf_put(struct fp_loop *loop, unsigned cqe_flags)
{
	io_uring_buf_ring_add(loop->bufs, fp_loop_buf(loop, cqe_flags), FP_LOOP_BUF_BYTES,
	                      (unsigned short)(cqe_flags >> IORING_CQE_BUFFER_SHIFT),
	                      io_uring_buf_ring_mask(FP_LOOP_BUFS), 0);
	io_uring_buf_ring_advance(loop->bufs, 1);
}
