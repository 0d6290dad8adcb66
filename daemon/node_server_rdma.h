/*
 * The rdma_cm server of a node server, for links of rdma:// addresses (transport/cm_server.h). Room:
 * daemon. Only the loop's thread uses it.
 */
#ifndef FP_NODE_SERVER_RDMA_H
#define FP_NODE_SERVER_RDMA_H

#include "node_server.h"

/* Opens server->cm_server if the configuration has rdma:// addresses or an rdma section. Else it
 * stays NULL. 0, or a negative errno after it has logged why. */
int fp_node_server_rdma_open(struct fp_node_server *server);

/* From here on the loop serves server->cm_server. Call this once, before the loop runs. */
void fp_node_server_rdma_start(struct fp_node_server *server);

#endif
