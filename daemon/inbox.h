/*
 * The inbox turns the byte stream of a connection into frames. It keeps the head of one frame:
 * header and payload, or header and table for a WRITE. The data of a WRITE bypasses the inbox and
 * goes straight to its destination. Room: daemon. Pure: bytes in, frames out.
 */
#ifndef FP_INBOX_H
#define FP_INBOX_H

#include "wire.h"

struct fp_inbox {
	struct fp_wire_header header; /* valid once 24 bytes are there */
	struct fp_wire_table table;   /* valid once a READ's or WRITE's head is complete */
	size_t have_bytes;            /* bytes of the head so far; 0: none */
	uint8_t head[FP_WIRE_HEADER_BYTES + FP_WIRE_MAX_PING]; /* PING has the longest head */
};

/*
 * Takes bytes, up to the end of the frame's head. Returns 1 when the head is complete: call
 * fp_inbox_next before the next frame. Returns 0 if all len bytes were taken and more are needed.
 * -EPROTO or -EPROTONOSUPPORT as from the wire's decoders; -EPROTO also for a frame that only a
 * node may send. *ret_used, the number of bytes taken, is always set.
 */
int fp_inbox_feed(struct fp_inbox *inbox, const uint8_t *bytes, size_t len, size_t *ret_used);

/* Prepares for the next frame. */
void fp_inbox_next(struct fp_inbox *inbox);

/* The payload of a complete head: header.length bytes. Of a WRITE, only its table. */
const void *fp_inbox_payload(const struct fp_inbox *inbox);

#endif
