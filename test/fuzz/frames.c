/* See frames.h. Room: test/fuzz. */
#include "frames.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LONGEST_MINIMUM sizeof(struct fp_wire_hello) /* the shortest payload of any type fits */

static uint32_t ends[256];

/*
 * True if the codec accepts some payload length for a frame of this type. The codec is asked, so
 * that types that it gets later are found too.
 */
static bool is_known(uint8_t type)
{
	uint8_t bytes[FP_WIRE_HEADER_BYTES];
	struct fp_wire_header header;

	fp_wire_header_encode(FP_WIRE_PING, FP_WIRE_OK, 0, 0, bytes);
	bytes[offsetof(struct fp_wire_header, type)] = type;
	bytes[offsetof(struct fp_wire_header, status)] = type == FP_WIRE_ERROR;
	for (unsigned len = 0; len <= LONGEST_MINIMUM; len++) {
		bytes[offsetof(struct fp_wire_header, length)] = (uint8_t)len;
		if (fp_wire_header_decode(bytes, &header) == 0)
			return true;
	}
	return false;
}

void frames_note(uint8_t type, unsigned status)
{
	ends[type] |= FRAMES_ENDS(status);
}

unsigned frames_missing(uint32_t (*wanted)(uint8_t type))
{
	unsigned n = 0;

	for (unsigned type = 0; type < 256; type++) {
		uint32_t missing = is_known((uint8_t)type) ? wanted((uint8_t)type) & ~ends[type] : 0;

		for (unsigned status = 0; missing >> status; status++)
			if (missing & FRAMES_ENDS(status)) {
				fprintf(stderr, "no file has a frame of type 0x%02x end with status %u\n",
				        type, status);
				n++;
			}
	}
	return n;
}
