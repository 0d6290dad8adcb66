/*
 * Opens and closes the listening sockets that the configuration names. Room: daemon, a part of the
 * server.
 */
#ifndef FP_NODE_LISTENERS_H
#define FP_NODE_LISTENERS_H

#include "loop.h"

struct fp_node_server;

/*
 * Opens all of them, and sets what is called when one accepts. 0, or a negative errno after it has
 * logged why.
 */
int fp_node_listeners_open(struct fp_node_server *server,
                           void (*on_accept)(struct fp_op *op, int res, unsigned flags));
/* Closes and frees those that are open. */
void fp_node_listeners_close(struct fp_node_server *server);

#endif
