/* See inject.h. */
#include "inject.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "cleanup.h"
#include "testrng.h"

#define PAGE         4096u
#define DELAY_MAX_NS 300000u

int __real_ioctl(int fd, unsigned long request, void *arg);
int __real_madvise(void *addr, size_t len, int advice);
int __real_mincore(void *addr, size_t len, unsigned char *ret_vec);
long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
int __wrap_ioctl(int fd, unsigned long request, void *arg);
int __wrap_madvise(void *addr, size_t len, int advice);
int __wrap_mincore(void *addr, size_t len, unsigned char *ret_vec);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

static uintptr_t range_start;
static size_t range_len;
static enum inject_call chosen;
static int chosen_error;
static _Atomic uint64_t countdown; /* the call that lowers it from 1 to 0 fails */
static _Atomic uint64_t delay_rng; /* 0: no delays */
static atomic_bool no_mincore;

void inject_range(const void *base, size_t len)
{
	range_start = (uintptr_t)base;
	range_len = len;
}

void inject_no_mincore(void)
{
	atomic_store(&no_mincore, true);
}

void inject_fail(enum inject_call call, int error, uint64_t nth)
{
	chosen = call;
	chosen_error = error;
	atomic_store(&countdown, nth);
}

bool inject_failed(void)
{
	return atomic_load(&countdown) == 0;
}

void inject_delays(uint64_t seed)
{
	atomic_store(&delay_rng, seed);
}

static void delay(void)
{
	uint64_t state = atomic_fetch_add(&delay_rng, 0x9e3779b97f4a7c15u), chance = test_random(&state);
	struct timespec ts = {.tv_nsec = (long)(chance >> 8) % DELAY_MAX_NS};

	if (chance % 4 == 0)
		nanosleep(&ts, NULL);
}

static bool concerns_us(uintptr_t addr)
{
	return addr - range_start < range_len;
}

/* How this call must fail: 0 (it must not), an errno, INJECT_PARTIAL or INJECT_UNSAID. */
static int fate(enum inject_call call)
{
	uint64_t n = atomic_load(&countdown);

	if (call != chosen)
		return 0;
	while (n > 0 && !atomic_compare_exchange_weak(&countdown, &n, n - 1))
		;
	return n == 1 ? chosen_error : 0;
}

static bool classify(unsigned long request, const void *arg, enum inject_call *ret_call, uintptr_t *ret_addr)
{
	const struct uffdio_writeprotect *wp = arg;
	const struct uffdio_range *range = arg; /* each argument begins with an address or range */

	switch (request) {
	case UFFDIO_COPY:
		*ret_call = INJECT_COPY;
		break;
	case UFFDIO_MOVE:
		*ret_call = INJECT_MOVE;
		break;
	case UFFDIO_POISON:
		*ret_call = INJECT_POISON;
		break;
	case UFFDIO_WAKE:
		*ret_call = INJECT_WAKE;
		break;
	case UFFDIO_WRITEPROTECT:
		*ret_call = wp->mode & UFFDIO_WRITEPROTECT_MODE_WP ? INJECT_PROTECT : INJECT_UNPROTECT;
		break;
	default:
		return false;
	}
	*ret_addr = range->start;
	return true;
}

/* Does the work for the first page only, as the kernel does when it must stop half-way. */
static int do_first_page(int fd, unsigned long request, void *arg)
{
	struct uffdio_copy *copy = arg;
	struct uffdio_move *move = arg;
	__u64 *len = request == UFFDIO_COPY ? &copy->len : &move->len, whole = *len;
	int r;

	if (whole == PAGE)
		return __real_ioctl(fd, request, arg);
	*len = PAGE;
	r = __real_ioctl(fd, request, arg);
	*len = whole;
	if (r == 0)
		errno = EAGAIN;
	return -1;
}

static int do_unsaid(int fd, unsigned long request, void *arg)
{
	struct uffdio_copy *copy = arg;
	struct uffdio_move *move = arg;
	int r = __real_ioctl(fd, request, arg);

	if (r < 0)
		return r;
	if (request == UFFDIO_COPY)
		copy->copy = PAGE;
	else
		move->move = PAGE;
	errno = EAGAIN;
	return -1;
}

static void forget_result(unsigned long request, void *arg)
{
	if (request == UFFDIO_COPY)
		((struct uffdio_copy *)arg)->copy = 0;
	else if (request == UFFDIO_MOVE)
		((struct uffdio_move *)arg)->move = 0;
}

int __wrap_ioctl(int fd, unsigned long request, void *arg)
{
	enum inject_call call;
	uintptr_t addr;
	int error, r;

	if (!classify(request, arg, &call, &addr) || !concerns_us(addr))
		return __real_ioctl(fd, request, arg);
	if (atomic_load(&delay_rng))
		delay();
	error = fate(call);
	if (error == INJECT_PARTIAL)
		return do_first_page(fd, request, arg);
	if (error == INJECT_UNSAID)
		return do_unsaid(fd, request, arg);
	r = error == 0 || error == EEXIST ? __real_ioctl(fd, request, arg) : 0;
	if (error && r == 0) {
		forget_result(request, arg);
		errno = error;
		return -1;
	}
	if (atomic_load(&delay_rng)) {
		error = errno;
		delay();
		errno = error;
	}
	return r;
}

/*
 * How this call is made to fail: see fate. Such a call drops no page. The caller must notice the
 * failure, because the pages are still there.
 */
static int fate_of_dontneed(uintptr_t addr)
{
	if (!concerns_us(addr))
		return 0;
	if (atomic_load(&delay_rng))
		delay();
	return fate(INJECT_DONTNEED);
}

int __wrap_madvise(void *addr, size_t len, int advice)
{
	int error = advice == MADV_DONTNEED && len ? fate_of_dontneed((uintptr_t)addr) : 0;

	if (error) {
		errno = error;
		return -1;
	}
	return __real_madvise(addr, len, advice);
}

int __wrap_mincore(void *addr, size_t len, unsigned char *ret_vec)
{
	if (!atomic_load(&no_mincore))
		return __real_mincore(addr, len, ret_vec);
	errno = EPERM;
	return -1;
}

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	int error =
	    number == SYS_process_madvise ? fate_of_dontneed((uintptr_t)((struct iovec *)b)->iov_base) : 0;

	if (error) {
		errno = error;
		return -1;
	}
	return __real_syscall(number, a, b, c, d, e, f);
}
