/* The codec against the bytes of doc/protocol.md, the frames that it refuses, and random bytes. */
#include "wire.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cleanup.h"
#include "testrng.h"

static const struct {
	uint8_t type;
	uint32_t min, max;
} documented[] = {
    {0x01, 0, 24},       {0x02, 128, 128}, {0x03, 40, 40}, {0x04, 32, 32},   {0x05, 80, 80},
    {0x06, 0, 4096},     {0x07, 0, 4096},  {0x08, 0, 0},   {0x09, 0, 0},     {0x10, 16, 16},
    {0x11, 32, 32},      {0x12, 8, 8},     {0x13, 0, 0},   {0x14, 0, 0},     {0x15, 64, 64},
    {0x16, 0, 0},        {0x17, 2, 65536}, {0x18, 0, 0},   {0x19, 16, 16},   {0x1a, 8, 8},
    {0x1b, 32, 32},      {0x1c, 0, 0},     {0x1d, 0, 0},   {0x20, 24, 1032}, {0x21, 1, 4194304},
    {0x22, 25, 4195336}, {0x23, 0, 0},     {0x24, 32, 32}, {0x25, 32, 32},   {0x26, 24, 24},
    {0x27, 8, 8},
};

static void put_le(uint8_t *at, uint64_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

/* Makes a header as the document describes it, without the codec. */
static void raw_header(uint8_t bytes[24], uint8_t type, uint32_t length, int32_t status)
{
	memcpy(bytes, "FARP\x01", 5);
	bytes[5] = type;
	put_le(bytes + 6, 0, 2);
	put_le(bytes + 8, length, 4);
	put_le(bytes + 12, (uint32_t)status, 4);
	put_le(bytes + 16, 0x1122334455667788, 8);
}

static int decode_raw(uint8_t type, uint32_t length, int32_t status)
{
	struct fp_wire_header header;
	uint8_t bytes[24];

	raw_header(bytes, type, length, status);
	return fp_wire_header_decode(bytes, &header);
}

static void header_bytes(void **state)
{
	uint8_t bytes[24], wanted[24];
	struct fp_wire_header header;

	raw_header(wanted, 0x22, 4195336, 0);
	fp_wire_header_encode(FP_WIRE_WRITE, FP_WIRE_OK, 0x1122334455667788, 4195336, bytes);
	assert_memory_equal(bytes, wanted, 24);
	assert_int_equal(fp_wire_header_decode(bytes, &header), 0);
	assert_int_equal(header.type, FP_WIRE_WRITE);
	assert_int_equal(header.length, FP_WIRE_MAX_PAYLOAD);
	assert_true(header.tag == 0x1122334455667788);
	fp_wire_header_encode(FP_WIRE_ERROR, FP_WIRE_DENIED, 7, 0, bytes);
	assert_int_equal(fp_wire_header_decode(bytes, &header), 0);
	assert_int_equal(header.status, FP_WIRE_DENIED);
}

static void header_lengths_and_types(void **state)
{
	bool known[256] = {false};

	for (size_t i = 0; i < FP_ARRAY_LEN(documented); i++) {
		int32_t status = documented[i].type == FP_WIRE_ERROR ? 3 : 0;

		known[documented[i].type] = true;
		assert_int_equal(decode_raw(documented[i].type, documented[i].min, status), 0);
		assert_int_equal(decode_raw(documented[i].type, documented[i].max, status), 0);
		assert_int_equal(decode_raw(documented[i].type, documented[i].max + 1, status), -EPROTO);
		if (documented[i].min > 0)
			assert_int_equal(decode_raw(documented[i].type, documented[i].min - 1, status),
			                 -EPROTO);
		assert_int_equal(decode_raw(documented[i].type, UINT32_MAX, status), -EPROTO);
		/* an ERROR must have a status, other frames must have none */
		assert_int_equal(decode_raw(documented[i].type, documented[i].min, 3 - status), -EPROTO);
		assert_int_equal(decode_raw(documented[i].type, documented[i].min, -3), -EPROTO);
	}
	/* an ERROR says why, or not, and nothing in between */
	for (uint32_t length = 1; length < 24; length++)
		assert_int_equal(decode_raw(FP_WIRE_ERROR, length, 3), -EPROTO);
	for (unsigned type = 0; type < 256; type++)
		if (!known[type])
			assert_int_equal(decode_raw((uint8_t)type, 0, 0), -EPROTO);
}

static void header_refusals(void **state)
{
	struct fp_wire_header header, untouched;
	uint8_t bytes[24];

	memset(&header, 0xab, sizeof(header));
	untouched = header;
	raw_header(bytes, FP_WIRE_PING, 0, 0);
	bytes[0] ^= 0x20;
	assert_int_equal(fp_wire_header_decode(bytes, &header), -EPROTO);
	raw_header(bytes, FP_WIRE_PING, 0, 0);
	bytes[4] = 2;
	assert_int_equal(fp_wire_header_decode(bytes, &header), -EPROTONOSUPPORT);
	raw_header(bytes, FP_WIRE_PING, 0, 0);
	bytes[7] = 1; /* flags */
	assert_int_equal(fp_wire_header_decode(bytes, &header), -EPROTO);
	assert_int_equal(fp_wire_header_decode("HTTP/1.1 400 Bad Request", &header), -EPROTO);
	assert_memory_equal(&header, &untouched, sizeof(header));
}

static struct fp_wire_hello good_hello(void)
{
	struct fp_wire_hello hello = {
	    .min_version = 1, .max_version = 3, .purpose = FP_WIRE_LINK, .features = 0x01020304};

	hello.session_id = 0x1112131415161718;
	memset(hello.token, 0x55, sizeof(hello.token));
	memset(hello.nonce, 0x66, sizeof(hello.nonce));
	fp_wire_name_set(hello.client_name, "redis-server[12]");
	return hello;
}

static void hello_bytes(void **state)
{
	struct fp_wire_hello hello = good_hello(), back;
	uint8_t bytes[128], wanted[128] = {1, 3, 2, 0};

	put_le(wanted + 4, 0x01020304, 4);
	put_le(wanted + 8, 0x1112131415161718, 8);
	memset(wanted + 16, 0x55, 16);
	memset(wanted + 32, 0x66, 32);
	memcpy(wanted + 64, "redis-server[12]", 16);
	fp_wire_hello_encode(&hello, bytes);
	assert_memory_equal(bytes, wanted, sizeof(bytes));
	assert_int_equal(fp_wire_hello_decode(bytes, sizeof(bytes), &back), 0);
	assert_memory_equal(&back, &hello, sizeof(back));
	assert_int_equal(fp_wire_hello_decode(bytes, sizeof(bytes) - 1, &back), -EPROTO);
}

static int redecode_hello(const struct fp_wire_hello *hello)
{
	struct fp_wire_hello back;
	uint8_t bytes[sizeof(back)];

	fp_wire_hello_encode(hello, bytes);
	return fp_wire_hello_decode(bytes, sizeof(bytes), &back);
}

#define refuse_hello(change)                                                                                 \
	do {                                                                                                 \
		struct fp_wire_hello h = good_hello();                                                       \
                                                                                                             \
		change;                                                                                      \
		assert_int_equal(redecode_hello(&h), -EPROTO);                                               \
	} while (0)

static void hello_refusals(void **state)
{
	refuse_hello(h.min_version = 0);
	refuse_hello(h.min_version = 4);
	refuse_hello(h.reserved = 1);
	refuse_hello(h.purpose = 0);
	refuse_hello(h.purpose = 4);
	refuse_hello(h.purpose = FP_WIRE_CONTROL); /* but it has a session's id and token */
	refuse_hello(memset(h.client_name, 'a', sizeof(h.client_name)));
	refuse_hello(h.client_name[63] = 'a'); /* a byte behind the name's end */
	refuse_hello(h.client_name[2] = '\n');
	refuse_hello(h.client_name[2] = '"');
	refuse_hello(h.client_name[2] = '\\');
	refuse_hello(h.client_name[2] = (char)0xe4);
}

static void version_choice(void **state)
{
	struct fp_wire_hello hello = good_hello();
	uint8_t version = 0;

	assert_int_equal(fp_wire_version_choose(&hello, &version), 0);
	assert_int_equal(version, 2);
	hello.min_version = 3;
	assert_int_equal(fp_wire_version_choose(&hello, &version), -EPROTONOSUPPORT);
}

static void client_names(void **state)
{
	char name[FP_WIRE_NAME_BYTES], longest[200];

	fp_wire_name_set(name, "a\"b\\c\td\xc3\xa9");
	assert_string_equal(name, "a_b_c_d__");
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	fp_wire_name_set(name, longest);
	assert_int_equal(strlen(name), FP_WIRE_NAME_BYTES - 1);
}

/*
 * Encodes, checks some documented offsets, decodes and compares. Then decoding must refuse wrong
 * lengths.
 */
#define round_trip(name, message, at, value, width)                                                          \
	do {                                                                                                 \
		struct fp_wire_##name back;                                                                  \
		uint8_t bytes[sizeof(back)], field[8];                                                       \
                                                                                                             \
		fp_wire_##name##_encode(&(message), bytes);                                                  \
		put_le(field, value, width);                                                                 \
		assert_memory_equal(bytes + (at), field, width);                                             \
		assert_int_equal(fp_wire_##name##_decode(bytes, sizeof(bytes), &back), 0);                   \
		assert_memory_equal(&back, &(message), sizeof(back));                                        \
		assert_int_equal(fp_wire_##name##_decode(bytes, sizeof(bytes) - 1, &back), -EPROTO);         \
		assert_int_equal(fp_wire_##name##_decode(bytes, sizeof(bytes) + 1, &back), -EPROTO);         \
	} while (0)

#define refuse(name, ...)                                                                                    \
	do {                                                                                                 \
		struct fp_wire_##name bad = {__VA_ARGS__}, back;                                             \
		uint8_t bytes[sizeof(back)];                                                                 \
                                                                                                             \
		fp_wire_##name##_encode(&bad, bytes);                                                        \
		assert_int_equal(fp_wire_##name##_decode(bytes, sizeof(bytes), &back), -EPROTO);             \
	} while (0)

static void messages_of_a_session(void **state)
{
	struct fp_wire_challenge challenge = {
	    .nonce = {1, 2, 3}, .version = 1, .flags = FP_WIRE_CHALLENGE_AUTH};
	struct fp_wire_welcome welcome = {.version = 1,
	                                  .features = 1,
	                                  .session_id = 0x0102030405060708,
	                                  .max_payload = FP_WIRE_MAX_PAYLOAD,
	                                  .max_outstanding = 0x0a0b0c,
	                                  .grace_ms = 30000,
	                                  .idle_ms = 10000};
	struct fp_wire_qp qp = {.qpn = 0x010203, .psn = 0xffffff, .lid = 0x0405, .mtu = 3, .n_reads = 16};
	struct fp_wire_adopt adopt = {.session_id = 0x0102030405060708};
	struct fp_wire_adopted adopted = {.n_leases = 0xffff};
	struct fp_wire_info info = {.capacity_bytes = 9,
	                            .free_bytes = 8,
	                            .leased_bytes = 7,
	                            .quota_bytes = 6,
	                            .charged_bytes = 5,
	                            .refusal = {.cause = 4, .flags = 3, .limit = 0x0304, .used = 0x0506}};
	struct fp_wire_drained drained = {.leased_bytes = 0x0102030405, .sessions = 9};

	round_trip(challenge, challenge, 36, 1, 4);
	round_trip(welcome, welcome, 8, 0x0102030405060708, 8);
	round_trip(welcome, welcome, 36, 0x0a0b0c, 4);
	round_trip(welcome, welcome, 40, 30000, 4);
	round_trip(welcome, welcome, 44, 10000, 4);
	memset(adopt.token, 0x66, sizeof(adopt.token));
	round_trip(adopt, adopt, 0, 0x0102030405060708, 8);
	round_trip(adopt, adopt, 8, 0x6666666666666666, 8);
	round_trip(adopt, adopt, 16, 0x6666666666666666, 8);
	round_trip(adopted, adopted, 0, 0xffff, 4);
	memset(qp.gid, 0x77, sizeof(qp.gid));
	round_trip(qp, qp, 0, 0x010203, 4);
	round_trip(qp, qp, 4, 0xffffff, 4);
	round_trip(qp, qp, 8, 0x10030405, 4); /* lid, mtu, n_reads */
	round_trip(qp, qp, 16, 0x7777777777777777, 8);
	round_trip(info, info, 24, 6, 8);
	round_trip(info, info, 32, 5, 8);
	round_trip(info, info, 40, 4 | 3 << 16, 8); /* cause, flags, reserved */
	round_trip(info, info, 56, 0x0506, 8);
	round_trip(refusal, info.refusal, 8, 0x0304, 8);
	round_trip(drained, drained, 8, 9, 4);
}

static void messages_of_leases(void **state)
{
	struct fp_wire_lease lease = {.size_bytes = 64 << 20};
	struct fp_wire_leased leased = {
	    .size_bytes = 4096, .lease_id = 0x0203, .flags = FP_WIRE_LEASED_MEMFD};
	struct fp_wire_leased keyed = {.size_bytes = 4096,
	                               .lease_id = 1,
	                               .flags = FP_WIRE_LEASED_KEY,
	                               .address = 0x7f0011223344,
	                               .key = 0x55667788};
	struct fp_wire_attach attach = {.lease_id = 0x0102};
	struct fp_wire_leased adopted_lease = {
	    .size_bytes = 4096, .lease_id = 1, .flags = FP_WIRE_LEASED_READ_ONLY};
	struct fp_wire_release release = {.lease_id = 0xffff};

	round_trip(lease, lease, 0, 64 << 20, 8);
	round_trip(leased, leased, 8, 0x0203, 4);
	round_trip(leased, keyed, 12, 2, 4);
	round_trip(leased, keyed, 16, 0x7f0011223344, 8);
	round_trip(leased, keyed, 24, 0x55667788, 4);
	round_trip(attach, attach, 0, 0x0102, 4);
	round_trip(leased, adopted_lease, 12, 4, 4);
	round_trip(release, release, 0, 0xffff, 4);
}

static void message_refusals(void **state)
{
	refuse(challenge, .version = 0);
	refuse(challenge, .version = 1, .reserved = {0, 1});
	refuse(challenge, .version = 1, .flags = 2);
	refuse(welcome, .version = 1, .session_id = 0, .max_payload = FP_WIRE_MAX_PAYLOAD,
	       .max_outstanding = 1);
	refuse(welcome, .version = 1, .session_id = 1, .max_payload = 4096, .max_outstanding = 1);
	refuse(welcome, .version = 1, .session_id = 1, .max_payload = FP_WIRE_MAX_PAYLOAD,
	       .max_outstanding = 1, .reserved = 1);
	refuse(welcome, .version = 1, .session_id = 1, .max_payload = FP_WIRE_MAX_PAYLOAD,
	       .max_outstanding = 1, .cm_port = 7462);
	refuse(welcome, .version = 1, .session_id = 1, .max_payload = FP_WIRE_MAX_PAYLOAD,
	       .max_outstanding = 1, .features = FP_WIRE_FEATURE_CM);
	refuse(welcome, .version = 1, .session_id = 1, .max_payload = FP_WIRE_MAX_PAYLOAD);
	refuse(lease, .size_bytes = 0);
	refuse(lease, .size_bytes = 4097);
	refuse(lease, .size_bytes = FP_WIRE_MAX_LEASE + 4096);
	refuse(lease, .size_bytes = 4096, .flags = 1);
	refuse(leased, .size_bytes = 4096, .lease_id = 0);
	refuse(leased, .size_bytes = 4096, .lease_id = FP_WIRE_MAX_LEASE_ID + 1);
	refuse(leased, .size_bytes = 100, .lease_id = 1);
	refuse(leased, .size_bytes = 4096, .lease_id = 1, .flags = 8);
	refuse(leased, .size_bytes = 4096, .lease_id = 1, .reserved = 1);
	refuse(leased, .size_bytes = 4096, .lease_id = 1, .address = 1); /* has an address but not the flag */
	refuse(leased, .size_bytes = 4096, .lease_id = 1, .key = 1);
	refuse(leased, .size_bytes = 4096, .lease_id = 1, .flags = FP_WIRE_LEASED_KEY,
	       .address = UINT64_MAX - 4095);
	refuse(attach, .lease_id = 0);
	refuse(attach, .lease_id = 1, .reserved = 1);
	refuse(adopt, .token = {1});
	refuse(adopted, .n_leases = FP_WIRE_MAX_LEASE_ID + 1);
	refuse(adopted, .reserved = 1);
	refuse(qp, .qpn = 0, .mtu = 3, .n_reads = 1);
	refuse(qp, .qpn = 1 << 24, .mtu = 3, .n_reads = 1);
	refuse(qp, .qpn = 1, .psn = 1 << 24, .mtu = 3, .n_reads = 1);
	refuse(qp, .qpn = 1, .mtu = 0, .n_reads = 1);
	refuse(qp, .qpn = 1, .mtu = 6, .n_reads = 1);
	refuse(qp, .qpn = 1, .mtu = 3, .n_reads = 1, .reserved = 1);
	refuse(release, .lease_id = 0);
	refuse(release, .lease_id = 1, .reserved = 1);
	refuse(info, .capacity_bytes = 1, .free_bytes = 2);
	refuse(info, .refusal.flags = 4);
	refuse(refusal, .flags = 4);
	refuse(refusal, .reserved = 1);
	refuse(drained, .reserved = 1);
}

static struct fp_wire_cm good_cm(void)
{
	struct fp_wire_cm cm = {
	    .min_version = 1, .max_version = 2, .purpose = FP_WIRE_LINK, .session_id = 0x0102030405060708};

	memset(cm.nonce, 0x66, sizeof(cm.nonce));
	memset(cm.proof, 0x77, sizeof(cm.proof));
	return cm;
}

/* Private data arrives with padding. */
static void cm_bytes(void **state)
{
	struct fp_wire_cm cm = good_cm(), back;
	uint8_t bytes[56] = {0}, wanted[48] = "FARP\x01\x02\x02";
	uint8_t version = 0;

	put_le(wanted + 8, 0x0102030405060708, 8);
	memset(wanted + 16, 0x66, 16);
	memset(wanted + 32, 0x77, 16);
	fp_wire_cm_encode(&cm, bytes);
	assert_memory_equal(bytes, wanted, sizeof(wanted));
	cm.magic = FP_WIRE_MAGIC;
	for (size_t len = 48; len <= sizeof(bytes); len++) {
		memset(&back, 0, sizeof(back));
		assert_int_equal(fp_wire_cm_decode(bytes, len, &back), 0);
		assert_memory_equal(&back, &cm, sizeof(cm));
	}
	assert_int_equal(fp_wire_cm_decode(bytes, 47, &back), -EPROTO);
	assert_int_equal(fp_wire_cm_version_choose(&cm, &version), 0);
	assert_int_equal(version, 2);
	cm.min_version = cm.max_version = 3;
	assert_int_equal(fp_wire_cm_version_choose(&cm, &version), -EPROTONOSUPPORT);
}

static int redecode_cm(const struct fp_wire_cm *cm, uint8_t first)
{
	struct fp_wire_cm back;
	uint8_t bytes[sizeof(back)];

	fp_wire_cm_encode(cm, bytes);
	bytes[0] = first;
	return fp_wire_cm_decode(bytes, sizeof(bytes), &back);
}

#define refuse_cm(change)                                                                                    \
	do {                                                                                                 \
		struct fp_wire_cm m = good_cm();                                                             \
                                                                                                             \
		change;                                                                                      \
		assert_int_equal(redecode_cm(&m, 'F'), -EPROTO);                                             \
	} while (0)

static void cm_refusals(void **state)
{
	struct fp_wire_cm cm = good_cm();

	assert_int_equal(redecode_cm(&cm, 'f'), -EPROTO);
	refuse_cm(m.min_version = 0);
	refuse_cm(m.min_version = 3);
	refuse_cm(m.purpose = 0);
	refuse_cm(m.purpose = 4);
	refuse_cm(m.reserved = 1);
	refuse_cm(m.session_id = 0);
	refuse_cm(m.purpose = FP_WIRE_CONTROL);
	refuse_cm(m.purpose = FP_WIRE_RESUME);
}

static void cm_reply_bytes(void **state)
{
	struct fp_wire_cm_reply reply = {.version = 1, .status = FP_WIRE_DENIED}, back;
	uint8_t bytes[148] = {0}, wanted[16] = "FARP\x01\0\0\0\x03";

	fp_wire_cm_reply_encode(&reply, bytes);
	assert_memory_equal(bytes, wanted, sizeof(wanted));
	assert_int_equal(fp_wire_cm_reply_decode(bytes, sizeof(bytes), &back), 0);
	assert_int_equal(back.status, FP_WIRE_DENIED);
	assert_int_equal(fp_wire_cm_reply_decode(bytes, 15, &back), -EPROTO);
	for (size_t at = 0; at < 16; at++) {
		/*
		 * changes a bit of each field: magic, version, reserved, sign of the status,
		 * reserved
		 */
		uint8_t bit = at == 4 ? 1 : 0x80;

		if (at >= 8 && at < 11)
			continue;
		bytes[at] ^= bit;
		assert_int_equal(fp_wire_cm_reply_decode(bytes, sizeof(bytes), &back), -EPROTO);
		bytes[at] ^= bit;
	}
}

struct request {
	struct fp_wire_header header;
	uint8_t bytes[FP_WIRE_MAX_TABLE];
	size_t len;
};

static struct request request_of(uint8_t type, const struct fp_wire_seg *segs, unsigned n)
{
	struct request q = {.header = {.type = type}};

	q.len = fp_wire_table_encode(segs, n, q.bytes);
	q.header.length = (uint32_t)q.len;
	for (unsigned i = 0; type == FP_WIRE_WRITE && i < n; i++)
		q.header.length += segs[i].len_bytes;
	return q;
}

static void table_bytes(void **state)
{
	struct fp_wire_seg segs[] = {{0x0102, 4096, 0x010203040506}, {7, 1, 9}};
	uint8_t wanted[40] = {2};
	struct request q = request_of(FP_WIRE_WRITE, segs, 2);
	struct fp_wire_table table;

	put_le(wanted + 8, 0x0102, 4);
	put_le(wanted + 12, 4096, 4);
	put_le(wanted + 16, 0x010203040506, 8);
	put_le(wanted + 24, 7, 4);
	put_le(wanted + 28, 1, 4);
	put_le(wanted + 32, 9, 8);
	assert_int_equal(q.len, sizeof(wanted));
	assert_memory_equal(q.bytes, wanted, sizeof(wanted));
	for (size_t have = 0; have < q.len; have++)
		assert_int_equal(fp_wire_table_decode(&q.header, q.bytes, have, &table), 0);
	assert_int_equal(fp_wire_table_decode(&q.header, q.bytes, q.len, &table), 1);
	assert_int_equal(table.n_segs, 2);
	assert_int_equal(table.table_bytes, 40);
	assert_int_equal(table.data_bytes, 4097);
	assert_memory_equal(table.segs, segs, sizeof(segs));
}

static void table_full(void **state)
{
	struct fp_wire_seg segs[FP_WIRE_MAX_SEGS];
	struct fp_wire_table table;
	struct request q;

	for (unsigned i = 0; i < FP_WIRE_MAX_SEGS; i++)
		segs[i] =
		    (struct fp_wire_seg){FP_WIRE_MAX_LEASE_ID, FP_WIRE_MAX_SEG_BYTES, FP_WIRE_MAX_LEASE};
	q = request_of(FP_WIRE_WRITE, segs, FP_WIRE_MAX_SEGS);
	assert_int_equal(q.header.length, FP_WIRE_MAX_PAYLOAD);
	assert_int_equal(fp_wire_table_decode(&q.header, q.bytes, q.len, &table), 1);
	q = request_of(FP_WIRE_READ, segs, FP_WIRE_MAX_SEGS);
	assert_int_equal(fp_wire_table_decode(&q.header, q.bytes, q.len, &table), 1);
	assert_int_equal(table.data_bytes, FP_WIRE_MAX_DATA);
}

static void refuse_table(uint8_t type, struct fp_wire_seg seg, size_t at, uint32_t value, int32_t more_length)
{
	struct fp_wire_table table;
	struct request q = request_of(type, &seg, 1);

	if (at < q.len)
		put_le(q.bytes + at, value, 4);
	q.header.length += (uint32_t)more_length;
	assert_int_equal(fp_wire_table_decode(&q.header, q.bytes, q.len, &table), -EPROTO);
}

static void table_refusals(void **state)
{
	struct fp_wire_seg good = {1, 4096, 0};
	const size_t nowhere = SIZE_MAX;

	refuse_table(FP_WIRE_READ, good, 0, 0, 0);  /* no segment */
	refuse_table(FP_WIRE_READ, good, 0, 65, 0); /* too many */
	refuse_table(FP_WIRE_READ, good, 0, 2, 0);  /* more than the frame has */
	refuse_table(FP_WIRE_READ, good, 0, UINT32_MAX, 0);
	refuse_table(FP_WIRE_READ, good, 4, 1, 0); /* a reserved byte is set */
	refuse_table(FP_WIRE_READ, good, nowhere, 0, 1);
	refuse_table(FP_WIRE_WRITE, good, nowhere, 0, 1);
	refuse_table(FP_WIRE_WRITE, good, nowhere, 0, -1);
	refuse_table(FP_WIRE_READ, (struct fp_wire_seg){0, 4096, 0}, nowhere, 0, 0);
	refuse_table(FP_WIRE_READ, (struct fp_wire_seg){FP_WIRE_MAX_LEASE_ID + 1, 4096, 0}, nowhere, 0, 0);
	refuse_table(FP_WIRE_READ, (struct fp_wire_seg){1, 0, 0}, nowhere, 0, 0);
	refuse_table(FP_WIRE_READ, (struct fp_wire_seg){1, FP_WIRE_MAX_SEG_BYTES + 1, 0}, nowhere, 0, 0);
	refuse_table(FP_WIRE_READ, (struct fp_wire_seg){1, 4096, UINT64_MAX - 4095}, nowhere, 0, 0);
}

static void segment_bounds(void **state)
{
	assert_true(fp_wire_seg_fits(&(struct fp_wire_seg){1, 4096, 0}, 4096));
	assert_true(fp_wire_seg_fits(&(struct fp_wire_seg){1, 1, 4095}, 4096));
	assert_false(fp_wire_seg_fits(&(struct fp_wire_seg){1, 4097, 0}, 4096));
	assert_false(fp_wire_seg_fits(&(struct fp_wire_seg){1, 1, 4096}, 4096));
	assert_false(fp_wire_seg_fits(&(struct fp_wire_seg){1, 4096, UINT64_MAX - 4095}, 4096));
	assert_false(fp_wire_seg_fits(&(struct fp_wire_seg){1, 1, 0}, 0));
}

static void statuses(void **state)
{
	assert_int_equal(fp_wire_status_to_errno(FP_WIRE_OK), 0);
	assert_int_equal(fp_wire_status_to_errno(FP_WIRE_DENIED), -EACCES);
	assert_int_equal(fp_wire_status_to_errno(FP_WIRE_DRAINING), -ENOSPC);
	assert_int_equal(fp_wire_status_to_errno(12345), -EREMOTEIO);
	for (int32_t status = FP_WIRE_MALFORMED; status <= FP_WIRE_GONE; status++) {
		assert_true(fp_wire_status_to_errno(status) < 0);
		if (status != FP_WIRE_DRAINING)
			assert_int_equal(fp_wire_status_from_errno(fp_wire_status_to_errno(status)), status);
	}
	assert_int_equal(fp_wire_status_from_errno(-ESHUTDOWN), FP_WIRE_DRAINING);
	assert_int_equal(fp_wire_status_from_errno(-EFAULT), FP_WIRE_BROKEN);
}

/*
 * Feeds random frames. If one decodes, it must be as the header promises. Nothing may be read out
 * of bounds, which the sanitizers check.
 */
static void random_bytes(void **state)
{
	uint64_t rng = test_seed("wire");

	for (unsigned round = 0; round < 200000; round++) {
		uint8_t bytes[FP_WIRE_MAX_TABLE];
		struct fp_wire_header header;
		struct fp_wire_table table;
		size_t have = test_random(&rng) % sizeof(bytes);

		for (size_t i = 0; i < 64; i++)
			bytes[i] = (uint8_t)test_random(&rng) % 256;
		memset(bytes + 64, bytes[0], sizeof(bytes) - 64);
		raw_header(bytes, (uint8_t)test_random(&rng) % 0x28, (uint32_t)test_random(&rng) % 6000000,
		           0);
		if (fp_wire_header_decode(bytes, &header) < 0)
			continue;
		assert_true(header.length <= FP_WIRE_MAX_PAYLOAD);
		put_le(bytes, test_random(&rng) % 70, 8);
		for (size_t i = 8; i + 16 <= sizeof(bytes); i += 16) {
			put_le(bytes + i, test_random(&rng) % 70000, 4);
			put_le(bytes + i + 4, test_random(&rng) % 70000, 4);
		}
		if (fp_wire_table_decode(&header, bytes, have, &table) == 1) {
			assert_in_range(table.n_segs, 1, FP_WIRE_MAX_SEGS);
			assert_true(table.data_bytes <= FP_WIRE_MAX_DATA);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(header_bytes),       cmocka_unit_test(header_lengths_and_types),
	    cmocka_unit_test(header_refusals),    cmocka_unit_test(hello_bytes),
	    cmocka_unit_test(hello_refusals),     cmocka_unit_test(version_choice),
	    cmocka_unit_test(client_names),       cmocka_unit_test(messages_of_a_session),
	    cmocka_unit_test(messages_of_leases), cmocka_unit_test(message_refusals),
	    cmocka_unit_test(table_bytes),        cmocka_unit_test(table_full),
	    cmocka_unit_test(table_refusals),     cmocka_unit_test(segment_bounds),
	    cmocka_unit_test(statuses),           cmocka_unit_test(random_bytes),
	    cmocka_unit_test(cm_bytes),           cmocka_unit_test(cm_refusals),
	    cmocka_unit_test(cm_reply_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
