/*
 * The rdma_cm server of a server: where rdma:// addresses are listened to (transport/cm_server.h). Room: daemon; the
 * loop's thread.
 */
#ifndef FP_NODE_SERVER_RDMA_H
#define FP_NODE_SERVER_RDMA_H

#include "node_server.h"

/*
 * Opens server->cm_server if the configuration has rdma:// addresses, or a device for queue pairs that are
 * connected by hand; else it stays NULL. 0, or a negative errno after it has logged why.
 */
int fp_node_server_rdma_open(struct fp_node_server *server);

/* Has the loop read what the rdma_cm server tells: peers that come are welcomed, the rest is
 * logged. Once, when it runs. */
void fp_node_server_rdma_read(struct fp_node_server *server);

#endif
