/*
 * Compares the pager's books with the kernel's and the store's, when nothing is under way. Room:
 * test/integration.
 */
#ifndef FP_AUDIT_H
#define FP_AUDIT_H

#include <stdbool.h>
#include <stddef.h>

struct fp_far;

/*
 * True if every page is in a settled state, is present in the page table if and only if its state
 * says so, has one token if it is resident, and every slot in use belongs to one page. Nobody may
 * use far memory meanwhile; write-backs under way are waited for, at most two seconds. Else
 * ret_text says what is wrong.
 */
bool audit(struct fp_far *far, char *ret_text, size_t len);

#endif
