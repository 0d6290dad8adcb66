/*
 * The outbox: answers of one connection, in order, until the kernel has taken them. The bytes of a
 * READ are sent straight from the lease, and the reply holds the lease until they are sent. Room:
 * daemon. It knows memory and leases, never sockets.
 */
#ifndef FP_OUTBOX_H
#define FP_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "lease.h"
#include "refusal.h"
#include "wire.h"

struct fp_part {
	const void *base;
	size_t len_bytes;
	struct fp_node_lease *lease; /* holds a reference; NULL: none */
};

struct fp_reply {
	struct fp_reply *next;
	int fd;            /* sent along with the first byte, then closed; -1: none */
	size_t held_bytes; /* memory that is ours, not of leases */
	unsigned n_parts;
	/* The first part is header and payload. Their bytes follow the array in memory. */
	struct fp_part parts[];
};

struct fp_outbox {
	struct fp_reply *first, *last;
	unsigned n, n_fds;
	size_t held_bytes; /* sum over all replies */
	size_t sent_bytes; /* how much of first is sent */
};

/* Makes a reply with a copy of payload. NULL: no memory. */
struct fp_reply *fp_reply_new(const struct fp_wire_header *request, enum fp_wire_type type,
                              const void *payload, size_t len_bytes);
/*
 * Makes a DATA reply of data_bytes, with space for n_parts parts, which the caller adds. NULL: no
 * memory.
 */
struct fp_reply *fp_reply_new_data(const struct fp_wire_header *request, size_t data_bytes, unsigned n_parts);
/* An ERROR with that status. It carries refusal, unless that is NULL or has no cause. */
struct fp_reply *fp_reply_new_error(const struct fp_wire_header *request, enum fp_wire_status status,
                                    const struct fp_refusal *refusal);
/* Appends a part, and holds its lease. */
void fp_reply_add(struct fp_reply *reply, const void *base, size_t len_bytes, struct fp_node_lease *lease);
/* Releases leases and descriptor. NULL is fine. */
void fp_reply_free(struct fp_reply *reply);

/* Queues the reply, which the outbox owns from here on. */
void fp_outbox_push(struct fp_outbox *outbox, struct fp_reply *reply);
/*
 * Fills up to max vectors with the bytes to send next, max_bytes at most. Returns the number of
 * vectors. *ret_fd: a descriptor to pass along, or -1. If a reply has a descriptor, the vectors
 * hold bytes of that reply alone. So the descriptor arrives with the first byte of its reply.
 */
unsigned fp_outbox_gather(const struct fp_outbox *outbox, struct iovec *iov, unsigned max, size_t max_bytes,
                          int *ret_fd);
/* Call it when sent_bytes were sent. Frees the replies that are complete. */
void fp_outbox_advance(struct fp_outbox *outbox, size_t sent_bytes);
/* Drops everything. */
void fp_outbox_clear(struct fp_outbox *outbox);

#endif
