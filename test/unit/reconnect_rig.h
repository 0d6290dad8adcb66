/*
 * A store over node 0 of the fake transport, with a lane and a slot for every page. Room:
 * test/unit, test_reconnect*.c.
 */
#ifndef FP_RECONNECT_RIG_H
#define FP_RECONNECT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fakestore.h"
#include "testrng.h"

#define N_PAGES    128u
#define PAGE_WORDS (FP_PAGE_SIZE / sizeof(uint64_t))

static struct {
	struct fp_store *store;
	struct fp_lane *lane;
	uint64_t memory[N_PAGES][PAGE_WORDS];
	struct fp_page_io ios[N_PAGES];
	struct fp_page_io *all[N_PAGES];
	unsigned n_outstanding;
	unsigned n_notices;
	char notice[512];
} b;

static inline void take_notice(void *user, enum fp_log_level level, const char *text)
{
	assert_ptr_equal(user, &b);
	b.n_notices++;
	snprintf(b.notice, sizeof(b.notice), "%s", text);
}

/* Opens a store over the given ways to node 0, opens a lane, and gives every page a slot. */
static inline void bench_open_ways(unsigned n_transports, unsigned n_addresses, uint64_t deadline_ns)
{
	struct fp_store_options options = {.lease_bytes = FAKE_LEASE_BYTES,
	                                   .deadline_ns = deadline_ns,
	                                   .heartbeat_ns = 3600 * FP_NSEC_PER_SEC,
	                                   .notice = take_notice,
	                                   .notice_user = &b};
	struct fp_url_set set = fake_ways(0, n_transports, n_addresses);

	memset(&b, 0, sizeof(b));
	assert_int_equal(fp_store_new(&options, &b.store), 0);
	assert_int_equal(fp_store_add(b.store, &set), 0);
	assert_int_equal(fp_lane_open(b.store, N_PAGES, &b.lane), 0);
	assert_int_equal(fp_store_reserve(b.store, N_PAGES), 0);
	for (unsigned i = 0; i < N_PAGES; i++) {
		b.all[i] = &b.ios[i];
		b.ios[i].buf = b.memory[i];
		assert_int_equal(fp_store_slot_alloc(b.store, 1, &b.ios[i].slot), 1);
	}
}

static inline void bench_open(void)
{
	bench_open_ways(1, 1, 0);
}

static inline void bench_close(void)
{
	fp_lane_close(b.lane);
	fp_store_close(b.store);
	assert_int_equal(fake_nodes[0].n_links, 0);
	assert_int_equal(fake_nodes[0].n_sessions, 0);
}

static inline int reset(void **state)
{
	fake_reset(test_seed("fake"));
	fake_nodes[0].resumable = true;
	fake_nodes[0].grace_ns = 60 * FP_NSEC_PER_SEC;
	return 0;
}

static inline struct fp_store_node info(void)
{
	struct fp_store_node node;

	fp_store_node_info(b.store, 0, &node);
	return node;
}

/* Does the same as fake_tend, but makes the next attempt and the next heartbeat due first. */
static inline void tend_now(void)
{
	for (unsigned i = 0; i < b.store->n_nodes; i++) {
		struct fp_node *node = &b.store->nodes[i];

		node->backoff.next_ns = node->backoff.closed_ns = node->next_heartbeat_ns = 0;
	}
	fake_tend(b.store);
}

static inline void fill(unsigned i, uint64_t pattern)
{
	for (unsigned w = 0; w < PAGE_WORDS; w++)
		b.memory[i][w] = pattern + i * 1000003 + w;
}

static inline bool holds(unsigned i, uint64_t pattern)
{
	for (unsigned w = 0; w < PAGE_WORDS; w++)
		if (b.memory[i][w] != pattern + i * 1000003 + w)
			return false;
	return true;
}

static inline void fill_all(uint64_t pattern)
{
	for (unsigned i = 0; i < N_PAGES; i++)
		fill(i, pattern);
}

static inline void start(enum fp_io_op op, unsigned from, unsigned n)
{
	for (unsigned i = from; i < from + n; i++)
		b.ios[i].status = 1;
	assert_int_equal((op == FP_IO_READ ? fp_lane_read : fp_lane_write)(b.lane, b.all + from, n), 0);
	b.n_outstanding += n;
}

static inline unsigned poll_once(void)
{
	struct fp_page_io *done[N_PAGES];
	unsigned n = fp_lane_poll(b.lane, done, N_PAGES);

	for (unsigned i = 0; i < n; i++)
		assert_true(done[i]->status <= 0);
	b.n_outstanding -= n;
	assert_int_equal(fp_lane_outstanding(b.lane), b.n_outstanding);
	return n;
}

static inline void drain(bool tended)
{
	uint64_t give_up_ns = fp_clock_ns() + 20 * FP_NSEC_PER_SEC;

	while (b.n_outstanding) {
		poll_once();
		if (tended)
			tend_now();
		assert_true(fp_clock_ns() < give_up_ns);
	}
}

static inline void assert_status(unsigned from, unsigned n, int status)
{
	for (unsigned i = from; i < from + n; i++)
		assert_int_equal(b.ios[i].status, status);
}

static inline void write_all(uint64_t pattern)
{
	fill_all(pattern);
	start(FP_IO_WRITE, 0, N_PAGES);
	drain(true);
	assert_status(0, N_PAGES, 0);
}

static inline void read_all_and_compare(uint64_t pattern)
{
	fill_all(~pattern);
	start(FP_IO_READ, 0, N_PAGES);
	drain(true);
	assert_status(0, N_PAGES, 0);
	for (unsigned i = 0; i < N_PAGES; i++)
		assert_true(holds(i, pattern));
}

#endif
