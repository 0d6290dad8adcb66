/*
 * The table of calls and its engine: each name runs its own row, and calls that hand far memory to
 * the real kernel succeed, also if the memory is too long to be pinned at once. The wrappers stand
 * in for the C library's functions in this program.
 */
#include "far_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "calls.h"
#include "cleanup.h"
#include "local.h"
#include "wary.h"

#define LONG_BYTES (40 * (size_t)FP_PAGE_SIZE)

/* ---- the table ---- */

static void check_arg(unsigned n)
{
	assert_true(n == FP_NOARG || (n & FP_ARG_MASK) < FP_CALL_ARGS);
	assert_true(n == FP_NOARG || !(n & ~(FP_ARG_MASK | FP_ARG_IS_INT)));
}

static void check_row(const struct fp_row *row)
{
	bool ended = false;

	for (unsigned i = 0; i < FP_PIECES; i++) {
		const struct fp_call_piece *piece = &row->pieces[i];

		ended = ended || piece->kind == FP_PIECE_END;
		assert_int_equal(ended, piece->kind == FP_PIECE_END);
		if (ended)
			continue;
		assert_true(piece->kind <= FP_PIECE_ENVIRON && piece->arg < FP_CALL_ARGS && piece->unit > 0);
		check_arg(piece->n);
		check_arg(piece->m);
	}
	assert_true(FP_HOW_FIRST(row->how) <= fp_call_n_rows);
	assert_true(FP_HOW_ARG(row->how) < FP_CALL_ARGS);
}

/* A row names only arguments that a call can have, and only known kinds of memory. */
static void test_rows(void **state)
{
	for (unsigned i = 0; i < fp_call_n_rows; i++)
		check_row(&fp_call_rows[i]);
	for (long number = 0; number < 600; number++)
		check_row(fp_call_raw_row(number));
}

static const struct fp_row *row_of(const char *name)
{
	for (unsigned i = 0; i < fp_call_n_rows; i++)
		if (strcmp(fp_call_rows[i].name, name) == 0)
			return &fp_call_rows[i];
	return NULL;
}

/* A system call and the C function of the same name have rows with the same memory arguments. */
static void test_numbers(void **state)
{
	static const long strange[] = {-1, LONG_MIN, LONG_MAX, 100000, SYS_getpid};
	unsigned n_both = 0;

	for (size_t i = 0; i < FP_ARRAY_LEN(strange); i++) {
		const struct fp_row *any = fp_call_raw_row(strange[i]);

		assert_true(any->how & FP_HOW_GUESS);
		for (unsigned arg = 0; arg < 6; arg++) {
			assert_int_equal(any->pieces[arg].kind, FP_PIECE_WINDOW);
			assert_int_equal(any->pieces[arg].arg, arg);
			assert_true(any->pieces[arg].write);
		}
	}
#if defined(__x86_64__)
	assert_string_equal(fp_call_raw_row(SYS_read)->name, "read");
	assert_string_equal(fp_call_raw_row(SYS_ppoll)->name, "ppoll");
	for (long number = 0; number < 600; number++) {
		const struct fp_row *raw = fp_call_raw_row(number), *row = row_of(raw->name);

		if (!row || raw == fp_call_raw_row(-1) || strcmp(raw->name, "ppoll") == 0)
			continue;
		assert_memory_equal(raw->pieces, row->pieces, sizeof(raw->pieces));
		assert_int_equal(raw->how, row->how);
		n_both++;
	}
	assert_true(n_both > 50);
#endif
}

/* ---- the wrappers ---- */

static const long sent[FP_CALL_ARGS] = {11, 22, 33, 44, 55, 66, 77};
static unsigned n_recorded;

static long record(long a, long b, long c, long d, long e, long f, long g)
{
	const long got[] = {a, b, c, d, e, f, g};

	n_recorded += memcmp(got, sent, sizeof(got)) == 0;
	return 0x123456789abcdef0;
}

/*
 * The function of that name in this program calls the entry of that row, and passes on all
 * arguments.
 */
static void check_wrapper(const char *symbol, const char *row)
{
	unsigned i = (unsigned)(row_of(row) - fp_call_rows);
	fp_call_fn *wrapper = (fp_call_fn *)dlsym(RTLD_DEFAULT, symbol), *entry = fp_call_entry[i];
	long r;

	assert_non_null(wrapper);
	fp_call_entry[i] = record;
	n_recorded = 0;
	r = wrapper(sent[0], sent[1], sent[2], sent[3], sent[4], sent[5], sent[6]);
	fp_call_entry[i] = entry;
	if (n_recorded != 1 || r != 0x123456789abcdef0)
		fail_msg("%s does not run the row %s", symbol, row);
}

static void test_wrappers(void **state)
{
#define ALIAS(other, name)    check_wrapper(#other, #name);
#define CALL(name, how, ...)  check_wrapper(#name, #name);
#define BOTH(name, how, ...)  check_wrapper(#name, #name);
#define INNER(name, how, ...) assert_non_null(row_of(#name));
#define RAW(name, how, ...)
#include "calls.def"
#undef ALIAS
}

/* ---- calls whose memory is pinned at once ---- */

static int make_file(void)
{
	int fd = memfd_create("file", MFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

/* Bytes that differ from page to page. */
static void fill(char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (char)(i * 31 + i / 4096);
}

static void assert_filled(const char *bytes, size_t from, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != (char)((from + i) * 31 + (from + i) / 4096))
			fail_msg("the byte at %zu is wrong", from + i);
}

/* Without pins the kernel would answer EFAULT: see far_rig.h. */
static void test_kernel_needs_pins(void **state)
{
	int fd = make_file();

	far_rig_close();
	assert_int_equal(fp_call_raw_syscall(SYS_write, fd, FAR(0), 8l), -1);
	assert_int_equal(errno, EFAULT);
	far_rig_use_agent(false); /* then the wrapper only calls the C library's function */
	assert_int_equal(write(fd, FAR(0), 8), -1);
	assert_int_equal(errno, EFAULT);
	far_rig_use_agent(true);
	assert_int_equal(write(fd, FAR(0), 8), 8);
	close(fd);
}

static void test_read_and_write(void **state)
{
	int fd = make_file();

	fill(FAR(100), 10000);
	far_rig_close();
	errno = 77;
	assert_int_equal(write(fd, FAR(100), 10000), 10000);
	assert_int_equal(far_rig.n_pins, 1);
	assert_int_equal(pread(fd, FAR(30001), 9000, 500), 9000);
	assert_int_equal(far_rig.n_faults, 0);
	assert_int_equal(errno, 77);
	assert_filled(FAR(30001), 500, 9000);
	assert_int_equal(read(fd, FAR(30001), 100), 0); /* the end of the file */
	assert_int_equal(errno, 77);
	close(fd);
	assert_int_equal(read(fd, FAR(0), 100), -1);
	assert_int_equal(errno, EBADF);
}

static void test_vectors(void **state)
{
	struct iovec *iov = (struct iovec *)(void *)FAR(0);
	char local[100];
	int fd = make_file();

	fill(FAR(FP_PAGE_SIZE), 9000);
	iov[0] = (struct iovec){FAR(FP_PAGE_SIZE), 5000};
	iov[1] = (struct iovec){FAR(FP_PAGE_SIZE + 5000), 4000};
	far_rig_close();
	assert_int_equal(writev(fd, iov, 2), 9000);
	iov[0] = (struct iovec){local, sizeof(local)};
	iov[1] = (struct iovec){FAR(50000), 8900};
	far_rig_close();
	assert_int_equal(preadv(fd, iov, 2, 0), 9000);
	assert_filled(local, 0, sizeof(local));
	assert_filled(FAR(50000), 100, 8900);
	close(fd);
}

static void test_messages(void **state)
{
	struct msghdr *msg = (struct msghdr *)(void *)FAR(0);
	struct iovec *iov = (struct iovec *)(void *)FAR(FP_PAGE_SIZE);
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds), 0);
	strcpy(FAR(2 * FP_PAGE_SIZE), "a message");
	*iov = (struct iovec){FAR(2 * FP_PAGE_SIZE), 10};
	*msg = (struct msghdr){.msg_iov = iov, .msg_iovlen = 1};
	far_rig_close();
	assert_int_equal(sendmsg(fds[0], msg, 0), 10);
	iov->iov_base = FAR(3 * FP_PAGE_SIZE);
	msg->msg_control = FAR(4 * FP_PAGE_SIZE);
	msg->msg_controllen = 64;
	far_rig_close();
	assert_int_equal(recvmsg(fds[1], msg, 0), 10);
	assert_string_equal(FAR(3 * FP_PAGE_SIZE), "a message");
	assert_int_equal(msg->msg_controllen, 0); /* the kernel wrote the header */
	close(fds[0]);
	close(fds[1]);
}

/* Calls of six arguments. The last argument is a pointer (recvfrom) or a length (sendto). */
static void test_addresses(void **state)
{
	struct sockaddr_in *to = (struct sockaddr_in *)(void *)FAR(0),
	                   *from = (struct sockaddr_in *)(void *)FAR(8192);
	socklen_t *len = (socklen_t *)(void *)FAR(5 * FP_PAGE_SIZE);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	*to = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	*len = sizeof(*to);
	far_rig_close();
	assert_int_equal(bind(fd, (struct sockaddr *)to, sizeof(*to)), 0);
	far_rig_close();
	assert_int_equal(getsockname(fd, (struct sockaddr *)to, len), 0);
	strcpy(FAR(4 * FP_PAGE_SIZE), "to myself");
	far_rig_close();
	assert_int_equal(sendto(fd, FAR(4 * FP_PAGE_SIZE), 10, 0, (struct sockaddr *)to, sizeof(*to)), 10);
	far_rig_close();
	assert_int_equal(recvfrom(fd, FAR(4 * FP_PAGE_SIZE + 50), 10, 0, (struct sockaddr *)from, len), 10);
	assert_int_equal(from->sin_port, to->sin_port);
	assert_int_equal(*len, sizeof(*from));
	close(fd);
}

static void test_other_memory(void **state)
{
	struct stat *st = (struct stat *)(void *)FAR(FP_PAGE_SIZE);
	struct pollfd *polls = (struct pollfd *)(void *)FAR(3 * FP_PAGE_SIZE) - 1;
	int *ends = (int *)(void *)FAR(5 * FP_PAGE_SIZE);

	strcpy(FAR(10), "/dev/null");
	far_rig_close();
	assert_int_equal(stat(FAR(10), st), 0);
	assert_true(S_ISCHR(st->st_mode));
	far_rig_close();
	assert_int_equal(pipe(ends), 0);
	polls[0] = polls[1] = (struct pollfd){.fd = ends[1], .events = POLLOUT}; /* in two pages */
	far_rig_close();
	assert_int_equal(poll(polls, 2, 0), 2);
	assert_int_equal(polls[0].revents & polls[1].revents, POLLOUT);
	close(ends[0]);
	close(ends[1]);
}

/* A path beyond the first window: the call is made again with a wide one. */
static void test_wide_window(void **state)
{
	size_t at = 2 * FP_PAGE_SIZE - 600;
	struct stat st;

	for (unsigned i = 0; i < 700; i += 2)
		memcpy(FAR(at + i), "/.", 2);
	FAR(at + 700)[0] = '\0';
	far_rig_close();
	assert_int_equal(stat(FAR(at), &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	assert_int_equal(far_rig.n_pins, 2);
}

/*
 * syscall(2) uses the row of the number that it gets. The arguments of that row come one place
 * later.
 */
static void test_syscall(void **state)
{
	int fd = make_file();

	fill(FAR(0), 100);
	far_rig_close();
	assert_int_equal(fp_call_syscall_mediated(SYS_write, fd, (long)FAR(0), 100, 0, 0, 0), 100);
	assert_int_equal(fp_call_syscall_mediated(SYS_pread64, fd, (long)FAR(5000), 90, 10, 0, 0), 90);
	assert_filled(FAR(5000), 10, 90);
	close(fd);
	far_rig_listen();
	assert_int_equal(fp_call_syscall_mediated(SYS_io_uring_setup, 8, (long)FAR(0), 0, 0, 0, 0), -1);
	assert_int_equal(errno, ENOSYS);
	assert_non_null(strstr(far_rig_heard(), "io_uring_setup was refused"));
}

/* A free lock is taken without the kernel, so nothing is pinned for it. */
static void test_lock_that_is_free(void **state)
{
	pthread_mutex_t *mutex = (pthread_mutex_t *)(void *)FAR(64);

	pthread_mutex_init(mutex, NULL);
	far_rig_close();
	assert_int_equal(pthread_mutex_lock(mutex), 0);
	assert_int_equal(far_rig.n_pins, 0);
	assert_int_equal(pthread_mutex_trylock(mutex), EBUSY);
	assert_int_equal(pthread_mutex_unlock(mutex), 0);
}

/* ---- calls whose memory is too long to be pinned at once ---- */

static int file_of(size_t len)
{
	int fd = make_file();

	fill(FAR(0), len);
	far_rig_close();
	assert_int_equal(write(fd, FAR(0), len), (ssize_t)len);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	memset(FAR(0), 0, len);
	far_rig_close();
	return fd;
}

/* A file is read and written in parts, to the last byte. */
static void test_long_file(void **state)
{
	int fd = file_of(LONG_BYTES), copy = make_file();

	far_rig.budget_pages = 5;
	assert_int_equal(read(fd, FAR(1), LONG_BYTES + 7), LONG_BYTES);
	assert_true(far_rig.n_pins > 8);
	assert_filled(FAR(1), 0, LONG_BYTES);
	far_rig_close();
	assert_int_equal(write(copy, FAR(1), LONG_BYTES), LONG_BYTES);
	memset(FAR(0), 0, LONG_BYTES);
	far_rig_close();
	assert_int_equal(pread(copy, FAR(3), LONG_BYTES - 5000, 4321), LONG_BYTES - 5000);
	assert_filled(FAR(3), 4321, LONG_BYTES - 5000);
	close(fd);
	close(copy);
}

static void test_long_vector(void **state)
{
	int fd = file_of(LONG_BYTES);
	struct iovec iov[] = {{FAR(1), 10 * FP_PAGE_SIZE + 3}, {FAR(15 * FP_PAGE_SIZE), 20 * FP_PAGE_SIZE}};

	far_rig.budget_pages = 4;
	assert_int_equal(readv(fd, iov, 2), 30 * FP_PAGE_SIZE + 3);
	assert_filled(FAR(1), 0, 10 * FP_PAGE_SIZE + 3);
	assert_filled(FAR(15 * FP_PAGE_SIZE), 10 * FP_PAGE_SIZE + 3, 20 * FP_PAGE_SIZE);
	close(fd);
}

/* fread returns the number of complete elements, and also reads the incomplete one at the end. */
static void test_long_stream(void **state)
{
	int fd = file_of(LONG_BYTES);
	FILE *stream = fdopen(fd, "r");

	assert_non_null(stream);
	assert_int_equal(setvbuf(stream, NULL, _IONBF, 0), 0);
	far_rig.budget_pages = 4;
	assert_int_equal(fread(FAR(8), 3000, 100, stream), LONG_BYTES / 3000);
	assert_filled(FAR(8), 0, LONG_BYTES);
	fclose(stream);
}

/* A pipe is read only once, because programs expect short reads from it. Writes are complete. */
static void test_long_pipe(void **state)
{
	int fds[2];
	ssize_t n;

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	fill(FAR(0), 12 * FP_PAGE_SIZE);
	far_rig_close();
	far_rig.budget_pages = 3;
	assert_int_equal(write(fds[1], FAR(0), 12 * FP_PAGE_SIZE), 12 * FP_PAGE_SIZE);
	n = read(fds[0], FAR(LONG_BYTES), 12 * FP_PAGE_SIZE);
	assert_in_range(n, 1, 3 * FP_PAGE_SIZE);
	assert_filled(FAR(LONG_BYTES), 0, (size_t)n);
	close(fds[0]);
	close(fds[1]);
}

/*
 * MSG_WAITALL asks for all bytes, so the call receives them in parts. With MSG_PEEK it can't do
 * that.
 */
static void test_long_receive(void **state)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	fill(FAR(0), 12 * FP_PAGE_SIZE);
	far_rig_close();
	assert_int_equal(send(fds[1], FAR(0), 12 * FP_PAGE_SIZE, 0), 12 * FP_PAGE_SIZE);
	far_rig.budget_pages = 3;
	assert_in_range(recv(fds[0], FAR(LONG_BYTES), 12 * FP_PAGE_SIZE, MSG_PEEK | MSG_WAITALL), 1,
	                3 * FP_PAGE_SIZE);
	assert_int_equal(recv(fds[0], FAR(LONG_BYTES), 12 * FP_PAGE_SIZE, MSG_WAITALL), 12 * FP_PAGE_SIZE);
	assert_filled(FAR(LONG_BYTES), 0, 12 * FP_PAGE_SIZE);
	close(fds[0]);
	close(fds[1]);
}

/* A datagram can't be cut: it goes by way of a copy. */
static void test_long_datagram(void **state)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds), 0);
	fill(FAR(0), 6 * FP_PAGE_SIZE);
	far_rig_close();
	far_rig.budget_pages = 3;
	assert_int_equal(send(fds[0], FAR(0), 6 * FP_PAGE_SIZE, 0), 6 * FP_PAGE_SIZE);
	assert_int_equal(recv(fds[1], FAR(LONG_BYTES), 7 * FP_PAGE_SIZE, MSG_DONTWAIT), 6 * FP_PAGE_SIZE);
	assert_filled(FAR(LONG_BYTES), 0, 6 * FP_PAGE_SIZE);
	close(fds[0]);
	close(fds[1]);
}

/*
 * An error before the first byte is reported. After an error behind the first byte, the call
 * returns the count so far.
 */
static void test_long_and_wrong(void **state)
{
	int fd = file_of(LONG_BYTES), fds[2];

	far_rig.budget_pages = 4;
	close(fd);
	errno = 0;
	assert_int_equal(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
	assert_int_equal(read(fds[0], FAR(0), LONG_BYTES), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(write(fds[1], FAR(0), LONG_BYTES), 65536); /* as much as a pipe holds */
	close(fds[0]);
	close(fds[1]);
}

/* ---- calls that go to the kernel as they are ---- */

/*
 * Calls of the agent itself go to the kernel as they are. So do the calls of a child that a bare
 * call made.
 */
static void test_who_is_not_mediated(void **state)
{
	int fd = make_file();

	far_rig_close();
	fp_shim_enter_local();
	assert_int_equal(write(fd, FAR(0), 8), -1);
	assert_int_equal(errno, EFAULT);
	fp_shim_leave_local();
	far_rig.stray = true;
	assert_int_equal(write(fd, FAR(0), 8), -1);
	far_rig.stray = false;
	assert_int_equal(far_rig.n_pins, 0);
	assert_int_equal(write(fd, FAR(0), 8), 8);
	close(fd);
}

/* Local memory is none of our business: nothing is pinned, and the arguments are the program's. */
static void test_local_memory(void **state)
{
	struct iovec iov = {(void *)"text", 4};
	int fd = make_file();

	far_rig_close();
	assert_int_equal(write(fd, "text", 4), 4);
	assert_int_equal(writev(fd, &iov, 1), 4);
	assert_int_equal(far_rig.n_pins, 0);
	close(fd);
}

/* How often the agent was told to be wary since the last question. */
static unsigned wary(void)
{
	unsigned n = far_rig.n_wary;

	far_rig.n_wary = 0;
	return n;
}

static unsigned wary_of(const char *name, int flags)
{
	int fd = open(name, flags | O_CLOEXEC);

	if (fd >= 0)
		close(fd);
	return wary();
}

/* In every fault mode, what may hold memory without a pin, or only to read it, is noticed. */
static void test_wary(void **state)
{
	char name[] = "/tmp/wary-XXXXXX";
	int fd = mkstemp(name), direct;

	assert_true(fd >= 0);
	far_rig.needs_no_pins = true;
	far_rig_use_agent(true);
	direct = open(name, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (direct >= 0) { /* else this file system has no direct reads */
		close(direct);
		wary();
		far_rig.fs_kind = 0xEF53; /* ext4 pins */
		assert_int_equal(wary_of(name, O_RDONLY | O_DIRECT), 0);
		far_rig.fs_kind = 0x6969; /* NFS does not */
		assert_int_equal(wary_of(name, O_RDONLY), 0);
		assert_int_equal(wary_of(name, O_WRONLY | O_DIRECT), 0);
		assert_int_equal(wary_of(name, O_RDONLY | O_DIRECT), 1);
		assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
		assert_int_equal(wary(), 0);
		assert_int_equal(fcntl(fd, F_SETFL, O_DIRECT), 0);
		assert_int_equal(wary(), 1);
		assert_int_equal(syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT, O_DIRECT);
		fp_wary_look_at_inherited();
		assert_int_equal(wary(), 1);
	}
	close(fd);
	unlink(name);
	assert_int_equal(wary_of("/dev/null", O_RDWR), 0);
	assert_int_equal(wary_of("/dev/fuse", O_RDWR), access("/dev/fuse", R_OK | W_OK) == 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, far_rig_setup, far_rig_teardown)
	const struct CMUnitTest tests[] = {
	    TEST(test_rows),           TEST(test_numbers),
	    TEST(test_wrappers),       TEST(test_kernel_needs_pins),
	    TEST(test_read_and_write), TEST(test_vectors),
	    TEST(test_messages),       TEST(test_addresses),
	    TEST(test_other_memory),   TEST(test_wide_window),
	    TEST(test_syscall),        TEST(test_lock_that_is_free),
	    TEST(test_long_file),      TEST(test_long_vector),
	    TEST(test_long_stream),    TEST(test_long_pipe),
	    TEST(test_long_receive),   TEST(test_long_datagram),
	    TEST(test_long_and_wrong), TEST(test_who_is_not_mediated),
	    TEST(test_local_memory),   TEST(test_wary),
	};

	return cmocka_run_group_tests(tests, far_rig_begin, NULL);
}
