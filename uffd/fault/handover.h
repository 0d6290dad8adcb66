/*
 * Faults of guests: tasks that share the process's memory but are none of its threads, above all
 * children of vfork. Room: uffd/fault. A guest can be killed at any moment, and its descriptors are
 * its own. So a guest never owns a page or a server: it makes a request, and an agent thread serves
 * that fault.
 */
#ifndef FP_HANDOVER_H
#define FP_HANDOVER_H

#include <stdbool.h>

struct fp_handover;
struct fp_inline;
struct fp_uffd_fault;

/*
 * Starts the thread that serves requests by fp_inline_serve, and waits until it runs. Returns 0 or
 * a negative errno.
 */
int fp_handover_start(struct fp_inline *servers, struct fp_handover **ret_handover);
/*
 * NULL is fine, here and below. fp_handover_abandon is for the child of a fork, where the thread
 * does not run.
 */
void fp_handover_stop(struct fp_handover *handover);
void fp_handover_abandon(struct fp_handover *handover);

/*
 * True if the calling task is a guest. Costs one system call, or two in a process with a low
 * number.
 */
bool fp_handover_is_guest(const struct fp_handover *handover);

/*
 * Called by a guest: lets the agent's thread serve one fault. Waits as long as a fault may last.
 * Ends the guest, with a message, if the process has ended.
 */
void fp_handover_serve(struct fp_handover *handover, const struct fp_uffd_fault *fault);
/*
 * Called by a guest that waits for a page without a request. Ends the guest, with a message, if the
 * process has ended.
 */
void fp_handover_end_if_left(const struct fp_handover *handover);

#endif
