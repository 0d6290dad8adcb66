/*
 * Links and ways of a node that comes back, over the fake transport: lanes and their old links,
 * several ports, better and worse transports. Room: test/unit.
 */
#include "reconnect_rig.h"

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

static void an_idle_lane_holds_one_old_link(void **state)
{
	struct fp_lane *idle;

	bench_open();
	assert_int_equal(fp_lane_open(b.store, 4, &idle), 0);
	write_all(0);
	for (unsigned i = 0; i < 5; i++) {
		fake_break(0, FAKE_CUT);
		tend_now();
		read_all_and_compare(0);
		assert_int_equal(info().state, FP_BREAKER_CLOSED);
	}
	fake_tend(b.store);
	assert_int_equal(fake_nodes[0].n_sessions, 2); /* the idle lane's old session, and the present one */
	assert_int_equal(fake_nodes[0].n_links, 3);    /* there is also a new link for the idle lane */
	fp_lane_check(idle);
	fake_tend(b.store);
	assert_int_equal(fake_nodes[0].n_sessions, 1);
	assert_int_equal(fake_nodes[0].n_links, 2);
	fp_lane_close(idle);
	bench_close();
}

static void a_lane_opened_meanwhile_gets_its_link_later(void **state)
{
	struct fp_page_io *done[1];
	struct fp_lane *late;

	bench_open();
	write_all(6);
	fake_break(0, FAKE_CUT);
	fp_node_report(&b.store->nodes[0], 0, -ECONNRESET, NULL);
	assert_int_equal(fp_lane_open(b.store, 4, &late), 0);
	fill(5, 7);
	assert_int_equal(fp_lane_read(late, &b.all[5], 1), 0);
	assert_int_equal(fp_lane_poll(late, done, 1), 0);
	fake_tend(b.store);
	assert_int_equal(fp_lane_poll(late, done, 1), 0); /* this only submits */
	assert_int_equal(fp_lane_poll(late, done, 1), 1);
	assert_true(b.ios[5].status == 0 && holds(5, 6));
	fp_lane_close(late);
	bench_close();
}

static void every_link_learns_the_regions(void **state)
{
	bench_open();
	for (unsigned i = 0; i < FP_LANE_MAX_REGIONS; i++)
		assert_int_equal(fp_lane_register(b.lane, b.memory[i], FP_PAGE_SIZE), 0);
	assert_int_equal(fp_lane_register(b.lane, b.memory, sizeof(b.memory)), -ENOSPC);
	assert_int_equal(fake_nodes[0].n_registered, FP_LANE_MAX_REGIONS);
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_int_equal(fake_nodes[0].n_registered, 2 * FP_LANE_MAX_REGIONS);
	bench_close();
}

static void ports_share_the_pool_and_spread_the_leases(void **state)
{
	fake_nodes[0].capacity_bytes = 10 * FAKE_LEASE_BYTES;
	bench_open_ways(1, 2, 0);
	assert_int_equal(fp_store_n_nodes(b.store), 2);
	assert_int_equal(fake_nodes[0].n_sessions, 2);
	assert_int_equal(b.store->nodes[0].n_leases, 1);
	assert_int_equal(b.store->nodes[1].n_leases, 1);
	assert_int_equal(fp_store_reserve(b.store, 9 * 64), -ENOSPC); /* two ports share one pool */
	assert_int_equal(fake_nodes[0].leased_peak_bytes, 2 * FAKE_LEASE_BYTES);
	assert_int_equal(fp_store_reserve(b.store, 6 * 64), 0);
	assert_int_equal(b.store->nodes[0].n_leases, 4);
	assert_int_equal(b.store->nodes[1].n_leases, 4);
	bench_close();
}

/* Each port has a session of its own, and the limit of leases is per session. */
static void a_port_without_further_leases_does_not_fill_the_node(void **state)
{
	fake_nodes[0].max_leases = 2;
	bench_open_ways(1, 2, 0); /* it has taken one lease of each port */
	assert_int_equal(fp_store_reserve(b.store, 1), 0);
	assert_int_equal(fake_nodes[0].n_leases, 3);
	assert_int_equal(fp_store_reserve(b.store, 64), 0);
	assert_int_equal(fake_nodes[0].n_leases, 4);
	assert_int_equal(fp_store_reserve(b.store, 64), -ENOSPC);
	assert_int_equal(fake_nodes[0].n_leases, 4);
	bench_close();
}

static void a_port_falls_back_to_the_others_address(void **state)
{
	struct fp_store_node node;

	bench_open_ways(1, 3, 0);
	write_all(11);
	fp_store_node_info(b.store, 1, &node);
	assert_string_equal(node.url, "fake://0.1");
	fake_close_ways(0, fake_way(0, 1) | fake_way(0, 2));
	read_all_and_compare(11);
	for (unsigned i = 1; i < 3; i++) {
		tend_now();
		fp_store_node_info(b.store, i, &node);
		assert_string_equal(node.url, "fake://0.0");
		assert_true(node.up && !node.degraded && node.reconnects == 1);
	}
	assert_int_equal(info().reconnects, 0);
	assert_int_equal(b.n_notices, 0);
	bench_close();
}

static void a_lesser_transport_is_said_once(void **state)
{
	bench_open_ways(2, 1, 0);
	write_all(12);
	assert_string_equal(info().url, "fake://0.0");
	fake_close_ways(0, fake_way(0, 0));
	read_all_and_compare(12);
	assert_string_equal(info().url, "fakeslow://0.0");
	assert_true(info().degraded);
	assert_int_equal(b.n_notices, 1);
	assert_string_equal(b.notice, "node fake://0.0: goes on over fakeslow://0.0: No route to host");
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_int_equal(info().reconnects, 2);
	assert_int_equal(b.n_notices, 1);
	fake_nodes[0].closed_ways = 0;
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_string_equal(info().url, "fake://0.0");
	assert_false(info().degraded);
	assert_int_equal(b.n_notices, 2);
	read_all_and_compare(12);
	bench_close();
}

static void a_machine_without_the_best_transport_is_no_news(void **state)
{
	static const int errors[] = {-ENODEV, -ELIBACC};

	for (unsigned i = 0; i < FP_ARRAY_LEN(errors); i++) {
		reset(NULL);
		fake_nodes[0].closed_ways = fake_way(0, 0);
		fake_nodes[0].closed_error = errors[i];
		bench_open_ways(2, 1, 0);
		assert_string_equal(info().url, "fakeslow://0.0");
		assert_true(info().degraded);
		fake_break(0, FAKE_CUT);
		tend_now();
		assert_int_equal(info().reconnects, 1);
		assert_int_equal(b.n_notices, 0);
		bench_close();
	}
}

static void a_device_that_went_is_news(void **state)
{
	bench_open_ways(2, 1, 0);
	fake_nodes[0].closed_error = -ENODEV;
	fake_close_ways(0, fake_way(0, 0));
	tend_now();
	assert_string_equal(info().url, "fakeslow://0.0");
	assert_int_equal(b.n_notices, 1);
	assert_string_equal(b.notice, "node fake://0.0: goes on over fakeslow://0.0: No such device");
	bench_close();
}

static void opening_takes_the_best_way_that_answers(void **state)
{
	struct fp_store_options options = {.notice = take_notice, .notice_user = &b};
	struct fp_url_set set = fake_ways(0, 2, 2);
	struct fp_store *store;

	fake_nodes[0].closed_ways = fake_way(0, 0) | fake_way(0, 1) | fake_way(1, 0);
	bench_open_ways(2, 2, 0);
	assert_string_equal(info().url, "fakeslow://0.1");
	assert_int_equal(b.n_notices, 2); /* one for each port */
	bench_close();
	fake_nodes[0].closed_ways = ~0u;
	assert_int_equal(fp_store_new(&options, &store), 0);
	assert_int_equal(fp_store_add(store, &set), -EHOSTUNREACH);
	fp_store_close(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(an_idle_lane_holds_one_old_link, reset),
	    cmocka_unit_test_setup(a_lane_opened_meanwhile_gets_its_link_later, reset),
	    cmocka_unit_test_setup(every_link_learns_the_regions, reset),
	    cmocka_unit_test_setup(a_port_without_further_leases_does_not_fill_the_node, reset),
	    cmocka_unit_test_setup(ports_share_the_pool_and_spread_the_leases, reset),
	    cmocka_unit_test_setup(a_port_falls_back_to_the_others_address, reset),
	    cmocka_unit_test_setup(a_lesser_transport_is_said_once, reset),
	    cmocka_unit_test_setup(a_machine_without_the_best_transport_is_no_news, reset),
	    cmocka_unit_test_setup(a_device_that_went_is_news, reset),
	    cmocka_unit_test_setup(opening_takes_the_best_way_that_answers, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
