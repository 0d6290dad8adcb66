/*
 * The rdma_cm server of a node server, which listens on rdma:// addresses (transport/cm_server.h). Room: daemon. Only the loop's thread uses it.
 */
#ifndef FP_NODE_SERVER_RDMA_H
#define FP_NODE_SERVER_RDMA_H

#include "node_server.h"

/*
 * Opens server->cm_server if the configuration has rdma:// addresses, or a device for queue pairs that are connected by hand. Else it stays NULL. 0, or a negative errno after it has logged why.
 */
int fp_node_server_rdma_open(struct fp_node_server *server);

/* Makes the loop read the rdma_cm server's events: welcomes peers that come, logs the rest. Call it
 * once, when the rdma_cm server runs. */
void fp_node_server_rdma_read(struct fp_node_server *server);

#endif
