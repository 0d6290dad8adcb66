/*
 * Calls whose kernel code can't wait for a page of far memory, or looks at it when nobody serves
 * faults: they get EFAULT, or see nothing. Their memory is made local, and stays so until it is
 * unmapped (fp_pieces_hold). Room: preload/syscalls. The table of such code is in doc/kernel.md.
 */
#ifndef FP_HELD_H
#define FP_HELD_H

#include <stddef.h>

/*
 * Makes the words of a futex(2) call local if the operation needs it. If they can't be made local,
 * says so once; the kernel's EFAULT then tells the program. op is the operation with its flags.
 */
void fp_held_futex(const void *word, int op, const void *second_word);

/* The same for the area of rseq(2). */
void fp_held_rseq(const void *area, size_t len);

#endif
