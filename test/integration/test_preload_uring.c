/*
 * io_uring in a program with far memory. The kernel refuses operations that would change far memory
 * unnoticed; all other operations work. In fault mode inline io_uring_setup itself is refused.
 * Room: test/integration.
 */
#include <errno.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "underpreload.h"

#define PAGE    4096u
#define BIG     (8 * TEST_LOCAL_BYTES)
#define ENTRIES 8u

static char *far_memory;

static int fill(void **state)
{
	far_memory = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (far_memory == MAP_FAILED)
		return -1;
	test_fill(far_memory, BIG, 1);
	return 0;
}

static bool is_inline(void)
{
	const char *mode = getenv("FARPAGE_FAULT_MODE");

	return mode && strcmp(mode, "inline") == 0;
}

/* The ways in which a program can set up a ring. */
enum by { BY_FLAGS, BY_PARAMS, BY_NUMBER, N_BY };

static int set_up(enum by by, struct io_uring *ring, unsigned flags)
{
	struct io_uring_params params = {.flags = flags};
	int fd, r;

	if (by == BY_FLAGS)
		return io_uring_queue_init(ENTRIES, ring, flags);
	if (by == BY_PARAMS)
		return io_uring_queue_init_params(ENTRIES, ring, &params);
	fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
	if (fd < 0)
		return -errno;
	assert_int_equal(params.flags & ~flags, 0);
	r = io_uring_queue_mmap(fd, &params, ring);
	for (unsigned i = 0; r == 0 && i < ENTRIES; i++)
		ring->sq.array[i] = i; /* io_uring_queue_init does the same */
	return r;
}

/* False if rings are refused here, either by the shim with a message or by the host. */
static bool can_set_up(enum by by, struct io_uring *ring, unsigned flags)
{
	int r = set_up(by, ring, flags);

	if (is_inline()) {
		assert_int_equal(r, -ENOSYS);
		return false;
	}
	if (r == -ENOSYS || r == -EPERM)
		skip();
	assert_int_equal(r, 0);
	return true;
}

static int do_one(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int r;

	assert_int_equal(io_uring_submit(ring), 1);
	assert_int_equal(io_uring_wait_cqe(ring, &cqe), 0);
	r = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return r;
}

static int advise(struct io_uring *ring, void *addr, size_t len, int advice)
{
	io_uring_prep_madvise(io_uring_get_sqe(ring), addr, (off_t)len, advice);
	return do_one(ring);
}

static long do_register(const struct io_uring *ring, unsigned what, const void *arg, unsigned n)
{
	return syscall(SYS_io_uring_register, ring->ring_fd, what, arg, n);
}

static void advice_is_refused(void **state)
{
	for (enum by by = 0; by < N_BY; by++) {
		struct io_uring ring;

		if (!can_set_up(by, &ring, 0))
			continue;
		assert_int_equal(advise(&ring, far_memory, BIG, MADV_DONTNEED), -EACCES);
		assert_true(test_is_filled(far_memory, BIG, 1));
		io_uring_queue_exit(&ring);
	}
}

/* Reads into far memory that has left. Also uses buffers that are registered with the kernel. */
static void all_else_goes_on(void **state)
{
	int fd = memfd_create("uring", MFD_CLOEXEC);
	char *text = malloc(BIG);

	test_fill(text, BIG, 2);
	assert_int_equal(write(fd, text, BIG), BIG);
	for (enum by by = 0; by < N_BY; by++) {
		struct iovec buffer = {.iov_base = far_memory + BIG / 2, .iov_len = 16 * PAGE};
		struct io_uring ring;

		test_fill(far_memory, BIG, 1);
		if (!can_set_up(by, &ring, by == BY_PARAMS ? IORING_SETUP_SINGLE_ISSUER : 0))
			continue;
		io_uring_prep_read(io_uring_get_sqe(&ring), fd, far_memory, 16 * PAGE, 0);
		assert_int_equal(do_one(&ring), 16 * PAGE);
		assert_true(test_is_filled(far_memory, 16 * PAGE, 2));
		assert_int_equal(io_uring_register_buffers(&ring, &buffer, 1), 0);
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, buffer.iov_base, 16 * PAGE, 0, 0);
		assert_int_equal(do_one(&ring), 16 * PAGE);
		assert_true(test_is_filled(buffer.iov_base, 16 * PAGE, 2));
		io_uring_prep_nop(io_uring_get_sqe(&ring));
		assert_int_equal(do_one(&ring), 0);
		io_uring_queue_exit(&ring);
	}
	free(text);
	close(fd);
}

/* ---- buffers that are unregistered while their pages leave ---- */

#define ROUNDS 150u

static atomic_bool presses;

static void *press(void *arg)
{
	for (size_t i = 0; atomic_load(&presses); i = (i + PAGE) % (BIG / 2))
		(void)*(volatile char *)(far_memory + i);
	return arg;
}

static void read_into(struct io_uring *ring, int fd, const struct iovec *buffer, unsigned round)
{
	assert_int_equal(io_uring_register_buffers(ring, buffer, 1), 0);
	memset(buffer->iov_base, (int)(round % 2), buffer->iov_len);
	io_uring_prep_read_fixed(io_uring_get_sqe(ring), fd, buffer->iov_base, (unsigned)buffer->iov_len, 0,
	                         0);
	assert_int_equal(do_one(ring), buffer->iov_len);
	assert_int_equal(io_uring_unregister_buffers(ring), 0);
	usleep(1000); /* no event tells that a page has left: then the round shows nothing */
}

/* In memory that the program may only write to. */
static void what_a_buffer_got_stays(void **state)
{
	struct iovec buffer = {.iov_base = far_memory + BIG / 2, .iov_len = 16 * PAGE};
	int fd = memfd_create("uring", MFD_CLOEXEC);
	struct io_uring ring;
	pthread_t thread;

	if (!can_set_up(BY_FLAGS, &ring, 0))
		return;
	test_fill(far_memory, BIG, 1);
	test_fill(buffer.iov_base, buffer.iov_len, 2);
	assert_int_equal(write(fd, buffer.iov_base, 16 * PAGE), 16 * PAGE);
	assert_int_equal(mprotect(buffer.iov_base, buffer.iov_len, PROT_WRITE), 0);
	atomic_store(&presses, true);
	assert_int_equal(pthread_create(&thread, NULL, press, NULL), 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		read_into(&ring, fd, &buffer, round);
		assert_true(test_is_filled(buffer.iov_base, buffer.iov_len, 2));
	}
	atomic_store(&presses, false);
	pthread_join(thread, NULL);
	assert_int_equal(mprotect(buffer.iov_base, buffer.iov_len, PROT_READ | PROT_WRITE), 0);
	test_fill(far_memory, BIG, 1);
	io_uring_queue_exit(&ring);
	close(fd);
}

/* Restrictions can be set only once for a ring. The program must still be able to set its own. */
static void its_own_restrictions(void **state)
{
	struct io_uring_restriction nop = {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_NOP};
	struct io_uring ring;

	if (!can_set_up(BY_FLAGS, &ring, IORING_SETUP_R_DISABLED))
		return;
	assert_int_equal(do_register(&ring, IORING_REGISTER_RESTRICTIONS, &nop, 1), 0);
	assert_int_equal(do_register(&ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0), 0);
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	assert_int_equal(do_one(&ring), 0);
	assert_int_equal(advise(&ring, far_memory, BIG, MADV_DONTNEED), -EACCES);
	io_uring_queue_exit(&ring);
}

/* Registered memory can't move, as the kernel would go on with the old pages. After that, it
 * can. */
static void registered_memory_stays(void **state)
{
	struct iovec buffer = {.iov_base = far_memory, .iov_len = 4 * PAGE};
	char *to = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct io_uring ring;

	assert_true(to != MAP_FAILED);
	if (!can_set_up(BY_FLAGS, &ring, 0))
		return;
	test_fill(far_memory, BIG, 2);
	assert_int_equal(io_uring_register_buffers(&ring, &buffer, 1), 0);
	errno = 0;
	assert_true(mremap(far_memory, BIG, BIG, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED);
	assert_int_equal(errno, EINVAL);
	assert_true(test_is_filled(far_memory, BIG, 2));
	assert_int_equal(io_uring_unregister_buffers(&ring), 0);
	io_uring_queue_exit(&ring);
	assert_true(mremap(far_memory, BIG, BIG, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	far_memory = to;
	assert_true(test_is_filled(far_memory, BIG, 2));
}

static void mistakes_are_the_kernels(void **state)
{
	struct io_uring_params params = {.flags = UINT32_MAX};

	if (is_inline())
		return;
	assert_int_equal(syscall(SYS_io_uring_setup, ENTRIES, &params), -1);
	assert_true(params.flags == UINT32_MAX);
	errno = 0;
	assert_int_equal(syscall(SYS_io_uring_setup, ENTRIES, (void *)8), -1);
	assert_true(errno == EFAULT || errno == ENOSYS || errno == EPERM);
}

/* Hands all of the far memory to the kernel's aio, as libaio does. Returns the request's result. */
static long transfer(aio_context_t context, int fd, int opcode)
{
	struct iocb part = {.aio_lio_opcode = (uint16_t)opcode,
	                    .aio_fildes = (uint32_t)fd,
	                    .aio_buf = (uintptr_t)far_memory,
	                    .aio_nbytes = BIG};
	struct iocb *const all[] = {&part};
	struct io_event done = {.res = -1};

	assert_int_equal(syscall(SYS_io_submit, context, 1L, all), 1);
	assert_int_equal(syscall(SYS_io_getevents, context, 1L, 1L, &done, NULL), 1);
	return (long)done.res;
}

static void the_kernels_aio(void **state)
{
	FILE *file = tmpfile();
	aio_context_t context = 0;

	assert_non_null(file);
	if (is_inline()) {
		assert_int_equal(syscall(SYS_io_setup, 4L, &context), -1);
		assert_int_equal(errno, ENOSYS);
		fclose(file);
		return;
	}
	assert_int_equal(syscall(SYS_io_setup, 4L, &context), 0);
	test_fill(far_memory, BIG, 3);
	assert_int_equal(transfer(context, fileno(file), IOCB_CMD_PWRITE), BIG);
	test_fill(far_memory, BIG, 4);
	assert_int_equal(transfer(context, fileno(file), IOCB_CMD_PREAD), BIG);
	assert_true(test_is_filled(far_memory, BIG, 3));
	assert_int_equal(syscall(SYS_io_destroy, context), 0);
	fclose(file);
}

static int tests(void)
{
	const struct CMUnitTest all[] = {
	    cmocka_unit_test(advice_is_refused),        cmocka_unit_test(all_else_goes_on),
	    cmocka_unit_test(what_a_buffer_got_stays),  cmocka_unit_test(its_own_restrictions),
	    cmocka_unit_test(mistakes_are_the_kernels), cmocka_unit_test(registered_memory_stays),
	    cmocka_unit_test(the_kernels_aio),
	};

	return cmocka_run_group_tests(all, fill, NULL);
}

int main(int argc, char **argv)
{
	return test_under_preload(argc, argv, tests);
}
