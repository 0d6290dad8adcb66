/* Operations of io_uring for the rows of everycall.def, by system calls alone. Room:
 * test/integration. */
#ifndef FP_TEST_EVERYCALL_URING_H
#define FP_TEST_EVERYCALL_URING_H

#include <stdint.h>

/* Enough for the rings of so few entries. */
#define STEP_RING 4096u

/* As the kernel has it: see io_uring_enter(2). */
struct test_sqe {
	uint8_t opcode, flags;
	uint16_t ioprio;
	int32_t fd;
	uint64_t off, addr;
	uint32_t len, op_flags;
	uint64_t user_data;
	uint16_t buf, personality;
	int32_t more_fd;
	uint64_t addr3, pad;
};

/*
 * Carries out one or two operations on the row's ring, which the first use makes. Returns the
 * result, or both in one number, or a negative errno.
 */
long test_uring(const struct test_sqe *sqe, unsigned n);
long test_uring_register(unsigned what, const void *arg, unsigned n);
int test_uring_fd(void);
void test_uring_close(void);

#endif
