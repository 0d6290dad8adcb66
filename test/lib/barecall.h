/* System calls by the test's own instructions, which the shim does not see. Room: test/lib. */
#ifndef FP_TEST_BARECALL_H
#define FP_TEST_BARECALL_H

#if defined(__x86_64__)

static inline long bare(long nr, const void *a, size_t b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long r = nr;

	__asm__ volatile("syscall"
	                 : "+a"(r)
	                 : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return r;
}

#elif defined(__aarch64__)

static inline long bare(long nr, const void *a, size_t b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = (long)a;
	register long x1 __asm__("x1") = (long)b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
	                 : "+r"(x0)
	                 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
	                 : "memory");
	return x0;
}

#else
#define NO_BARE_CALLS
#endif

#endif
