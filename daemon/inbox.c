/*
 * The inbox. Room: daemon; see inbox.h.
 */
#include "inbox.h"

#include <errno.h>
#include <string.h>

#include "cleanup.h"

static_assert(FP_WIRE_MAX_PING >= FP_WIRE_MAX_TABLE && FP_WIRE_MAX_PING >= sizeof(struct fp_wire_hello),
              "a head holds every request");

static bool is_io(const struct fp_inbox *inbox)
{
	return inbox->header.type == FP_WIRE_READ || inbox->header.type == FP_WIRE_WRITE;
}

static size_t take(struct fp_inbox *inbox, const uint8_t *bytes, size_t len, size_t upto)
{
	size_t n = FP_MIN(len, upto - inbox->have_bytes);

	memcpy(inbox->head + inbox->have_bytes, bytes, n);
	inbox->have_bytes += n;
	return n;
}

static int feed_header(struct fp_inbox *inbox)
{
	int r;

	if (inbox->have_bytes < FP_WIRE_HEADER_BYTES)
		return 0;
	r = fp_wire_header_decode(inbox->head, &inbox->header);
	if (r < 0)
		return r;
	/* requests are even */
	return inbox->header.type & 1 ? -EPROTO : inbox->header.length == 0;
}

/*
 * *ret_extra: how many bytes of a WRITE's data were taken together with the table. They do not
 * count as used, so the caller passes them again as data.
 */
static int feed_table(struct fp_inbox *inbox, size_t *ret_extra)
{
	size_t have = inbox->have_bytes - FP_WIRE_HEADER_BYTES;
	int r = fp_wire_table_decode(&inbox->header, fp_inbox_payload(inbox), have, &inbox->table);

	if (r == 1) {
		*ret_extra = have - inbox->table.table_bytes;
		inbox->have_bytes -= *ret_extra;
	}
	return r;
}

int fp_inbox_feed(struct fp_inbox *inbox, const uint8_t *bytes, size_t len, size_t *ret_used)
{
	size_t used = 0, extra = 0;
	int r = 0;

	if (inbox->have_bytes < FP_WIRE_HEADER_BYTES) {
		used = take(inbox, bytes, len, FP_WIRE_HEADER_BYTES);
		r = feed_header(inbox);
	}
	if (r == 0 && inbox->have_bytes >= FP_WIRE_HEADER_BYTES) {
		size_t payload =
		    is_io(inbox) ? FP_MIN(inbox->header.length, FP_WIRE_MAX_TABLE) : inbox->header.length;

		used += take(inbox, bytes + used, len - used, FP_WIRE_HEADER_BYTES + payload);
		if (is_io(inbox))
			r = feed_table(inbox, &extra);
		else
			r = inbox->have_bytes == FP_WIRE_HEADER_BYTES + payload;
	}
	*ret_used = used - extra;
	return r;
}

void fp_inbox_next(struct fp_inbox *inbox)
{
	inbox->have_bytes = 0;
}

const void *fp_inbox_payload(const struct fp_inbox *inbox)
{
	return inbox->head + FP_WIRE_HEADER_BYTES;
}
