/*
 * Fuzz target: any bytes that a node receives on a connection. However they are cut into pieces,
 * the same frames come out, or the same refusal. The first byte says how to cut them.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "cleanup.h"
#include "frames.h"
#include "fuzz.h"
#include "inbox.h"

#define MAX_FRAMES 64

struct frames {
	unsigned n;
	int refused; /* why the last frame was refused; 0: it was not */
	size_t used_bytes;
	struct {
		struct fp_wire_header header;
		uint32_t data_bytes, n_segs;
		uint8_t sum; /* sum of the payload's bytes that the inbox keeps in its field head */
	} frame[MAX_FRAMES];
};

static void note_frame(const struct fp_inbox *inbox, struct frames *frames)
{
	bool io = inbox->header.type == FP_WIRE_READ || inbox->header.type == FP_WIRE_WRITE;
	const uint8_t *payload = fp_inbox_payload(inbox);
	size_t len = io ? inbox->table.table_bytes : inbox->header.length;
	unsigned i = frames->n++;

	assert(FP_WIRE_HEADER_BYTES + len <= sizeof(inbox->head));
	assert(inbox->header.type % 2 == 0);
	memset(&frames->frame[i], 0, sizeof(frames->frame[i]));
	frames->frame[i].header = inbox->header;
	frames_note(inbox->header.type, FP_WIRE_OK);
	if (io)
		frames->frame[i].n_segs = inbox->table.n_segs;
	if (inbox->header.type == FP_WIRE_WRITE)
		frames->frame[i].data_bytes = inbox->table.data_bytes;
	for (size_t k = 0; k < len; k++)
		frames->frame[i].sum += payload[k];
}

/* Feeds pieces of at most piece_bytes. The data of a WRITE does not go through the inbox. */
static void receive(const uint8_t *bytes, size_t len, size_t piece_bytes, struct frames *ret)
{
	struct fp_inbox inbox = {.have_bytes = 0};
	size_t at = 0, data = 0, used;

	memset(ret, 0, sizeof(*ret));
	while (at < len && ret->n < MAX_FRAMES && !ret->refused) {
		size_t n = FP_MIN(len - at, piece_bytes);
		int r;

		if (data > 0) {
			used = FP_MIN(n, data);
			data -= used;
			at += used;
			continue;
		}
		r = fp_inbox_feed(&inbox, bytes + at, n, &used);
		assert(used <= n && (r != 0 || used == n));
		at += used;
		if (r < 0) {
			ret->refused = r;
			frames_note(inbox.head[offsetof(struct fp_wire_header, type)],
			            fp_wire_status_from_errno(r));
		}
		if (r != 1)
			continue;
		note_frame(&inbox, ret);
		data = ret->frame[ret->n - 1].data_bytes;
		fp_inbox_next(&inbox);
	}
	ret->used_bytes = ret->refused ? 0 : at; /* if a frame is refused, the count depends on the pieces */
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct frames whole, pieces;

	if (len < 1)
		return 0;
	receive(bytes + 1, len - 1, len, &whole);
	receive(bytes + 1, len - 1, 1 + bytes[0] % 64, &pieces);
	assert(!memcmp(&whole, &pieces, sizeof(whole)));
	assert(whole.refused == 0 || whole.refused == -EPROTO || whole.refused == -EPROTONOSUPPORT);
	return 0;
}

/* Requests must come out, answers must be refused. */
static uint32_t wanted(uint8_t type)
{
	bool has_table = type == FP_WIRE_READ || type == FP_WIRE_WRITE;

	return (type & 1 ? 0 : FRAMES_ENDS(FP_WIRE_OK)) |
	       (type & 1 || has_table ? FRAMES_ENDS(FP_WIRE_MALFORMED) : 0);
}

unsigned fuzz_missing(void)
{
	return frames_missing(wanted);
}
