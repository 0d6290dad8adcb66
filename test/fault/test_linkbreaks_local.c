/*
 * What goes on while the node is cut off: clean local pages stay, and what needs no node does not
 * wait for it. Room: test/fault.
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
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "agent_priv.h"
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "fdutil.h"
#include "cable.h"
#include "testrng.h"
#include "trial.h"

/* ---- local pages ---- */

/* A clean local page may be the last copy, so it must stay. */
static int body_keeps_clean(void *arg)
{
	struct scene *s = arg;
	uint64_t before;

	begin(s, 2 * FP_NSEC_PER_SEC);
	check_pages(s, false); /* after this all local pages are clean */
	test_cable_set(s->cable, TEST_CABLE_CUT);
	while (state_now(s) == FP_BREAKER_CLOSED)
		sleep_ns(MS);
	sleep_ns(100 * MS); /* what began to leave before the cut may still leave: nothing tells when */
	before = atomic_load(&fp_agent_stats(s->agent)->evicted_clean);
	trial_check(fp_space_advise(fp_agent_space(s->agent), s->far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) ==
	                0,
	            "pageout");
	trial_check(atomic_load(&fp_agent_stats(s->agent)->evicted_clean) == before, "dropped");
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	await_state(s, FP_BREAKER_CLOSED, 10 * FP_NSEC_PER_SEC);
	trial_check(fp_space_advise(fp_agent_space(s->agent), s->far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) ==
	                0,
	            "pageout");
	trial_check(atomic_load(&fp_agent_stats(s->agent)->evicted_clean) > before, "not dropped");
	check_pages(s, false);
	end(s);
	return 0;
}

static void test_keeps_clean_pages(void **state)
{
	struct trial trial;

	trial_run(body_keeps_clean, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

/* ---- faults that need no node ---- */

struct reader {
	struct scene *s;
	uint32_t page;
	_Atomic pid_t tid; /* 0: it does not run yet */
};

#define READERS     12u /* more threads than fault mode inline serves at once over tcp */
#define FRESH_FEW   8u
#define READ_BEFORE 8u

static void *read_page(void *arg)
{
	struct reader *r = arg;
	uint64_t ns;
	char byte = 0;
	int signal;

	atomic_store(&r->tid, gettid());
	signal = trial_read(r->s->far + (size_t)r->page * FP_PAGE_SIZE, &byte, &ns);
	atomic_fetch_add(&r->s->ends, 1);
	trial_check(signal == 0 && byte == byte_of(r->page), "page %u: signal %d, reads %d", r->page, signal,
	            byte);
	return NULL;
}

/* A reader sleeps only in its fault. */
static bool is_asleep(pid_t reader)
{
	char path[64], text[512] = "";

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", reader);
	return reader && fp_fd_read_file(path, text, sizeof(text) - 1) > 0 && strstr(text, ") S ");
}

/* Starts readers of remote pages, and waits until all of them wait. */
static void start_readers(struct scene *s, struct reader *readers, pthread_t *threads)
{
	uint32_t page = PAGES;

	for (unsigned i = 0; i < READERS; i++) {
		while (is_here(s, --page))
			;
		readers[i] = (struct reader){.s = s, .page = page};
		pthread_create(&threads[i], NULL, read_page, &readers[i]);
	}
	for (unsigned i = 0; i < READERS; i++)
		while (!is_asleep(atomic_load(&readers[i].tid)))
			sleep_ns(MS);
	while (!fp_store_is_blocked(s->agent->far.store))
		sleep_ns(MS);
}

/*
 * All remote pages wait for their node. Meanwhile the program writes local pages and touches fresh
 * memory.
 */
static int body_needs_no_node(void *arg)
{
	struct scene *s = arg;
	struct reader readers[READERS];
	pthread_t threads[READERS];
	void *fresh;
	uint64_t ns;
	char byte;

	begin(s, FP_NSEC_PER_SEC);
	trial_check(fp_space_map(fp_agent_space(s->agent), FRESH_FEW * FP_PAGE_SIZE, 0,
	                         PROT_READ | PROT_WRITE, 0, &fresh) == 0,
	            "no mapping");
	trial_check(fp_space_advise(fp_agent_space(s->agent), s->far, PAGES * FP_PAGE_SIZE, MADV_PAGEOUT) ==
	                0,
	            "pageout");
	for (uint32_t p = 0; p < READ_BEFORE; p++) /* makes them clean, so that a write to them faults */
		trial_check(trial_read(s->far + (size_t)p * FP_PAGE_SIZE, &byte, &ns) == 0, "page %u", p);
	test_cable_set(s->cable, TEST_CABLE_CUT);
	await_state(s, FP_BREAKER_OPEN, 10 * FP_NSEC_PER_SEC);
	start_readers(s, readers, threads);
	for (uint32_t p = 0; p < READ_BEFORE; p++)
		trial_check(trial_write(s->far + (size_t)p * FP_PAGE_SIZE, byte_of(p), &ns) == 0, "page %u",
		            p);
	for (uint32_t p = 0; p < FRESH_FEW; p++)
		trial_check(trial_write((char *)fresh + (size_t)p * FP_PAGE_SIZE, 1, &ns) == 0, "fresh %u",
		            p);
	trial_check(atomic_load(&s->ends) == 0, "it waited until others had waited enough");
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	for (unsigned i = 0; i < READERS; i++)
		pthread_join(threads[i], NULL);
	s->deadline_ns = s->patience_ns;
	check_pages(s, false);
	end(s);
	return 0;
}

static void test_what_needs_no_node_does_not_wait(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->patience_ns = 15 * FP_NSEC_PER_SEC;
	trial_run(body_needs_no_node, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_null(strstr(trial.text, "SIGBUS"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_what_needs_no_node_does_not_wait, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_keeps_clean_pages, setup, teardown),
	};
	int r = prepare(argc, argv, "linkbreaks_local");

	return r ? r : cmocka_run_group_tests_name("linkbreaks_local", tests, NULL, NULL);
}
