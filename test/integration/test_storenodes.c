/*
 * The store over two real memory nodes. Pages keep their bytes over every mix of transports. If a
 * node is killed or stopped, only its own pages are lost, once the store's patience is over. If
 * connections are reset, nothing is lost as long as a thread reconnects. Room: test/integration.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "store.h"
#include "testrng.h"

#define NODE_BYTES  (8u << 20)
#define LEASE_BYTES (1u << 20)
#define N_PAGES     3072u /* 12 MiB in all. Each node has 8 MiB, so both are needed. */
#define PAGE_WORDS  (FP_PAGE_SIZE / sizeof(uint64_t))
#define LANE_PAGES  1024u

static const char *farpaged;

static struct {
	struct test_daemon nodes[2];
	struct fp_store *store;
	struct fp_lane *lane;
	uint64_t seed;
	uint64_t (*local)[PAGE_WORDS]; /* memory for all N_PAGES pages */
	struct fp_page_io ios[N_PAGES];
	bool in_flight[N_PAGES];
	unsigned n_failed;
} t;

static void store_open(uint64_t deadline_ns)
{
	const char *urls[] = {t.nodes[0].url, t.nodes[1].url};
	struct fp_store_options options = {.urls = urls,
	                                   .n_urls = 2,
	                                   .lease_bytes = LEASE_BYTES,
	                                   .deadline_ns = deadline_ns,
	                                   .patience_ns = deadline_ns ? deadline_ns : 5 * FP_NSEC_PER_SEC};

	assert_int_equal(fp_store_open(&options, &t.store, NULL), 0);
	assert_int_equal(fp_lane_open(t.store, LANE_PAGES, &t.lane), 0);
}

static void store_close(void)
{
	fp_lane_close(t.lane);
	fp_store_close(t.store);
}

/* Gives every page a slot on the running nodes. */
static void set_up_pages(uint64_t deadline_ns)
{
	uint64_t slots[N_PAGES];

	t.seed = test_seed("pages");
	t.local = malloc(N_PAGES * FP_PAGE_SIZE);
	assert_non_null(t.local);
	store_open(deadline_ns);
	assert_int_equal(fp_store_reserve(t.store, N_PAGES), 0);
	assert_int_equal(fp_store_slot_alloc(t.store, N_PAGES, slots), N_PAGES);
	for (unsigned i = 0; i < N_PAGES; i++)
		t.ios[i] = (struct fp_page_io){.slot = slots[i], .buf = t.local[i]};
}

/*
 * Starts the nodes and gives every page a slot. The nodes drop a session as soon as it is cut off.
 */
static void set_up(const char *scheme0, const char *scheme1, uint64_t deadline_ns)
{
	memset(&t, 0, sizeof(t));
	assert_int_equal(test_daemon_start(farpaged, scheme0, NODE_BYTES, &t.nodes[0]), 0);
	assert_int_equal(test_daemon_start(farpaged, scheme1, NODE_BYTES, &t.nodes[1]), 0);
	set_up_pages(deadline_ns);
}

static void tear_down(void)
{
	store_close();
	test_daemon_stop(&t.nodes[0]);
	test_daemon_stop(&t.nodes[1]);
	free(t.local);
}

static void fill(uint64_t pattern)
{
	for (unsigned i = 0; i < N_PAGES; i++)
		for (unsigned w = 0; w < PAGE_WORDS; w++)
			t.local[i][w] = (pattern ^ (uint64_t)i << 32) + w * 0x9e3779b97f4a7c15u;
}

static bool holds(unsigned i, uint64_t pattern)
{
	for (unsigned w = 0; w < PAGE_WORDS; w++)
		if (t.local[i][w] != (pattern ^ (uint64_t)i << 32) + w * 0x9e3779b97f4a7c15u)
			return false;
	return true;
}

/* Sleeps until the lane may have completions, then collects them. */
static void wait_and_collect(void)
{
	struct pollfd fds[FP_STORE_MAX_NODES];
	struct fp_page_io *done[64];
	uint64_t deadline_ns, now_ns = fp_clock_ns();
	unsigned n = fp_lane_pollfds(t.lane, fds, FP_STORE_MAX_NODES, &deadline_ns);
	uint64_t left_ns = deadline_ns > now_ns ? FP_MIN(deadline_ns - now_ns, 10 * FP_NSEC_PER_SEC) : 0;

	assert_true(poll(fds, n, (int)(left_ns / FP_NSEC_PER_MSEC) + (left_ns > 0)) >= 0);
	while ((n = fp_lane_poll(t.lane, done, FP_ARRAY_LEN(done))) > 0) {
		for (unsigned i = 0; i < n; i++) {
			assert_true(t.in_flight[done[i] - t.ios]);
			t.in_flight[done[i] - t.ios] = false;
			t.n_failed += done[i]->status != 0;
		}
	}
}

static void start(bool write, unsigned from, unsigned n)
{
	struct fp_page_io *pages[64];

	assert_true(n <= FP_ARRAY_LEN(pages));
	for (unsigned i = 0; i < n; i++) {
		pages[i] = &t.ios[from + i];
		t.in_flight[from + i] = true;
	}
	while ((write ? fp_lane_write : fp_lane_read)(t.lane, pages, n) == -EAGAIN)
		wait_and_collect();
}

/* Reads or writes every page, in batches of random size. */
static void move_all(bool write)
{
	uint64_t rng = t.seed;

	for (unsigned i = 0, n; i < N_PAGES; i += n) {
		n = 1 + (unsigned)(test_random(&rng) % 64);
		n = FP_MIN(n, N_PAGES - i);
		start(write, i, n);
	}
	while (fp_lane_outstanding(t.lane))
		wait_and_collect();
	for (unsigned i = 0; i < N_PAGES; i++)
		assert_false(t.in_flight[i]);
}

/* The leases of an ended session are free again soon. */
static void reserve_everything_again(void)
{
	uint64_t give_up_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;
	int r;

	do
		r = fp_store_reserve(t.store, 2 * NODE_BYTES / FP_PAGE_SIZE);
	while (r == -ENOSPC && fp_clock_ns() < give_up_ns);
	assert_int_equal(r, 0);
}

static void pages_keep_their_bytes(const char *scheme0, const char *scheme1)
{
	struct fp_store_node info;

	set_up(scheme0, scheme1, 0);
	fill(t.seed);
	move_all(true);
	fill(~t.seed);
	move_all(false);
	assert_int_equal(t.n_failed, 0);
	for (unsigned i = 0; i < N_PAGES; i++)
		assert_true(holds(i, t.seed));
	for (unsigned node = 0; node < 2; node++) {
		fp_store_node_info(t.store, node, &info);
		assert_string_equal(info.url, t.nodes[node].url);
		assert_true(info.up && info.leased_bytes >= N_PAGES * FP_PAGE_SIZE - NODE_BYTES);
		assert_true(info.read_bytes > 0 && info.read_bytes == info.written_bytes);
	}
	assert_int_equal(fp_store_reserve(t.store, 2 * NODE_BYTES / FP_PAGE_SIZE), -ENOSPC);
	store_close();
	store_open(0);
	reserve_everything_again();
	tear_down();
}

static void over_tcp(void **state)
{
	pages_keep_their_bytes("tcp", "tcp");
}

static void over_shm(void **state)
{
	pages_keep_their_bytes("shm", "shm");
}

static void over_both(void **state)
{
	pages_keep_their_bytes("shm", "tcp");
}

/*
 * Called after reads during which node 1 was lost. Its pages failed, and the pages of node 0 are
 * right.
 */
static void assert_only_node_1_is_lost(void)
{
	for (unsigned i = 0; i < N_PAGES; i++) {
		if (fp_store_slot_node(t.store, t.ios[i].slot) == 0)
			assert_true(t.ios[i].status == 0 && holds(i, t.seed));
		else
			assert_true(t.ios[i].status < 0 && !fp_store_slot_up(t.store, t.ios[i].slot));
	}
	assert_int_equal(fp_store_reserve(t.store, N_PAGES), -EHOSTDOWN);
}

static void a_killed_node_takes_its_own_pages_only(void **state)
{
	set_up("tcp", "tcp", 0);
	fill(t.seed);
	move_all(true);
	fill(~t.seed);
	kill(t.nodes[1].pid, SIGKILL);
	move_all(false);
	assert_only_node_1_is_lost();
	tear_down();
}

static void a_killed_node_loses_nothing_over_shm(void **state)
{
	set_up("shm", "shm", 0);
	fill(t.seed);
	move_all(true);
	fill(~t.seed);
	test_daemon_stop(&t.nodes[1]);
	move_all(false);
	assert_int_equal(t.n_failed, 0);
	for (unsigned i = 0; i < N_PAGES; i++)
		assert_true(holds(i, t.seed));
	assert_true(fp_store_reserve(t.store, N_PAGES) < 0);
	tear_down();
}

static void a_stopped_node_is_lost_at_the_deadline(void **state)
{
	uint64_t started_ns;

	set_up("tcp", "tcp", FP_NSEC_PER_SEC);
	fill(t.seed);
	move_all(true);
	fill(~t.seed);
	kill(t.nodes[1].pid, SIGSTOP);
	started_ns = fp_clock_ns();
	move_all(false);
	assert_true(fp_clock_ns() - started_ns >= FP_NSEC_PER_SEC);
	assert_true(fp_clock_ns() - started_ns < 4 * FP_NSEC_PER_SEC);
	assert_only_node_1_is_lost();
	tear_down();
}

static bool node_is_busy(unsigned node)
{
	for (unsigned i = 0; i < N_PAGES; i++)
		if (t.in_flight[i] && fp_store_slot_node(t.store, t.ios[i].slot) == node)
			return true;
	return false;
}

static void a_node_that_goes_on_in_time_loses_nothing(void **state)
{
	unsigned from = 0;

	set_up("tcp", "tcp", 0);
	fill(t.seed);
	move_all(true);
	fill(~t.seed);
	kill(t.nodes[1].pid, SIGSTOP);
	for (; from < LANE_PAGES; from += 64)
		start(false, from, 64);
	while (node_is_busy(0))
		wait_and_collect();
	assert_true(node_is_busy(1));
	kill(t.nodes[1].pid, SIGCONT);
	for (; from < N_PAGES; from += 64)
		start(false, from, 64);
	while (fp_lane_outstanding(t.lane))
		wait_and_collect();
	assert_int_equal(t.n_failed, 0);
	for (unsigned i = 0; i < N_PAGES; i++)
		assert_true(holds(i, t.seed));
	tear_down();
}

static _Atomic bool tender_stop;

static void *tender(void *arg)
{
	unsigned node = (unsigned)(uintptr_t)arg;

	while (!tender_stop) {
		uint64_t sleep_ns = fp_store_reconnect(t.store, node);

		fp_store_await_work(t.store, node, FP_MIN(sleep_ns, 20 * FP_NSEC_PER_MSEC));
	}
	return NULL;
}

/*
 * Resets every TCP connection of this process: connect to AF_UNSPEC dissolves a connection, and the
 * peer gets an RST.
 */
static unsigned reset_connections(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	struct dirent *entry;
	unsigned n = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(peer);
		int fd = atoi(entry->d_name);

		if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.ss_family == AF_INET)
			n += connect(fd, &none, sizeof(none)) == 0;
	}
	closedir(dir);
	return n;
}

static void connections_that_are_reset_lose_nothing(void **state)
{
	static const char config[] = "pools: [ { name: main, size: 8M } ]\nlimits: { grace: 20s }\n"
	                             "log_level: error\n";
	struct fp_store_node info;
	pthread_t threads[2];
	uint64_t give_up_ns;

	memset(&t, 0, sizeof(t));
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(test_daemon_start_config(farpaged, "tcp", config, &t.nodes[i]), 0);
	set_up_pages(10 * FP_NSEC_PER_SEC);
	tender_stop = false;
	for (uintptr_t i = 0; i < FP_ARRAY_LEN(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, tender, (void *)i), 0);
	fill(t.seed);
	for (unsigned round = 0; round < 6; round++) {
		for (unsigned i = 0; i < LANE_PAGES; i += 64)
			start(round == 0, i, 64);
		assert_true(reset_connections() >= 4); /* two connections for each node: control and link */
		while (fp_lane_outstanding(t.lane))
			wait_and_collect();
		move_all(round == 0);
		assert_int_equal(t.n_failed, 0);
		for (unsigned i = 0; i < N_PAGES; i++)
			assert_true(holds(i, t.seed));
		fill(round == 5 ? t.seed : ~t.seed);
	}
	give_up_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;
	for (unsigned node = 0; node < 2; node++) {
		do
			fp_store_node_info(t.store, node, &info);
		while (!info.up && fp_clock_ns() < give_up_ns);
		assert_true(info.up && info.reconnects >= 6);
	}
	tender_stop = true;
	for (unsigned i = 0; i < FP_ARRAY_LEN(threads); i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	tear_down();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(over_tcp),
	    cmocka_unit_test(over_shm),
	    cmocka_unit_test(over_both),
	    cmocka_unit_test(a_killed_node_takes_its_own_pages_only),
	    cmocka_unit_test(a_killed_node_loses_nothing_over_shm),
	    cmocka_unit_test(a_stopped_node_is_lost_at_the_deadline),
	    cmocka_unit_test(a_node_that_goes_on_in_time_loses_nothing),
	    cmocka_unit_test(connections_that_are_reset_lose_nothing),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: %s FARPAGED\n", argv[0]);
		return 2;
	}
	farpaged = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
