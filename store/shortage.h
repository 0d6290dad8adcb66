/*
 * Why the nodes could not back memory, for the user of the program: which node, which limit, what
 * to do. Room: store; control path.
 */
#ifndef FP_SHORTAGE_H
#define FP_SHORTAGE_H

#include <stddef.h>

#include "store.h"

#define FP_SHORTAGE_TEXT_LEN 800

struct fp_shortage {
	struct {
		int error;                 /* of its last call; 0: it gave what it was asked for */
		struct fp_refusal refusal; /* with the error, if the node said which limit it was */
	} nodes[FP_STORE_MAX_NODES];
};

/* Writes "node tcp://mem1: the node's pools have ...; node tcp://mem2: it is cut off". Ends with "; 2 more"
 * if buf (FP_SHORTAGE_TEXT_LEN bytes) has no room for two nodes. Returns buf. */
const char *fp_shortage_explain(const struct fp_shortage *shortage, const struct fp_store *store, char *buf,
                                size_t len);

#endif
