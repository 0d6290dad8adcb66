/*
 * Reports on nodes to people: one line when a node is cut off, one when it is back, one when it is
 * lost. Room: uffd/core. Two kinds of outages are only counted, not reported. One kind ends with
 * the first attempt to reconnect. The other kind is a further short outage of a link that flaps.
 */
#ifndef FP_NODE_NOTICE_H
#define FP_NODE_NOTICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store.h"

enum fp_node_news {
	FP_NEWS_NONE,
	FP_NEWS_CUT_OFF,
	FP_NEWS_BACK,
	FP_NEWS_LOST,
};

/* The last report about one node. Zero-initialise. */
struct fp_node_said {
	enum fp_breaker_state state; /* the state that was reported; never FP_BREAKER_HALF_OPEN */
	uint64_t cut_ns;             /* when it was first seen cut off; 0: it is not */
	uint64_t back_ns;            /* when it was reported to be back; 0: never */
};

#define FP_NODE_NOTICE_FLAP_NS 10000000000ull /* a node that was back for less time is flapping */
#define FP_NODE_NOTICE_LONG_NS 1000000000ull  /* shorter outages of a flapping node are not reported */

/*
 * The news about a node that is in this state now. Pure. *ret_outage_ns: how long it was cut off,
 * if it is back.
 */
enum fp_node_news fp_node_notice_step(struct fp_node_said *said, enum fp_breaker_state state, uint64_t now_ns,
                                      uint64_t *ret_outage_ns);

/* Looks at a node and reports news on stderr. One thread per node, which may block a little. */
void fp_node_notice_look(struct fp_node_said *said, const struct fp_store *store, unsigned node);

#define FP_NODE_NOTICE_REASON_LEN FP_REFUSAL_TEXT_LEN

/*
 * Why a node is away, as text for a person. error: one of the errors in info. If it is the last
 * error, the text says what the node or its device said. Returns buf (FP_NODE_NOTICE_REASON_LEN
 * bytes) or a constant.
 */
const char *fp_node_notice_reason(const struct fp_store_node *info, int error, char *buf, size_t len);

#endif
