/*
 * Handles requests: the handshake, control calls, reads and writes. Room: daemon.
 */
#ifndef FP_REQUEST_H
#define FP_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

struct fp_conn;

/* Handles the request whose head is complete in conn's inbox. */
void fp_request_handle(struct fp_conn *conn);

/*
 * Takes data of the WRITE under way, and answers the WRITE when it is complete. Returns the bytes
 * taken.
 */
size_t fp_request_write_data(struct fp_conn *conn, const uint8_t *bytes, size_t len);
/* Forgets a WRITE that will not be completed. */
void fp_request_write_abandon(struct fp_conn *conn);

/* Answers the request in conn's inbox with a copy of payload. */
void fp_request_answer(struct fp_conn *conn, enum fp_wire_type type, const void *payload, size_t len);

#endif
