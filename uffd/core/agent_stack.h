/*
 * The stack of a thread that works for the agent. Where the kernel can't fault on far memory, what a system
 * call is handed must be there, and a thread of the program may have its stack in far memory: an ioctl whose
 * argument left between two instructions would fail. So while it is in the agent, the pages of its stack are
 * held: they come as they are touched, and none of them leaves. Room: uffd.
 */
#ifndef FP_AGENT_STACK_H
#define FP_AGENT_STACK_H

#include <stdint.h>

struct fp_far;

struct fp_agent_stack {
	uint32_t place, n; /* n 0: nothing is held */
};

/*
 * Holds the pages around the caller's frame; nothing where the stack is local, or the kernel faults by
 * itself. What the kernel only writes (a buffer) must have been written once all the same. With signals
 * blocked, in whose handlers a fork would forget the hold; waits for who is taking such a page, as
 * write-backs take.
 */
void fp_agent_stack_keep(struct fp_far *far, struct fp_agent_stack *ret_own);
void fp_agent_stack_let_go(struct fp_far *far, struct fp_agent_stack *own);

#endif
