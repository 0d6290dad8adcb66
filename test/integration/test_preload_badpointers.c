/*
 * Pointers that lead nowhere, in calls whose memory the shim reads or makes local before the kernel
 * does. Each call is made by an instruction, by syscall(2) and by the C library: all must give the
 * same result and errno. Room: test/integration.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/if_xdp.h>
#include <linux/kvm.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "barecall.h"
#include "cleanup.h"
#include "underpreload.h"

#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#define PAGE 4096ul
#define BIG  (4ul * TEST_LOCAL_BYTES)

/* What stands for an argument in the table below: the pointer, structs that hold it,
 * descriptors. */
enum { POINTER = 0x5eed0000, IOVEC, MESSAGE, MESSAGE_IOVEC, NAMED, ZERO, PIPE, SOCKET, EPOLL, SELF, GOOD };

/* A call, and its function in the C library if that hands its arguments on to the kernel. */
struct call {
	const char *name, *libc;
	long number, args[6];
	bool writes; /* the kernel only writes there: read-only memory is bad, too */
	bool waits;  /* if the pointer is NULL */
};

#define ROW(name_, libc_, number_, args_, ...)                                                               \
	{                                                                                                    \
		.name = (name_), .libc = (libc_), .number = (number_), .args = ARGS args_, __VA_ARGS__       \
	}
#define ARGS(...)                                                                                            \
	{                                                                                                    \
		__VA_ARGS__                                                                                  \
	}
#define SAME(n, ...)            ROW(#n, #n, SYS_##n, (__VA_ARGS__), .writes = false)
#define OUT(n, ...)             ROW(#n, #n, SYS_##n, (__VA_ARGS__), .writes = true)
#define NUMBER(n, ...)          ROW(#n, NULL, SYS_##n, (__VA_ARGS__), .writes = false)
#define NUMBER_OUT(n, ...)      ROW(#n, NULL, SYS_##n, (__VA_ARGS__), .writes = true)
#define WAITS(n, ...)           ROW(#n, NULL, SYS_##n, (__VA_ARGS__), .waits = true)
#define OTHER(libc, n, ...)     ROW(#libc, #libc, SYS_##n, (__VA_ARGS__), .writes = false)
#define OTHER_OUT(libc, n, ...) ROW(#libc, #libc, SYS_##n, (__VA_ARGS__), .writes = true)

static const struct call calls[] = {
    /* the shim looks into these structs in every fault mode */
    SAME(ioctl, ZERO, (long)KVM_SET_USER_MEMORY_REGION, POINTER),
    SAME(setsockopt, SOCKET, SOL_XDP, XDP_UMEM_REG, POINTER, sizeof(struct xdp_umem_reg)),
    SAME(setsockopt, SOCKET, SOL_SOCKET, SO_RCVBUF, POINTER, sizeof(int)),
    NUMBER(clone3, POINTER, 88),
    NUMBER(clone3, POINTER, 64),
    NUMBER(clone3, POINTER, 10),
    NUMBER(clone3, POINTER, 1 << 20),
    NUMBER_OUT(io_uring_setup, 4, POINTER),
    SAME(vmsplice, PIPE, POINTER, 1, 0),
    SAME(vmsplice, PIPE, IOVEC, 1, SPLICE_F_NONBLOCK),
    SAME(process_madvise, SELF, POINTER, 1, MADV_COLD, 0),
    SAME(process_madvise, SELF, POINTER, 1, MADV_DONTNEED, 0),
    SAME(process_madvise, SELF, IOVEC, 1, MADV_COLD, 0),
    NUMBER(setrlimit, RLIMIT_AS, POINTER),
    NUMBER(setrlimit, RLIMIT_NOFILE, POINTER),
    OTHER(prlimit, prlimit64, 0, RLIMIT_AS, POINTER, 0),
    OTHER_OUT(prlimit, prlimit64, 0, RLIMIT_AS, 0, POINTER),
    SAME(sigaltstack, POINTER, 0),
    OUT(sigaltstack, 0, POINTER),
    OUT(mincore, GOOD, PAGE, POINTER),
    NUMBER(futex, POINTER, FUTEX_WAKE, 1),
    NUMBER(futex, POINTER, FUTEX_WAIT_PRIVATE, 1, 0),
    NUMBER(futex, POINTER, FUTEX_TRYLOCK_PI, 0),
    NUMBER(futex, POINTER, FUTEX_UNLOCK_PI_PRIVATE, 0),
    NUMBER(futex, GOOD, FUTEX_WAKE_OP_PRIVATE, 1, 1, POINTER, 0),
    NUMBER(futex, GOOD, FUTEX_CMP_REQUEUE_PI_PRIVATE, 1, 1, POINTER, 7),
    NUMBER(rseq, POINTER, 32, 0, 0x53053053),
    NUMBER(execve, POINTER, 0, 0),
    SAME(execve, POINTER, 0, 0),
    SAME(execve, (long)"/nonexistent", POINTER, POINTER),
    SAME(execveat, -1, POINTER, 0, 0, 0),
    SAME(prctl, 15 /* PR_SET_NAME */, POINTER),
    /* and into these, or makes their memory local, in fault mode inline */
    OUT(read, ZERO, POINTER, 64),
    SAME(write, PIPE, POINTER, 64),
    OUT(pread64, ZERO, POINTER, 64, 0),
    SAME(readv, ZERO, POINTER, 1),
    SAME(readv, ZERO, IOVEC, 1),
    SAME(readv, ZERO, POINTER, 2000),
    SAME(readv, ZERO, POINTER, -1),
    SAME(writev, PIPE, IOVEC, 1),
    SAME(preadv, ZERO, IOVEC, 1, 0),
    SAME(process_vm_readv, SELF, POINTER, 1, IOVEC, 1, 0),
    SAME(sendto, SOCKET, POINTER, 8, MSG_DONTWAIT, 0, 0),
    SAME(sendto, SOCKET, GOOD, 8, MSG_DONTWAIT, POINTER, 16),
    SAME(sendmsg, SOCKET, POINTER, MSG_DONTWAIT),
    SAME(sendmsg, SOCKET, MESSAGE, MSG_DONTWAIT),
    SAME(sendmsg, SOCKET, MESSAGE_IOVEC, MSG_DONTWAIT),
    SAME(sendmsg, SOCKET, NAMED, MSG_DONTWAIT),
    SAME(recvmsg, SOCKET, POINTER, MSG_DONTWAIT),
    SAME(recvmsg, SOCKET, MESSAGE, MSG_DONTWAIT),
    SAME(sendmmsg, SOCKET, POINTER, 2, MSG_DONTWAIT),
    SAME(recvmmsg, SOCKET, POINTER, 2, MSG_DONTWAIT, 0),
    SAME(recvmmsg, SOCKET, GOOD, 1, MSG_DONTWAIT, POINTER),
    SAME(bind, SOCKET, POINTER, 16),
    SAME(connect, SOCKET, POINTER, 16),
    SAME(getsockopt, SOCKET, SOL_SOCKET, SO_TYPE, POINTER, GOOD),
    SAME(getsockopt, SOCKET, SOL_SOCKET, SO_TYPE, GOOD, POINTER),
    SAME(getsockname, SOCKET, POINTER, GOOD),
    SAME(poll, POINTER, 1, 0),
    WAITS(ppoll, 0, 0, POINTER, 0, 8),
    NUMBER(ppoll, POINTER, 1, 0, 0, 8),
    WAITS(pselect6, 0, 0, 0, 0, 0, POINTER),
    NUMBER(pselect6, 8, POINTER, 0, 0, GOOD, 0),
    OUT(epoll_wait, EPOLL, POINTER, 1, 0),
    SAME(epoll_ctl, EPOLL, EPOLL_CTL_ADD, PIPE, POINTER),
    NUMBER(epoll_pwait, EPOLL, GOOD, 1, 0, POINTER, 8),
    NUMBER(rt_sigprocmask, SIG_BLOCK, POINTER, 0, 8),
    NUMBER_OUT(rt_sigprocmask, SIG_BLOCK, 0, POINTER, 8),
    WAITS(rt_sigtimedwait, GOOD, 0, POINTER, 8),
    OUT(getrandom, POINTER, 16, 0),
    SAME(semtimedop, -1, POINTER, 1, 0),
    SAME(msgsnd, -1, POINTER, 8, 0),
    SAME(open, POINTER, O_RDONLY),
    SAME(stat, POINTER, POINTER),
    OUT(fstat, ZERO, POINTER),
    OUT(statx, AT_FDCWD, (long)"/", 0, 0x7ff, POINTER),
    OUT(uname, POINTER),
    NUMBER_OUT(getrlimit, RLIMIT_NOFILE, POINTER),
    OUT(getrusage, RUSAGE_SELF, POINTER),
    OUT(pipe2, POINTER, O_CLOEXEC),
    OUT(socketpair, AF_UNIX, SOCK_STREAM, 0, POINTER),
    SAME(nanosleep, POINTER, 0),
    OUT(timer_gettime, 0, POINTER),
    OUT(sendfile, PIPE, ZERO, POINTER, 0),
    OUT(getdents64, ZERO, POINTER, 512),
    SAME(memfd_create, POINTER, 0),
    SAME(inotify_add_watch, ZERO, POINTER, 1),
    OUT(getxattr, (long)"/", POINTER, GOOD, 8),
};

static int zero_fd = -1, pipe_fds[2] = {-1, -1}, socket_fd = -1, epoll_fd = -1, self_fd = -1;
static char *far_memory;
static char good[PAGE]; /* zeros before each call */

static struct iovec iovec, good_iovec = {.iov_base = good, .iov_len = 16};
static struct msghdr message;

static long message_of(long stands_for, void *bad)
{
	message = (struct msghdr){.msg_iov = &good_iovec, .msg_iovlen = 1};
	iovec = (struct iovec){.iov_base = bad, .iov_len = 16};
	if (stands_for == MESSAGE)
		message.msg_iov = bad;
	else if (stands_for == MESSAGE_IOVEC)
		message.msg_iov = &iovec;
	else {
		message.msg_name = bad;
		message.msg_namelen = 16;
	}
	return (long)&message;
}

static long value_of(long arg, void *bad)
{
	switch (arg) {
	case POINTER:
		return (long)bad;
	case IOVEC:
		iovec = (struct iovec){.iov_base = bad, .iov_len = 16};
		return (long)&iovec;
	case MESSAGE:
	case MESSAGE_IOVEC:
	case NAMED:
		return message_of(arg, bad);
	case ZERO:
		return zero_fd;
	case PIPE:
		return pipe_fds[1];
	case SOCKET:
		return socket_fd;
	case EPOLL:
		return epoll_fd;
	case SELF:
		return self_fd;
	case GOOD:
		return (long)good;
	default:
		return arg;
	}
}

/* A new pipe and socket for each call, as calls may leave bytes in them. */
static void renew(void)
{
	int fds[2];

	for (unsigned i = 0; i < 2; i++)
		close(pipe_fds[i]);
	close(socket_fd);
	close(epoll_fd);
	memset(good, 0, sizeof(good));
	assert_int_equal(pipe(pipe_fds), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), 0);
	socket_fd = fds[0];
	close(fds[1]);
	epoll_fd = epoll_create1(0);
	assert_true(epoll_fd >= 0);
}

enum way { BY_BARE, BY_NUMBER, BY_LIBC };

/* Returns the result, or a negative errno. */
static long make(const struct call *call, enum way way, void *bad)
{
	typedef long any_fn(long, long, long, long, long, long);
	long a[6], r;

	renew();
	for (unsigned i = 0; i < 6; i++)
		a[i] = value_of(call->args[i], bad);
	if (way == BY_BARE)
		return bare(call->number, (void *)a[0], (size_t)a[1], a[2], a[3], a[4], a[5]);
	errno = 0;
	if (way == BY_NUMBER)
		r = syscall(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
	else
		r = ((any_fn *)dlsym(RTLD_DEFAULT, call->libc))(a[0], a[1], a[2], a[3], a[4], a[5]);
	return (int)r == -1 ? -errno : r;
}

static bool is_new_fd(const struct call *call, long r)
{
	return r > 2 && (call->number == SYS_io_uring_setup || call->number == SYS_memfd_create);
}

static bool check(const struct call *call, void *bad, const char *what)
{
	long want = make(call, BY_BARE, bad);
	bool same = true;

	for (enum way way = BY_NUMBER; way <= (call->libc ? BY_LIBC : BY_NUMBER); way++) {
		long got = make(call, way, bad);

		if (got == want || (is_new_fd(call, got) && is_new_fd(call, want)))
			continue;
		fprintf(stderr, "%s (row %td), %s, %s: %ld, but the kernel says %ld\n", call->name,
		        call - calls, way == BY_LIBC ? "by the C library" : "by number", what, got, want);
		same = false;
	}
	return same;
}

static void *mapped(int prot)
{
	char *p = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED && test_is_far(p));
	test_fill(p, BIG, 1);
	assert_int_equal(mprotect(p, BIG, prot), 0);
	return p;
}

/* Inline, the shim refuses these by number, whatever their arguments. */
static bool is_refused_by_number(const struct call *call)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");

	return mode && strcmp(mode, "inline") == 0 && call->number == SYS_io_uring_setup;
}

static void each_gives_the_kernels_answer(void **state)
{
	char *gone = mapped(PROT_READ), *closed = mapped(PROT_NONE), *read_only = mapped(PROT_READ);
	void *local = mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bool same = true;

	assert_int_equal(munmap(gone, BIG), 0);
	assert_int_equal(munmap(local, PAGE), 0);
	for (size_t i = 0; i < FP_ARRAY_LEN(calls); i++) {
		const struct call *call = &calls[i];

		if (is_refused_by_number(call))
			continue;
		if (!call->waits)
			same &= check(call, NULL, "NULL");
		same &= check(call, (void *)8, "address 8");
		same &= check(call, gone, "far memory that was unmapped");
		same &= check(call, closed, "far memory that is PROT_NONE");
		same &= check(call, local, "local memory that was unmapped");
		same &= check(call, (void *)-PAGE, "an address of the kernel");
		if (call->writes)
			same &= check(call, read_only, "read-only far memory");
	}
	assert_true(same);
	munmap(closed, BIG);
	munmap(read_only, BIG);
}

static int begin(void **state)
{
	zero_fd = open("/dev/zero", O_RDWR);
	self_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	signal(SIGPIPE, SIG_IGN);
	far_memory = mapped(PROT_READ | PROT_WRITE);
	return zero_fd < 0 || self_fd < 0 ? -1 : 0;
}

static int end(void **state)
{
	return munmap(far_memory, BIG);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(each_gives_the_kernels_answer),
	};

	return cmocka_run_group_tests(all, begin, end);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
