/*
 * Calls that can't be made correct with far memory, or with the agent's threads in the process.
 * They are refused with a message. Room: preload/syscalls.
 */
#ifndef FP_REFUSALS_H
#define FP_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>

/* The number of mseal(2), which some headers lack. It is the same on all processors. */
#define FP_SYS_MSEAL 462

/*
 * Makes the call mseal(2), for which the C library may have no function. Returns -1 with ENOSYS if
 * the range touches far memory.
 */
long fp_refusals_seal(void *addr, size_t len, unsigned long flags);

/*
 * True, with EINVAL and a message, if this word is in far memory. The kernel clears the word when a
 * thread ends, and then no longer serves faults of that thread.
 */
bool fp_refusals_clear_tid(const void *word);

#endif
