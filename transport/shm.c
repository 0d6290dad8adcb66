/*
 * The shm transport: a lease is a memfd of the node, mapped here. Reads and writes are copies,
 * complete when submit returns; the node does nothing. Room: transport. control.c has the control
 * side.
 *
 * A mapping outlives the session and the node: when one of them ends, no byte is lost.
 */
#include "transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "control.h"

/*
 * Requires the seals: without them the node could shrink the file, and our next access would be a
 * SIGBUS. The mapping is inherited by a forked child, which reads its adopted leases through it.
 * The child must not write them.
 */
static int map_lease(struct fp_lease *lease, const struct fp_wire_leased *leased, int memfd)
{
	struct stat st;
	int seals;
	void *base;

	if (memfd < 0)
		return -EMFILE; /* the kernel drops a sent descriptor only if our table is full */
	seals = fcntl(memfd, F_GET_SEALS);
	if (seals < 0 || (~seals & (F_SEAL_SHRINK | F_SEAL_GROW)) || fstat(memfd, &st) < 0 ||
	    (uint64_t)st.st_size != lease->size_bytes)
		return -EPROTO;
	base = mmap(NULL, lease->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (base == MAP_FAILED)
		return -errno;
	lease->base = base;
	return 0;
}

static void unmap_lease(struct fp_lease *lease)
{
	munmap(lease->base, lease->size_bytes);
}

static const struct fp_control_ops shm_control = {
    .transport = &fp_transport_shm,
    .features = FP_WIRE_FEATURE_MEMFD,
    .attach = map_lease,
    .detach = unmap_lease,
};

static int shm_session_open(const struct fp_url *url, const struct fp_session_options *options,
                            struct fp_session **ret_session)
{
	return fp_control_open(&shm_control, url, options, ret_session);
}

static int shm_link_open(struct fp_session *session, struct fp_link **ret_link)
{
	struct fp_link *link = calloc(1, sizeof(*link));

	if (!link)
		return -ENOMEM;
	link->transport = &fp_transport_shm;
	*ret_link = link;
	return 0;
}

static void shm_link_close(struct fp_link *link)
{
	free(link);
}

/* Copies the whole request or nothing, as a node does. */
static int copy(const struct fp_session *session, const struct fp_io *io)
{
	if (!fp_control_allows(session, io))
		return -EACCES;
	for (unsigned i = 0; i < io->n_segs; i++) {
		const struct fp_seg *seg = &io->segs[i];
		char *remote =
		    (char *)fp_control_find_lease(session, seg->lease_id)->base + seg->offset_bytes;

		if (io->op == FP_IO_READ)
			memcpy(seg->buf, remote, seg->len_bytes);
		else
			memcpy(remote, seg->buf, seg->len_bytes);
	}
	return 0;
}

static int shm_submit(struct fp_link *base, struct fp_io *io)
{
	if (base->n_done == FP_LINK_MAX_OUTSTANDING)
		return -EAGAIN;
	fp_link_io_done(base, io, copy(base->session, io));
	return 0;
}

static int shm_poll(struct fp_link *base, struct fp_io **ret_done, unsigned max)
{
	return fp_link_take_done(base, ret_done, max);
}

static int shm_pollfd(struct fp_link *base, struct pollfd *ret_pollfd)
{
	ret_pollfd->fd = -1;
	return 0;
}

const struct fp_transport fp_transport_shm = {
    .scheme = "shm",
    .load_store = true,
    .session_open = shm_session_open,
    FP_CONTROL_OPERATIONS,
    .check = fp_control_check,
    .link_open = shm_link_open,
    .link_close = shm_link_close,
    .submit = shm_submit,
    .poll = shm_poll,
    .pollfd = shm_pollfd,
};
