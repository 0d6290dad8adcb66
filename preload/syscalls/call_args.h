/*
 * One call that hands memory to the kernel, while it is under way: the pins it holds, the copies
 * that the kernel gets, and what becomes of those. Room: preload/syscalls. calls.c drives it.
 *
 * A struct fp_call_args lives on its caller's stack, which may itself be far. Only its scratch,
 * which never is far, goes to the kernel.
 */
#ifndef FP_CALLJOB_H
#define FP_CALLJOB_H

#include <sys/socket.h>

#include "agent.h"
#include "calls.h"

#define FP_CALL_ARGS_FEW     16 /* ranges, and copies, that need no memory of their own */
#define FP_CALL_ARGS_MANY    2048
#define FP_CALL_ARGS_SCRATCH 1024

/* The most bytes that the kernel gets as copies, in place of memory that can't be pinned. */
#define FP_CALL_ARGS_COPY_MAX (16u << 20)

struct fp_call_args_copy {
	char *user, *local, *before; /* before: as it was; NULL: the kernel does not write it */
	size_t len;
};

struct fp_call_args_messages {
	char *user, *local;
	unsigned n;
	size_t stride; /* of mmsghdr, or msghdr */
	bool is_received;
};

struct fp_call_args {
	const struct fp_call_piece *pieces;
	long args[FP_CALL_ARGS];
	long *a;      /* the arguments that the pieces number */
	bool by_copy; /* copies memory that is too long to pin */
	bool is_far;  /* at least one range is far */
	bool refuse;  /* the kernel would use the memory after the call */

	struct fp_pin_range *ranges;
	unsigned n_ranges;
	struct fp_call_args_copy *copies;
	unsigned n_copies;
	struct fp_pin_range few_ranges[FP_CALL_ARGS_FEW];
	struct fp_call_args_copy few_copies[FP_CALL_ARGS_FEW];
	struct fp_call_args_messages messages;
	size_t copied;

	struct fp_pin hold;
	bool is_held;
	unsigned masks; /* one bit for each argument that names a mask; SIGBUS is already left out of it */
	struct fp_call_args_block *blocks;
	size_t scratch_used;
	_Alignas(16) char scratch[FP_CALL_ARGS_SCRATCH];
};

/* True if any byte of the range may be far. */
bool fp_call_args_far(const void *addr, size_t len);

/* Copies len bytes from the program's memory, far or local. 0 or -EFAULT; -E2BIG if not even a page
 * can be pinned. */
int fp_call_args_fetch(void *dst, const void *src, size_t len);
/* The same to the program's memory. */
int fp_call_args_store(void *dst, const void *src, size_t len);

/* Fills *job in; the caller sets its arguments. Every begin needs an end, even if the thread is
 * cancelled. If a longjmp leaves the job behind, the agent unpins at the thread's next one. */
void fp_call_args_begin(struct fp_call_args *job, const struct fp_call_piece *pieces, bool by_copy);
void fp_call_args_end(struct fp_call_args *job);

/*
 * Collects what the pieces name and pins it. Arguments then name copies where the kernel must see
 * copies. 0; -E2BIG: too much to pin, or to copy; -EFAULT: the program does not have that memory.
 * A failure changes no argument of the caller's, but may change job->args.
 */
int fp_call_args_prepare(struct fp_call_args *job);

/* Called when the call can't be prepared, so that the kernel finds out why: gives it the caller's
 * arguments, except for masks. */
void fp_call_args_give_up(struct fp_call_args *job, const long *args);

/* True if the kernel looks at this mutex also when it is unlocked. */
bool fp_call_args_is_special_mutex(const void *mutex);

/*
 * Unpins everything, and copies back what the kernel wrote into copies. ret is the call's result,
 * and is returned. An address inside a copy becomes the program's own.
 */
long fp_call_args_finish(struct fp_call_args *job, long ret);

#endif
