/*
 * The memory of one call while it is under way: what is pinned, and the few things that the kernel
 * gets as copies. Room: preload/syscalls. calls.c drives it.
 *
 * A struct fp_call_args lives on its caller's stack, which may itself be far. What of it goes to
 * the kernel is pinned like the rest.
 */
#ifndef FP_CALL_ARGS_H
#define FP_CALL_ARGS_H

#include "agent.h"
#include "calls.h"

#define FP_CALL_ARGS_FEW 16 /* ranges that need no memory of their own */

struct fp_call_args {
	long args[FP_CALL_ARGS];
	long *a; /* the arguments that the pieces number */
	bool is_wide, is_pinned;
	unsigned n_ranges;
	struct fp_pin_range *ranges;
	struct fp_pin pin;
	struct fp_call_args_block *blocks; /* for what is too much for here */
	size_t copied;
	struct {
		uint64_t *mask;
		size_t size;
	} set_mask;
	uint64_t mask[128 / sizeof(uint64_t)];
	struct fp_pin_range few_ranges[FP_CALL_ARGS_FEW];
};

/* True if any byte of the range may be far. */
bool fp_call_args_far(const void *addr, size_t len);

/* Copies len bytes from the program's memory, far or local. 0 or -EFAULT; -E2BIG if not even that
 * can be pinned. */
int fp_call_args_fetch(void *dst, const void *src, size_t len);
/* The same to the program's memory. */
int fp_call_args_store(void *dst, const void *src, size_t len);

/* Fills *job in; the caller sets its arguments. Every begin needs an end, even if the thread is
 * cancelled. If a longjmp leaves the job behind, the agent unpins at the thread's next one. */
void fp_call_args_begin(struct fp_call_args *job, bool is_wide);
void fp_call_args_end(struct fp_call_args *job);

/*
 * Pins what the pieces name, windows wide or not. Arguments then name copies where the kernel must
 * see copies. 0; -E2BIG or -ENOMEM: too much to pin, or to copy; -EFAULT: the program does not have
 * that memory, and the kernel is to say so.
 */
int fp_call_args_prepare(struct fp_call_args *job, const struct fp_call_piece *pieces);

/* True if the kernel looks at this mutex also when it is unlocked. */
bool fp_call_args_is_special_mutex(const void *mutex);

#endif
