/*
 * Two small pools, a worker and the leases of one client, for tests of the node's leases. Room:
 * test/lib; only for the daemon's unit tests. Include after cmocka.h.
 */
#ifndef FP_LEASEBED_H
#define FP_LEASEBED_H

#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>

#include "lease.h"

#define MIB (1ull << 20)

static struct {
	struct fp_worker *worker;
	struct fp_pools pools;
	struct fp_clients clients;
	struct fp_client *client;
	struct fp_pool *items[2];
	struct fp_node_leases leases;
	struct fp_node_lease *last;
	int last_status;
	unsigned n_done;
} t;

static inline void on_done(struct fp_node_lease *lease, int status, void *user)
{
	assert_ptr_equal(user, &t);
	t.last = status == 0 ? lease : NULL;
	t.last_status = status;
	t.n_done++;
}

static inline int setup(void **state)
{
	struct fp_pool_config memfd = {
	    .name = (char *)"memfd", .size_bytes = 8 * MIB, .numa_node = FP_NUMA_ANY};
	struct fp_pool_config anonymous = {.name = (char *)"anonymous",
	                                   .size_bytes = 16 * MIB,
	                                   .backing = FP_BACKING_ANONYMOUS,
	                                   .numa_node = FP_NUMA_ANY};
	struct fp_conf_error error;

	memset(&t, 0, sizeof(t));
	assert_int_equal(fp_worker_start(&t.worker), 0);
	assert_int_equal(fp_pool_open(&memfd, &t.items[0], &error), 0);
	assert_int_equal(fp_pool_open(&anonymous, &t.items[1], &error), 0);
	fp_pools_init(&t.pools, 100);
	t.pools.items = t.items;
	t.pools.worker = t.worker;
	t.pools.n = 2;
	t.client = fp_client_get(&t.clients, "client");
	assert_non_null(t.client);
	return 0;
}

static inline int teardown(void **state)
{
	fp_node_leases_done(&t.leases);
	fp_worker_stop(t.worker);
	assert_int_equal(t.client->leased_bytes, 0);
	fp_client_put(t.client);
	assert_int_equal(t.clients.n, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(t.items[i]->used_bytes, 0);
		fp_pool_close(t.items[i]);
	}
	return 0;
}

static inline struct fp_lease_request request(uint64_t size_bytes)
{
	return (struct fp_lease_request){
	    .size_bytes = size_bytes,
	    .client = t.client,
	    .quota_bytes = FP_QUOTA_NONE,
	    .max_leases = 100,
	    .done = on_done,
	    .user = &t,
	};
}

static inline void await_done(unsigned n)
{
	eventfd_t events;

	while (t.n_done < n) {
		eventfd_read(fp_worker_fd(t.worker), &events);
		fp_worker_reap(t.worker);
	}
}

/* Waits until the worker has returned all released memory to the system. */
static inline void await_given(const struct fp_pool *pool)
{
	eventfd_t events;

	while (pool->leaving_bytes) {
		eventfd_read(fp_worker_fd(t.worker), &events);
		fp_worker_reap(t.worker);
	}
}

/*
 * Makes the second pool's memory unavailable, or available again. To make it unavailable, this sets
 * the pool's NUMA node to a number that no machine has. The worker reads that number, so this first
 * waits for the worker's jobs.
 */
static inline void set_available(bool available)
{
	await_given(t.items[1]);
	t.items[1]->numa_node = available ? FP_NUMA_ANY : 1000;
}

static inline struct fp_node_lease *grant(const struct fp_lease_request *r)
{
	assert_int_equal(fp_node_lease_grant(&t.leases, &t.pools, r), 0);
	await_done(t.n_done + 1);
	assert_int_equal(t.last_status, 0);
	return t.last;
}

#endif
