/*
 * Links that break while their node lives: cut, reset or stalled. The break is shorter or longer
 * than the deadline and the grace period. Also nodes that come back without their leases. No byte
 * that a node still has is lost. A lost page raises SIGBUS within the deadline, with a reason on
 * stderr. Nothing hangs. Room: test/fault.
 */
#include "linkbreaks_rig.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "churner.h"
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "cable.h"
#include "testrng.h"
#include "trial.h"

/* ---- set-up ---- */

static int setup_short_grace(void **state)
{
	return setup_with(state, "1s", false);
}

static int setup_two(void **state)
{
	return setup_with(state, "30s", true);
}

/* ---- parts of bodies ---- */

/* Reads and writes pages until told to stop. No page may be lost. */
static void *use_pages(void *arg)
{
	struct scene *s = arg;
	uint64_t rng = seed + (uint64_t)pthread_self(), ns;

	while (!atomic_load(&s->stop)) {
		uint32_t page = (uint32_t)(test_random(&rng) % PAGES);
		char *addr = s->far + (size_t)page * FP_PAGE_SIZE + test_random(&rng) % FP_PAGE_SIZE, byte;
		int signal = trial_read(addr, &byte, &ns);

		trial_check(signal == 0 && byte == byte_of(page), "page %u: signal %d, reads %d", page,
		            signal, byte);
		note_longest(s, ns);
		if (test_random(&rng) % 2) {
			trial_check(trial_write(addr, byte, &ns) == 0, "page %u can't be written", page);
			note_longest(s, ns);
		}
		atomic_fetch_add(&s->reads, 1);
	}
	return NULL;
}

static void start_users(struct scene *s, pthread_t *threads)
{
	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, use_pages, s);
	while (atomic_load(&s->reads) < 500)
		sleep_ns(MS);
}

/* Lets the threads go on for a while, then stops them. */
static void stop_users(struct scene *s, pthread_t *threads)
{
	uint64_t enough = atomic_load(&s->reads) + 500, until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;

	while (atomic_load(&s->reads) < enough) {
		trial_check(fp_clock_ns() < until_ns, "nothing goes on");
		sleep_ns(MS);
	}
	atomic_store(&s->stop, true);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* ---- a link that flaps ---- */

static void *flap(void *arg)
{
	struct scene *s = arg;
	uint64_t rng = seed;

	while (!atomic_load(&s->stop)) {
		uint64_t kind = test_random(&rng) % 4, down_ns = (20 + test_random(&rng) % 100) * MS;

		sleep_ns((100 + test_random(&rng) % 200) * MS);
		if (kind == 0) {
			test_cable_reset(s->cable);
			continue;
		}
		test_cable_set(s->cable, kind == 1 ? TEST_CABLE_STALL : TEST_CABLE_CUT);
		sleep_ns(down_ns);
		if (kind == 1 && test_random(&rng) % 2)
			test_cable_reset(s->cable); /* needed to end a stalled connection */
		test_cable_set(s->cable, TEST_CABLE_FORWARD);
	}
	return NULL;
}

static int body_flaps(void *arg)
{
	struct scene *s = arg;
	struct churn_options churn = {
	    .seed = seed, .n_threads = THREADS, .bytes = 8u << 20, .duration_ns = 8 * FP_NSEC_PER_SEC};
	struct churn_result result;
	struct fp_store_node info;
	pthread_t flapper;

	/* attempts 2 s apart may each meet an outage, until the patience is over */
	s->backoff_max_ns = 200 * MS;
	start_agent(s, 5 * FP_NSEC_PER_SEC);
	churn.agent = s->agent;
	pthread_create(&flapper, NULL, flap, s);
	churn_run(&churn, &result);
	atomic_store(&s->stop, true);
	pthread_join(flapper, NULL);
	fp_store_node_info(s->agent->far.store, 0, &info);
	trial_check(info.reconnects >= 8, "only %d times resumed", (int)info.reconnects);
	trial_check(atomic_load(&fp_agent_stats(s->agent)->lost_pages) == 0, "pages were lost");
	trial_check(result.ops > 100, "only %d operations", (int)result.ops);
	end(s);
	return 0;
}

static void test_flaps(void **state)
{
	struct trial trial;

	trial_run(body_flaps, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_null(strstr(trial.text, "SIGBUS"));
}

/* ---- a link that is cut ---- */

static unsigned count(const char *text, const char *what)
{
	unsigned n = 0;

	while ((text = strstr(text, what))) {
		text += strlen(what);
		n++;
	}
	return n;
}

/* Waits until a page that raised SIGBUS can be read again. */
static void await_revival(const struct scene *s, uint32_t page)
{
	uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC, ns;
	char byte = 0;

	while (trial_read(s->far + (size_t)page * FP_PAGE_SIZE, &byte, &ns) != 0) {
		trial_check(fp_clock_ns() < until_ns, "page %u stays lost", page);
		sleep_ns(MS);
	}
	trial_check(byte == byte_of(page), "page %u reads %d", page, byte);
}

/* Waits until the stats page, which is written now and then, says that the node is there. */
static void await_told_up(const struct scene *s)
{
	uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;

	while (atomic_load(&fp_agent_stats(s->agent)->node[0].state) != FP_STATS_NODE_UP ||
	       atomic_load(&fp_agent_stats(s->agent)->node[0].reconnects) == 0 ||
	       atomic_load(&fp_agent_stats(s->agent)->node[0].heartbeat_ns) == 0) {
		trial_check(fp_clock_ns() < until_ns, "the stats page does not say that the node is up");
		sleep_ns(MS);
	}
}

static int body_cut_briefly(void *arg)
{
	struct scene *s = arg;
	pthread_t threads[THREADS];

	begin(s, 8 * FP_NSEC_PER_SEC);
	start_users(s, threads);
	test_cable_set(s->cable, TEST_CABLE_CUT);
	sleep_ns(2 * FP_NSEC_PER_SEC); /* the outage, which the threads must notice */
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	stop_users(s, threads);
	trial_check(atomic_load(&s->longest_ns) > FP_NSEC_PER_SEC, "nobody noticed");
	trial_check(state_now(s) == FP_BREAKER_CLOSED, "the node is %s", state_name(state_now(s)));
	check_pages(s, false);
	await_told_up(s);
	trial_check(atomic_load(&fp_agent_stats(s->agent)->node[0].reconnects) == 1, "reconnects");
	end(s);
	return 0;
}

static void test_cut_for_2_s(void **state)
{
	struct trial trial;

	trial_run(body_cut_briefly, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_int_equal(count(trial.text, "is cut off"), 1);
	assert_int_equal(count(trial.text, "is back after"), 1);
	assert_null(strstr(trial.text, "SIGBUS"));
}

static void *map_fresh(const struct scene *s)
{
	void *fresh;

	trial_check(fp_space_map(fp_agent_space(s->agent), PAGES * FP_PAGE_SIZE, 0, PROT_READ | PROT_WRITE, 0,
	                         &fresh) == 0,
	            "no mapping");
	return fresh;
}

/*
 * While a node may still come back, no reader fails. A thread that waits for a token does not fail
 * either.
 */
static int body_cut_beyond_deadline(void *arg)
{
	struct scene *s = arg;
	pthread_t threads[THREADS], plugger;
	char *fresh;

	begin(s, 300 * MS);
	fresh = map_fresh(s);
	start_users(s, threads);
	test_cable_set(s->cable, TEST_CABLE_CUT);
	await_state(s, FP_BREAKER_OPEN, 10 * FP_NSEC_PER_SEC);
	pthread_create(&plugger, NULL, plug_in_later, s);
	for (uint32_t p = 0; p < PAGES; p++) {
		uint64_t ns;

		trial_check(trial_write(fresh + (size_t)p * FP_PAGE_SIZE, 1, &ns) == 0, "no room for page %u",
		            p);
		note_longest(s, ns);
	}
	pthread_join(plugger, NULL);
	stop_users(s, threads);
	trial_check(atomic_load(&s->longest_ns) > 3 * s->deadline_ns, "nobody has waited");
	s->deadline_ns = s->patience_ns; /* check_pages allows this time */
	trial_check(check_pages(s, false) == 0, "pages are lost");
	end(s);
	return 0;
}

static void test_cut_longer_than_the_deadline(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->patience_ns = 20 * FP_NSEC_PER_SEC;
	trial_run(body_cut_beyond_deadline, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_non_null(strstr(trial.text, "what needs it waits up to 20.0 s"));
	assert_int_equal(count(trial.text, "is cut off"), 1);
	assert_int_equal(count(trial.text, "is back after"), 1);
	assert_null(strstr(trial.text, "SIGBUS"));
}

/* If patience is endless, the message says that programs wait until the node is back. */
static void test_waits_without_end(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->patience_ns = MS;
	s->on_loss = FP_ON_LOSS_WAIT;
	trial_run(body_cut_beyond_deadline, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_non_null(strstr(trial.text, "what needs it waits until it is back"));
	assert_null(strstr(trial.text, "SIGBUS"));
}

/* Writes fresh pages until a write fails. Returns the page that failed. */
static uint32_t write_fresh(char *fresh)
{
	uint32_t page = 0;
	uint64_t ns;

	while (trial_write(fresh + (size_t)page * FP_PAGE_SIZE, 1, &ns) == 0)
		trial_check(++page < PAGES, "there is room without end");
	return page;
}

static void await_room(char *page)
{
	uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC, ns;

	while (trial_write(page, 1, &ns) != 0) {
		trial_check(fp_clock_ns() < until_ns, "a fresh page stays lost");
		sleep_ns(MS);
	}
}

/*
 * When the node is back, all pages can be read again, also pages that raised SIGBUS. So the program
 * goes on.
 */
static int body_out_of_patience(void *arg)
{
	struct scene *s = arg;
	uint32_t page;
	uint64_t ns;
	char byte;
	char *fresh;

	begin(s, FP_NSEC_PER_SEC);
	fresh = map_fresh(s);
	page = a_remote_page(s);
	for (uint32_t p = page; p < page + 4; p++) /* forward, so that remote pages are read ahead */
		trial_check(trial_read(s->far + (size_t)p * FP_PAGE_SIZE, &byte, &ns) == 0, "page %u", p);
	while (is_here(s, page))
		page++;
	test_cable_set(s->cable, TEST_CABLE_CUT);
	trial_check(trial_read(s->far + (size_t)page * FP_PAGE_SIZE, &byte, &ns) == SIGBUS, "no SIGBUS");
	trial_check(ns > s->deadline_ns / 2 && ns < s->deadline_ns + SLACK_NS, "SIGBUS came after %d ms",
	            (int)(ns / MS));
	fresh += (size_t)write_fresh(fresh) * FP_PAGE_SIZE;
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	await_state(s, FP_BREAKER_CLOSED, 10 * FP_NSEC_PER_SEC);
	await_revival(s, page);
	await_room(fresh);
	check_pages(s, false);
	end(s);
	return 0;
}

static void test_cut_longer_than_the_patience(void **state)
{
	struct trial trial;

	trial_run(body_out_of_patience, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_non_null(strstr(trial.text, "SIGBUS follows until the node is back"));
	assert_int_equal(count(trial.text, "is back after"), 1);
}

/* All pages that fail are fresh. They have no slot, so nothing shows for which node they waited. */
static int body_without_room(void *arg)
{
	struct scene *s = arg;
	char *fresh;

	begin(s, FP_NSEC_PER_SEC);
	fresh = map_fresh(s);
	test_cable_set(s->cable, TEST_CABLE_CUT);
	fresh += (size_t)write_fresh(fresh) * FP_PAGE_SIZE;
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	await_state(s, FP_BREAKER_CLOSED, 10 * FP_NSEC_PER_SEC);
	await_room(fresh);
	check_pages(s, false);
	end(s);
	return 0;
}

static void test_fresh_pages_come_back(void **state)
{
	struct trial trial;

	trial_run(body_without_room, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

static void check_loss(const struct scene *s)
{
	unsigned lost = check_pages(s, true);

	trial_check(lost >= PAGES / 2 && lost <= PAGES - LOCAL_PAGES / 2, "%u pages are lost", lost);
}

/* Asks the node itself, past the cable, until it has all its memory back. */
static void await_given_up(const struct scene *s)
{
	const struct fp_session_options options = {.client_name = "auditor",
	                                           .deadline_ns = 10 * FP_NSEC_PER_SEC};
	uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;
	struct fp_node_info info = {0};
	struct fp_session *session;
	struct fp_url url;

	trial_check(fp_url_parse(s->daemon.url, &url) == 0 && fp_session_open(&url, &options, &session) == 0,
	            "the node does not answer");
	while (fp_session_info(session, &info) == 0 && info.free_bytes != info.capacity_bytes) {
		trial_check(fp_clock_ns() < until_ns, "the node keeps the leases");
		sleep_ns(MS);
	}
	fp_session_close(session);
}

static int body_cut_beyond_grace(void *arg)
{
	struct scene *s = arg;

	begin(s, 2 * FP_NSEC_PER_SEC);
	test_cable_set(s->cable, TEST_CABLE_CUT);
	await_given_up(s);
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	await_state(s, FP_BREAKER_LOST, 10 * FP_NSEC_PER_SEC);
	check_loss(s);
	end(s);
	return 0;
}

static void test_cut_longer_than_the_grace_period(void **state)
{
	struct trial trial;

	trial_run(body_cut_beyond_grace, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_int_equal(count(trial.text, "is cut off"), 1);
	assert_non_null(strstr(trial.text, "is lost: it has given our leases up"));
	assert_non_null(strstr(trial.text, "SIGBUS follows"));
}

/* ---- a break that nobody reports ---- */

/*
 * No request is under way, and nothing tells that the node is gone. A missed heartbeat shows it.
 * After that a fault waits.
 */
static int body_stalls(void *arg)
{
	struct scene *s = arg;
	uint64_t ns;
	char byte;
	pthread_t threads[THREADS];

	begin(s, 4 * FP_NSEC_PER_SEC);
	test_cable_set(s->cable, TEST_CABLE_STALL);
	ns = fp_clock_ns();
	while (state_now(s) == FP_BREAKER_CLOSED) {
		trial_check(fp_clock_ns() - ns < 2100 * MS + SLACK_NS, "nobody noticed");
		sleep_ns(MS);
	}
	test_cable_reset(s->cable); /* the stalled bytes shall never arrive */
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	trial_check(trial_read(s->far + (size_t)a_remote_page(s) * FP_PAGE_SIZE, &byte, &ns) == 0, "SIGBUS");
	start_users(s, threads);
	test_cable_set(s->cable, TEST_CABLE_STALL);
	sleep_ns(FP_NSEC_PER_SEC);
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	stop_users(s, threads);
	check_pages(s, false);
	end(s);
	return 0;
}

static void test_stalls(void **state)
{
	struct trial trial;

	trial_run(body_stalls, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_null(strstr(trial.text, "SIGBUS"));
}

/* ---- a node that comes back without its leases ---- */

static int body_restarted(void *arg)
{
	struct scene *s = arg;
	uint64_t begun_ns;

	begin(s, 4 * FP_NSEC_PER_SEC);
	kill(s->daemon.pid, SIGKILL);
	test_cable_retarget(s->cable, s->other.url);
	begun_ns = fp_clock_ns();
	check_loss(s);
	trial_check(fp_clock_ns() - begun_ns < s->deadline_ns + SLACK_NS, "it hangs");
	await_state(s, FP_BREAKER_LOST, FP_NSEC_PER_SEC);
	end(s);
	return 0;
}

static void test_restarted(void **state)
{
	struct trial trial;

	trial_run(body_restarted, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_non_null(strstr(trial.text, "is lost: it has given our leases up"));
	assert_non_null(strstr(trial.text, "SIGBUS follows"));
}

/* ---- beside nodes that never answer ---- */

static uint64_t reconnects_of(const struct scene *s, unsigned node)
{
	struct fp_store_node info;

	fp_store_node_info(s->agent->far.store, node, &info);
	return info.reconnects;
}

/*
 * Two nodes accept connections but never answer. The link of a third node is reset. That node must
 * still be back at once.
 */
static int body_silent_nodes(void *arg)
{
	struct scene *s = arg;

	for (unsigned i = 0; i < FP_ARRAY_LEN(s->silent); i++)
		trial_check(test_cable_start(s->daemon.url, &s->silent[i]) == 0, "no proxy");
	start_agent(s, 8 * FP_NSEC_PER_SEC);
	for (unsigned i = 0; i < FP_ARRAY_LEN(s->silent); i++) {
		test_cable_set(s->silent[i], TEST_CABLE_STALL);
		test_cable_reset(s->silent[i]);
	}
	for (uint64_t n = 0; n < 4; n++) {
		uint64_t begun_ns = fp_clock_ns();

		test_cable_reset(s->cable);
		while (reconnects_of(s, 0) == n)
			sleep_ns(MS);
		note_longest(s, fp_clock_ns() - begun_ns);
		sleep_ns(1100 * MS); /* a link that lived for less time would count as flapping */
	}
	trial_check(reconnects_of(s, 1) + reconnects_of(s, 2) == 0, "a silent node came back");
	trial_check(atomic_load(&s->longest_ns) < SLACK_NS, "it was cut off for %d ms",
	            (int)(atomic_load(&s->longest_ns) / MS));
	fp_agent_stop(s->agent);
	test_cable_stop(s->cable);
	for (unsigned i = 0; i < FP_ARRAY_LEN(s->silent); i++)
		test_cable_stop(s->silent[i]);
	return 0;
}

static void test_is_back_beside_silent_nodes(void **state)
{
	struct trial trial;

	trial_run(body_silent_nodes, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_flaps, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_cut_for_2_s, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_cut_longer_than_the_deadline, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_cut_longer_than_the_grace_period, setup_short_grace,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(test_waits_without_end, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_cut_longer_than_the_patience, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_fresh_pages_come_back, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_is_back_beside_silent_nodes, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_stalls, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_restarted, setup_two, teardown),
	};
	int r = prepare(argc, argv, "linkbreaks");

	return r ? r : cmocka_run_group_tests_name("linkbreaks", tests, NULL, NULL);
}
