/*
 * The outbox: its bytes leave in order, however few the kernel takes at a time. An answer releases
 * its lease when it is sent. A descriptor leaves with the first byte of its answer.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "outbox.h"
#include "testrng.h"

#define N_REPLIES 100

static uint8_t expected[N_REPLIES * 4096];
static size_t expected_len;
static struct fp_node_leases owner; /* a session owns the lease, so it is not freed when unused */
static struct fp_node_lease lease;

/* Checks all bytes of the queued replies, one after the other. */
static void expect_queue(const struct fp_outbox *outbox)
{
	expected_len = 0;
	for (const struct fp_reply *reply = outbox->first; reply; reply = reply->next)
		for (unsigned i = 0; i < reply->n_parts; i++) {
			memcpy(expected + expected_len, reply->parts[i].base, reply->parts[i].len_bytes);
			expected_len += reply->parts[i].len_bytes;
		}
}

static struct fp_wire_header request(uint64_t tag)
{
	return (struct fp_wire_header){.tag = tag};
}

static struct fp_reply *data_reply(uint64_t tag, unsigned n_parts, uint64_t *rng)
{
	static uint8_t memory[65536];
	struct fp_wire_header header = request(tag);
	size_t lens[8], total = 0;
	struct fp_reply *reply;

	for (unsigned i = 0; i < n_parts; i++)
		total += lens[i] = 1 + test_random(rng) % 400;
	reply = fp_reply_new_data(&header, total, n_parts);
	assert_non_null(reply);
	for (unsigned i = 0; i < n_parts; i++) {
		uint8_t *part = memory + test_random(rng) % (sizeof(memory) - lens[i]);

		memset(part, (int)test_random(rng), 1);
		fp_reply_add(reply, part, lens[i], &lease);
	}
	return reply;
}

/* Takes at most max of the gathered bytes, as a socket would. */
static size_t take(struct fp_outbox *outbox, uint8_t *out, size_t max, int *ret_fd)
{
	struct iovec iov[7];
	unsigned n = fp_outbox_gather(outbox, iov, FP_ARRAY_LEN(iov), max, ret_fd);
	size_t taken = 0;

	for (unsigned i = 0; i < n && taken < max; i++) {
		size_t len = FP_MIN(iov[i].iov_len, max - taken);

		memcpy(out + taken, iov[i].iov_base, len);
		taken += len;
	}
	fp_outbox_advance(outbox, taken);
	return taken;
}

static void test_any_pace(void **state)
{
	static uint8_t got[sizeof(expected)];
	static const size_t paces[] = {1, 3, 24, 1000, 100000};
	uint64_t rng = test_seed(__func__);
	int fd;

	lease.leases = &owner;
	for (size_t p = 0; p < FP_ARRAY_LEN(paces); p++) {
		struct fp_outbox outbox = {0};
		size_t len = 0;

		for (unsigned i = 0; i < N_REPLIES; i++) {
			unsigned n_parts = 1 + (unsigned)(test_random(&rng) % 8);

			fp_outbox_push(&outbox, data_reply(i, n_parts, &rng));
		}
		assert_int_equal(outbox.n, N_REPLIES);
		assert_true(lease.uses > 0);
		expect_queue(&outbox);
		while (outbox.first)
			len += take(&outbox, got + len, 1 + test_random(&rng) % paces[p], &fd);
		assert_int_equal(len, expected_len);
		assert_memory_equal(got, expected, len);
		assert_int_equal(lease.uses, 0);
		assert_int_equal(outbox.n, 0);
		assert_null(outbox.last);
	}
}

static void test_descriptor_goes_first_and_alone(void **state)
{
	struct fp_wire_header header = request(9);
	struct fp_outbox outbox = {0};
	uint8_t out[256];
	int passed, fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct fp_reply *reply;

	fp_outbox_push(&outbox, fp_reply_new(&header, FP_WIRE_PONG, NULL, 0));
	reply = fp_reply_new(&header, FP_WIRE_RELEASED, NULL, 0);
	reply->fd = fd;
	fp_outbox_push(&outbox, reply);
	fp_outbox_push(&outbox, fp_reply_new(&header, FP_WIRE_PONG, NULL, 0));
	assert_int_equal(take(&outbox, out, 256, &passed), FP_WIRE_HEADER_BYTES);
	assert_int_equal(passed, -1);
	assert_int_equal(take(&outbox, out, 10, &passed), 10);
	assert_int_equal(passed, fd);
	assert_int_equal(take(&outbox, out, 256, &passed), 2 * FP_WIRE_HEADER_BYTES - 10);
	assert_int_equal(passed, -1);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	assert_null(outbox.first);
}

static void test_clear(void **state)
{
	uint64_t rng = test_seed(__func__);
	struct fp_outbox outbox = {0};
	struct fp_wire_header header = request(1);

	lease.leases = &owner;
	for (unsigned i = 0; i < 10; i++)
		fp_outbox_push(&outbox, data_reply(i, 3, &rng));
	fp_outbox_push(&outbox, fp_reply_new(&header, FP_WIRE_STATUS_REPLY, "{}", 2));
	fp_outbox_advance(&outbox, 5);
	assert_int_equal(lease.uses, 30);
	fp_outbox_clear(&outbox);
	assert_int_equal(lease.uses, 0);
	assert_int_equal(outbox.n, 0);
	fp_reply_free(NULL);
}

static void test_error(void **state)
{
	struct fp_wire_header header = request(77), decoded;
	struct fp_reply *reply = fp_reply_new_error(&header, FP_WIRE_OVER_QUOTA, NULL);

	assert_int_equal(fp_wire_header_decode(reply->parts[0].base, &decoded), 0);
	assert_int_equal(decoded.type, FP_WIRE_ERROR);
	assert_int_equal(decoded.status, FP_WIRE_OVER_QUOTA);
	assert_int_equal(decoded.tag, 77);
	fp_reply_free(reply);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_any_pace),
	    cmocka_unit_test(test_descriptor_goes_first_and_alone),
	    cmocka_unit_test(test_clear),
	    cmocka_unit_test(test_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
