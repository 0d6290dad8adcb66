/* See callslong.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "callslong.h"
#include "callsteps.h"
#include "underpreload.h"

#define PAGE STEP_PAGE

static void assert_file(const char *name, const char *bytes, size_t len)
{
	int fd = open(name, O_RDONLY);

	assert_int_equal(pread(fd, test_big_local, len, 0), len);
	assert_memory_equal(test_big_local, bytes, len);
	close(fd);
}

void test_long_files(void **state)
{
	int fd = open("long", O_RDWR | O_CREAT | O_TRUNC, 0600);

	test_fill(test_big_far, BIG, 5);
	assert_int_equal(write(fd, test_big_far, BIG), BIG);
	assert_file("long", test_big_far, BIG);
	memset(test_big_far, 1, BIG);
	assert_int_equal(pread(fd, test_big_far, BIG, 0), BIG);
	assert_true(test_is_filled(test_big_far, BIG, 5));
	memset(test_big_far, 1, BIG);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	assert_int_equal(read(fd, test_big_far, BIG + 0), BIG);
	assert_true(test_is_filled(test_big_far, BIG, 5));
	assert_int_equal(read(fd, test_big_far, BIG), 0);
	close(fd);
}

void test_long_vectors(void **state)
{
	int fd = open("long", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct iovec iov[4];

	for (unsigned i = 0; i < 4; i++)
		iov[i] = (struct iovec){.iov_base = test_big_far + i * (BIG / 4), .iov_len = BIG / 4};
	test_fill(test_big_far, BIG, 6);
	assert_int_equal(writev(fd, iov, 4), BIG);
	assert_file("long", test_big_far, BIG);
	memset(test_big_far, 1, BIG);
	assert_int_equal(preadv(fd, iov, 4, 0), BIG);
	assert_true(test_is_filled(test_big_far, BIG, 6));
	close(fd);
}

void test_long_streams(void **state)
{
	FILE *f = fopen("long", "w+");

	test_fill(test_big_far, BIG, 7);
	assert_int_equal(fwrite(test_big_far, 16, BIG / 16, f), BIG / 16);
	fflush(f);
	assert_file("long", test_big_far, BIG);
	memset(test_big_far, 1, BIG);
	rewind(f);
	assert_int_equal(fread(test_big_far, 1024, BIG / 1024, f), BIG / 1024);
	assert_true(test_is_filled(test_big_far, BIG, 7));
	rewind(f);
	memset(test_big_far, 'x', 100000);
	test_big_far[100000] = 0;
	test_evict_all();
	assert_int_equal(fprintf(f, "%s!", test_big_far), 100001);
	assert_int_equal(fputs(test_big_far, f) >= 0, 1);
	fflush(f);
	assert_int_equal(fseek(f, 99999, SEEK_SET), 0);
	assert_int_equal(fgetc(f), 'x');
	assert_int_equal(fgetc(f), '!');
	fclose(f);
}

/* A text that can't be resident as a whole, to a descriptor. */
void test_long_text(void **state)
{
	int fd = open("long", O_RDWR | O_CREAT | O_TRUNC, 0600);

	memset(test_big_far, 'x', BIG - 1);
	test_big_far[BIG - 1] = 0;
	assert_int_equal(dprintf(fd, "%s!", test_big_far), BIG);
	assert_int_equal(lseek(fd, 0, SEEK_END), BIG);
	close(fd);
}

static void *drain(void *arg)
{
	int fd = *(int *)arg;
	size_t n = 0;
	ssize_t r;

	while ((r = read(fd, test_big_local + n, BIG - n)) > 0)
		n += (size_t)r;
	return (void *)n;
}

void test_long_pipe(void **state)
{
	pthread_t thread;
	void *drained;
	int ends[2];

	test_fill(test_big_far, BIG, 8);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(pthread_create(&thread, NULL, drain, &ends[0]), 0);
	assert_int_equal(write(ends[1], test_big_far, BIG), BIG);
	close(ends[1]);
	pthread_join(thread, &drained);
	close(ends[0]);
	assert_int_equal((size_t)drained, BIG);
	assert_memory_equal(test_big_local, test_big_far, BIG);
}

/* A datagram can't be cut into pieces. One that is too long to pin goes by way of a copy. */
void test_long_datagram(void **state)
{
	int pair[2], size = 1 << 20;
	size_t len = TEST_LOCAL_BYTES / 2;

	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	if (setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		len = 100000;
	test_fill(test_big_far, len, 9);
	test_evict_all();
	assert_int_equal(send(pair[0], test_big_far, len, 0), len);
	assert_int_equal(recv(pair[1], test_big_far + BIG / 2, BIG / 2, 0), len);
	test_fill(test_big_local, len, 9);
	assert_memory_equal(test_big_far + BIG / 2, test_big_local, len);
	close(pair[0]);
	close(pair[1]);
}

/* A vector of more pages than can be pinned is one call: here one datagram, each way. */
void test_whole_vectors(void **state)
{
	struct iovec iov[1000];
	char got[4000];
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	test_fill(test_big_far, BIG, 12);
	for (size_t i = 0; i < 1000; i++) {
		iov[i] = (struct iovec){.iov_base = test_big_far + i * (PAGE - 7), .iov_len = 4};
		memcpy(test_big_local + 4 * i, iov[i].iov_base, 4);
	}
	test_evict_all();
	assert_int_equal(writev(pair[0], iov, 1000), 4000);
	assert_int_equal(read(pair[1], got, sizeof(got)), 4000);
	assert_memory_equal(got, test_big_local, 4000);
	memset(test_big_far, 0, BIG);
	assert_int_equal(write(pair[0], got, sizeof(got)), 4000);
	assert_int_equal(readv(pair[1], iov, 1000), 4000);
	for (size_t i = 0; i < 1000; i++)
		assert_memory_equal(iov[i].iov_base, got + 4 * i, 4);
	iov[999].iov_base = (void *)8; /* what the kernel does not reach ends the call, as without a copy */
	assert_int_equal(writev(pair[0], iov, 1000), -1);
	assert_int_equal(errno, EFAULT);
	close(pair[0]);
	close(pair[1]);
}

/*
 * Calls with more buffers (iovec, mmsghdr) than can be pinned at once: pins take at most a quarter
 * of the budget.
 */
void test_many_vectors(void **state)
{
	struct iovec iov[1000];
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 1000};
	char got[4000];
	int pair[2], file;
	size_t n = 1000;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	test_fill(test_big_far, BIG, 10);
	for (size_t i = 0; i < 1000; i++) {
		iov[i] = (struct iovec){.iov_base = test_big_far + i * (PAGE - 7), .iov_len = 4};
		memcpy(test_big_local + 4 * i, iov[i].iov_base, 4);
	}
	test_evict_all();
	if (test_is_refused(sendmsg(pair[0], &msg, MSG_DONTWAIT), ENOMEM)) {
		assert_int_equal(recvmsg(pair[0], &msg, 0), -1);
		assert_int_equal(errno, ENOMEM);
		file = open("long", O_RDWR | O_CREAT | O_TRUNC, 0600);
		assert_int_equal(writev(file, iov, 1000), 4000);
		assert_int_equal(pread(file, got, 4000, 0), 4000);
		assert_memory_equal(got, test_big_local, 4000);
		close(file);
		n = 30;
	} else {
		assert_false(test_is_pinning());
		assert_int_equal(recv(pair[1], got, 4000, MSG_WAITALL), 4000);
	}
	msg.msg_iovlen = n;
	assert_int_equal(sendmsg(pair[0], &msg, 0), 4 * n);
	assert_int_equal(recv(pair[1], got, 4 * n, MSG_WAITALL), 4 * n);
	assert_memory_equal(got, test_big_local, 4 * n);
	memset(test_big_far, 0, BIG);
	assert_int_equal(writev(pair[1], &(struct iovec){got, 4 * n}, 1), 4 * n);
	test_evict_all();
	assert_int_equal(recvmsg(pair[0], &msg, MSG_WAITALL), 4 * n);
	for (size_t i = 0; i < n; i++)
		assert_memory_equal(iov[i].iov_base, got + 4 * i, 4);
	close(pair[0]);
	close(pair[1]);
}

/* From a pipe's end for reading, vmsplice writes into memory. */
void test_from_a_pipe(void **state)
{
	struct iovec to = {test_big_far, 2 * PAGE};
	int ends[2];

	assert_int_equal(pipe(ends), 0);
	memset(test_big_local, 'p', 2 * PAGE);
	assert_int_equal(write(ends[1], test_big_local, 2 * PAGE), 2 * PAGE);
	test_evict_all();
	assert_int_equal(vmsplice(ends[0], &to, 1, 0), 2 * PAGE);
	assert_memory_equal(test_big_far, test_big_local, 2 * PAGE);
	close(ends[0]);
	close(ends[1]);
}

static sem_t called_back;

static void call_back(union sigval value)
{
	assert_true(test_is_filled(value.sival_ptr, BIG, 13));
	sem_post(&called_back);
}

/* The C library's own threads, with all signals blocked, touch far memory or are refused. */
void test_callbacks(void **state)
{
	struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = call_back};
	struct itimerspec soon = {.it_value = {.tv_nsec = 1000000}};
	timer_t timer;

	event.sigev_value.sival_ptr = test_big_far;
	test_fill(test_big_far, BIG, 13);
	assert_int_equal(sem_init(&called_back, 0, 0), 0);
	if (!test_is_refused(timer_create(CLOCK_MONOTONIC, &event, &timer), ENOSYS)) {
		assert_false(test_is_pinning());
		assert_int_equal(timer_settime(timer, 0, &soon, NULL), 0);
		while (sem_wait(&called_back) < 0)
			;
		timer_delete(timer);
	}
	event.sigev_notify = SIGEV_NONE;
	assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	timer_delete(timer);
}

struct sender {
	int fd;
	size_t len;
};

static void *send_slowly(void *arg)
{
	struct sender *s = arg;

	for (size_t sent = 0; sent < s->len; sent += PAGE)
		send(s->fd, test_big_local + sent, PAGE, 0);
	return NULL;
}

void test_long_receive(void **state)
{
	struct sender sender = {.len = BIG};
	pthread_t thread;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	sender.fd = pair[0];
	test_fill(test_big_local, BIG, 11);
	assert_int_equal(pthread_create(&thread, NULL, send_slowly, &sender), 0);
	assert_int_equal(recv(pair[1], test_big_far, BIG, MSG_WAITALL), BIG);
	pthread_join(thread, NULL);
	assert_true(test_is_filled(test_big_far, BIG, 11));
	close(pair[0]);
	close(pair[1]);
}

/* A call returns the caller's own address, even if the kernel got the address of a copy. */
void test_long_name(void **state)
{
	assert_ptr_equal(getcwd(test_big_far, BIG), test_big_far);
	assert_string_equal(test_big_far, test_folder);
}
