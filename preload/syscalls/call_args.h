/*
 * One call that hands memory to the kernel, while it is under way: what is held for it, what the
 * kernel gets copies of, and what becomes of those. Room: preload, between calls.c, which drives
 * it, and the agent.
 *
 * A job lives on its caller's stack, which may itself be far: nothing of it goes to the kernel but
 * the scratch, which never is.
 */
#ifndef FP_CALLJOB_H
#define FP_CALLJOB_H

#include <sys/socket.h>

#include "agent.h"
#include "calls.h"

#define FP_CALL_ARGS_FEW     16 /* ranges, and copies, that need no memory of their own */
#define FP_CALL_ARGS_MANY    2048
#define FP_CALL_ARGS_SCRATCH 1024

/* What the kernel gets copies of, at most, in place of what can't be held. */
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
	long *a;      /* those that the pieces number */
	bool by_copy; /* what is too long to hold is copied */
	bool is_far;  /* something was */
	bool refuse;  /* the kernel would use it after the call */

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
	unsigned masks; /* the arguments that name masks, a bit each: SIGBUS has been left out of them */
	struct fp_call_args_block *blocks;
	size_t scratch_used;
	_Alignas(16) char scratch[FP_CALL_ARGS_SCRATCH];
};

/* True if any byte of it may be far. */
bool fp_call_args_far(const void *addr, size_t len);

/* Copies len bytes from the program's memory, wherever it is. 0 or -EFAULT; -E2BIG if not even a
 * page can be held. */
int fp_call_args_fetch(void *dst, const void *src, size_t len);
/* The same to the program's memory. */
int fp_call_args_store(void *dst, const void *src, size_t len);

/* Fills *job in; the caller sets its arguments. Every begin is paired with an end, also when the
 * thread is cancelled; if a longjmp leaves the job behind, the agent lets go of what it holds at
 * the thread's next. */
void fp_call_args_begin(struct fp_call_args *job, const struct fp_call_piece *pieces, bool by_copy);
void fp_call_args_end(struct fp_call_args *job);

/*
 * Collects what the pieces name and holds it; the arguments then name copies where the kernel shall
 * see such. 0; -E2BIG: too much to hold, or to copy; -EFAULT: memory that the program does not
 * have. What fails changes no argument of the caller's (job->args may be changed).
 */
int fp_call_args_prepare(struct fp_call_args *job);

/* The call can't be prepared, and the kernel shall find out why: gives it the caller's arguments,
 * but for masks. */
void fp_call_args_give_up(struct fp_call_args *job, const long *args);

/* True if unlocking this mutex, too, has the kernel look at it. */
bool fp_call_args_is_special_mutex(const void *mutex);

/*
 * Lets go of all that is held and brings back what the kernel wrote into copies. ret is what the
 * call returned, and is returned; the copy's place becomes the program's.
 */
long fp_call_args_finish(struct fp_call_args *job, long ret);

#endif
