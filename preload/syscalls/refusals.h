/*
 * Calls that can't be made right with far memory, or with an agent that has threads, and are
 * refused with a message. Room: preload.
 */
#ifndef FP_REFUSALS_H
#define FP_REFUSALS_H

#include <stdbool.h>
#include <stddef.h>

/* Newer than some headers that we build with; all processors have the same. */
#define FP_SYS_MSEAL 462

/* mseal(2), which the C library may not have: -1 and ENOSYS if it touches far memory. */
long fp_refusals_seal(void *addr, size_t len, unsigned long flags);

/*
 * The kernel clears the word at the end of a thread, when it serves no fault of that thread any
 * more. True, with EINVAL and a message, if the word is in far memory.
 */
bool fp_refusals_clear_tid(const void *word);

#endif
