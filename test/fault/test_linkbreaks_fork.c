/*
 * Forks while a link is broken. A fork waits together with the pages that wait for the node, and
 * its child finds every byte. Room: test/fault.
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
#include "cleanup.h"
#include "clock.h"
#include "daemon.h"
#include "cable.h"
#include "testrng.h"
#include "trial.h"

static void *reset_later(void *arg)
{
	struct scene *s = arg;

	sleep_ns(2 * FP_NSEC_PER_SEC);
	test_cable_reset(s->cable);
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	return NULL;
}

/* ---- a fork while the link is broken ---- */

static void *plug_in_soon(void *arg)
{
	struct scene *s = arg;

	sleep_ns(700 * MS);
	test_cable_set(s->cable, TEST_CABLE_FORWARD);
	return NULL;
}

static int body_forks(void *arg)
{
	struct scene *s = arg;
	pthread_t helper;
	int status;
	pid_t pid;

	begin(s, 5 * FP_NSEC_PER_SEC);
	for (unsigned i = 0; i < 3; i++) {
		test_cable_set(s->cable, TEST_CABLE_CUT);
		while (state_now(s) == FP_BREAKER_CLOSED)
			sleep_ns(MS);
		pthread_create(&helper, NULL, plug_in_soon, s);
		fp_agent_fork_quiet(s->agent);
		fp_agent_fork_prepare(s->agent);
		pid = fork();
		if (pid == 0) {
			fp_agent_fork_child(s->agent);
			check_pages(s, false);
			_exit(0);
		}
		fp_agent_fork_parent(s->agent);
		trial_check(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x",
		            status);
		pthread_join(helper, NULL);
		check_pages(s, false);
	}
	end(s);
	return 0;
}

static void test_forks_while_it_is_cut_off(void **state)
{
	struct trial trial;

	trial_run(body_forks, *state, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
}

/* ---- a fork while pages wait ---- */

static void *read_remote_page(void *arg)
{
	struct scene *s = arg;
	uint32_t page = a_remote_page(s);
	uint64_t ns;
	char byte = 0;
	int signal = trial_read(s->far + (size_t)page * FP_PAGE_SIZE, &byte, &ns);

	trial_check(signal == 0 && byte == byte_of(page), "page %u: signal %d, reads %d", page, signal, byte);
	note_longest(s, ns);
	return NULL;
}

/*
 * Starts a thread that reads a remote page, and waits until the read waits: for the node, or, if
 * without_token, for a token first. Returns the number of tokens that it took away for that.
 */
static unsigned start_waiting_reader(struct scene *s, bool without_token, pthread_t *ret_reader)
{
	struct fp_budget *budget = &s->agent->far.budget;
	unsigned taken = 0;

	while (without_token && fp_budget_free(budget))
		taken += fp_budget_take(budget, LOCAL_PAGES);
	pthread_create(ret_reader, NULL, read_remote_page, s);
	while (
	    !(without_token ? atomic_load(&budget->n_waiting) > 0 : fp_store_is_blocked(s->agent->far.store)))
		sleep_ns(MS);
	return taken;
}

/* A fork does not give up faults that wait for the node. It waits with them. */
static int fork_while_a_page_waits(struct scene *s, bool without_token)
{
	struct fp_budget *budget;
	pthread_t reader, plugger;
	unsigned taken;
	int status;
	pid_t pid;

	begin(s, FP_NSEC_PER_SEC);
	budget = &s->agent->far.budget;
	/* none would come back during the cut */
	while (fp_budget_is_low(budget))
		sleep_ns(MS);
	test_cable_set(s->cable, TEST_CABLE_CUT);
	await_state(s, FP_BREAKER_OPEN, 10 * FP_NSEC_PER_SEC);
	taken = start_waiting_reader(s, without_token, &reader);
	pthread_create(&plugger, NULL, plug_in_later, s);
	fp_agent_fork_quiet(s->agent);
	pthread_join(reader, NULL); /* fork takes locks here, and the reader may hold one of them */
	fp_agent_fork_prepare(s->agent);
	pid = fork();
	if (pid == 0) {
		fp_agent_fork_child(s->agent);
		s->deadline_ns = s->patience_ns;
		check_pages(s, false);
		_exit(0);
	}
	fp_agent_fork_parent(s->agent);
	trial_check(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
	fp_budget_give(budget, taken);
	pthread_join(plugger, NULL);
	trial_check(atomic_load(&s->longest_ns) > 2 * s->deadline_ns, "the page has not waited");
	end(s);
	return 0;
}

static int body_forks_while_pages_wait(void *arg)
{
	return fork_while_a_page_waits(arg, false);
}

static int body_forks_while_tokens_lack(void *arg)
{
	return fork_while_a_page_waits(arg, true);
}

static void run_patiently(struct scene *s, int (*body)(void *arg))
{
	struct trial trial;

	s->patience_ns = 20 * FP_NSEC_PER_SEC;
	trial_run(body, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	assert_null(strstr(trial.text, "SIGBUS"));
}

static void test_forks_while_pages_wait(void **state)
{
	run_patiently(*state, body_forks_while_pages_wait);
}

static void test_forks_while_tokens_lack(void **state)
{
	run_patiently(*state, body_forks_while_tokens_lack);
}

/* ---- a fork during an attempt to resume ---- */

#define FRESH_PAGES 16384u
#define BEYOND_MAX  2048u /* a fork may always exceed the budget by so many pages */

static void *touch_fresh_pages(void *arg)
{
	struct scene *s = arg;
	char *fresh = s->fresh;
	uint64_t ns;

	for (uint32_t p = 0; p < FRESH_PAGES && !atomic_load(&s->stop); p++)
		trial_check(trial_write(fresh + (size_t)p * FP_PAGE_SIZE, 1, &ns) == 0, "page %u", p);
	return NULL;
}

/*
 * The fork waits until the attempt to resume the session is over. Meanwhile a thread that touches
 * memory waits for a token, as always.
 */
static int body_fork_overdraws(void *arg)
{
	struct scene *s = arg;
	pthread_t toucher, plugger;
	uint64_t peak;
	int status;
	void *fresh;
	pid_t pid;

	begin(s, 3 * FP_NSEC_PER_SEC);
	trial_check(fp_space_map(fp_agent_space(s->agent), (size_t)FRESH_PAGES * FP_PAGE_SIZE, 0,
	                         PROT_READ | PROT_WRITE, 0, &fresh) == 0,
	            "no mapping");
	s->fresh = fresh;
	test_cable_set(s->cable, TEST_CABLE_STALL); /* a stall refuses nothing, so an attempt takes long */
	await_state(s, FP_BREAKER_HALF_OPEN, 10 * FP_NSEC_PER_SEC);
	pthread_create(&toucher, NULL, touch_fresh_pages, s);
	pthread_create(&plugger, NULL, reset_later, s);
	fp_agent_fork_quiet(s->agent);
	fp_agent_fork_prepare(s->agent);
	pid = fork();
	if (pid == 0)
		_exit(0);
	fp_agent_fork_parent(s->agent);
	peak = atomic_load(&s->agent->far.budget.peak);
	fprintf(stderr, "%d pages at most\n", (int)peak);
	trial_check(waitpid(pid, &status, 0) == pid && status == 0, "the child ended with %x", status);
	pthread_join(plugger, NULL);
	atomic_store(&s->stop, true);
	pthread_join(toucher, NULL);
	trial_check(peak < LOCAL_PAGES + BEYOND_MAX, "%d pages are local", (int)peak);
	end(s);
	return 0;
}

static void test_a_fork_that_waits_overdraws_little(void **state)
{
	struct scene *s = *state;
	struct trial trial;

	s->patience_ns = 30 * FP_NSEC_PER_SEC;
	trial_run(body_fork_overdraws, s, TIMEOUT_S, &trial);
	trial_assert_good(&trial);
	print_message("%s", trial.text);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(test_a_fork_that_waits_overdraws_little, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_forks_while_pages_wait, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_forks_while_tokens_lack, setup, teardown),
	    cmocka_unit_test_setup_teardown(test_forks_while_it_is_cut_off, setup, teardown),
	};
	int r = prepare(argc, argv, "linkbreaks_fork");

	return r ? r : cmocka_run_group_tests_name("linkbreaks_fork", tests, NULL, NULL);
}
