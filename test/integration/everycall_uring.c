/* See everycall_uring.h. A ring of two entries, mapped by hand. */
#include "everycall_uring.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "everycall.h"

#define ENTRIES   4u
#define OF_SQ     0ll
#define OF_SQES   0x10000000ll
#define GETEVENTS 1u

struct offsets {
	uint32_t head, tail, mask, entries, flags, dropped, array, more[3];
};

struct answer {
	uint64_t user_data;
	int32_t result;
	uint32_t flags;
};

/* The first two uint32_t of cq are head and tail, too; cqes is where array is in sq. */
struct params {
	uint32_t sq_entries, cq_entries, flags, cpu, idle, features, wq_fd, resv[3];
	struct offsets sq;
	struct {
		uint32_t head, tail, mask, entries, overflow, cqes, more[4];
	} cq;
};

static struct params params;
static char *rings;
static struct test_sqe *entries;
static int ring_fd = -1;

int test_uring_fd(void)
{
	if (ring_fd >= 0)
		return ring_fd;
	memset(&params, 0, sizeof(params));
	ring_fd = (int)test_call_by_number(SYS_io_uring_setup, (long)ENTRIES, &params);
	if (ring_fd < 0)
		return ring_fd;
	rings = mmap(NULL, STEP_RING, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, OF_SQ);
	entries =
	    mmap(NULL, ENTRIES * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd, OF_SQES);
	return rings == MAP_FAILED || (void *)entries == MAP_FAILED ? -1 : ring_fd;
}

void test_uring_close(void)
{
	if (ring_fd < 0)
		return;
	munmap(rings, STEP_RING);
	munmap(entries, ENTRIES * sizeof(*entries));
	close(ring_fd);
	ring_fd = -1;
}

static _Atomic uint32_t *word(uint32_t offset)
{
	return (void *)(rings + offset);
}

static void submit(const struct test_sqe *sqe, uint32_t n)
{
	uint32_t tail = *word(params.sq.tail), mask = *word(params.sq.mask);

	for (uint32_t i = 0; i < n; i++) {
		entries[(tail + i) & mask] = sqe[i];
		entries[(tail + i) & mask].user_data = i;
		((uint32_t *)(void *)(rings + params.sq.array))[(tail + i) & mask] = (tail + i) & mask;
	}
	*word(params.sq.tail) = tail + n;
}

/* Takes what there is. An operation may give further answers: the first one counts. */
static void reap(long *ret_results, bool *ret_done)
{
	uint32_t head = *word(params.cq.head), mask = *word(params.cq.mask);

	for (; head != *word(params.cq.tail); head++) {
		const struct answer *answer = (void *)(rings + params.cq.cqes);

		answer += head & mask;
		if (answer->user_data < ENTRIES && !ret_done[answer->user_data]) {
			ret_results[answer->user_data] = answer->result;
			ret_done[answer->user_data] = true;
		}
	}
	*word(params.cq.head) = head;
}

long test_uring(const struct test_sqe *sqe, unsigned n)
{
	long results[ENTRIES] = {0}, r = 0;
	bool done[ENTRIES] = {false};
	int fd = test_uring_fd();

	if (fd < 0)
		return fd;
	submit(sqe, n);
	r = test_call_by_number(SYS_io_uring_enter, fd, n, 1, GETEVENTS, NULL, 0L);
	for (unsigned i = 0; r >= 0 && i < n;) {
		reap(results, done);
		if (done[i])
			i++;
		else
			r = test_call_by_number(SYS_io_uring_enter, fd, 0, 1, GETEVENTS, NULL, 0L);
	}
	return r < 0 ? r : n == 1 ? results[0] : results[0] * 1000 + results[1];
}

long test_uring_register(unsigned what, const void *arg, unsigned n)
{
	int fd = test_uring_fd();

	return fd < 0 ? fd : test_call_by_number(SYS_io_uring_register, fd, what, arg, n);
}
