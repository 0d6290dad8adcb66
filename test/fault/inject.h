/*
 * A fault injector for the kernel calls of the compute side, linked into a test with --wrap. It
 * makes a chosen call fail, or delays all of them so that rare interleavings become common. Room:
 * test/fault.
 *
 * It gives only errors that the kernel could give at that moment. If an error means that the work
 * was already done (EEXIST), the injector does it first.
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

/* In place of an errno: */
#define INJECT_PARTIAL (-1) /* handles only the first page, and returns EAGAIN */
#define INJECT_UNSAID  (-2) /* handles all pages, but returns EAGAIN as for INJECT_PARTIAL */

/* Only calls on the far memory [base, base + len) count. Call this function first. */
void inject_range(const void *base, size_t len);

/*
 * From now on the nth call of this kind (counted from 1) fails with the errno `error`. If nth is 0,
 * no call fails.
 */
void inject_fail(enum inject_call call, int error, uint64_t nth);

/* From now on mincore fails, as under a filter of system calls (seccomp). */
void inject_no_mincore(void);

/* True if the nth call has been made. */
bool inject_failed(void);

/*
 * From now on calls of all kinds are delayed at random, before or after their work. A seed of 0
 * ends the delays.
 */
void inject_delays(uint64_t seed);

#endif
