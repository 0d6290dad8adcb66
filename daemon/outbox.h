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
	int fd;                        /* sent along with the first byte, then closed; -1: none */
	struct fp_node_lease *granted; /* held: the lease that fd belongs to; NULL: none */
	char *text;                    /* malloc'd payload, freed after; NULL: none */
	size_t held_bytes;             /* of memory that is ours, not a lease's */
	uint8_t head[FP_WIRE_HEADER_BYTES + sizeof(struct fp_wire_welcome)]; /* the longest fixed answer */
	unsigned n_parts;
	struct fp_part parts[]; /* the first is head */
};

struct fp_outbox {
	struct fp_reply *first, *last;
	unsigned n;
	size_t held_bytes; /* by all replies */
	size_t sent_bytes; /* of first */
};

/*
 * Makes a reply with space for n_data parts after its head. The header tells a payload of
 * payload_bytes; its first fixed_bytes are fixed, in the head. NULL: no memory.
 */
struct fp_reply *fp_reply_new(const struct fp_wire_header *request, enum fp_wire_type type,
                              size_t payload_bytes, const void *fixed, size_t fixed_bytes, unsigned n_data);
/* An ERROR with that status. */
struct fp_reply *fp_reply_new_error(const struct fp_wire_header *request, enum fp_wire_status status);
/* Appends a part; holds its lease. */
void fp_reply_add(struct fp_reply *reply, const void *base, size_t len_bytes, struct fp_node_lease *lease);
/* Appends a payload that is not a lease's: malloc'd text, which the reply owns from here on. */
void fp_reply_add_text(struct fp_reply *reply, char *text, size_t len_bytes);
/* Adds a descriptor of the lease granted. The reply owns the descriptor and holds the lease. */
void fp_reply_pass(struct fp_reply *reply, int fd, struct fp_node_lease *granted);
/*
 * Turns a reply with a descriptor, not sent even in part, into an ERROR with that status. Its lease
 * is given back: the client never hears of it.
 */
void fp_reply_refuse(struct fp_reply *reply, enum fp_wire_status status);
/* Releases leases, text and descriptor. NULL is fine. */
void fp_reply_free(struct fp_reply *reply);

/* The outbox owns the reply from here on. */
void fp_outbox_push(struct fp_outbox *outbox, struct fp_reply *reply);
/*
 * Fills up to max vectors with the bytes to send next, max_bytes at most. Returns the number of
 * vectors. *ret_fd: to be passed along, or -1. A reply with a descriptor is never gathered together
 * with others, so that the descriptor comes with its first byte.
 */
unsigned fp_outbox_gather(const struct fp_outbox *outbox, struct iovec *iov, unsigned max, size_t max_bytes,
                          int *ret_fd);
/* sent_bytes were sent: frees the replies that are complete. */
void fp_outbox_advance(struct fp_outbox *outbox, size_t sent_bytes);
/* Drops everything. */
void fp_outbox_clear(struct fp_outbox *outbox);

#endif
