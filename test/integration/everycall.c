/* See everycall.h. */
#include "everycall.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/quota.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "barecall.h"
#include "cleanup.h"
#include "everycall_uring.h"
#include "underpreload.h"

/* Numbers that the headers of Debian 12 lack: doc/syscalls.md. */
enum {
	SYS_cachestat = 451,
	SYS_fchmodat2 = 452,
	SYS_futex_wake = 454,
	SYS_futex_wait = 455,
	SYS_futex_requeue = 456,
	SYS_statmount = 457,
	SYS_listmount = 458,
	SYS_lsm_get_self_attr = 459,
	SYS_lsm_set_self_attr = 460,
	SYS_lsm_list_modules = 461,
	SYS_setxattrat = 463,
	SYS_getxattrat = 464,
	SYS_listxattrat = 465,
	SYS_removexattrat = 466,
	SYS_open_tree_attr = 467,
	SYS_file_getattr = 468,
	SYS_file_setattr = 469,
};

static char local_area[4096] __attribute__((aligned(4096)));

/* The operations of io_uring, in the kernel's order. Headers lack the last ones. */
enum {
	OP_NOP,
	OP_READV,
	OP_WRITEV,
	OP_FSYNC,
	OP_READ_FIXED,
	OP_WRITE_FIXED,
	OP_POLL_ADD,
	OP_POLL_REMOVE,
	OP_SYNC_FILE_RANGE,
	OP_SENDMSG,
	OP_RECVMSG,
	OP_TIMEOUT,
	OP_TIMEOUT_REMOVE,
	OP_ACCEPT,
	OP_ASYNC_CANCEL,
	OP_LINK_TIMEOUT,
	OP_CONNECT,
	OP_FALLOCATE,
	OP_OPENAT,
	OP_CLOSE,
	OP_FILES_UPDATE,
	OP_STATX,
	OP_READ,
	OP_WRITE,
	OP_FADVISE,
	OP_MADVISE,
	OP_SEND,
	OP_RECV,
	OP_OPENAT2,
	OP_EPOLL_CTL,
	OP_SPLICE,
	OP_PROVIDE_BUFFERS,
	OP_REMOVE_BUFFERS,
	OP_TEE,
	OP_SHUTDOWN,
	OP_RENAMEAT,
	OP_UNLINKAT,
	OP_MKDIRAT,
	OP_SYMLINKAT,
	OP_LINKAT,
	OP_MSG_RING,
	OP_FSETXATTR,
	OP_SETXATTR,
	OP_FGETXATTR,
	OP_GETXATTR,
	OP_SOCKET,
	OP_URING_CMD,
	OP_SEND_ZC,
	OP_SENDMSG_ZC,
	OP_READ_MULTISHOT,
	OP_WAITID,
	OP_FUTEX_WAIT,
	OP_FUTEX_WAKE,
	OP_FUTEX_WAITV,
	OP_FIXED_FD_INSTALL,
	OP_FTRUNCATE,
	OP_BIND,
	OP_LISTEN,
	OP_RECV_ZC,
	OP_EPOLL_WAIT,
	OP_READV_FIXED,
	OP_WRITEV_FIXED,
	OP_PIPE,
};

/* ---- the descriptors that each row finds ---- */

/* Numbers that nobody else has, so that the objects can be prepared before. */
enum { file = 200, other, dir, pipe_r, pipe_w, sock_a, sock_b, gram_a, gram_b, DESCRIPTORS };

static const char attribute[] = "value";
static char got[100];

static void put(int fd, int number)
{
	assert_true(fd >= 0);
	assert_int_equal(dup2(fd, number), number);
	close(fd);
}

static void put_pair(const int fds[2], int number)
{
	assert_int_equal(write(fds[1], "hello", 5), 5);
	put(fds[0], number);
	put(fds[1], number + 1);
}

static void open_descriptors(void)
{
	int fds[2];

	put(open("every", O_RDWR | O_CREAT | O_TRUNC, 0600), file);
	assert_int_equal(write(file, "0123456789abcdefghijklmnopqrstuvwxyz", 36), 36);
	lseek(file, 0, SEEK_SET);
	put(open("other", O_RDWR | O_CREAT | O_TRUNC, 0600), other);
	put(open("/usr", O_RDONLY | O_DIRECTORY), dir);
	assert_int_equal(pipe(fds), 0);
	put_pair(fds, pipe_r);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	put_pair(fds, sock_a);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), 0);
	put_pair(fds, gram_a);
}

static void close_descriptors(void)
{
	test_uring_close();
	for (int fd = file; fd < DESCRIPTORS; fd++)
		close(fd);
	unlink("every");
	unlink("other");
}

/* ---- one system call ---- */

static bool by_instruction;

long test_call_by_number(long number, ...)
{
	va_list args;
	long a[6], r;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (by_instruction)
		return bare(number, (void *)a[0], (size_t)a[1], a[2], a[3], a[4], a[5]);
	r = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	return r == -1 ? -errno : r;
}

#define C(name, ...)  test_call_by_number(SYS_##name, __VA_ARGS__)
#define U(op, ...)    test_uring(&(struct test_sqe){.opcode = OP_##op, __VA_ARGS__}, 1)
#define P(pointer)    ((uintptr_t)(pointer))
#define AS(type, i)   (*(type *)m[i])
#define WORDS(i)      ((long *)m[i])
#define TEXT(i, text) strcpy(m[i], text)
#define PAGE_OF(i)    ((char *)m[i] + CALL_TAIL - sizeof(local_area))
#define WITH_FD(open_it, e)                                                                                  \
	({                                                                                                   \
		int fd = (int)(open_it);                                                                     \
		long r = (long)(e);                                                                          \
                                                                                                             \
		made(fd);                                                                                    \
		r;                                                                                           \
	})

/* Closes a new descriptor. Returns 0, or the error that is there instead. */
static long made(long fd)
{
	return fd >= 0 ? close((int)fd) : fd;
}

static long closed(const int *fds)
{
	return close(fds[0]) | close(fds[1]);
}

/* What the file holds, as a number. */
static long sum(int fd)
{
	unsigned char bytes[100] = "";
	long n = pread(fd, bytes, sizeof(bytes), 0), total = n;

	for (long i = 0; i < n; i++)
		total = (total * 31 + bytes[i]) % 997;
	return total;
}

static long modified(void)
{
	struct stat st = {0};

	fstat(file, &st);
	return st.st_mtim.tv_sec;
}

/* As ustat takes it. */
static long device(void)
{
	struct stat st = {0};

	stat("/dev", &st);
	return (long)(minor(st.st_dev) & 0xff) | (long)major(st.st_dev) << 8;
}

/* ---- structs ---- */

struct sized {
	void *addr;
	size_t len;
};

struct beneath {
	uint64_t allowed;
	int fd;
};

struct mount_request {
	uint32_t size, spare;
	uint64_t mount, param;
};

struct perf {
	uint32_t type, size;
};

struct bpf_map {
	uint32_t type, key_bytes, value_bytes, n;
};

struct waiter {
	uint64_t value, address;
	uint32_t flags, reserved;
};

static void set_vector(void **m)
{
	AS(struct iovec, 0) = (struct iovec){m[1], 5};
	((struct iovec *)m[0])[1] = (struct iovec){m[2], 20};
	strcpy(m[1], "ABCDE");
	strcpy(m[2], "FGHIJKLMNOPQRSTUVWXYZ");
}

/* The value itself is local: what only a struct points to is not brought in, in fault mode
 * inline. */
static void set_xattrs(void **m)
{
	AS(struct sized, 2) = (struct sized){(void *)attribute, sizeof(attribute)};
	AS(struct sized, 3) = (struct sized){got, sizeof(got)};
}

static uint64_t mount_number(void)
{
	const unsigned unique = 0x4000; /* STATX_MNT_ID_UNIQUE */
	struct statx st = {0};

	statx(AT_FDCWD, "/", 0, unique, &st);
	return *(uint64_t *)((char *)&st + 0x90);
}

static void set_address(void **m)
{
	AS(struct sockaddr_in, 0) =
	    (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	AS(socklen_t, 1) = sizeof(struct sockaddr_in);
}

static void set_queue(void **m)
{
	AS(struct mq_attr, 1) = (struct mq_attr){.mq_maxmsg = 2, .mq_msgsize = 100};
	strcpy(m[0], "farpage-everycall");
}

static void on_signal(int sig);

/* As the kernel has it: handler, flags, restorer, mask. */
static void set_action(void **m)
{
	memset(m[0], 0, 32);
	AS(long, 0) = (long)SIG_IGN;
	WORDS(0)[1] = SA_NODEFER;
}

static void set_info(void **m)
{
	AS(siginfo_t, 0).si_signo = SIGUSR1;
	AS(siginfo_t, 0).si_code = SI_QUEUE;
}

static void set_program(void **m)
{
	strcpy(m[0], "/bin/sh");
	((void **)m[1])[0] = strcpy(m[3], "sh");
	((void **)m[1])[1] = strcpy((char *)m[3] + 100, "-c");
	((void **)m[1])[2] = strcpy((char *)m[3] + 200, "exit $FAR");
	((void **)m[2])[0] = strcpy(m[4], "FAR=9");
}

static void set_waiters(void **m)
{
	struct waiter *waiters = m[0];

	for (unsigned i = 0; i < 2; i++)
		waiters[i] = (struct waiter){.address = (uintptr_t)m[2 + i], .flags = 2};
	AS(int, 2) = 5; /* not what the waiter expects */
}

static void set_control_block(void **m)
{
	AS(void *, 1) = m[2];
	AS(struct iocb, 2) = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD,
	                                   .aio_fildes = (uint32_t)file,
	                                   .aio_buf = (uintptr_t)m[3],
	                                   .aio_nbytes = 20};
}

/* ---- rows of several calls ---- */

static long over_stream(void **m)
{
	int a = socket(AF_INET, SOCK_STREAM, 0), b = socket(AF_INET, SOCK_STREAM, 0), c, d;
	long r =
	    C(bind, a, m[0], 16) | listen(a, 2) | C(getsockname, a, m[0], m[1]) | C(connect, b, m[0], 16);

	AS(socklen_t, 3) = sizeof(struct sockaddr_in);
	c = (int)C(accept, a, m[2], m[3]);
	r |= C(getpeername, c, m[2], m[3]) | C(connect, b, m[0], 16) * 0;
	close(b);
	b = socket(AF_INET, SOCK_STREAM, 0);
	r |= C(connect, b, m[0], 16);
	AS(socklen_t, 5) = sizeof(struct sockaddr_in);
	d = (int)C(accept4, a, m[4], m[5], SOCK_CLOEXEC);
	r |= AS(struct sockaddr_in, 4).sin_family != AF_INET;
	return r | (c < 0 || d < 0) | closed((int[]){a, b}) | closed((int[]){c, d});
}

static long over_datagrams(void **m)
{
	int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
	long r = bind(a, m[0], 16) | C(getsockname, a, m[0], m[1]);

	r = r * 100 + C(sendto, b, m[3], 8L, 0, m[0], 16);
	AS(socklen_t, 5) = sizeof(struct sockaddr_in);
	r = r * 100 + C(recvfrom, a, m[4], 100L, 0, m[2], m[5]);
	return (r * 10 + (memcmp(m[4], "datagram", 8) == 0)) * 10 + closed((int[]){a, b});
}

static long of_messages(void **m)
{
	int q = msgget(IPC_PRIVATE, 0600);
	long r = C(msgsnd, q, m[0], 8L, 0);

	r = r * 100 + C(msgrcv, q, m[1], 100L, 0L, 0);
	r = r * 100 + C(msgctl, q, IPC_STAT, m[5]);
	msgctl(q, IPC_RMID, NULL);
	return r;
}

static long of_semaphores(void **m)
{
	int s = semget(IPC_PRIVATE, 1, 0600);
	long r = C(semop, s, m[0], 1L);

	AS(long, 2) = 5;
	r = r * 100 + C(semtimedop, s, m[1], 1L, m[2]);
	r = r * 100 + C(semctl, s, 0, GETALL, m[3]);
	semctl(s, 0, IPC_RMID);
	return r * 100 + AS(unsigned short, 3);
}

static long of_segments(void **m)
{
	int id = shmget(IPC_PRIVATE, 4096, 0600);
	long r = C(shmctl, id, IPC_STAT, m[0]);

	r = r * 10000 + (long)AS(struct shmid_ds, 0).shm_segsz;
	shmctl(id, IPC_RMID, NULL);
	return r;
}

static long of_posix_queues(void **m)
{
	long q = C(mq_open, m[0], O_RDWR | O_CREAT, 0600, m[1]), r;

	if (q < 0)
		return q;
	AS(long, 3) = INT32_MAX; /* until when */
	r = C(mq_timedsend, (int)q, m[2], 8L, 4, m[3]);
	r = r * 100 + C(mq_timedreceive, (int)q, m[4], 100L, m[5], m[3]);
	r = r * 100 + C(mq_getsetattr, (int)q, NULL, m[1]);
	AS(struct sigevent, 2) = (struct sigevent){.sigev_notify = SIGEV_NONE};
	r = r * 100 + C(mq_notify, (int)q, m[2]) + C(mq_unlink, m[0]);
	return r * 100 + AS(int, 5) + close((int)q);
}

static long of_keys(void **m)
{
	const int ring = -2; /* the process's */
	long key = C(add_key, m[0], m[1], m[2], 7L, ring), r;

	if (key < 0)
		return key;
	r = C(keyctl, 6 /* describe */, key, m[3], 100L, 0L) > 0;
	r = r * 100 + C(keyctl, 11 /* read */, key, m[4], 100L, 0L);
	r = r * 10 + (C(request_key, m[0], m[1], NULL, 0) == key);
	memcpy(m[5], m[3], 4);
	return r;
}

static long of_aio(void **m)
{
	long context, r = C(io_setup, 1, m[0]);

	if (r < 0)
		return r;
	context = AS(long, 0);
	r = C(io_submit, context, 1L, m[1]) * 100 + C(io_getevents, context, 1L, 1L, m[4], NULL);
	AS(long, 5) = 1; /* a second */
	r = r * 100 + C(io_submit, context, 1L, m[1]) * 10 +
	    C(io_pgetevents, context, 1L, 1L, m[4], m[5], NULL);
	return r * 100 + C(io_cancel, context, m[2], m[4]) + C(io_destroy, context);
}

/* ---- io_uring ---- */

#define SELECT_BUFFER 0x20 /* IOSQE_BUFFER_SELECT */
#define FIXED_FILE    0x01
#define LINKED        0x04
#define NO_BUFFERS    0u /* IORING_REGISTER_BUFFERS */
#define THE_FILES     2u /* IORING_REGISTER_FILES */

/* Makes m[0] the buffer 0 of the ring. */
static long fixed_buffer(void **m)
{
	struct iovec buffer = {m[0], 200};

	return test_uring_register(NO_BUFFERS, &buffer, 1);
}

static long fixed_files(void **m)
{
	int fds[] = {pipe_r, -1};

	return test_uring_register(THE_FILES, fds, 2);
}

/* A vector inside of buffer 0. */
static void set_fixed_vector(void **m)
{
	AS(struct iovec, 1) = (struct iovec){m[0], 7};
	((struct iovec *)m[1])[1] = (struct iovec){(char *)m[0] + 50, 20};
	strcpy(m[0], "written");
}

/* A listening socket, and its address in m[0]. */
static int listener(void **m)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, m[0], 16) | listen(fd, 1) | getsockname(fd, m[0], m[1]), 0);
	return fd;
}

static long over_uring(void **m)
{
	int a = listener(m), b = socket(AF_INET, SOCK_STREAM, 0);
	long r = U(CONNECT, .fd = b, .addr = P(m[2]), .off = 16) * 0, c;

	close(b);
	b = socket(AF_INET, SOCK_STREAM, 0);
	AS(struct sockaddr_in, 2) = AS(struct sockaddr_in, 0);
	AS(socklen_t, 3) = sizeof(struct sockaddr_in);
	r = U(CONNECT, .fd = b, .addr = P(m[2]), .off = 16);
	c = U(ACCEPT, .fd = a, .addr = P(m[4]), .off = P(m[3]));
	r = r * 10 + (c < 0 ? c : AS(struct sockaddr_in, 4).sin_family);
	return r * 10 + (closed((int[]){a, b}) | made(c));
}

static long of_provided_buffers(void **m)
{
	long r = U(PROVIDE_BUFFERS, .fd = 1, .addr = P(m[0]), .len = 20, .off = 0);

	r = r * 100 + U(READ, .flags = SELECT_BUFFER, .fd = pipe_r, .len = 20, .buf = 0);
	r = r * 10 + U(PROVIDE_BUFFERS, .fd = 1, .addr = P(m[1]), .len = 20, .off = 0);
	assert_int_equal(write(pipe_w, "again", 5), 5);
	r = r * 100 + U(READ_MULTISHOT, .flags = SELECT_BUFFER, .fd = pipe_r, .buf = 0);
	r = r * 10 + U(PROVIDE_BUFFERS, .fd = 1, .addr = P(m[2]), .len = 20, .off = 0);
	return r * 10 + U(REMOVE_BUFFERS, .fd = 1, .buf = 0);
}

/* Over TCP, as other sockets refuse it. */
static long of_zero_copy(uint8_t op, void *what, uint32_t len)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t to_len = sizeof(to);
	void *address[] = {&to, &to_len};
	int a = listener(address), b = socket(AF_INET, SOCK_STREAM, 0), c;
	const struct test_sqe sqe = {.opcode = op, .fd = b, .addr = P(what), .len = len};
	long r;

	assert_int_equal(connect(b, (void *)&to, sizeof(to)), 0);
	c = accept(a, NULL, NULL);
	r = test_uring(&sqe, 1);
	if (r > 0)
		r = r * 1000 + recv(c, got, (size_t)r, MSG_WAITALL) * 10 + got[r - 1];
	return r + closed((int[]){a, b}) + close(c);
}

static long of_tee(void)
{
	int fds[2];
	long r;

	assert_int_equal(pipe(fds), 0);
	r = U(TEE, .more_fd = pipe_r, .fd = fds[1], .len = 5);
	return r * 10 + closed(fds);
}

/* A wait for what never comes, which the time in m[0] ends. */
static long of_link_timeout(void **m)
{
	const struct test_sqe both[] = {
	    {.opcode = OP_POLL_ADD, .flags = LINKED, .fd = pipe_w, .op_flags = POLLPRI},
	    {.opcode = OP_LINK_TIMEOUT, .addr = P(m[0]), .len = 1},
	};

	return test_uring(both, 2);
}

/* ---- signals and processes ---- */

static volatile sig_atomic_t n_taken;

static void on_signal(int sig)
{
	n_taken++;
}

static long taken(void)
{
	int n = n_taken;

	n_taken = 0;
	return n;
}

/* Evaluates e while SIGUSR1 is blocked, and pending for the thread. */
#define pending(e)                                                                                           \
	({                                                                                                   \
		sigset_t before, one;                                                                        \
		long r;                                                                                      \
                                                                                                             \
		sigemptyset(&one);                                                                           \
		sigaddset(&one, SIGUSR1);                                                                    \
		sigprocmask(SIG_BLOCK, &one, &before);                                                       \
		raise(SIGUSR1);                                                                              \
		r = (long)(e);                                                                               \
		sigprocmask(SIG_SETMASK, &before, NULL);                                                     \
		r;                                                                                           \
	})

/* Starts a child, which has ended when this returns. */
static void ended_child(void)
{
	pid_t pid = vfork();

	if (pid == 0)
		_exit(7);
	assert_true(pid > 0);
}

/* Evaluates e in a child. Returns its exit status. */
#define ran(e)                                                                                               \
	({                                                                                                   \
		int status = -1;                                                                             \
		pid_t pid = fork();                                                                          \
                                                                                                             \
		if (pid == 0) {                                                                              \
			(void)(e);                                                                           \
			_exit(100);                                                                          \
		}                                                                                            \
		waitpid(pid, &status, 0);                                                                    \
		(long)status;                                                                                \
	})

/* ---- the rows ---- */

#define ANY(i) CALL_ANY(i)
#define ROW(name, differ, before, call)                                                                      \
	static void before_##name(void **m)                                                                  \
	{                                                                                                    \
		(void)m;                                                                                     \
		before;                                                                                      \
	}                                                                                                    \
	static long call_##name(void **m)                                                                    \
	{                                                                                                    \
		return (long)(call);                                                                         \
	}
#include "everycall.def"
#undef ROW
#define ROW(name, differ, before, call) {#name, differ, before_##name, call_##name},
const struct call_row test_call_rows[] = {
#include "everycall.def"
};
const size_t test_call_n_rows = FP_ARRAY_LEN(test_call_rows);

long test_call_row(const struct call_row *row, void **m, bool is_bare)
{
	long r;

	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, SIG_DFL);
	open_descriptors();
	by_instruction = is_bare;
	r = row->call(m);
	close_descriptors();
	return r;
}
