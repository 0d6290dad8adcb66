/*
 * The bare system call. It bypasses the preload library, whose syscall(2) would treat the call as
 * the program's. Room: uffd/kernel.
 */
#ifndef FP_RAWCALL_H
#define FP_RAWCALL_H

/* Returns the kernel's result, or a negative errno; errno stays. */
long fp_raw(long number, long a, long b, long c, long d, long e, long f);
#define FP_RAW(number, a, b, c, d, e, f)                                                                     \
	fp_raw(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#endif
