/*
 * The data path of rdma: requests become chains of READ and WRITE work requests of one queue pair.
 * No CPU of the node works for them. Room: transport. It uses the device through verbs.h alone, and
 * does not know how its connection was made.
 */
#ifndef FP_RDMA_LINK_H
#define FP_RDMA_LINK_H

#include "rdma_memory.h"
#include "rdma_options.h"
#include "transport.h"
#include "verbs.h"

struct fp_rdma_link_options {
	const struct fp_transport *transport;
	const struct fp_session *session; /* given to find_lease */
	const struct fp_lease *(*find_lease)(const struct fp_session *session, uint32_t lease_id);
	enum fp_protocol protocol;
	uint64_t patience_ns; /* how long an io without a deadline may take */
	unsigned n_slots;     /* send_depth: most work requests in flight, a bounce page for each */
	/*
	 * The LINK connection, which must live as long as the link and is closed with it; -1: none.
	 */
	int fd;
};

/*
 * The options of a link's connection. With the default times the device itself survives a cut of
 * less than a second, and gives up after about two. rdma NULL: the defaults.
 */
struct fp_verbs_conn_options fp_rdma_link_conn_options(const struct fp_rdma_options *rdma);

/*
 * Makes a link of conn. Allocates and registers all that it will ever need. On success it owns conn
 * and options->fd, else the caller keeps them. 0; -ENOMEM, -EPROTO (the peer answers no READ), ...
 */
int fp_rdma_link_new(struct fp_verbs_conn *conn, const struct fp_rdma_link_options *options,
                     struct fp_link **ret_link);

/* Operations of struct fp_transport. */
void fp_rdma_link_close(struct fp_link *link);
void fp_rdma_link_break(struct fp_link *link);
int fp_rdma_link_register(struct fp_link *link, void *base, size_t len_bytes);
int fp_rdma_link_submit(struct fp_link *link, struct fp_io *io);
int fp_rdma_link_poll(struct fp_link *link, struct fp_io **ret_done, unsigned max);
int fp_rdma_link_pollfd(struct fp_link *link, struct pollfd *ret_pollfd);

#endif
