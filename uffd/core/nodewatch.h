/*
 * What becomes of the nodes, told to people: one line when a node is cut off, one when it is back,
 * one when it is lost. Room: uffd, inside. An outage that the first attempt ends is only counted,
 * and so are further short ones of a link that flaps.
 */
#ifndef FP_NODEWATCH_H
#define FP_NODEWATCH_H

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

/* What was said of one node last. Zero-initialise. */
struct fp_node_said {
	enum fp_breaker_state state; /* what was said; FP_BREAKER_HALF_OPEN does not occur */
	uint64_t cut_ns;             /* since when it is seen cut off; 0: it is not */
	uint64_t back_ns;            /* when it was said that it is back; 0: never */
};

#define FP_NODEWATCH_FLAP_NS 10000000000ull /* a node that was back for less is flapping: */
#define FP_NODEWATCH_LONG_NS 1000000000ull  /* only outages of so long are told */

/*
 * What is to be said of a node that is in this state now. Pure. *ret_outage_ns: how long it has
 * been cut off, where the news is that it is back.
 */
enum fp_node_news fp_nodewatch_step(struct fp_node_said *said, enum fp_breaker_state state, uint64_t now_ns,
                                    uint64_t *ret_outage_ns);

/* Looks at a node and says what is new on stderr. One thread a node, which may block a little. */
void fp_nodewatch_look(struct fp_node_said *said, const struct fp_store *store, unsigned node);

#define FP_NODEWATCH_REASON_LEN 128

/* Why a node is away, for people, with what its device says (NULL: nothing): in buf, or a
 * constant. */
const char *fp_nodewatch_reason(int error, const char *why, char *buf, size_t len);

#endif
