/*
 * Fuzz target: any bytes as one frame of the protocol, and as the private data of an rdma_cm
 * connection. If a decoder accepts a frame, its encoder must give the same bytes. So no byte can be
 * overlooked.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "cleanup.h"
#include "frames.h"
#include "fuzz.h"
#include "wire.h"

/* Tests one message: its decoder refuses it as a whole, or its encoder gives the same bytes. */
#define ROUND_TRIP(name)                                                                                     \
	static int round_trip_##name(const uint8_t *bytes, size_t len)                                       \
	{                                                                                                    \
		struct fp_wire_##name message;                                                               \
		uint8_t again[sizeof(message)];                                                              \
		int r = fp_wire_##name##_decode(bytes, len, &message);                                       \
                                                                                                             \
		assert(r == 0 || r == -EPROTO || r == -EPROTONOSUPPORT);                                     \
		if (r < 0)                                                                                   \
			return r;                                                                            \
		assert(len >= sizeof(message));                                                              \
		fp_wire_##name##_encode(&message, again);                                                    \
		assert(!memcmp(again, bytes, sizeof(again)));                                                \
		return 0;                                                                                    \
	}

ROUND_TRIP(hello)
ROUND_TRIP(challenge)
ROUND_TRIP(welcome)
ROUND_TRIP(lease)
ROUND_TRIP(leased)
ROUND_TRIP(release)
ROUND_TRIP(info)
ROUND_TRIP(drained)
ROUND_TRIP(refusal)
ROUND_TRIP(attach)
ROUND_TRIP(adopt)
ROUND_TRIP(adopted)
ROUND_TRIP(qp)
ROUND_TRIP(cm)
ROUND_TRIP(cm_reply)

static int (*const payloads[])(const uint8_t *bytes, size_t len) = {
    [FP_WIRE_ERROR] = round_trip_refusal,       [FP_WIRE_HELLO] = round_trip_hello,
    [FP_WIRE_CHALLENGE] = round_trip_challenge, [FP_WIRE_WELCOME] = round_trip_welcome,
    [FP_WIRE_LEASE] = round_trip_lease,         [FP_WIRE_LEASED] = round_trip_leased,
    [FP_WIRE_RELEASE] = round_trip_release,     [FP_WIRE_INFO_REPLY] = round_trip_info,
    [FP_WIRE_DRAINED] = round_trip_drained,     [FP_WIRE_ATTACH] = round_trip_attach,
    [FP_WIRE_ATTACHED] = round_trip_leased,     [FP_WIRE_QP] = round_trip_qp,
    [FP_WIRE_QP_REPLY] = round_trip_qp,         [FP_WIRE_ADOPT] = round_trip_adopt,
    [FP_WIRE_ADOPTED] = round_trip_adopted,
};

/* Checks the table of a READ or WRITE when only the first `have` bytes of the payload are here. */
static int check_table(const struct fp_wire_header *header, const uint8_t *payload, size_t have)
{
	uint8_t again[FP_WIRE_MAX_TABLE];
	struct fp_wire_table table;
	uint64_t data_bytes = 0;
	int r = fp_wire_table_decode(header, payload, have, &table);

	assert(r == 0 || r == 1 || r == -EPROTO);
	if (r != 1)
		return r;
	assert(table.n_segs >= 1 && table.n_segs <= FP_WIRE_MAX_SEGS && table.table_bytes <= have);
	for (unsigned i = 0; i < table.n_segs; i++)
		data_bytes += table.segs[i].len_bytes;
	assert(table.data_bytes == data_bytes && data_bytes <= FP_WIRE_MAX_DATA);
	assert(header->length == table.table_bytes + (header->type == FP_WIRE_WRITE ? data_bytes : 0));
	assert(fp_wire_table_encode(table.segs, table.n_segs, again) == table.table_bytes);
	assert(!memcmp(again, payload, table.table_bytes));
	return 1;
}

static bool has_table(uint8_t type)
{
	return type == FP_WIRE_READ || type == FP_WIRE_WRITE;
}

static bool has_decoder(uint8_t type)
{
	return type < FP_ARRAY_LEN(payloads) && payloads[type];
}

static void check_payload(const struct fp_wire_header *header, const uint8_t *payload, size_t have)
{
	int r = 0;

	if (has_table(header->type))
		r = check_table(header, payload, FP_MIN(have, header->length));
	else if (have < header->length)
		return;
	else if (has_decoder(header->type) && (header->type != FP_WIRE_ERROR || header->length))
		r = payloads[header->type](payload, header->length);
	frames_note(header->type, r < 0 ? FP_WIRE_MALFORMED : FP_WIRE_OK);
}

static void check_frame(const uint8_t *bytes, size_t len)
{
	struct fp_wire_header header;
	int r;

	if (len < FP_WIRE_HEADER_BYTES)
		return;
	r = fp_wire_header_decode(bytes, &header);
	assert(r == 0 || r == -EPROTO || r == -EPROTONOSUPPORT);
	if (r < 0)
		return;
	assert(header.length <= FP_WIRE_MAX_PAYLOAD);
	assert((header.type == FP_WIRE_ERROR) == (header.status != FP_WIRE_OK));
	assert(fp_wire_status_to_errno(header.status) <= 0);
	check_payload(&header, bytes + FP_WIRE_HEADER_BYTES, len - FP_WIRE_HEADER_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	check_frame(bytes, len);
	round_trip_cm(bytes, len);
	round_trip_cm_reply(bytes, len);
	return 0;
}

static uint32_t wanted(uint8_t type)
{
	return FRAMES_ENDS(FP_WIRE_OK) |
	       (has_table(type) || has_decoder(type) ? FRAMES_ENDS(FP_WIRE_MALFORMED) : 0);
}

unsigned fuzz_missing(void)
{
	return frames_missing(wanted);
}
