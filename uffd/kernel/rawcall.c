/* See rawcall.h. */
#include "rawcall.h"

#include <errno.h>
#include <unistd.h>

#if defined(__x86_64__)

long fp_raw(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long r;

	__asm__ volatile("syscall"
	                 : "=a"(r)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return r;
}

#else

long fp_raw(long number, long a, long b, long c, long d, long e, long f)
{
	int saved = errno;
	long r = syscall(number, a, b, c, d, e, f);

	if (r == -1) {
		r = -errno;
		errno = saved;
	}
	return r;
}

#endif
