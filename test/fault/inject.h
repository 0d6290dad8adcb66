/*
 * A fault injector for the kernel calls of the compute side, linked into a test with --wrap. It
 * makes a chosen call fail, or delays all of them so that rare interleavings become common. Room:
 * test/fault.
 *
 * It gives only errors that the kernel could give at that moment. If an error says that the work
 * was done already (EEXIST), the injector does it first.
 */
#ifndef FP_INJECT_H
#define FP_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum inject_call {
	INJECT_COPY,
	INJECT_MOVE,
	INJECT_PROTECT,
	INJECT_UNPROTECT,
	INJECT_POISON,
	INJECT_WAKE,
	INJECT_DONTNEED, /* madvise or process_madvise */
	INJECT_CALLS
};

/* Instead of an errno: */
#define INJECT_PARTIAL (-1) /* only the first page is done, and EAGAIN */
#define INJECT_UNSAID  (-2) /* all is done, and EAGAIN as if it were the first page only */

/* Only calls that concern [base, base + len) count: far memory. Before anything else. */
void inject_range(const void *base, size_t len);

/* Of the calls of this kind that come from now on, the nth (from 1) fails with errno error; 0:
 * none. */
void inject_fail(enum inject_call call, int error, uint64_t nth);

/* From now on mincore is refused, as by a filter of system calls. */
void inject_no_mincore(void);

/* Whether the call that was to fail has come. */
bool inject_failed(void);

/* From now on calls of all kinds are delayed at random, before or after; seed 0: no more. */
void inject_delays(uint64_t seed);

#endif
