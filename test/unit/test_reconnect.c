/*
 * Nodes that are cut off, over fake transports. Checks which requests wait, which are sent again,
 * and which are lost. If a node comes back in time, nothing is lost.
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

static void what_was_under_way_is_asked_again(void **state)
{
	struct pollfd fds[FP_STORE_MAX_NODES];
	uint64_t deadline_ns;

	bench_open();
	write_all(1);
	fill_all(2);
	start(FP_IO_READ, 0, N_PAGES);
	fake_break(0, FAKE_CUT);
	poll_once();
	assert_int_equal(b.n_outstanding, N_PAGES);
	assert_int_equal(info().state, FP_BREAKER_OPEN);
	assert_false(info().up);
	assert_int_equal(info().error, -ECONNRESET);
	assert_false(fp_store_slot_up(b.store, b.ios[0].slot));
	assert_int_equal(fp_store_reserve(b.store, 1), -EHOSTDOWN);
	fp_store_unreserve(b.store, 1);
	assert_int_equal(fp_store_reserve(b.store, 1), 0); /* leases of a cut-off node still count */
	assert_int_equal(fp_lane_pollfds(b.lane, fds, FP_STORE_MAX_NODES, &deadline_ns), 0);
	assert_true(deadline_ns <= fp_clock_ns() + 10 * FP_NSEC_PER_MSEC);
	assert_true(fp_store_await_work(b.store, 0, 0)); /* the reconnect thread is woken */
	fake_tend(b.store);                              /* the first attempt comes at once */
	assert_false(fp_store_await_work(b.store, 0, 0));
	assert_int_equal(info().state, FP_BREAKER_CLOSED);
	assert_true(fp_store_slot_up(b.store, b.ios[0].slot));
	drain(false);
	assert_status(0, N_PAGES, 0);
	for (unsigned i = 0; i < N_PAGES; i++)
		assert_true(holds(i, 1));
	assert_int_equal(info().reconnects, 1);
	assert_int_equal(info().failures, 1);
	assert_int_equal(info().error, 0);
	assert_int_equal(info().last_error, -ECONNRESET);
	assert_string_equal(info().why, FAKE_LINK_WHY);
	assert_int_equal(fp_store_reserve(b.store, 1), 0);
	fake_tend(b.store);
	assert_int_equal(fake_nodes[0].n_links, 1); /* the old links are closed */
	assert_int_equal(fake_nodes[0].n_sessions, 1);
	bench_close();
}

static void order_is_kept(void **state)
{
	struct fp_page_io *done[1];

	bench_open();
	fake_nodes[0].link_depth = 3;
	fake_nodes[0].completions = 1;
	for (unsigned i = 0; i < 12; i++)
		start(FP_IO_WRITE, i, 1);
	assert_int_equal(fp_lane_poll(b.lane, done, 1), 1);
	assert_ptr_equal(done[0], b.all[0]);
	fake_nodes[0].order = FAKE_LIFO; /* the broken link returns its ios in reverse order */
	fake_break(0, FAKE_CUT);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fp_lane_poll(b.lane, done, 1), 0);
	fake_nodes[0].order = FAKE_FIFO;
	fake_tend(b.store);
	for (unsigned i = 1; i < 12;) {
		if (fp_lane_poll(b.lane, done, 1) == 0)
			continue;
		assert_ptr_equal(done[0], b.all[i]);
		assert_int_equal(done[0]->status, 0);
		i++;
	}
	bench_close();
}

/*
 * The cable is cut, and the old link never reports a break. Its requests still go on over the next
 * link.
 */
static void a_link_that_falls_silent_is_taken_away(void **state)
{
	bench_open();
	write_all(3);
	fill_all(4);
	start(FP_IO_READ, 0, N_PAGES / 2);
	start(FP_IO_WRITE, N_PAGES / 2, N_PAGES / 2);
	fake_break(0, FAKE_FREEZE);
	poll_once();
	assert_int_equal(info().state, FP_BREAKER_CLOSED); /* nobody has noticed yet */
	tend_now();                                        /* no heartbeat is answered; then it resumes */
	assert_int_equal(info().state, FP_BREAKER_CLOSED);
	assert_int_equal(info().last_error, -ETIMEDOUT);
	assert_null(info().why);
	assert_int_equal(fake_nodes[0].n_resumes, 1);
	poll_once();
	assert_int_equal(b.n_outstanding, N_PAGES); /* broken, but buffers may still be written */
	poll_once();                                /* its outstanding ios have ended */
	assert_int_equal(fake_nodes[0].n_links, 2);
	fake_tend(b.store);
	assert_int_equal(fake_nodes[0].n_links, 1);
	drain(false);
	assert_status(0, N_PAGES, 0);
	for (unsigned i = 0; i < N_PAGES / 2; i++)
		assert_true(holds(i, 3));
	for (unsigned i = 0; i < N_PAGES / 2; i++)
		fill(N_PAGES / 2 + i, 5);
	start(FP_IO_READ, N_PAGES / 2, N_PAGES / 2);
	drain(false);
	for (unsigned i = N_PAGES / 2; i < N_PAGES; i++)
		assert_true(holds(i, 4));
	bench_close();
}

/*
 * A read waits as long as the node may come back, over many tries. A write does not wait, because
 * it can go elsewhere.
 */
static void a_read_outlives_its_deadline_and_a_write_does_not(void **state)
{
	for (unsigned how = FAKE_CUT; how <= FAKE_FREEZE; how++) {
		uint64_t until_ns;

		reset(NULL);
		bench_open_ways(1, 1, 10 * FP_NSEC_PER_MSEC);
		write_all(21);
		fill_all(22);
		fake_nodes[0].resume_errors = 1;
		start(FP_IO_READ, 0, 8);
		fake_break(0, how);
		for (until_ns = fp_clock_ns() + 100 * FP_NSEC_PER_MSEC; fp_clock_ns() < until_ns;)
			assert_int_equal(poll_once(), 0);
		assert_false(info().spent);
		assert_true(fp_store_is_blocked(b.store));
		fp_lane_be_brief(b.lane); /* applies to later requests */
		start(FP_IO_READ, 8, 1);
		for (until_ns = fp_clock_ns() + FP_NSEC_PER_MSEC; fp_clock_ns() < until_ns;)
			assert_int_equal(poll_once(), 0);
		tend_now(); /* this attempt fails */
		tend_now();
		assert_int_equal(info().state, FP_BREAKER_CLOSED);
		drain(true);
		assert_status(0, 8, 0);
		for (unsigned i = 0; i < 8; i++)
			assert_true(holds(i, 21));
		assert_false(fp_store_is_blocked(b.store));
		fake_break(0, how);
		start(FP_IO_WRITE, 0, 4);
		drain(false);
		assert_status(0, 4, -ETIMEDOUT);
		assert_false(info().spent); /* no read has waited */
		bench_close();
	}
}

/*
 * While the store is in a hurry (fp_store_hurry), nobody reconnects. So a read waits only until its
 * deadline.
 */
static void in_a_hurry_a_read_waits_for_one_deadline(void **state)
{
	bench_open_ways(1, 1, 10 * FP_NSEC_PER_MSEC);
	fp_store_hurry(b.store, true);
	start(FP_IO_READ, 0, 4);
	fake_break(0, FAKE_CUT);
	drain(false);
	assert_status(0, 4, -ETIMEDOUT);
	assert_false(info().spent);
	fp_store_hurry(b.store, false);
	tend_now();
	write_all(23);
	read_all_and_compare(23);
	bench_close();
}

/* A node that is merely slow needs no reconnecting, so requests wait for it also in a hurry. */
static void in_a_hurry_a_slow_node_is_waited_for(void **state)
{
	bench_open();
	write_all(24);
	fill_all(25);
	fake_nodes[0].link_depth = 1;
	fake_nodes[0].silent = true;
	start(FP_IO_READ, 0, 1);
	start(FP_IO_READ, 1, 1);  /* waits until the link has space */
	b.store->deadline_ns = 1; /* this deadline has passed since they began */
	fp_store_hurry(b.store, true);
	assert_int_equal(poll_once(), 0);
	assert_int_equal(info().failures, 0);
	fake_nodes[0].silent = false;
	b.store->deadline_ns = 5 * FP_NSEC_PER_SEC;
	drain(false);
	assert_status(0, 2, 0);
	assert_true(holds(0, 24) && holds(1, 24));
	bench_close();
}

static void endless_patience_gives_up_what_says_it_is_gone_alone(void **state)
{
	bench_open();
	b.store->patience_ns = UINT64_MAX;
	fake_nodes[0].resume_errors = 3;
	start(FP_IO_READ, 0, 4);
	fake_break(0, FAKE_CUT);
	poll_once();
	for (unsigned i = 0; i < 3; i++) {
		tend_now();
		assert_int_equal(info().state, FP_BREAKER_OPEN);
		assert_true(b.store->nodes[0].backoff.give_up_ns == UINT64_MAX);
		assert_int_equal(poll_once(), 0);
	}
	assert_true(info().patience_ns == UINT64_MAX);
	fake_nodes[0].forgetful = true;
	tend_now();
	drain(false);
	assert_status(0, 4, -EHOSTDOWN);
	bench_close();
}

static void without_a_tender_all_ends_when_patience_is_over(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		bool by_grace = i & 1;
		unsigned how = i & 2 ? FAKE_FREEZE : FAKE_CUT;
		uint64_t started_ns;

		reset(NULL);
		if (by_grace)
			fake_nodes[0].grace_ns = 30 * FP_NSEC_PER_MSEC;
		bench_open_ways(1, 1, 10 * FP_NSEC_PER_MSEC);
		b.store->patience_ns = by_grace ? 0 : 30 * FP_NSEC_PER_MSEC;
		assert_true(info().patience_ns == 30 * FP_NSEC_PER_MSEC);
		fake_nodes[0].link_depth = 3;
		started_ns = fp_clock_ns();
		for (unsigned page = 0; page < 9; page++)
			start(FP_IO_READ, page, 1);
		fake_break(0, how);
		drain(false);
		assert_true(fp_clock_ns() >= started_ns + 30 * FP_NSEC_PER_MSEC);
		assert_true(fp_clock_ns() < started_ns + FP_NSEC_PER_SEC);
		assert_status(0, 9, -ETIMEDOUT);
		assert_int_equal(info().state, FP_BREAKER_OPEN);
		assert_true(info().spent);
		start(FP_IO_READ, 0, 9);
		assert_int_equal(poll_once(), 9); /* at once */
		assert_status(0, 9, -EHOSTDOWN);
		tend_now(); /* late, but not too late */
		assert_int_equal(info().state, FP_BREAKER_CLOSED);
		assert_false(info().spent);
		start(FP_IO_READ, 0, 9);
		fake_tend(b.store);
		drain(true);
		assert_status(0, 9, 0);
		bench_close();
	}
}

/*
 * The owner gives its link to the reconnect thread, which never closes it. The owner takes the link
 * back, and its requests end by themselves.
 */
static void a_lent_link_is_taken_back_at_the_deadline(void **state)
{
	bench_open_ways(1, 1, 30 * FP_NSEC_PER_MSEC);
	start(FP_IO_WRITE, 0, 4);
	fake_break(0, FAKE_FREEZE);
	fp_node_report(&b.store->nodes[0], 0, -ETIMEDOUT, NULL); /* a heartbeat would report this */
	poll_once();
	assert_int_equal(b.n_outstanding, 4);
	drain(false);
	assert_status(0, 4, -ETIMEDOUT);
	tend_now();
	write_all(9);
	read_all_and_compare(9);
	bench_close();
}

static void a_node_that_forgot_the_session_is_lost(void **state)
{
	bench_open();
	start(FP_IO_READ, 0, N_PAGES);
	fake_break(0, FAKE_CUT);
	poll_once();
	fake_nodes[0].forgetful = true;
	fake_tend(b.store);
	assert_int_equal(info().state, FP_BREAKER_LOST);
	assert_int_equal(info().error, -ESTALE);
	drain(false);
	assert_status(0, N_PAGES, -EHOSTDOWN);
	fake_nodes[0].forgetful = false;
	tend_now();
	assert_int_equal(info().state, FP_BREAKER_LOST);
	assert_int_equal(fake_nodes[0].n_resumes, 0);
	bench_close();
}

static void a_lease_that_is_gone_loses_the_node(void **state)
{
	bench_open();
	b.store->nodes[0].leases->lease_id = 77;
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_int_equal(info().state, FP_BREAKER_LOST);
	bench_close();
}

static void the_grace_ends(void **state)
{
	bench_open();
	fake_nodes[0].resume_errors = 1000;
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_int_equal(info().state, FP_BREAKER_OPEN);
	assert_true(b.store->nodes[0].backoff.give_up_ns >= fp_clock_ns() + 59 * FP_NSEC_PER_SEC);
	tend_now();
	assert_int_equal(info().state, FP_BREAKER_OPEN);
	b.store->nodes[0].backoff.give_up_ns = fp_clock_ns();
	tend_now();
	assert_int_equal(info().state, FP_BREAKER_LOST);
	assert_int_equal(info().error, -ECONNRESET);
	bench_close();
}

static void attempts_wait_for_their_time(void **state)
{
	uint64_t sleep_ns, last_ns = 0;
	unsigned attempts;

	bench_open();
	fake_nodes[0].resume_errors = 4;
	fake_break(0, FAKE_CUT);
	tend_now();
	for (attempts = 1; attempts < 4; attempts++) {
		sleep_ns = fake_tend(b.store); /* too early: no attempt */
		assert_int_equal(fake_nodes[0].n_resume_attempts, attempts);
		assert_true(sleep_ns > last_ns && sleep_ns <= FP_BACKOFF_FIRST_NS << attempts);
		last_ns = sleep_ns;
		usleep((useconds_t)(sleep_ns / 1000) + 1);
		fake_tend(b.store);
		assert_int_equal(fake_nodes[0].n_resume_attempts, attempts + 1);
	}
	assert_int_equal(info().state, FP_BREAKER_OPEN);
	tend_now();
	assert_int_equal(info().state, FP_BREAKER_CLOSED);
	bench_close();
}

static void a_transport_that_cannot_resume_is_lost_at_once(void **state)
{
	fake_nodes[0].resumable = false;
	bench_open();
	start(FP_IO_READ, 0, 1);
	fake_break(0, FAKE_CUT);
	poll_once();
	assert_status(0, 1, -ECONNRESET);
	assert_int_equal(info().state, FP_BREAKER_LOST);
	tend_now();
	assert_int_equal(fake_nodes[0].n_pings + fake_nodes[0].n_resume_attempts, 0);
	bench_close();
}

static void heartbeats_tell_the_round_trip(void **state)
{
	bench_open();
	fake_tend(b.store);
	assert_int_equal(fake_nodes[0].n_pings, 0); /* not due */
	assert_int_equal(info().heartbeat_ns, 0);
	tend_now();
	assert_int_equal(fake_nodes[0].n_pings, 1);
	assert_true(info().heartbeat_ns > 0);
	assert_true(fake_tend(b.store) > 0);
	assert_int_equal(fake_nodes[0].n_pings, 1);
	bench_close();
}

/*
 * The node counts as cut off only after three missed heartbeats in a row. If a link itself reports
 * that it broke, that counts at once.
 */
static void heartbeats_are_missed_as_often_as_chosen(void **state)
{
	bench_open();
	b.store->nodes[0].backoff.options.missed_heartbeats = 3;
	for (unsigned n_outages = 0; n_outages < 2; n_outages++) {
		fake_break(0, FAKE_FREEZE);
		for (unsigned i = 0; i < 2; i++)
			tend_now();
		assert_int_equal(info().failures, n_outages);
		tend_now();
		assert_int_equal(info().failures, n_outages + 1);
		assert_int_equal(info().reconnects, n_outages + 1);
	}
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_int_equal(info().failures, 3);
	bench_close();
}

static void a_control_call_that_breaks_opens_the_breaker(void **state)
{
	bench_open();
	fake_break(0, FAKE_CUT);
	assert_int_equal(fp_store_reserve(b.store, 10 * N_PAGES), -ECONNRESET);
	assert_int_equal(fp_store_reserve(b.store, 10 * N_PAGES), -EHOSTDOWN);
	fake_tend(b.store);
	assert_int_equal(fp_store_reserve(b.store, 10 * N_PAGES), 0);
	write_all(8);
	fake_break(0, FAKE_CUT);
	tend_now();
	assert_int_equal(fake_nodes[0].n_attaches, N_PAGES / 64 + fake_nodes[0].n_leases);
	read_all_and_compare(8);
	bench_close();
}

static void any_call_may_fail_while_a_node_comes_back(void **state)
{
	static const int errors[] = {-ECONNRESET, -ETIMEDOUT, -EMFILE, -ENOMEM};

	for (unsigned e = 0; e < FP_ARRAY_LEN(errors); e++) {
		unsigned nth = 0;
		bool failed;

		do {
			reset(NULL);
			bench_open_ways(2, 1, 0);
			fake_nodes[0].link_depth = 3;
			fake_nodes[0].order = FAKE_RANDOM;
			write_all(nth);
			fake_fail_nth(++nth, errors[e]);
			for (unsigned i = 0; i < N_PAGES; i++)
				fill(i, ~(uint64_t)nth);
			for (unsigned i = 0; i < N_PAGES; i += 16)
				start(FP_IO_READ, i, 16);
			fake_break(0, nth % 2 ? FAKE_CUT : FAKE_FREEZE);
			drain(true);
			failed = fake_failed();
			fake_fail_nth(0, 0);
			assert_status(0, N_PAGES, 0);
			for (unsigned i = 0; i < N_PAGES; i++)
				assert_true(holds(i, nth - 1));
			bench_close();
		} while (failed);
		assert_true(nth > 6);
	}
}

/* ---- threads ---- */

#define STORM_NS         (700 * FP_NSEC_PER_MSEC)
#define STORM_RECONNECTS 10u /* least number of resumes; a slow machine takes longer */

static struct {
	_Atomic bool stop;
	uint64_t seed;
	_Atomic unsigned n_breaks, n_bad;
} storm;

static void *tender(void *arg)
{
	while (!storm.stop) {
		uint64_t sleep_ns = fake_tend(b.store);
		/* Forgets the last resume, so that no later break counts as a quick relapse. */
		for (unsigned i = 0; i < b.store->n_nodes; i++)
			b.store->nodes[i].backoff.closed_ns = 0;
		fp_store_await_work(b.store, 0, FP_MIN(sleep_ns, 5 * FP_NSEC_PER_MSEC));
	}
	return NULL;
}

static void *storm_maker(void *arg)
{
	uint64_t rng = storm.seed;

	while (!storm.stop) {
		usleep((useconds_t)(test_random(&rng) % 4000));
		fake_break(0, test_random(&rng) % 3 ? FAKE_CUT : FAKE_FREEZE);
		storm.n_breaks++;
	}
	return NULL;
}

/* Makes control calls and opens short-lived lanes, which may fail in the storm. */
static void *bystander(void *arg)
{
	struct fp_store_node node;
	struct fp_lane *lane;

	while (!storm.stop) {
		if (fp_store_reserve(b.store, 1) == 0)
			fp_store_unreserve(b.store, 1);
		if (fp_lane_open(b.store, 2, &lane) == 0)
			fp_lane_close(lane);
		fp_store_node_info(b.store, 0, &node);
		storm.n_bad += node.state == FP_BREAKER_LOST;
		usleep(500);
	}
	return NULL;
}

/* Reads and writes random pages, compares with a shadow, and waits as the lane asks. */
static void *owner(void *arg)
{
	uint64_t rng = storm.seed + 1, shadow[N_PAGES] = {0};
	uint64_t stop_ns = fp_clock_ns() + STORM_NS, last_ns = stop_ns + 20 * FP_NSEC_PER_SEC;
	struct fp_page_io *pages[N_PAGES], *done[16];

	while (fp_clock_ns() < stop_ns ||
	       (info().reconnects <= STORM_RECONNECTS && fp_clock_ns() < last_ns)) {
		enum fp_io_op op = test_random(&rng) % 2 ? FP_IO_READ : FP_IO_WRITE;
		unsigned from = (unsigned)(test_random(&rng) % N_PAGES), n = 0, left;

		for (unsigned i = from; i < N_PAGES && n < 40; i += 1 + test_random(&rng) % 2) {
			if (op == FP_IO_WRITE)
				shadow[i] = test_random(&rng);
			fill(i, op == FP_IO_WRITE ? shadow[i] : ~shadow[i]);
			pages[n++] = &b.ios[i];
		}
		(op == FP_IO_READ ? fp_lane_read : fp_lane_write)(b.lane, pages, n);
		for (left = n; left;) {
			struct pollfd fds[FP_STORE_MAX_NODES];
			uint64_t until_ns;
			unsigned k = fp_lane_poll(b.lane, done, FP_ARRAY_LEN(done));

			for (unsigned i = 0; i < k; i++)
				storm.n_bad += done[i]->status != 0;
			left -= k;
			fp_lane_pollfds(b.lane, fds, FP_STORE_MAX_NODES, &until_ns);
			if (!k && until_ns > fp_clock_ns())
				usleep(200);
		}
		for (unsigned i = 0; i < n && op == FP_IO_READ; i++) {
			unsigned page = (unsigned)(pages[i] - b.ios);

			storm.n_bad += !holds(page, shadow[page]);
		}
	}
	storm.stop = true;
	return NULL;
}

static void a_storm_loses_no_byte(void **state)
{
	void *(*const roles[])(void *) = {tender, storm_maker, bystander, owner};
	pthread_t threads[FP_ARRAY_LEN(roles)];

	storm.stop = false;
	storm.n_breaks = storm.n_bad = 0;
	storm.seed = test_seed(__func__);
	bench_open_ways(2, 1, 10 * FP_NSEC_PER_SEC);
	fake_nodes[0].link_depth = 5;
	fake_nodes[0].order = FAKE_RANDOM;
	fake_nodes[0].completions = 3;
	b.store->heartbeat_ns = 2 * FP_NSEC_PER_MSEC;
	b.store->nodes[0].next_heartbeat_ns = 0;
	write_all(0);
	fp_lane_close(b.lane); /* the lane of the threads has another owner */
	assert_int_equal(fp_lane_open(b.store, N_PAGES, &b.lane), 0);
	for (unsigned i = 0; i < FP_ARRAY_LEN(roles); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, roles[i], NULL), 0);
	for (unsigned i = 0; i < FP_ARRAY_LEN(roles); i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	printf("%u breaks, %" PRIu64 " resumes, %u requests\n", storm.n_breaks, info().reconnects,
	       fake_nodes[0].n_ios);
	assert_int_equal(storm.n_bad, 0);
	assert_true(info().reconnects > STORM_RECONNECTS);
	bench_close();
}

/*
 * A node takes a silence of idle_ns for a break. It gets several heartbeats in that time, even if
 * the chosen interval between heartbeats is longer.
 */
static void heartbeats_keep_a_session(void **state)
{
	fake_nodes[0].idle_ns = 4 * FP_NSEC_PER_SEC;
	bench_open();
	assert_true(fp_store_reconnect(b.store, 0) <= FP_NSEC_PER_SEC);
	tend_now();
	assert_int_equal(fake_nodes[0].n_pings, 1);
	assert_true(fp_store_reconnect(b.store, 0) <= FP_NSEC_PER_SEC);
	bench_close();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(what_was_under_way_is_asked_again, reset),
	    cmocka_unit_test_setup(order_is_kept, reset),
	    cmocka_unit_test_setup(a_link_that_falls_silent_is_taken_away, reset),
	    cmocka_unit_test_setup(a_read_outlives_its_deadline_and_a_write_does_not, reset),
	    cmocka_unit_test_setup(in_a_hurry_a_read_waits_for_one_deadline, reset),
	    cmocka_unit_test_setup(in_a_hurry_a_slow_node_is_waited_for, reset),
	    cmocka_unit_test_setup(endless_patience_gives_up_what_says_it_is_gone_alone, reset),
	    cmocka_unit_test_setup(without_a_tender_all_ends_when_patience_is_over, reset),
	    cmocka_unit_test_setup(a_lent_link_is_taken_back_at_the_deadline, reset),
	    cmocka_unit_test_setup(a_node_that_forgot_the_session_is_lost, reset),
	    cmocka_unit_test_setup(a_lease_that_is_gone_loses_the_node, reset),
	    cmocka_unit_test_setup(the_grace_ends, reset),
	    cmocka_unit_test_setup(attempts_wait_for_their_time, reset),
	    cmocka_unit_test_setup(a_transport_that_cannot_resume_is_lost_at_once, reset),
	    cmocka_unit_test_setup(heartbeats_tell_the_round_trip, reset),
	    cmocka_unit_test_setup(heartbeats_are_missed_as_often_as_chosen, reset),
	    cmocka_unit_test_setup(heartbeats_keep_a_session, reset),
	    cmocka_unit_test_setup(a_control_call_that_breaks_opens_the_breaker, reset),
	    cmocka_unit_test_setup(any_call_may_fail_while_a_node_comes_back, reset),
	    cmocka_unit_test_setup(a_storm_loses_no_byte, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
