/*
 * The memory of one call while it is under way: pinned ranges, and a few arguments that the kernel
 * gets as copies. Room: preload/syscalls. calls.c drives it.
 *
 * A struct fp_call_args lives on its caller's stack, which may itself be far. So the parts of it
 * that the kernel gets are pinned, too.
 */
#ifndef FP_CALL_ARGS_H
#define FP_CALL_ARGS_H

#include "agent.h"
#include "calls.h"

#define FP_CALL_ARGS_FEW 16 /* how many ranges fit without extra memory */

struct fp_call_args {
	long args[FP_CALL_ARGS];
	long *a; /* the call's arguments; a[n] is the one that has the number n in the pieces */
	bool is_wide, is_pinned;
	unsigned n_ranges;
	struct fp_pin_range *ranges;
	struct fp_pin pin;
	size_t copied; /* bytes so far */
	struct {
		uint64_t *mask;
		size_t size;
	} set_mask;
	uint64_t mask[128 / sizeof(uint64_t)];
	struct fp_pin_range few_ranges[FP_CALL_ARGS_FEW];
};

/* True if any byte of the range may be far. */
bool fp_call_args_far(const void *addr, size_t len);

/*
 * Copies len bytes from the program's memory, far or local. Returns 0, -EFAULT if the program does
 * not have that memory, or an error of fp_agent_pin (-E2BIG: so many bytes can't be pinned at
 * once).
 */
int fp_call_args_fetch(void *dst, const void *src, size_t len);
/* Copies len bytes to the program's memory, with the same results. */
int fp_call_args_store(void *dst, const void *src, size_t len);

/*
 * fp_call_args_begin fills *job in; then the caller sets the arguments. For each fp_call_args_begin
 * there must be an fp_call_args_end, even if the thread is cancelled. If a longjmp skips it, the
 * agent unpins at the thread's next pin.
 */
void fp_call_args_begin(struct fp_call_args *job, bool is_wide);
void fp_call_args_end(struct fp_call_args *job);

/*
 * fp_call_args_depth: returns how many blocks with copies the thread has. fp_call_args_vforked:
 * called after a child of vfork. It unmaps the newest blocks, until the thread has only as many as
 * depth says.
 */
size_t fp_call_args_depth(void);
void fp_call_args_vforked(size_t depth);

/*
 * Returns len bytes of local memory, aligned to 16, until fp_call_args_end. NULL if the call would
 * copy more than 8 MiB, or if there is no memory.
 */
void *fp_call_args_take(struct fp_call_args *job, size_t len);

/*
 * If the caller's stack is far, also pins the part that a function which the caller then calls
 * uses. Called before fp_call_args_prepare.
 */
void fp_call_args_add_stack(struct fp_call_args *job);

/*
 * Pins the memory that the pieces name; job's is_wide chooses the size of windows. Replaces
 * arguments by copies where the kernel must see copies. Returns 0, -E2BIG or -ENOMEM (too much to
 * pin or to copy), or -EFAULT (the program does not have that memory). After -EFAULT the caller
 * lets the kernel report it.
 */
int fp_call_args_prepare(struct fp_call_args *job, const struct fp_call_piece *pieces);

/* True for a mutex that the kernel also looks at on unlocking. */
bool fp_call_args_is_special_mutex(const void *mutex);

#endif
