/*
 * Why the nodes could not back memory. Room: store; see shortage.h.
 */
#include "shortage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store_internal.h"

#define MORE_LEN 24 /* "; 15 more" */

static const char *reason_of(const struct fp_store *store, const struct fp_shortage *shortage, unsigned node,
                             char *buf, size_t len)
{
	const struct fp_refusal *refusal = &shortage->nodes[node].refusal;
	int error = shortage->nodes[node].error;

	if (error == -EHOSTDOWN && refusal->cause == FP_REFUSAL_NONE)
		return fp_node_is_lost(&store->nodes[node])
		           ? "it is lost: look for farpaged there, and start this program again"
		           : "it is cut off: look for farpaged there, with farpage node status";
	return fp_session_explain(error, refusal, store->rdma, buf, len);
}

/*
 * True if no line about this port is needed. The ports of a node share its pools and the client's
 * quota, but each has a session with limits of its own. So a cause is told once for each node.
 */
static bool is_told(const struct fp_store *store, const struct fp_shortage *shortage, unsigned node)
{
	for (unsigned i = 0; i < node; i++)
		if (store->nodes[i].group == store->nodes[node].group && shortage->nodes[i].error &&
		    shortage->nodes[i].refusal.cause == shortage->nodes[node].refusal.cause)
			return true;
	return !shortage->nodes[node].error;
}

const char *fp_shortage_explain(const struct fp_shortage *shortage, const struct fp_store *store, char *buf,
                                size_t len)
{
	unsigned omitted = 0;
	size_t at = 0;

	len -= MORE_LEN;
	buf[0] = '\0';
	for (unsigned i = 0; i < store->n_nodes; i++) {
		const struct fp_node *node = &store->nodes[i];
		char reason[FP_EXPLAIN_LEN], one[FP_EXPLAIN_LEN + 160];
		int n;

		if (is_told(store, shortage, i))
			continue;
		n = snprintf(one, sizeof(one), "%snode %s: %s", at ? "; " : "",
		             fp_node_way(node, atomic_load(&node->way))->text,
		             reason_of(store, shortage, i, reason, sizeof(reason)));
		if (at + (size_t)n >= len) {
			omitted++;
			continue;
		}
		memcpy(buf + at, one, (size_t)n + 1);
		at += (size_t)n;
	}
	if (omitted)
		snprintf(buf + at, MORE_LEN, "; %u more", omitted);
	return buf;
}
