/*
 * The bare system call: past the preload library, which has a syscall(2) of its own and keeps an
 * account of what passes there. Room: uffd/kernel.
 */
#ifndef FP_RAWCALL_H
#define FP_RAWCALL_H

/* Its result, or a negative errno; errno stays. */
long fp_raw(long number, long a, long b, long c, long d, long e, long f);
#define FP_RAW(number, a, b, c, d, e, f)                                                                     \
	fp_raw(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#endif
