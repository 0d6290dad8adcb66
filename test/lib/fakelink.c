/* Links of the fake transport: when bytes move, and in which order requests end. Room: test/lib. */
#include "fakeworld.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "testrng.h"

/* Spoils the remote bytes of a failed write: the contract leaves them undefined. */
void fake_scribble(struct fake_session *session, const struct fp_io *io)
{
	for (unsigned i = 0; i < io->n_segs && io->op == FP_IO_WRITE; i++) {
		uint32_t id = io->segs[i].lease_id;

		if (fake_memory_of(session, id) && !session->standing->grants[id].read_only)
			memset(fake_arena + fake_memory_of(session, id)->at + io->segs[i].offset_bytes,
			       SCRIBBLE_BYTE, io->segs[i].len_bytes);
	}
}

int fake_link_open(struct fp_session *base, struct fp_link **ret_link)
{
	struct fake_session *session = (struct fake_session *)base;
	struct fake_link *link;
	int r;

	fake_lock();
	r = fake_session_call(session);
	if (r == 0) {
		assert(!base->transport->load_store);
		link = calloc(1, sizeof(*link));
		assert(link);
		link->base.transport = base->transport;
		link->session = session;
		link->opener = getpid();
		link->next = session->links;
		session->links = link;
		session->connection->n_links++;
		session->node->n_links++;
		*ret_link = &link->base;
	}
	fake_unlock();
	return r;
}

void fake_link_close(struct fp_link *base)
{
	struct fake_link *link = (struct fake_link *)base, **p;

	fake_lock();
	for (unsigned i = 0; i < link->n_ios; i++)
		link->ios[i]->tag = 0; /* marks the io as abandoned */
	for (p = &link->session->links; *p != link; p = &(*p)->next)
		;
	*p = link->next;
	if (link->opener == getpid()) {
		link->session->connection->n_links--;
		link->session->node->n_links--;
	}
	fake_unlock();
	free(link);
}

void fake_link_break(struct fp_link *base)
{
	((struct fake_link *)base)->broken = true;
}

int fake_link_register(struct fp_link *base, void *region, size_t len_bytes)
{
	struct fake_link *link = (struct fake_link *)base;

	assert(region && len_bytes && link->n_ios == 0);
	fake_lock();
	link->session->node->n_registered++;
	fake_unlock();
	return 0;
}

static int submit_locked(struct fake_link *link, struct fp_io *io)
{
	struct fake_session *session = link->session;
	struct fake_node *node = session->node;
	int r;

	assert(io->n_segs >= 1 && io->n_segs <= FP_IO_MAX_SEGS && io->deadline_ns);
	assert(io->tag == 0); /* an io in use by another link has a tag */
	if (node->link_depth && link->n_ios >= node->link_depth && !node->dead && !session->connection->cut)
		return -EAGAIN;
	r = fake_call(node);
	if (r < 0 && !node->dead)
		return r;
	assert(link->n_ios < MAX_IOS);
	for (unsigned i = 0; i < io->n_segs; i++)
		assert(session->attached[io->segs[i].lease_id]);
	io->tag = 1;
	node->n_ios++;
	node->n_segs += io->n_segs;
	link->ios[link->n_ios++] = io;
	return 0;
}

int fake_link_submit(struct fp_link *base, struct fp_io *io)
{
	int r;

	fake_lock();
	r = submit_locked((struct fake_link *)base, io);
	fake_unlock();
	return r;
}

/* Moves the bytes of a segment. If that fails, spoils the bytes that a failure leaves undefined. */
static void seg_move(struct fake_session *session, const struct fp_io *io, const struct fp_seg *seg)
{
	const struct fake_memory *memory = fake_memory_of(session, seg->lease_id);
	char *remote = fake_arena + (memory ? memory->at : 0) + seg->offset_bytes;

	assert(seg->len_bytes >= 1 && seg->len_bytes <= FP_SEG_MAX_BYTES);
	assert(memory ? seg->offset_bytes + seg->len_bytes <= memory->size_bytes : io->status != 0);
	if (io->op == FP_IO_READ && io->status)
		memset(seg->buf, SCRIBBLE_BYTE, seg->len_bytes);
	else if (io->op == FP_IO_READ)
		memcpy(seg->buf, remote, seg->len_bytes);
	else if (!io->status)
		memcpy(remote, seg->buf, seg->len_bytes);
}

/* Writes to adopted leases are denied. */
static bool is_denied(const struct fake_session *session, const struct fp_io *io)
{
	for (unsigned i = 0; i < io->n_segs && io->op == FP_IO_WRITE; i++)
		if (session->standing->grants[io->segs[i].lease_id].read_only)
			return true;
	return false;
}

static void io_finish(struct fake_link *link, struct fp_io *io, int status)
{
	struct fake_session *session = link->session;

	if (!status && is_denied(session, io)) {
		status = -EACCES;
		session->node->n_denied++;
	}
	io->status = status;
	io->tag = 0;
	if (status == -ECONNRESET)
		link->base.why = FAKE_LINK_WHY;
	if (status && !session->connection->cut)
		fake_scribble(session, io);
	for (unsigned i = 0; i < io->n_segs; i++)
		seg_move(session, io, &io->segs[i]);
}

/* The index of the io that completes next, and its status. -1: none completes now. */
static int io_next(struct fake_link *link, int *ret_status)
{
	struct fake_session *session = link->session;
	struct fake_node *node = session->node;

	if (link->n_ios == 0)
		return -1;
	*ret_status = node->dead || session->connection->cut || link->broken ? -ECONNRESET : 0;
	if (!node->dead && !link->broken &&
	    (session->connection->frozen || (node->silent && !session->connection->cut))) {
		*ret_status = -ETIMEDOUT;
		return fp_clock_ns() >= link->ios[0]->deadline_ns ? 0 : -1;
	}
	switch (node->order) {
	case FAKE_FIFO:
		return 0;
	case FAKE_LIFO:
		return (int)link->n_ios - 1;
	case FAKE_RANDOM:
		break;
	}
	return (int)(test_random(&fake_world->rng) % link->n_ios);
}

int fake_link_poll(struct fp_link *base, struct fp_io **ret_done, unsigned max)
{
	struct fake_link *link = (struct fake_link *)base;
	struct fake_node *node = link->session->node;
	unsigned n = 0;
	int k, status;

	fake_lock();
	while (n < max && (!node->completions || n < node->completions) &&
	       (k = io_next(link, &status)) >= 0) {
		struct fp_io *io = link->ios[k];

		link->n_ios--;
		memmove(&link->ios[k], &link->ios[k + 1], (link->n_ios - (unsigned)k) * sizeof(io));
		io_finish(link, io, status);
		ret_done[n++] = io;
	}
	fake_unlock();
	return (int)n;
}

int fake_link_pollfd(struct fp_link *base, struct pollfd *ret_pollfd)
{
	*ret_pollfd = (struct pollfd){.fd = 0, .events = POLLIN};
	return 1;
}
