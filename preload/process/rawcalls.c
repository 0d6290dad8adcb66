/*
 * Calls on mappings, signals and limits by number: syscall(SYS_mmap, ...) must treat far memory as
 * mmap does. Room: preload/process. The function syscall itself is in rawfork.c, with a table of
 * the numbers that come here. doc/syscalls.md lists all numbers, and why the others need no
 * treatment.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "calls.h"
#include "far_pieces.h"
#include "held.h"
#include "local.h"
#include "mapping.h"
#include "refusals.h"
#include "signals.h"
#include "uring.h"
#include "wary.h"

long fp_rawcall(long number, long a, long b, long c, long d, long e, long f);

/*
 * Refused with far memory. The kernel reads the list after the thread has ended, when it no longer
 * serves the thread's faults. See pthread_mutex_init in held.c.
 */
static long set_robust_list(const void *head, size_t len)
{
	static atomic_bool said;

	if (!fp_shim_space())
		return fp_shim_return_long(FP_RAW(SYS_set_robust_list, head, len, 0, 0, 0, 0));
	fp_shim_say_once(&said, "set_robust_list was refused: the kernel could not hand on what is in far "
	                        "memory. Use robust mutexes of the C library");
	errno = ENOSYS;
	return -1;
}

/* Opens by number, as LOOKS in calls.def. */
static long open_by_number(long number, long a, long b, long c, long d)
{
	long fd;

	if (number == SYS_openat)
		return openat((int)a, (const char *)b, (int)c, (mode_t)d);
#if defined(__x86_64__)
	if (number == SYS_open)
		return open((const char *)a, (int)b, (mode_t)c);
#endif
	fd = fp_call_syscall_way(number, a, b, c, d, 0, 0);
	if (fd >= 0)
		fp_wary_look((int)fd, -1);
	return fd;
}

/* NULL is an error here; the C library's function accepts it. */
static long set_limit(int kind, const struct rlimit *limit)
{
	return limit ? setrlimit((__rlimit_resource_t)kind, limit) : fp_shim_return_long(-EFAULT);
}

/* Called by syscall(2), with its arguments, for the numbers below. */
__attribute__((used)) long fp_rawcall(long number, long a, long b, long c, long d, long e, long f)
{
	void *addr = (void *)a;
	size_t len = (size_t)b;

	switch (number) {
	case SYS_mmap:
		return (long)fp_mmap(addr, len, (int)c, (int)d, (int)e, f, NULL);
	case SYS_munmap:
		return munmap(addr, len);
	case SYS_mprotect:
		return mprotect(addr, len, (int)c);
	case SYS_mremap:
		return (long)fp_mremap(addr, len, (size_t)c, (int)d, (void *)e);
	case SYS_madvise:
		return madvise(addr, len, (int)c);
	case SYS_process_madvise:
		return process_madvise((int)a, (const struct iovec *)b, (size_t)c, (int)d, (unsigned)e);
	case SYS_vmsplice:
		return vmsplice((int)a, (const struct iovec *)b, (size_t)c, (unsigned)d);
	case SYS_mincore:
		return mincore(addr, len, (unsigned char *)c);
	case SYS_msync:
		return msync(addr, len, (int)c);
	case SYS_mlock:
		return mlock(addr, len);
	case SYS_mlock2:
		return mlock2(addr, len, (unsigned)c);
	case SYS_munlock:
		return munlock(addr, len);
	case SYS_mlockall:
		return mlockall((int)a);
	case SYS_pkey_mprotect:
		return pkey_mprotect(addr, len, (int)c, (int)d);
	case SYS_shmat:
		return (long)shmat((int)a, (const void *)b, (int)c);
	case FP_SYS_MSEAL:
		return fp_refusals_seal(addr, len, (unsigned long)c);
	case SYS_futex:
		fp_held_futex(addr, (int)b, (const void *)e);
		return fp_call_syscall_way(number, a, b, c, d, e, f);
	case SYS_rseq:
		fp_held_rseq(addr, (uint32_t)len);
		return fp_call_syscall_way(number, a, b, c, d, e, f);
	case SYS_setsockopt:
		return setsockopt((int)a, (int)b, (int)c, (const void *)d, (socklen_t)e);
#if defined(__x86_64__)
	case SYS_open:
#endif
	case SYS_openat:
	case SYS_openat2:
	case SYS_open_by_handle_at:
		return open_by_number(number, a, b, c, d);
	case SYS_fcntl:
		return fcntl((int)a, (int)b, c);
	case SYS_set_tid_address:
		return fp_refusals_clear_tid(addr) ? -1 : fp_raw(number, a, 0, 0, 0, 0, 0);
	case SYS_set_robust_list:
		return set_robust_list(addr, len);
	case SYS_prctl:
		return prctl((int)a, b, c, d, e);
	case SYS_io_uring_setup:
		if (fp_calls_hold())
			return fp_call_syscall_way(number, a, b, c, d, e, f); /* calls.def refuses it */
		return fp_shim_return_long(fp_uring_setup((unsigned)a, (struct io_uring_params *)b));
	case SYS_unshare:
		return unshare((int)a);
	case SYS_setns:
		return setns((int)a, (int)b);
	case SYS_rt_sigaction:
		return fp_signals_by_number((int)a, (const void *)b, (void *)c, (size_t)d);
	case SYS_sigaltstack:
		return sigaltstack((const stack_t *)a, (stack_t *)b);
#if defined(__x86_64__)
	case SYS_setrlimit:
		return set_limit((int)a, (const struct rlimit *)b);
	case SYS_prlimit64:
		return prlimit((pid_t)a, (__rlimit_resource_t)b, (const struct rlimit *)c,
		               (struct rlimit *)d);
#endif
	case SYS_execve:
	case SYS_execveat:
	case SYS_sched_getaffinity:
	case SYS_sched_setaffinity: /* as RELEASES in calls.def */
		if (fp_shim_agent() && !fp_local_is_agent())
			fp_agent_affinity_release(fp_shim_agent(), true);
		return fp_call_syscall_way(number, a, b, c, d, e, f);
	default:
		return fp_call_syscall_way(number, a, b, c, d, e, f);
	}
}
