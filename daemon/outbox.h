/*
 * The outbox: answers of one connection, in order, until the kernel has taken them. The bytes of a
 * READ are sent from the lease itself; the reply holds the lease until then. Room: daemon. It knows
 * memory and leases, never sockets.
 */
#ifndef FP_OUTBOX_H
#define FP_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "lease.h"
#include "wire.h"

struct fp_part {
	const void *base;
	size_t len_bytes;
	struct fp_node_lease *lease; /* held; NULL: none */
};

struct fp_reply {
	struct fp_reply *next;
	int fd;            /* sent along with the first byte, then closed; -1: none */
	size_t held_bytes; /* memory of our own, not of leases */
	unsigned n_parts;
	struct fp_part parts[]; /* the first is header and payload, which follow the parts in memory */
};

struct fp_outbox {
	struct fp_reply *first, *last;
	unsigned n;
	size_t held_bytes; /* by all replies */
	size_t sent_bytes; /* of first */
};

/* Makes a reply with a copy of payload. NULL: no memory. */
struct fp_reply *fp_reply_new(const struct fp_wire_header *request, enum fp_wire_type type,
                              const void *payload, size_t len_bytes);
/* Makes a DATA reply of data_bytes, with space for n_parts parts that are added. NULL: no
 * memory. */
struct fp_reply *fp_reply_new_data(const struct fp_wire_header *request, size_t data_bytes, unsigned n_parts);
/* An ERROR with that status. */
struct fp_reply *fp_reply_new_error(const struct fp_wire_header *request, enum fp_wire_status status);
/* Appends a part; holds its lease. */
void fp_reply_add(struct fp_reply *reply, const void *base, size_t len_bytes, struct fp_node_lease *lease);
/* Releases leases and descriptor. NULL is fine. */
void fp_reply_free(struct fp_reply *reply);

/* The outbox owns the reply from here on. */
void fp_outbox_push(struct fp_outbox *outbox, struct fp_reply *reply);
/*
 * Fills up to max vectors with the bytes to send next, max_bytes at most. Returns the number of
 * vectors. *ret_fd: a descriptor to pass along, or -1. A reply with a descriptor is never gathered
 * together with others, so that the descriptor comes with its first byte.
 */
unsigned fp_outbox_gather(const struct fp_outbox *outbox, struct iovec *iov, unsigned max, size_t max_bytes,
                          int *ret_fd);
/* sent_bytes were sent: frees the replies that are complete. */
void fp_outbox_advance(struct fp_outbox *outbox, size_t sent_bytes);
/* Drops everything. */
void fp_outbox_clear(struct fp_outbox *outbox);

#endif
