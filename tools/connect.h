/*
 * A tool's own session at a node, over any transport and address that its URL allows. Room: tools;
 * speaks the wire protocol.
 */
#ifndef FP_CONNECT_H
#define FP_CONNECT_H

#include <stddef.h>

#include "rdma_options.h"
#include "transport.h"

struct fp_connect {
	struct fp_rdma_options rdma; /* RDMA options from the settings */
	struct fp_session *session;
	struct fp_url way; /* how the node was reached */
};

/*
 * Opens a session at the node that url names. If the URL says "auto" or has several addresses,
 * tries each transport and address in order, until one answers. An error that would be the same at
 * every address, such as a wrong secret, ends the search. Fills connect->rdma from the settings,
 * and uses it and a refusal of its own instead of those of options. 0: release with
 * fp_connect_close. Otherwise a negative errno and a text in error, and there is nothing to
 * release. Blocks up to options->deadline_ns for each address and transport.
 */
int fp_connect_open(struct fp_connect *connect, const char *url, const struct fp_session_options *options,
                    char *error, size_t error_len);

void fp_connect_close(struct fp_connect *connect);

#endif
