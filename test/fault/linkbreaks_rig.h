/*
 * Shared by the tests of broken links: an agent at a real farpaged over tcp, behind a proxy that
 * can cut the connection. Room: test/fault.
 */
#ifndef FP_LINKBREAKS_RIG_H
#define FP_LINKBREAKS_RIG_H

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

#define SKIP        77
#define MS          FP_NSEC_PER_MSEC
#define SLACK_NS    (1500 * MS) /* how late a test may be on a busy machine */
#define TIMEOUT_S   60
#define LOCAL_PAGES 64u
#define PAGES       1024u
#define THREADS     4u

static const char *farpaged;
static uint64_t seed;

struct scene {
	struct test_daemon daemon, other;
	struct test_cable *cable;
	struct test_cable *silent[2]; /* further nodes, which never answer again; NULL: none */
	struct fp_agent *agent;
	uint64_t deadline_ns, patience_ns; /* patience_ns 0: equal to deadline_ns */
	uint64_t backoff_max_ns;           /* 0: the default */
	enum fp_on_loss on_loss;
	char *far, *fresh;
	_Atomic bool stop;
	_Atomic uint64_t longest_ns, reads, ends;
};

/* ---- set-up ---- */

/* Reads the arguments FARPAGED [FILTER]. 0: the tests may run. Otherwise it returns the exit
 * status. */
static inline int prepare(int argc, char **argv, const char *name)
{
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
	seed = test_seed(name);
	return 0;
}

static inline int setup_with(void **state, const char *grace, bool other)
{
	struct scene *s = calloc(1, sizeof(*s));
	char config[128];
	int r;

	*state = s;
	snprintf(config, sizeof(config), "pools: [ { name: main, size: 128M } ]\nlimits: { grace: %s }\n",
	         grace);
	r = test_daemon_start_config(farpaged, "tcp", config, &s->daemon);
	if (r == 0 && other)
		r = test_daemon_start_config(farpaged, "tcp", config, &s->other);
	return r;
}

static inline int setup(void **state)
{
	return setup_with(state, "30s", false);
}

static inline int teardown(void **state)
{
	struct scene *s = *state;

	test_daemon_stop(&s->daemon);
	test_daemon_stop(&s->other);
	free(s);
	return 0;
}

/* ---- parts of bodies ---- */

static inline void sleep_ns(uint64_t ns)
{
	const struct timespec ts = {.tv_sec = (time_t)(ns / FP_NSEC_PER_SEC),
	                            .tv_nsec = (long)(ns % FP_NSEC_PER_SEC)};

	nanosleep(&ts, NULL);
}

static inline char byte_of(uint32_t page)
{
	return (char)(page % 251 + 1);
}

static inline void start_agent(struct scene *s, uint64_t deadline_ns)
{
	struct fp_agent_options options = {.local_bytes = LOCAL_PAGES * FP_PAGE_SIZE,
	                                   .deadline_ns = deadline_ns,
	                                   .patience_ns = s->patience_ns,
	                                   .on_loss = s->on_loss,
	                                   .heartbeat_ns = 100 * MS,
	                                   .reconnect.backoff_max_ns = s->backoff_max_ns,
	                                   .readahead_pages = 16,
	                                   .n_urls = 1};
	const char *urls[3];

	trial_catch_signals();
	trial_check(test_cable_start(s->daemon.url, &s->cable) == 0, "no proxy");
	urls[0] = test_cable_url(s->cable);
	for (unsigned i = 0; i < FP_ARRAY_LEN(s->silent); i++)
		if (s->silent[i])
			urls[options.n_urls++] = test_cable_url(s->silent[i]);
	options.urls = urls;
	s->deadline_ns = deadline_ns;
	s->agent = trial_agent(&options);
}

/* Starts an agent with a full mapping, most of which is at the node. */
static inline void begin(struct scene *s, uint64_t deadline_ns)
{
	void *far;

	start_agent(s, deadline_ns);
	trial_check(fp_space_map(fp_agent_space(s->agent), PAGES * FP_PAGE_SIZE, 0, PROT_READ | PROT_WRITE, 0,
	                         &far) == 0,
	            "no mapping");
	s->far = far;
	for (uint32_t p = 0; p < PAGES; p++)
		memset(s->far + (size_t)p * FP_PAGE_SIZE, byte_of(p), FP_PAGE_SIZE);
}

static inline void end(struct scene *s)
{
	fp_agent_stop(s->agent);
	test_cable_stop(s->cable);
}

static inline const char *state_name(enum fp_breaker_state state)
{
	static const char *const names[] = {"up", "open", "half-open", "lost"};

	return names[state];
}

static inline enum fp_breaker_state state_now(const struct scene *s)
{
	struct fp_store_node info;

	fp_store_node_info(s->agent->far.store, 0, &info);
	return info.state;
}

/* Waits for the state. Returns how long that took. */
static inline uint64_t await_state(const struct scene *s, enum fp_breaker_state state, uint64_t limit_ns)
{
	uint64_t begun_ns = fp_clock_ns();

	while (state_now(s) != state) {
		trial_check(fp_clock_ns() - begun_ns < limit_ns, "the node is %s, not %s",
		            state_name(state_now(s)), state_name(state));
		sleep_ns(MS);
	}
	return fp_clock_ns() - begun_ns;
}

static inline uint32_t a_remote_page(const struct scene *s)
{
	const struct fp_far *far = &s->agent->far;
	uint32_t first = fp_far_page(far, (uintptr_t)s->far);

	for (uint32_t p = 0; p < PAGES; p++)
		if (fp_page_state(atomic_load(&far->words[first + p])) == FP_PAGE_REMOTE)
			return p;
	trial_check(false, "no page is remote");
	return 0;
}

static inline bool is_here(const struct scene *s, uint32_t page)
{
	const struct fp_far *far = &s->agent->far;
	uint32_t first = fp_far_page(far, (uintptr_t)s->far);

	return fp_page_state(atomic_load(&far->words[first + page])) != FP_PAGE_REMOTE;
}

/*
 * Checks that each page has its bytes or, if lost_allowed, is lost. Returns the number of lost
 * pages.
 */
static inline unsigned check_pages(const struct scene *s, bool lost_allowed)
{
	unsigned lost = 0;

	for (uint32_t p = 0; p < PAGES; p++) {
		uint64_t ns;
		char byte;
		int signal = trial_read(s->far + (size_t)p * FP_PAGE_SIZE + p, &byte, &ns);

		trial_check(signal == 0 || (signal == SIGBUS && lost_allowed), "signal %d at page %u", signal,
		            p);
		trial_check(signal || byte == byte_of(p), "page %u reads %d", p, byte);
		trial_check(ns < s->deadline_ns + SLACK_NS, "page %u took %d ms", p, (int)(ns / MS));
		lost += signal != 0;
	}
	return lost;
}

static inline void note_longest(struct scene *s, uint64_t ns)
{
	uint64_t longest = atomic_load(&s->longest_ns);

	while (ns > longest && !atomic_compare_exchange_weak(&s->longest_ns, &longest, ns))
		;
}

/* ---- cutting the link: how long an outage lasts is what is tested ---- */

static inline void *plug_in_later(void *arg)
{
	struct scene *s = arg;

	sleep_ns(4 * s->deadline_ns);
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	return NULL;
}

#endif
