/*
 * Lanes over fake nodes: they gather requests, and every page comes back exactly once, whatever its
 * node does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"
#include "fakestore.h"
#include "testrng.h"

#define LEASE_PAGES (FAKE_LEASE_BYTES / FP_PAGE_SIZE)
#define MAX_PAGES   256

/* One store, one lane, and pages whose io records whether it is in flight. */
struct bench {
	struct fp_store *store;
	struct fp_lane *lane;
	char *memory; /* memory for MAX_PAGES pages */
	struct fp_page_io ios[MAX_PAGES];
	struct fp_page_io *all[MAX_PAGES];
	bool in_flight[MAX_PAGES];
	unsigned n_outstanding;
};

static struct bench bench;

static void bench_open(unsigned n_nodes, unsigned load_store, unsigned max_outstanding)
{
	memset(&bench, 0, sizeof(bench));
	bench.memory =
	    mmap(NULL, MAX_PAGES * FP_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(bench.memory, MAP_FAILED);
	assert_int_equal(fake_store_open(n_nodes, load_store, 0, &bench.store), 0);
	assert_int_equal(fp_lane_open(bench.store, max_outstanding, &bench.lane), 0);
	assert_int_equal(fp_store_reserve(bench.store, MAX_PAGES), 0);
	for (unsigned i = 0; i < MAX_PAGES; i++) {
		bench.all[i] = &bench.ios[i];
		bench.ios[i].buf = bench.memory + i * FP_PAGE_SIZE;
		assert_int_equal(fp_store_slot_alloc(bench.store, 1, &bench.ios[i].slot), 1);
	}
}

static void bench_close(void)
{
	fp_lane_close(bench.lane);
	fp_store_close(bench.store);
	munmap(bench.memory, MAX_PAGES * FP_PAGE_SIZE);
}

static void start(enum fp_io_op op, struct fp_page_io *const *pages, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		assert_false(bench.in_flight[pages[i] - bench.ios]);
		bench.in_flight[pages[i] - bench.ios] = true;
		pages[i]->status = 1;
	}
	bench.n_outstanding += n;
	assert_int_equal((op == FP_IO_READ ? fp_lane_read : fp_lane_write)(bench.lane, pages, n), 0);
	assert_int_equal(fp_lane_outstanding(bench.lane), bench.n_outstanding);
}

/* Polls once. Every page that comes out was in flight, and is marked as done. */
static unsigned poll_once(struct fp_page_io **ret_done, unsigned max)
{
	unsigned n = fp_lane_poll(bench.lane, ret_done, max);

	assert_true(n <= max);
	for (unsigned i = 0; i < n; i++) {
		assert_true(bench.in_flight[ret_done[i] - bench.ios]);
		bench.in_flight[ret_done[i] - bench.ios] = false;
		assert_true(ret_done[i]->status <= 0);
	}
	bench.n_outstanding -= n;
	assert_int_equal(fp_lane_outstanding(bench.lane), bench.n_outstanding);
	return n;
}

/* Polls until nothing is outstanding. Fails after more polls than a healthy run takes. */
static void drain(void)
{
	struct fp_page_io *done[7];

	for (unsigned polls = 0; bench.n_outstanding; polls++) {
		assert_true(polls < 10 * MAX_PAGES);
		poll_once(done, FP_ARRAY_LEN(done));
	}
	assert_int_equal(poll_once(done, 1), 0);
}

static void fill(unsigned from, unsigned n, uint64_t pattern)
{
	for (unsigned i = from; i < from + n; i++)
		for (unsigned w = 0; w < FP_PAGE_SIZE / 8; w++)
			((uint64_t *)bench.ios[i].buf)[w] = pattern + i * 1000003 + w;
}

static bool holds(unsigned i, uint64_t pattern)
{
	const uint64_t *words = bench.ios[i].buf;

	for (unsigned w = 0; w < FP_PAGE_SIZE / 8; w++)
		if (words[w] != pattern + i * 1000003 + w)
			return false;
	return true;
}

static int reset(void **state)
{
	fake_reset(test_seed("fake"));
	return 0;
}

static void reads_back_what_was_written(void **state)
{
	struct fp_store_node info;

	for (unsigned load_store = 0; load_store < 4; load_store++) {
		bench_open(2, load_store, MAX_PAGES);
		fill(0, MAX_PAGES, 1);
		start(FP_IO_WRITE, bench.all, MAX_PAGES);
		drain();
		fill(0, MAX_PAGES, 2);
		start(FP_IO_READ, bench.all, MAX_PAGES);
		drain();
		for (unsigned i = 0; i < MAX_PAGES; i++)
			assert_true(bench.ios[i].status == 0 && holds(i, 1));
		for (unsigned node = 0; node < 2; node++) {
			fp_store_node_info(bench.store, node, &info);
			assert_int_equal(info.read_bytes, MAX_PAGES / 2 * FP_PAGE_SIZE);
			assert_int_equal(info.written_bytes, MAX_PAGES / 2 * FP_PAGE_SIZE);
			assert_int_equal(info.leased_bytes, MAX_PAGES / 2 * FP_PAGE_SIZE);
		}
		bench_close();
	}
}

static void load_and_store_completes_without_a_link(void **state)
{
	struct fp_page_io *done[4];

	bench_open(1, 1, 4);
	assert_int_equal(fake_nodes[0].n_links, 0);
	fill(0, 4, 3);
	start(FP_IO_WRITE, bench.all, 4);
	assert_memory_equal(fp_store_slot_direct(bench.store, bench.ios[2].slot), bench.ios[2].buf,
	                    FP_PAGE_SIZE);
	assert_int_equal(poll_once(done, 4), 4);
	for (unsigned i = 0; i < 4; i++)
		assert_ptr_equal(done[i], bench.all[i]);
	bench_close();
}

static void adjacent_pages_share_segments(void **state)
{
	struct fp_page_io *mixed[64];

	bench_open(1, 0, MAX_PAGES);
	/* These are neighbours locally and remotely: 16 pages a segment. */
	start(FP_IO_WRITE, bench.all, 40);
	assert_int_equal(fake_nodes[0].n_ios, 1);
	assert_int_equal(fake_nodes[0].n_segs, 3);
	drain();
	for (unsigned i = 0; i < 64; i++)
		mixed[i] = bench.all[i ^ 1];
	start(FP_IO_READ, mixed, 64); /* order 1 0 3 2 ...: no page follows its neighbour */
	assert_int_equal(fake_nodes[0].n_ios, 2);
	assert_int_equal(fake_nodes[0].n_segs, 3 + 64);
	drain();
	start(FP_IO_READ, bench.all + 60, 8); /* local neighbours, but in two leases */
	assert_int_equal(fake_nodes[0].n_ios, 3);
	assert_int_equal(fake_nodes[0].n_segs, 3 + 64 + 2);
	drain();
	bench.ios[65].buf = (char *)bench.ios[0].buf + FP_PAGE_SIZE;
	start(FP_IO_READ, (struct fp_page_io *[]){bench.all[0], bench.all[65]},
	      2); /* neighbours locally and by offset, but in two leases */
	assert_int_equal(fake_nodes[0].n_segs, 3 + 64 + 2 + 2);
	drain();
	bench.ios[1].buf = bench.memory + 9 * FP_PAGE_SIZE;
	start(FP_IO_READ, bench.all, 2); /* remote neighbours, but not local ones */
	assert_int_equal(fake_nodes[0].n_segs, 3 + 64 + 2 + 2 + 2);
	drain();
	bench_close();
}

static void requests_are_cut_at_the_batch_limit(void **state)
{
	bench_open(2, 0, MAX_PAGES);
	start(FP_IO_WRITE, bench.all,
	      2 * (FP_BATCH_MAX + 1)); /* 64 pages on each node, then 2 on the first */
	assert_int_equal(fake_nodes[0].n_ios + fake_nodes[1].n_ios, 3);
	drain();
	bench_close();
}

static void too_many_pages_start_nothing(void **state)
{
	struct fp_page_io *done[1];

	bench_open(2, 0, 10);
	assert_int_equal(fp_lane_read(bench.lane, bench.all, 11), -EAGAIN);
	start(FP_IO_READ, bench.all, 8);
	assert_int_equal(fp_lane_read(bench.lane, bench.all + 8, 3), -EAGAIN);
	assert_int_equal(fake_nodes[0].n_ios + fake_nodes[1].n_ios, 1);
	assert_int_equal(poll_once(done, 1), 1);
	start(FP_IO_READ, bench.all + 8, 3);
	drain();
	bench_close();
}

static void what_a_full_link_refuses_goes_out_later(void **state)
{
	bench_open(2, 0, MAX_PAGES);
	fake_nodes[0].link_depth = fake_nodes[1].link_depth = 2;
	fake_nodes[0].completions = fake_nodes[1].completions = 1;
	fill(0, MAX_PAGES, 4);
	for (unsigned i = 0; i < MAX_PAGES; i++)
		start(FP_IO_WRITE, bench.all + i, 1);
	assert_int_equal(fake_nodes[0].n_ios + fake_nodes[1].n_ios, 4);
	drain();
	assert_int_equal(fake_nodes[0].n_ios + fake_nodes[1].n_ios, MAX_PAGES);
	fill(0, MAX_PAGES, 5);
	start(FP_IO_READ, bench.all, MAX_PAGES);
	drain();
	for (unsigned i = 0; i < MAX_PAGES; i++)
		assert_true(bench.ios[i].status == 0 && holds(i, 4));
	bench_close();
}

static void a_refused_request_leaves_the_node_up(void **state)
{
	bench_open(1, 0, MAX_PAGES);
	fake_fail_nth(1, -EACCES);
	start(FP_IO_READ, bench.all, 3);
	drain();
	assert_int_equal(bench.ios[2].status, -EACCES);
	assert_true(fp_store_slot_up(bench.store, bench.ios[2].slot));
	start(FP_IO_READ, bench.all, 3);
	drain();
	assert_int_equal(bench.ios[2].status, 0);
	bench_close();
}

static void a_lost_node_is_lost_for_good(void **state)
{
	struct fp_page_io *done[MAX_PAGES];

	bench_open(2, 0, MAX_PAGES);
	start(FP_IO_READ, bench.all, MAX_PAGES);
	fake_nodes[1].dead = true;
	drain();
	for (unsigned i = 0; i < MAX_PAGES; i++) {
		unsigned node = fp_store_slot_node(bench.store, bench.ios[i].slot);

		assert_int_equal(bench.ios[i].status, node ? -ECONNRESET : 0);
		assert_int_equal(fp_store_slot_up(bench.store, bench.ios[i].slot), !node);
	}
	fake_nodes[1].dead = false;
	start(FP_IO_READ, bench.all, MAX_PAGES);
	assert_int_equal(poll_once(done, MAX_PAGES), MAX_PAGES);
	for (unsigned i = 0; i < MAX_PAGES; i++)
		assert_int_equal(bench.ios[i].status,
		                 fp_store_slot_node(bench.store, bench.ios[i].slot) ? -EHOSTDOWN : 0);
	bench_close();
}

static void a_silent_node_ends_by_the_deadline(void **state)
{
	struct fp_page_io *done[MAX_PAGES];
	struct pollfd fds[FP_STORE_MAX_NODES];
	uint64_t deadline_ns, started_ns = fp_clock_ns();

	bench_open(1, 0, MAX_PAGES);
	bench.store->deadline_ns = 20 * FP_NSEC_PER_MSEC;
	fake_nodes[0].silent = true;
	fake_nodes[0].link_depth = 3;
	for (unsigned i = 0; i < 10; i++)
		start(FP_IO_READ, bench.all + i, 1);
	assert_int_equal(fp_lane_pollfds(bench.lane, fds, FP_STORE_MAX_NODES, &deadline_ns), 1);
	assert_true(deadline_ns >= started_ns && deadline_ns <= fp_clock_ns() + bench.store->deadline_ns);
	while (bench.n_outstanding) {
		poll_once(done, MAX_PAGES);
		assert_true(fp_clock_ns() < started_ns + 10 * FP_NSEC_PER_SEC);
	}
	assert_true(fp_clock_ns() >= deadline_ns);
	for (unsigned i = 0; i < 10; i++) /* ios that the link never took also fail, with their node */
		assert_true(bench.ios[i].status == -ETIMEDOUT ||
		            (i >= 3 && bench.ios[i].status == -EHOSTDOWN));
	assert_int_equal(bench.store->nodes[0].error, -ETIMEDOUT);
	bench_close();
}

static void waiting_for_a_slow_link_ends_by_the_deadline(void **state)
{
	uint64_t started_ns = fp_clock_ns();

	bench_open(1, 0, MAX_PAGES);
	bench.store->deadline_ns = 100 * FP_NSEC_PER_MSEC;
	fake_nodes[0].link_depth = 1;
	fake_nodes[0].completions = 1;
	for (unsigned i = 0; i < 3; i++)
		start(FP_IO_READ, bench.all + i, 1);
	while (fp_clock_ns() < started_ns + 150 * FP_NSEC_PER_MSEC)
		;
	/*
	 * The first read was done in time, the second is sent only now, and the third is too late.
	 */
	drain();
	assert_int_equal(bench.ios[0].status, 0);
	assert_int_equal(bench.ios[1].status, 0);
	assert_int_equal(bench.ios[2].status, -ETIMEDOUT);
	assert_false(fp_store_slot_up(bench.store, bench.ios[0].slot));
	bench_close();
}

static void says_what_to_wait_for(void **state)
{
	struct fp_page_io *done[MAX_PAGES];
	struct pollfd fds[FP_STORE_MAX_NODES];
	uint64_t deadline_ns;

	bench_open(3, 4, MAX_PAGES);
	assert_int_equal(fp_lane_pollfds(bench.lane, fds, FP_STORE_MAX_NODES, &deadline_ns), 0);
	assert_true(deadline_ns == UINT64_MAX);
	start(FP_IO_READ, bench.all, MAX_PAGES); /* the third node's pages are done at once */
	assert_int_equal(fp_lane_pollfds(bench.lane, fds, FP_STORE_MAX_NODES, &deadline_ns), 2);
	assert_int_equal(deadline_ns, 0);
	fake_nodes[0].silent = fake_nodes[1].silent = true;
	poll_once(done, MAX_PAGES);
	assert_int_equal(fp_lane_pollfds(bench.lane, fds, FP_STORE_MAX_NODES, &deadline_ns), 2);
	assert_true(deadline_ns > fp_clock_ns());
	assert_int_equal(fp_lane_pollfds(bench.lane, fds, 1, &deadline_ns), 1);
	assert_int_equal(deadline_ns, 0); /* no space in fds for the second: poll again */
	bench_close();
}

static void closing_abandons_what_is_in_flight(void **state)
{
	bench_open(2, 0, MAX_PAGES);
	fake_nodes[0].link_depth = 1;
	for (unsigned i = 0; i < MAX_PAGES; i++)
		start(FP_IO_READ, bench.all + i, 1);
	bench_close();
	assert_int_equal(fake_nodes[0].n_links + fake_nodes[1].n_links, 0);
}

static void opening_fails_with_the_link(void **state)
{
	struct fp_store *store;
	struct fp_lane *lane = NULL;

	assert_int_equal(fake_store_open(3, 0, 0, &store), 0);
	assert_int_equal(fp_lane_open(store, 0, &lane), -EINVAL);
	fake_fail_nth(3, -EMFILE);
	assert_int_equal(fp_lane_open(store, 8, &lane), -EMFILE);
	assert_null(lane);
	assert_int_equal(fake_nodes[0].n_links + fake_nodes[1].n_links, 0);
	fp_node_report(&store->nodes[1], 0, -EPIPE, NULL); /* a node that is known to be lost is skipped */
	assert_int_equal(fp_lane_open(store, 8, &lane), 0);
	fp_lane_close(lane);
	fp_store_close(store);
}

/* Chooses up to max idle pages at random. */
static unsigned pick_pages(uint64_t *rng, struct fp_page_io **ret_pages, unsigned max)
{
	unsigned from = (unsigned)(test_random(rng) % MAX_PAGES),
	         stride = 1 + 2 * (test_random(rng) % 4 == 0);
	unsigned n = 0;

	for (unsigned i = from; i < MAX_PAGES && n < max; i += stride)
		if (!bench.in_flight[i])
			ret_pages[n++] = &bench.ios[i];
	return n;
}

/*
 * Writes and reads random batches, and compares with a shadow. shadow[i] is the pattern of page i
 * at its node; 0: unknown, because a write failed.
 */
static void random_ops_match_a_shadow(void **state)
{
	uint64_t rng = test_seed(__func__), shadow[MAX_PAGES], pending[MAX_PAGES];
	enum fp_io_op op[MAX_PAGES];
	struct fp_page_io *pages[64], *done[64];

	bench_open(4, 8, 200);
	for (unsigned i = 0; i < 3; i++) {
		fake_nodes[i].order = FAKE_RANDOM;
		fake_nodes[i].completions = i + 1;
		fake_nodes[i].link_depth = 2 + i;
	}
	fill(0, MAX_PAGES, 7);
	for (unsigned i = 0; i < MAX_PAGES; i++)
		shadow[i] = 7;
	for (unsigned i = 0; i < MAX_PAGES; i += 64) {
		start(FP_IO_WRITE, bench.all + i, 64);
		drain();
	}
	for (unsigned round = 0; round < 3000; round++) {
		enum fp_io_op this_op = test_random(&rng) % 2 ? FP_IO_READ : FP_IO_WRITE;
		unsigned room = FP_MIN(200 - bench.n_outstanding, 64u);
		unsigned n = pick_pages(&rng, pages, room ? (unsigned)(test_random(&rng) % room) : 0);

		for (unsigned i = 0; i < n; i++) {
			unsigned k = (unsigned)(pages[i] - bench.ios);

			op[k] = this_op;
			pending[k] = this_op == FP_IO_WRITE ? test_random(&rng) | 1 : shadow[k];
			fill(k, 1, this_op == FP_IO_WRITE ? pending[k] : ~pending[k]);
		}
		start(this_op, pages, n);
		if (round % 100 == 50)
			fake_fail_nth(1 + (unsigned)(test_random(&rng) % 5), -EACCES);
		n = poll_once(done, (unsigned)(test_random(&rng) % 64));
		for (unsigned i = 0; i < n; i++) {
			unsigned k = (unsigned)(done[i] - bench.ios);

			if (done[i]->status == 0 && pending[k])
				assert_true(holds(k, pending[k]));
			if (op[k] == FP_IO_WRITE)
				shadow[k] = done[i]->status ? 0 : pending[k];
			else if (done[i]->status)
				assert_int_equal(done[i]->status, -EACCES);
		}
	}
	drain();
	bench_close();
}

/*
 * Writes and reads all pages in batches. Returns how many pages failed. All others must be right.
 */
static unsigned write_and_read(unsigned kill_poll, unsigned kill_node)
{
	struct fp_page_io *done[5];
	bool lost[MAX_PAGES] = {false};
	unsigned polls = 0, n_failed = 0;

	for (unsigned pass = 0; pass < 2; pass++) {
		fill(0, MAX_PAGES, pass ? 99 : 6);
		for (unsigned i = 0; i < MAX_PAGES; i += 16)
			start(pass ? FP_IO_READ : FP_IO_WRITE, bench.all + i, 16);
		while (bench.n_outstanding) {
			fake_nodes[kill_node].dead |= ++polls == kill_poll;
			poll_once(done, FP_ARRAY_LEN(done));
			assert_true(polls < 10 * MAX_PAGES);
		}
		for (unsigned i = 0; i < MAX_PAGES; i++) {
			lost[i] |= bench.ios[i].status != 0;
			assert_true(lost[i] || !pass || holds(i, 6));
		}
	}
	for (unsigned i = 0; i < MAX_PAGES; i++)
		n_failed += lost[i];
	return n_failed;
}

static void a_node_may_die_at_any_poll(void **state)
{
	unsigned kill_poll = 1, n_failed;

	do {
		fake_reset(kill_poll);
		bench_open(2, 0, MAX_PAGES);
		for (unsigned i = 0; i < 2; i++) {
			fake_nodes[i].completions = 1;
			fake_nodes[i].link_depth = 3;
			fake_nodes[i].order = FAKE_LIFO;
		}
		n_failed = write_and_read(kill_poll, kill_poll % 2);
		assert_true(n_failed <= MAX_PAGES / 2);
		assert_int_equal(fp_node_up(&bench.store->nodes[0]) + fp_node_up(&bench.store->nodes[1]),
		                 n_failed ? 1 : 2);
		bench_close();
		kill_poll++;
	} while (n_failed);
	assert_true(kill_poll > 16);
}

static void every_submit_may_be_the_one_that_fails(void **state)
{
	static const int errors[] = {-ECONNRESET, -EPIPE, -ETIMEDOUT, -EACCES, -EIO};

	for (unsigned e = 0; e < FP_ARRAY_LEN(errors); e++) {
		unsigned nth = 0, n_failed;
		bool failed;

		do {
			fake_reset(nth);
			bench_open(2, 0, MAX_PAGES);
			fake_nodes[0].link_depth = fake_nodes[1].link_depth = 3;
			fake_fail_nth(++nth, errors[e]);
			n_failed = write_and_read(0, 0);
			failed = fake_failed();
			assert_int_equal(failed, n_failed > 0);
			assert_true(n_failed <= (errors[e] == -EACCES ? 16 : MAX_PAGES / 2));
			bench_close();
		} while (failed);
		assert_true(nth > 16);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(reads_back_what_was_written, reset),
	    cmocka_unit_test_setup(load_and_store_completes_without_a_link, reset),
	    cmocka_unit_test_setup(adjacent_pages_share_segments, reset),
	    cmocka_unit_test_setup(requests_are_cut_at_the_batch_limit, reset),
	    cmocka_unit_test_setup(too_many_pages_start_nothing, reset),
	    cmocka_unit_test_setup(what_a_full_link_refuses_goes_out_later, reset),
	    cmocka_unit_test_setup(a_refused_request_leaves_the_node_up, reset),
	    cmocka_unit_test_setup(a_lost_node_is_lost_for_good, reset),
	    cmocka_unit_test_setup(a_silent_node_ends_by_the_deadline, reset),
	    cmocka_unit_test_setup(waiting_for_a_slow_link_ends_by_the_deadline, reset),
	    cmocka_unit_test_setup(says_what_to_wait_for, reset),
	    cmocka_unit_test_setup(closing_abandons_what_is_in_flight, reset),
	    cmocka_unit_test_setup(opening_fails_with_the_link, reset),
	    cmocka_unit_test_setup(random_ops_match_a_shadow, reset),
	    cmocka_unit_test_setup(a_node_may_die_at_any_poll, reset),
	    cmocka_unit_test_setup(every_submit_may_be_the_one_that_fails, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
