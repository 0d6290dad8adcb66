/*
 * A node is killed, or stopped for less or more time than the deadline. If a page does not come
 * back in time, its touch raises SIGBUS within the deadline, with a reason on stderr. Other pages
 * stay readable, and the node is used again when it answers. Nothing hangs, and no byte is wrong.
 * Room: test/fault. The tests use tcp, because memory lent over shm outlives its node.
 */
#include <errno.h>
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
#include "testrng.h"
#include "trial.h"

#define SKIP        77
#define DEADLINE_NS (2 * FP_NSEC_PER_SEC)
#define LATE_NS     (DEADLINE_NS + FP_NSEC_PER_SEC) /* on a busy machine a test may be so late */
#define TIMEOUT_S   40
#define LOCAL_PAGES 64u
#define PAGES       1024u
#define THREADS     4u

static const char *farpaged;
static uint64_t seed;

struct scene {
	struct test_daemon daemon;
	struct test_daemon other; /* the second node, for tests with two */
	struct fp_agent *agent;
	char *far;
	uint32_t page; /* the page to read */
	bool writes;
	uint64_t deadline_ns, patience_ns; /* defaults if they are 0: DEADLINE_NS; deadline_ns */
	_Atomic bool stop, has_waited;
};

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	*state = s;
	return test_daemon_start_config(farpaged, "tcp", "pools: [ { name: main, size: 128M } ]\n",
	                                &s->daemon);
}

static int teardown(void **state)
{
	struct scene *s = *state;

	test_daemon_stop(&s->daemon);
	test_daemon_stop(&s->other);
	free(s);
	return 0;
}

/* ---- parts of bodies ---- */

static char byte_of(uint32_t page)
{
	return (char)(page % 251 + 1);
}

static void fill(const struct scene *s)
{
	for (uint32_t p = 0; p < PAGES; p++)
		memset(s->far + (size_t)p * FP_PAGE_SIZE, byte_of(p), FP_PAGE_SIZE);
}

/* Starts an agent with a full mapping, most of which is at the node. */
static void begin(struct scene *s)
{
	const char *urls[] = {s->daemon.url, s->other.url};
	const struct fp_agent_options options = {.urls = urls,
	                                         .n_urls = s->other.pid ? 2 : 1,
	                                         .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE,
	                                         .deadline_ns = s->deadline_ns ? s->deadline_ns : DEADLINE_NS,
	                                         .patience_ns = s->patience_ns};
	void *far;

	trial_catch_signals();
	s->agent = trial_agent(&options);
	trial_check(fp_space_map(fp_agent_space(s->agent), PAGES * FP_PAGE_SIZE, 0, PROT_READ | PROT_WRITE, 0,
	                         &far) == 0,
	            "no mapping");
	s->far = far;
	fill(s);
}

static uint32_t a_remote_page(const struct scene *s)
{
	const struct fp_far *far = &s->agent->far;
	uint32_t first = fp_far_page(far, (uintptr_t)s->far);

	for (uint32_t p = 0; p < PAGES; p++)
		if (fp_page_state(atomic_load(&far->words[first + p])) == FP_PAGE_REMOTE)
			return p;
	trial_check(false, "no page is remote");
	return 0;
}

static bool node_is_up(const struct scene *s)
{
	struct fp_store_node info;

	fp_store_node_info(s->agent->far.store, 0, &info);
	return info.up;
}

static void wait_until_down(const struct scene *s)
{
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};

	while (node_is_up(s))
		nanosleep(&pause, NULL);
}

static void wait_until_up(const struct scene *s)
{
	const uint64_t until_ns = fp_clock_ns() + 10 * FP_NSEC_PER_SEC;
	const struct timespec pause = {.tv_nsec = FP_NSEC_PER_MSEC};

	while (!node_is_up(s)) {
		trial_check(fp_clock_ns() < until_ns, "the node is not used again");
		nanosleep(&pause, NULL);
	}
}

/* Touches pages until one is lost. */
static void *touch_until_lost(void *arg)
{
	const struct scene *s = arg;
	uint64_t rng = seed + (uint64_t)pthread_self(), ns = 0;
	uint32_t page = 0;
	char byte = 0;
	int signal = 0;

	while (signal == 0) {
		page = (uint32_t)(test_random(&rng) % PAGES);
		char *addr = s->far + (size_t)page * FP_PAGE_SIZE + test_random(&rng) % FP_PAGE_SIZE;

		signal = s->writes ? trial_write(addr, byte_of(page), &ns) : trial_read(addr, &byte, &ns);
		trial_check(signal || s->writes || byte == byte_of(page), "page %u reads %d", page, byte);
	}
	trial_check(signal == SIGBUS, "signal %d at page %u", signal, page);
	trial_check(ns < LATE_NS, "SIGBUS came after %d ms", (int)(ns / FP_NSEC_PER_MSEC));
	return NULL;
}

/* Checks that each page has its bytes or is lost. There must be pages of both kinds. */
static void check_what_is_left(const struct scene *s)
{
	unsigned here = 0, lost = 0;

	for (uint32_t p = 0; p < PAGES; p++) {
		uint64_t ns;
		char byte;
		int signal = trial_read(s->far + (size_t)p * FP_PAGE_SIZE + p, &byte, &ns);

		trial_check(signal == 0 || signal == SIGBUS, "signal %d at page %u", signal, p);
		trial_check(signal || byte == byte_of(p), "page %u reads %d", p, byte);
		here += !signal;
		lost += signal != 0;
	}
	trial_check(here >= LOCAL_PAGES / 2 && lost >= PAGES / 2, "%u pages are there, %u are lost", here,
	            lost);
}

/*
 * The node is dead. Calls on mappings must still end within the deadline. A new mapping gets
 * ENOMEM, and a discarded page reads as zeros.
 */
static void check_layout_calls(const struct scene *s)
{
	struct fp_space *space = fp_agent_space(s->agent);
	uint64_t begun_ns = fp_clock_ns(), ns;
	char byte = 1;
	void *far;

	trial_check(fp_space_advise(space, s->far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) == 0, "pageout");
	trial_check(fp_space_advise(space, s->far, PAGES * FP_PAGE_SIZE, MADV_WILLNEED) == 0, "willneed");
	trial_check(fp_space_map(space, FP_PAGE_SIZE, 0, PROT_READ, 0, &far) == -ENOMEM,
	            "map without a node");
	trial_check(fp_space_advise(space, s->far, PAGES * FP_PAGE_SIZE, MADV_DONTNEED) == 0, "discard");
	trial_check(trial_read(s->far, &byte, &ns) == 0 && byte == 0, "a discarded page reads %d", byte);
	trial_check(fp_space_unmap(space, s->far, PAGES * FP_PAGE_SIZE) == 0, "unmap");
	trial_check(fp_clock_ns() - begun_ns < LATE_NS, "layout calls took longer than the deadline");
}

/* ---- bodies of the tests ---- */

static int body_killed(void *arg)
{
	struct scene *s = arg;
	pthread_t threads[THREADS];

	begin(s);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, touch_until_lost, s);
	while (atomic_load(&s->agent->far.stats->fetched_bytes) < 1000 * FP_PAGE_SIZE)
		sched_yield();
	kill(s->daemon.pid, SIGKILL);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	check_what_is_left(s);
	check_layout_calls(s);
	fp_agent_stop(s->agent);
	return 0;
}

/*
 * The node dies while no request is under way. From then on a clean local page is the last copy of
 * its bytes.
 */
static int body_killed_idle(void *arg)
{
	struct scene *s = arg;
	uint64_t ns;
	char byte;

	begin(s);
	for (uint32_t p = 0; p < PAGES; p++)
		trial_check(trial_read(s->far + (size_t)p * FP_PAGE_SIZE, &byte, &ns) == 0, "page %u", p);
	kill(s->daemon.pid, SIGKILL);
	wait_until_down(s);
	trial_check(fp_space_advise(fp_agent_space(s->agent), s->far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) ==
	                0,
	            "pageout");
	check_what_is_left(s);
	check_layout_calls(s);
	fp_agent_stop(s->agent);
	return 0;
}

/*
 * A read waits in vain for the stopped node, and raises SIGBUS. When the node goes on, all pages
 * except this one have their bytes.
 */
static int body_stopped_long(void *arg)
{
	struct scene *s = arg;
	unsigned lost = 0;
	uint64_t ns;
	char byte;
	uint32_t page;

	begin(s);
	kill(s->daemon.pid, SIGSTOP);
	page = a_remote_page(s);
	trial_check(trial_read(s->far + (size_t)page * FP_PAGE_SIZE, &byte, &ns) == SIGBUS, "no SIGBUS");
	trial_check(ns > DEADLINE_NS / 2 && ns < LATE_NS, "SIGBUS came after %d ms",
	            (int)(ns / FP_NSEC_PER_MSEC));
	wait_until_down(s);
	kill(s->daemon.pid, SIGCONT); /* the late answers must not change buffers that are in use again */
	wait_until_up(s);
	for (uint32_t p = 0; p < PAGES; p++) {
		int signal = trial_read(s->far + (size_t)p * FP_PAGE_SIZE + p, &byte, &ns);

		trial_check(signal == 0 || signal == SIGBUS, "signal %d at page %u", signal, p);
		trial_check(signal || byte == byte_of(p), "page %u reads %d", p, byte);
		lost += signal != 0;
	}
	trial_check(lost == 1, "%u pages are lost", lost);
	fp_agent_stop(s->agent);
	return 0;
}

static void *read_a_page(void *arg)
{
	const struct scene *s = arg;
	uint64_t ns;
	char byte = 0;
	int signal = trial_read(s->far + (size_t)s->page * FP_PAGE_SIZE, &byte, &ns);

	trial_check(signal == 0, "signal %d at page %u", signal, s->page);
	trial_check(byte == byte_of(s->page), "page %u reads %d", s->page, byte);
	trial_check(ns < DEADLINE_NS, "it counts as waiting that we were stopped");
	return NULL;
}

/*
 * Waits for a byte from the descriptor `told`. Then stops the parent for longer than the deadline.
 * Afterwards lets the parent go on, and a moment later the node, which the parent had stopped.
 */
static void stop_the_parent(int told, pid_t node)
{
	const struct timespec pause = {.tv_sec = 2 * DEADLINE_NS / FP_NSEC_PER_SEC};
	const struct timespec moment = {.tv_nsec = (long)(DEADLINE_NS / 20)};
	char byte;

	if (read(told, &byte, 1) == 1) {
		kill(getppid(), SIGSTOP);
		nanosleep(&pause, NULL);
		kill(getppid(), SIGCONT);
		nanosleep(&moment, NULL);
	}
	kill(node, SIGCONT);
	_exit(0);
}

/*
 * Program and node are both frozen, as by a debugger or by suspending the machine. That time must
 * not count as waiting.
 */
static int body_stopped_both(void *arg)
{
	struct scene *s = arg;
	pthread_t reader;
	int pipe_fds[2];
	pid_t helper;

	trial_check(pipe(pipe_fds) == 0, "pipe");
	helper = fork();
	if (helper == 0) {
		close(pipe_fds[1]);
		stop_the_parent(pipe_fds[0], s->daemon.pid);
	}
	begin(s);
	s->page = a_remote_page(s);
	kill(s->daemon.pid, SIGSTOP);
	pthread_create(&reader, NULL, read_a_page, s);
	while (fp_page_state(atomic_load(
	           &s->agent->far.words[fp_far_page(&s->agent->far, (uintptr_t)s->far) + s->page])) !=
	       FP_PAGE_ARRIVING)
		sched_yield();
	trial_check(write(pipe_fds[1], "", 1) == 1, "write");
	pthread_join(reader, NULL);
	waitpid(helper, NULL, 0);
	trial_check(node_is_up(s), "the node was given up");
	fp_agent_stop(s->agent);
	return 0;
}

static void *stop_and_go(void *arg)
{
	const struct scene *s = arg;
	const struct timespec pause = {.tv_nsec = (long)(DEADLINE_NS / 5)};

	for (unsigned i = 0; i < 5; i++) {
		kill(s->daemon.pid, SIGSTOP);
		nanosleep(&pause, NULL);
		kill(s->daemon.pid, SIGCONT);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static int body_stopped_briefly(void *arg)
{
	struct scene *s = arg;
	const char *urls[] = {s->daemon.url};
	const struct fp_agent_options options = {.urls = urls,
	                                         .n_urls = 1,
	                                         .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE,
	                                         .deadline_ns = DEADLINE_NS,
	                                         .readahead_pages = 16};
	struct churn_options churn = {
	    .seed = seed, .n_threads = THREADS, .bytes = 8u << 20, .duration_ns = 2 * DEADLINE_NS};
	struct churn_result result;
	pthread_t stopper;

	s->agent = churn.agent = trial_agent(&options);
	pthread_create(&stopper, NULL, stop_and_go, s);
	churn_run(&churn, &result);
	pthread_join(stopper, NULL);
	trial_check(node_is_up(s), "the node was given up");
	trial_check(result.longest_ns > DEADLINE_NS / 10, "nobody noticed");
	fp_agent_stop(s->agent);
	return 0;
}

/* ---- a node that is alive but slow ---- */

#define SLOW_DEADLINE_NS (FP_NSEC_PER_SEC / 2)
#define SLOW_STOPS       8u

/*
 * Makes the node act like one with a busy processor: it runs for a moment, less often than once in
 * a deadline.
 */
static void *run_seldom(void *arg)
{
	const struct scene *s = arg;
	const struct timespec stopped = {.tv_nsec = (long)(SLOW_DEADLINE_NS * 8 / 5)};
	const struct timespec runs = {.tv_nsec = (long)(SLOW_DEADLINE_NS / 10)};

	for (unsigned i = 0; i < SLOW_STOPS; i++) {
		kill(s->daemon.pid, SIGSTOP);
		nanosleep(&stopped, NULL);
		kill(s->daemon.pid, SIGCONT);
		nanosleep(&runs, NULL);
	}
	return NULL;
}

/* Reads and writes pages until told to stop. No page may be lost. */
static void *use_pages(void *arg)
{
	struct scene *s = arg;
	uint64_t rng = seed + (uint64_t)pthread_self(), ns;

	while (!atomic_load(&s->stop)) {
		uint32_t page = (uint32_t)(test_random(&rng) % PAGES);
		char *addr = s->far + (size_t)page * FP_PAGE_SIZE + test_random(&rng) % FP_PAGE_SIZE,
		     byte = 0;
		int signal = trial_read(addr, &byte, &ns);

		trial_check(signal == 0 && byte == byte_of(page), "page %u: signal %d, reads %d", page,
		            signal, byte);
		if (ns > SLOW_DEADLINE_NS)
			atomic_store(&s->has_waited, true);
		if (test_random(&rng) % 2)
			trial_check(trial_write(addr, byte, &ns) == 0, "page %u can't be written", page);
	}
	return NULL;
}

static int body_slow(void *arg)
{
	struct scene *s = arg;
	pthread_t threads[THREADS], stopper;

	s->deadline_ns = SLOW_DEADLINE_NS;
	s->patience_ns = 30 * FP_NSEC_PER_SEC;
	begin(s);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, use_pages, s);
	pthread_create(&stopper, NULL, run_seldom, s);
	pthread_join(stopper, NULL);
	atomic_store(&s->stop, true);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	trial_check(atomic_load(&fp_agent_stats(s->agent)->lost_pages) == 0, "pages were lost");
	trial_check(atomic_load(&s->has_waited), "nobody noticed");
	fp_agent_stop(s->agent);
	return 0;
}

/* ---- tests ---- */

static void says(const struct trial *trial, const struct scene *s)
{
	char node[160];

	snprintf(node, sizeof(node), "node %s", s->daemon.url);
	assert_non_null(strstr(trial->text, node));
	assert_non_null(strstr(trial->text, "page 0x"));
	assert_non_null(strstr(trial->text, "SIGBUS"));
}

static void test_killed_while_it_is_read(void **state)
{
	struct trial trial;

	trial_run(body_killed, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	says(&trial, *state);
}

static void test_killed_while_it_is_written(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->writes = true;
	trial_run(body_killed, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	says(&trial, s);
}

static void test_killed_while_it_is_idle(void **state)
{
	struct trial trial;

	trial_run(body_killed_idle, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	says(&trial, *state);
}

static void test_stopped_longer_than_the_deadline(void **state)
{
	struct trial trial;

	trial_run(body_stopped_long, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	says(&trial, *state);
	assert_non_null(strstr(trial.text, strerror(ETIMEDOUT)));
}

static void test_stopped_with_the_program(void **state)
{
	struct trial trial;

	trial_run(body_stopped_both, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

static void test_stopped_for_less_than_the_deadline(void **state)
{
	struct trial trial;

	trial_run(body_stopped_briefly, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_string_equal(trial.text, "");
}

static void test_slower_than_the_deadline(void **state)
{
	struct trial trial;

	trial_run(body_slow, *state, 2 * TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_null(strstr(trial.text, "SIGBUS"));
}

/* ---- connection set-up ---- */

static int try_to_start(const char *url, struct fp_agent_error *ret_error, uint64_t *ret_ns)
{
	const char *urls[] = {url};
	const struct fp_agent_options options = {
	    .local_bytes = LOCAL_PAGES * FP_PAGE_SIZE, .deadline_ns = DEADLINE_NS, .urls = urls, .n_urls = 1};
	uint64_t begun_ns = fp_clock_ns();
	struct fp_agent *agent;
	int r = fp_agent_start(&options, &agent, ret_error);

	*ret_ns = fp_clock_ns() - begun_ns;
	if (r == 0)
		fp_agent_stop(agent);
	return r;
}

static int body_stopped_before(void *arg)
{
	struct scene *s = arg;
	struct fp_agent_error error;
	uint64_t ns;

	kill(s->daemon.pid, SIGSTOP);
	trial_check(try_to_start(s->daemon.url, &error, &ns) == -ETIMEDOUT, "%s", error.text);
	trial_check(ns < LATE_NS, "it took %d ms", (int)(ns / FP_NSEC_PER_MSEC));
	trial_check(strstr(error.text, s->daemon.url), "the node is not named: %s", error.text);
	return 0;
}

static void *kill_in_a_moment(void *arg)
{
	struct scene *s = arg;
	uint64_t rng = seed + (uint64_t)s->daemon.pid;
	const struct timespec moment = {.tv_nsec = (long)(test_random(&rng) % (4 * FP_NSEC_PER_MSEC))};

	nanosleep(&moment, NULL);
	kill(s->daemon.pid, SIGKILL);
	return NULL;
}

static int body_killed_meanwhile(void *arg)
{
	struct fp_agent_error error;
	pthread_t killer;
	uint64_t ns;

	pthread_create(&killer, NULL, kill_in_a_moment, arg);
	(void)try_to_start(((struct scene *)arg)->daemon.url, &error, &ns);
	trial_check(ns < LATE_NS, "it took %d ms", (int)(ns / FP_NSEC_PER_MSEC));
	pthread_join(killer, NULL);
	return 0;
}

static void test_stopped_before_the_start(void **state)
{
	struct trial trial;

	trial_run(body_stopped_before, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

static void test_killed_during_the_start(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	for (unsigned i = 0; i < 20; i++) {
		trial_run(body_killed_meanwhile, s, TIMEOUT_S, &trial);
		trial_assert_good(&trial);
		test_daemon_stop(&s->daemon);
		assert_int_equal(test_daemon_start(farpaged, "tcp", 128u << 20, &s->daemon), 0);
	}
}

/* ---- one node of two ---- */

#define SMALL_POOL (3u << 20) /* PAGES pages need both pools */

static int setup_two(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));
	int r = test_daemon_start(farpaged, "tcp", SMALL_POOL, &s->daemon);

	*state = s;
	return r < 0 ? r : test_daemon_start(farpaged, "tcp", SMALL_POOL, &s->other);
}

/*
 * Pages on the dead node are lost, and pages on the other node are not. Later evictions go to the
 * other node.
 */
static int body_one_of_two(void *arg)
{
	struct scene *s = arg;
	unsigned here = 0, lost = 0;

	begin(s);
	kill(s->daemon.pid, SIGKILL);
	for (uint32_t i = 0; i < 2 * PAGES; i++) {
		uint32_t page = i % PAGES;
		char *addr = s->far + (size_t)page * FP_PAGE_SIZE, byte;
		uint64_t ns;
		int signal = trial_read(addr, &byte, &ns);

		trial_check(signal == 0 || signal == SIGBUS, "signal %d at page %u", signal, page);
		trial_check(ns < LATE_NS, "page %u took %d ms", page, (int)(ns / FP_NSEC_PER_MSEC));
		trial_check(signal || byte == byte_of(page), "page %u reads %d", page, byte);
		if (signal == 0)
			*addr = byte; /* makes the page dirty, so that it must be written back */
		here += !signal;
		lost += signal != 0;
	}
	trial_check(here >= PAGES / 2 && lost >= PAGES / 2, "%u were there, %u lost", here, lost);
	fp_agent_stop(s->agent);
	return 0;
}

static void test_one_of_two_killed(void **state)
{
	struct trial trial;

	trial_run(body_one_of_two, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	says(&trial, *state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    TEST(test_killed_while_it_is_read),
	    TEST(test_killed_while_it_is_written),
	    TEST(test_killed_while_it_is_idle),
	    TEST(test_stopped_longer_than_the_deadline),
	    TEST(test_stopped_for_less_than_the_deadline),
	    TEST(test_slower_than_the_deadline),
	    TEST(test_stopped_with_the_program),
	    TEST(test_stopped_before_the_start),
	    TEST(test_killed_during_the_start),
	    cmocka_unit_test_setup_teardown(test_one_of_two_killed, setup_two, teardown),
	};
	struct fp_agent_error error;

	if (argc < 2)
		return 2;
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	farpaged = argv[1];
	if (fp_agent_check_kernel(&error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return SKIP;
	}
	seed = test_seed("nodedeath");
	return cmocka_run_group_tests_name("nodedeath", tests, NULL, NULL);
}
