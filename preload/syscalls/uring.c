/* See uring.h. A ring that can't be restricted (a kernel before 5.10) is enabled all the same. */
#include "uring.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/syscall.h>

#include "call_args.h"
#include "far_pieces.h"

#define OPS_MAX      256u
#define REGISTER_MAX 64u /* more than any kernel has */

/* This is newer than some headers that we build with. */
#define SETUP_REGISTERED_FD_ONLY (1u << 15)

struct probe {
	struct io_uring_probe head;
	struct io_uring_probe_op ops[OPS_MAX];
};

static long do_register(int ring, unsigned what, const void *arg, unsigned n)
{
	return FP_RAW(SYS_io_uring_register, ring, what, arg, n, 0, 0);
}

static unsigned add_ops(struct io_uring_restriction *all, unsigned last)
{
	unsigned n = 0;

	for (unsigned op = 0; op <= last; op++)
		if (op != IORING_OP_MADVISE)
			all[n++] = (struct io_uring_restriction){.opcode = IORING_RESTRICTION_SQE_OP,
			                                         .sqe_op = (uint8_t)op};
	all[n++] = (struct io_uring_restriction){.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED,
	                                         .sqe_flags = UINT8_MAX};
	return n;
}

/*
 * Makes a ring permit all operations but one. The kernel refuses lists with commands that it does
 * not know, so we try shorter and shorter ones.
 */
static void restrict_ring(int ring)
{
	struct io_uring_restriction all[OPS_MAX + REGISTER_MAX];
	struct probe probe = {.head = {.last_op = 0}};
	unsigned n, commands = REGISTER_MAX;
	long r;

	if (do_register(ring, IORING_REGISTER_PROBE, &probe, OPS_MAX) < 0)
		return;
	n = add_ops(all, probe.head.last_op);
	for (unsigned i = 0; i < REGISTER_MAX; i++)
		all[n + i] = (struct io_uring_restriction){.opcode = IORING_RESTRICTION_REGISTER_OP,
		                                           .register_op = (uint8_t)i};
	do
		r = do_register(ring, IORING_REGISTER_RESTRICTIONS, all, n + commands);
	while (r == -EINVAL && --commands > 0);
}

static void start(int ring)
{
	restrict_ring(ring);
	(void)do_register(ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
}

static bool is_ours(unsigned flags)
{
	return fp_shim_space() && !(flags & (IORING_SETUP_R_DISABLED | SETUP_REGISTERED_FD_ONLY));
}

long fp_uring_setup(unsigned entries, struct io_uring_params *params)
{
	struct io_uring_params copy;
	long ring;

	if (fp_call_args_fetch(&copy, params, sizeof(copy)) < 0 || !is_ours(copy.flags))
		return FP_RAW(SYS_io_uring_setup, entries, params, 0, 0, 0, 0);
	copy.flags |= IORING_SETUP_R_DISABLED;
	ring = FP_RAW(SYS_io_uring_setup, entries, &copy, 0, 0, 0, 0);
	copy.flags &= ~IORING_SETUP_R_DISABLED;
	if (ring < 0)
		return ring;
	if (fp_call_args_store(params, &copy, sizeof(copy)) < 0) {
		FP_RAW(SYS_close, ring, 0, 0, 0, 0, 0);
		return -EFAULT;
	}
	start((int)ring);
	return ring;
}

static int end_queue(int r, struct io_uring *ring)
{
	if (r < 0)
		return r;
	ring->flags &= ~IORING_SETUP_R_DISABLED;
	start(ring->ring_fd);
	return r;
}

int fp_uring_queue(fp_uring_fn *real, long entries, long ring, long flags)
{
	if (!is_ours((unsigned)flags))
		return real(entries, ring, flags);
	return end_queue(real(entries, ring, flags | IORING_SETUP_R_DISABLED), (struct io_uring *)ring);
}

int fp_uring_queue_params(fp_uring_fn *real, long entries, long ring, long params_arg)
{
	struct io_uring_params *params = (struct io_uring_params *)params_arg;
	int r;

	if (!is_ours(params->flags))
		return real(entries, ring, params_arg);
	params->flags |= IORING_SETUP_R_DISABLED;
	r = real(entries, ring, params_arg);
	params->flags &= ~IORING_SETUP_R_DISABLED;
	return end_queue(r, (struct io_uring *)ring);
}
