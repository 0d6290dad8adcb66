/*
 * The inbox: it returns the same frames however the stream is cut into pieces, and refuses invalid
 * ones.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cleanup.h"
#include "inbox.h"
#include "testrng.h"

#define N_FRAMES 200

struct stream {
	uint8_t bytes[N_FRAMES * (FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_TABLE + 4096)];
	size_t len;
	uint8_t types[N_FRAMES];
	uint32_t data_bytes[N_FRAMES];
};

static void append_io(struct stream *s, unsigned i, enum fp_wire_type type, unsigned n_segs)
{
	struct fp_wire_seg segs[FP_WIRE_MAX_SEGS];
	uint8_t *head = s->bytes + s->len;
	size_t table;

	for (unsigned k = 0; k < n_segs; k++)
		segs[k] = (struct fp_wire_seg){.lease_id = 1, .len_bytes = 1 + k % 60, .offset_bytes = i};
	table = fp_wire_table_encode(segs, n_segs, head + FP_WIRE_HEADER_BYTES);
	for (unsigned k = 0; type == FP_WIRE_WRITE && k < n_segs; k++)
		s->data_bytes[i] += segs[k].len_bytes;
	memset(head + FP_WIRE_HEADER_BYTES + table, 0xdd, s->data_bytes[i]);
	fp_wire_header_encode(type, FP_WIRE_OK, i, table + s->data_bytes[i], head);
	s->len += FP_WIRE_HEADER_BYTES + table + s->data_bytes[i];
}

static void append_frame(struct stream *s, unsigned i, uint64_t *rng)
{
	static const uint8_t types[] = {FP_WIRE_PING, FP_WIRE_RELEASE, FP_WIRE_HELLO, FP_WIRE_READ,
	                                FP_WIRE_WRITE};
	static const size_t lengths[] = {0, sizeof(struct fp_wire_release), sizeof(struct fp_wire_hello)};
	unsigned kind = (unsigned)(test_random(rng) % FP_ARRAY_LEN(types));

	s->types[i] = types[kind];
	s->data_bytes[i] = 0;
	if (kind >= FP_ARRAY_LEN(lengths)) {
		append_io(s, i, types[kind], 1 + (unsigned)(test_random(rng) % FP_WIRE_MAX_SEGS));
		return;
	}
	fp_wire_header_encode(types[kind], FP_WIRE_OK, i, lengths[kind], s->bytes + s->len);
	memset(s->bytes + s->len + FP_WIRE_HEADER_BYTES, 0, lengths[kind]);
	s->len += FP_WIRE_HEADER_BYTES + lengths[kind];
}

/* Feeds the stream in pieces of at most max bytes, and checks every frame. */
static void check_stream(const struct stream *s, uint64_t *rng, size_t max)
{
	struct fp_inbox inbox = {0};
	uint32_t data_left = 0;
	unsigned n = 0;
	size_t off = 0;

	while (off < s->len) {
		size_t len = FP_MIN(1 + test_random(rng) % max, s->len - off), used = 0;
		int r;

		if (data_left) {
			used = FP_MIN(len, data_left);
			assert_int_equal(s->bytes[off], 0xdd);
			data_left -= (uint32_t)used;
		} else {
			r = fp_inbox_feed(&inbox, s->bytes + off, len, &used);
			assert_in_range(r, 0, 1);
			assert_true(r == 1 || used == len);
			if (r == 1) {
				assert_int_equal(inbox.header.type, s->types[n]);
				assert_int_equal(inbox.header.tag, n);
				data_left = s->data_bytes[n++];
				fp_inbox_next(&inbox);
			}
		}
		off += used;
	}
	assert_int_equal(n, N_FRAMES);
}

static void test_any_cut(void **state)
{
	static struct stream s;
	uint64_t rng = test_seed(__func__);
	static const size_t pieces[] = {1, 2, 7, 24, 100, 1500, 32768};

	for (unsigned i = 0; i < N_FRAMES; i++)
		append_frame(&s, i, &rng);
	for (size_t i = 0; i < FP_ARRAY_LEN(pieces); i++)
		check_stream(&s, &rng, pieces[i]);
}

static int feed_header(enum fp_wire_type type, size_t length, uint8_t version)
{
	struct fp_inbox inbox = {0};
	uint8_t head[FP_WIRE_HEADER_BYTES];
	size_t used;

	fp_wire_header_encode(type, FP_WIRE_OK, 1, length, head);
	head[offsetof(struct fp_wire_header, version)] = version;
	return fp_inbox_feed(&inbox, head, sizeof(head), &used);
}

static void test_refused(void **state)
{
	assert_int_equal(feed_header(FP_WIRE_PING, 0, 1), 1);
	assert_int_equal(feed_header(FP_WIRE_PING, 0, 2), -EPROTONOSUPPORT);
	assert_int_equal(feed_header(FP_WIRE_PONG, 0, 1), -EPROTO);
	assert_int_equal(feed_header(FP_WIRE_DATA, 4096, 1), -EPROTO);
	assert_int_equal(feed_header(FP_WIRE_STATUS_REPLY, 60000, 1), -EPROTO);
	assert_int_equal(feed_header(FP_WIRE_WRITE, FP_WIRE_MAX_PAYLOAD, 1), 0);
}

/* Feeds random bytes: the inbox never writes beyond its head, and never hangs. */
static void test_random_bytes(void **state)
{
	uint64_t rng = test_seed(__func__);
	uint8_t bytes[4096];

	for (unsigned round = 0; round < 2000; round++) {
		struct fp_inbox inbox = {0};
		size_t off = 0, used;
		int r = 0;

		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)test_random(&rng);
		fp_wire_header_encode(FP_WIRE_WRITE, FP_WIRE_OK, 1, 25 + test_random(&rng) % 4000, bytes);
		bytes[FP_WIRE_HEADER_BYTES + 1 + test_random(&rng) % 8] = 0;
		while (off < sizeof(bytes) && r == 0) {
			r = fp_inbox_feed(&inbox, bytes + off, FP_MIN(777u, sizeof(bytes) - off), &used);
			assert_true(r != 0 || used > 0);
			assert_true(inbox.have_bytes <= sizeof(inbox.head));
			off += used;
		}
		assert_int_not_equal(r, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_any_cut),
	    cmocka_unit_test(test_refused),
	    cmocka_unit_test(test_random_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
