/*
 * The data path of rdma: requests become chains of READ and WRITE work requests of one queue pair,
 * and nobody's CPU at the node does anything for them. Room: transport. It speaks to the device
 * through verbs.h alone and knows nothing of how its connection came about.
 */
#ifndef FP_RDMA_LINK_H
#define FP_RDMA_LINK_H

#include "rdma_options.h"
#include "transport.h"
#include "verbs.h"

#define FP_RDMA_BOUNCE_BYTES 4096u /* of one such page */
#define FP_RDMA_MAX_REGIONS  4u    /* of buffers that fp_link_register names; further ones are copied */

struct fp_rdma_link_options {
	const struct fp_transport *transport;
	const struct fp_session *session; /* given to find_lease */
	const struct fp_lease *(*find_lease)(const struct fp_session *session, uint32_t lease_id);
	enum fp_protocol protocol;
	uint64_t patience_ns; /* deadline of an io that has none */
	unsigned n_slots;     /* work requests in flight, each with a bounce page of its own: send_depth */
	int fd; /* closed with the link: the connection that keeps the queue pair alive; -1: none */
};

/*
 * What options a link's connection needs. Timed so that the device itself rides out a cut of less
 * than a second and gives up on one of about two, unless rdma says otherwise. rdma NULL: the
 * defaults.
 */
struct fp_verbs_conn_options fp_rdma_link_conn_options(const struct fp_rdma_options *rdma);

/*
 * Makes a link of conn. Allocates and registers all that it will ever need. On success conn and
 * options->fd are the link's, else they stay the caller's. 0; -ENOMEM.
 */
int fp_rdma_link_new(struct fp_verbs_conn *conn, const struct fp_rdma_link_options *options,
                     struct fp_link **ret_link);

/* These stand in for the operations of struct fp_transport. */
void fp_rdma_link_close(struct fp_link *link);
void fp_rdma_link_break(struct fp_link *link);
int fp_rdma_link_register(struct fp_link *link, void *base, size_t len_bytes);
int fp_rdma_link_submit(struct fp_link *link, struct fp_io *io);
int fp_rdma_link_poll(struct fp_link *link, struct fp_io **ret_done, unsigned max);
int fp_rdma_link_pollfd(struct fp_link *link, struct pollfd *ret_pollfd);

#endif
