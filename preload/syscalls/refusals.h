/*
 * Calls that we can't make right with far memory, or beside an agent that has threads. They are
 * refused with a message. Room: preload/syscalls.
 */
#ifndef FP_REFUSALS_H
#define FP_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>

/* Some headers that we build with are older than it. All processors have the same number. */
#define FP_SYS_MSEAL 462

/* mseal(2), which the C library may not have: -1 and ENOSYS if it touches far memory. */
long fp_refusals_seal(void *addr, size_t len, unsigned long flags);

/*
 * The kernel clears this word when a thread ends, and then serves no more faults of that thread.
 * True, with EINVAL and a message, if the word is in far memory.
 */
bool fp_refusals_clear_tid(const void *word);

#endif
