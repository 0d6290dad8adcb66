/*
 * Compares the pager's records with the kernel's and the store's while no fault or write-back is
 * under way. Room: test/integration.
 */
#ifndef FP_AUDIT_H
#define FP_AUDIT_H

#include <stdbool.h>
#include <stddef.h>

struct fp_far;

/*
 * True if the records agree: every page is in a settled state, and is in the page table exactly if
 * that state says so. A resident page has one token. Every slot in use belongs to one page. Nobody
 * may use far memory meanwhile. Waits for write-backs, at most two seconds. If false, ret_text says
 * what is wrong.
 */
bool audit(struct fp_far *far, char *ret_text, size_t len);

#endif
