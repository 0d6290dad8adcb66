/* A store over nodes of the fake transport. Room: test/lib; only for the store's unit tests. */
#ifndef FP_FAKESTORE_H
#define FP_FAKESTORE_H

#include "cleanup.h"
#include "faketransport.h"
#include "store_internal.h"

#define FAKE_LEASE_BYTES (64u * FP_PAGE_SIZE)

/* The ways to a fake node: one address, one transport. */
static inline struct fp_url_set fake_set(unsigned node_idx, bool load_store)
{
	struct fp_url_set set = {.n_addresses = 1, .n_transports = 1};

	set.urls[0][0] = fake_url(node_idx, load_store);
	return set;
}

/*
 * Opens a store over nodes 0..n_nodes - 1. If bit i of load_store is set, node i is reached by load
 * and store. 0 or the first error.
 */
static inline int fake_store_open(unsigned n_nodes, unsigned load_store, uint64_t deadline_ns,
                                  struct fp_store **ret_store)
{
	struct fp_store_options options = {.lease_bytes = FAKE_LEASE_BYTES, .deadline_ns = deadline_ns};
	struct fp_store *store;
	int r = fp_store_new(&options, &store);

	if (r < 0)
		return r;
	for (unsigned i = 0; i < n_nodes; i++) {
		struct fp_url_set set = fake_set(i, load_store >> i & 1);

		r = fp_store_add(store, &set);
		if (r < 0) {
			fp_store_close(store);
			return r;
		}
	}
	*ret_store = store;
	return 0;
}

/*
 * Reconnects all nodes, one after the other. In the agent, each node has a thread of its own for
 * this.
 */
static inline uint64_t fake_tend(struct fp_store *store)
{
	uint64_t sleep_ns = UINT64_MAX;

	for (unsigned i = 0; i < fp_store_n_nodes(store); i++) {
		uint64_t ns = fp_store_reconnect(store, i);

		sleep_ns = FP_MIN(sleep_ns, ns);
	}
	return sleep_ns;
}

#endif
