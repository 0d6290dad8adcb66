/*
 * The outbox. Room: daemon; see outbox.h.
 */
#include "outbox.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

/*
 * Makes a reply whose payload has `payload_bytes` bytes in all. The reply itself has memory for the
 * first `own_bytes` of them. The caller adds the others as parts.
 */
static struct fp_reply *reply_new(const struct fp_wire_header *request, enum fp_wire_type type,
                                  size_t payload_bytes, size_t own_bytes, unsigned n_parts)
{
	size_t parts_bytes = sizeof(struct fp_reply) + (1 + n_parts) * sizeof(struct fp_part);
	size_t head_bytes = FP_WIRE_HEADER_BYTES + own_bytes;
	struct fp_reply *reply = malloc(parts_bytes + head_bytes);
	uint8_t *head = (uint8_t *)reply + parts_bytes;

	if (!reply)
		return NULL;
	*reply = (struct fp_reply){.fd = -1, .held_bytes = parts_bytes + head_bytes};
	fp_wire_header_encode(type, FP_WIRE_OK, request->tag, payload_bytes, head);
	fp_reply_add(reply, head, head_bytes, NULL);
	return reply;
}

struct fp_reply *fp_reply_new(const struct fp_wire_header *request, enum fp_wire_type type,
                              const void *payload, size_t len_bytes)
{
	struct fp_reply *reply = reply_new(request, type, len_bytes, len_bytes, 0);

	if (reply && len_bytes)
		memcpy((uint8_t *)(reply->parts + 1) + FP_WIRE_HEADER_BYTES, payload, len_bytes);
	return reply;
}

struct fp_reply *fp_reply_new_data(const struct fp_wire_header *request, size_t data_bytes, unsigned n_parts)
{
	return reply_new(request, FP_WIRE_DATA, data_bytes, 0, n_parts);
}

struct fp_reply *fp_reply_new_error(const struct fp_wire_header *request, enum fp_wire_status status,
                                    const struct fp_refusal *refusal)
{
	bool says_why = refusal && refusal->cause != FP_REFUSAL_NONE;
	size_t len_bytes = says_why ? sizeof(struct fp_wire_refusal) : 0;
	struct fp_reply *reply = reply_new(request, FP_WIRE_PONG, len_bytes, len_bytes, 0);
	uint8_t *head = reply ? (uint8_t *)(reply->parts + 1) : NULL;
	struct fp_wire_refusal wire;

	if (!reply)
		return NULL;
	fp_wire_header_encode(FP_WIRE_ERROR, status, request->tag, len_bytes, head);
	if (says_why) {
		fp_refusal_to_wire(refusal, &wire);
		fp_wire_refusal_encode(&wire, head + FP_WIRE_HEADER_BYTES);
	}
	return reply;
}

void fp_reply_add(struct fp_reply *reply, const void *base, size_t len_bytes, struct fp_node_lease *lease)
{
	if (lease)
		fp_node_lease_get(lease);
	reply->parts[reply->n_parts++] = (struct fp_part){base, len_bytes, lease};
}

void fp_reply_free(struct fp_reply *reply)
{
	if (!reply)
		return;
	for (unsigned i = 0; i < reply->n_parts; i++)
		if (reply->parts[i].lease)
			fp_node_lease_put(reply->parts[i].lease);
	if (reply->fd >= 0)
		close(reply->fd);
	free(reply);
}

static size_t reply_bytes(const struct fp_reply *reply)
{
	size_t sum = 0;

	for (unsigned i = 0; i < reply->n_parts; i++)
		sum += reply->parts[i].len_bytes;
	return sum;
}

void fp_outbox_push(struct fp_outbox *outbox, struct fp_reply *reply)
{
	if (outbox->last)
		outbox->last->next = reply;
	else
		outbox->first = reply;
	outbox->last = reply;
	outbox->n++;
	outbox->n_fds += reply->fd >= 0;
	outbox->held_bytes += reply->held_bytes;
}

unsigned fp_outbox_gather(const struct fp_outbox *outbox, struct iovec *iov, unsigned max, size_t max_bytes,
                          int *ret_fd)
{
	size_t skip = outbox->sent_bytes;
	unsigned n = 0;

	*ret_fd = outbox->first && !skip ? outbox->first->fd : -1;
	for (const struct fp_reply *reply = outbox->first; reply; reply = reply->next) {
		if (reply->fd >= 0 && reply != outbox->first)
			break;
		for (unsigned i = 0; i < reply->n_parts && n < max && max_bytes; i++) {
			const struct fp_part *part = &reply->parts[i];

			if (skip >= part->len_bytes) {
				skip -= part->len_bytes;
				continue;
			}
			iov[n].iov_base = (char *)(uintptr_t)part->base + skip;
			iov[n].iov_len = FP_MIN(part->len_bytes - skip, max_bytes);
			max_bytes -= iov[n].iov_len;
			skip = 0;
			n++;
		}
		if (n == max || !max_bytes || *ret_fd >= 0)
			break;
	}
	return n;
}

static void pop(struct fp_outbox *outbox)
{
	struct fp_reply *reply = outbox->first;

	outbox->first = reply->next;
	if (!outbox->first)
		outbox->last = NULL;
	outbox->n--;
	outbox->n_fds -= reply->fd >= 0;
	outbox->held_bytes -= reply->held_bytes;
	outbox->sent_bytes = 0;
	fp_reply_free(reply);
}

void fp_outbox_advance(struct fp_outbox *outbox, size_t sent_bytes)
{
	outbox->sent_bytes += sent_bytes;
	while (outbox->first && outbox->sent_bytes >= reply_bytes(outbox->first)) {
		size_t rest = outbox->sent_bytes - reply_bytes(outbox->first);

		pop(outbox);
		outbox->sent_bytes = rest;
	}
}

void fp_outbox_clear(struct fp_outbox *outbox)
{
	while (outbox->first)
		pop(outbox);
}
