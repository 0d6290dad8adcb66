/* The hold trial: a few threads are held together exactly while that is faster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "holdtrial.h"
#include "testrng.h"

#define US   1000ull
#define SLOW (6400 * US)
#define MANY 20000u

static uint64_t rng;

/* What a window takes. */
struct pace {
	uint64_t free_ns, held_ns;
	unsigned noise; /* one window of so many takes up to ten times as long; 0: none */
};

static uint64_t window_ns(const struct pace *pace, bool held)
{
	uint64_t ns = held ? pace->held_ns : pace->free_ns;

	return pace->noise && test_random(&rng) % pace->noise == 0 ? ns * (2 + test_random(&rng) % 9) : ns;
}

/* Runs many windows. Returns how many of them were held. */
static unsigned run(struct fp_hold_trial *trial, const struct pace *pace, unsigned n)
{
	bool held = trial->held;
	unsigned n_held = 0;

	for (unsigned i = 0; i < n; i++) {
		n_held += held;
		held = fp_hold_trial_window(trial, window_ns(pace, held), SLOW);
	}
	return n_held;
}

static void the_faster_way_is_kept(void **state)
{
	const struct pace fetch = {.free_ns = 2000 * US, .held_ns = 500 * US};
	const struct pace compute = {.free_ns = 1000 * US, .held_ns = 1800 * US};
	const struct pace equal = {.free_ns = 1000 * US, .held_ns = 900 * US};
	struct fp_hold_trial trial = {0};

	assert_true(run(&trial, &fetch, 16) >= 11);
	assert_true(run(&trial, &fetch, MANY) >= MANY - MANY / 100);
	trial = (struct fp_hold_trial){0};
	assert_true(run(&trial, &compute, MANY) <= MANY / 100);
	trial = (struct fp_hold_trial){0};
	assert_true(run(&trial, &equal, MANY) <= MANY / 100); /* a tenth is not worth it */
}

static void it_follows_the_program(void **state)
{
	const struct pace fetch = {.free_ns = 2000 * US, .held_ns = 500 * US};
	const struct pace compute = {.free_ns = 1000 * US, .held_ns = 1800 * US};
	struct fp_hold_trial trial = {0};

	run(&trial, &fetch, MANY);
	run(&trial, &compute, MANY); /* until the next trial at the latest */
	assert_true(run(&trial, &compute, MANY) <= MANY / 100);
	run(&trial, &fetch, MANY);
	assert_true(run(&trial, &fetch, MANY) >= MANY - MANY / 100);
}

static void disturbances_do_not_decide(void **state)
{
	const struct pace fetch = {.free_ns = 2000 * US, .held_ns = 500 * US, .noise = 5};
	const struct pace compute = {.free_ns = 500 * US, .held_ns = 900 * US, .noise = 5};
	struct fp_hold_trial trial = {0};

	/* slow windows in a row end the trial, so it is begun more often than without noise */
	assert_true(run(&trial, &fetch, MANY) >= MANY / 2);
	trial = (struct fp_hold_trial){0};
	assert_true(run(&trial, &compute, MANY) <= MANY / 10);
}

static void nothing_is_held_while_faults_are_seldom(void **state)
{
	const struct pace fetch = {.free_ns = 2000 * US, .held_ns = 500 * US};
	const struct pace seldom = {.free_ns = 2 * SLOW, .held_ns = 2 * SLOW};
	struct fp_hold_trial trial = {0};

	assert_int_equal(run(&trial, &seldom, MANY), 0);
	run(&trial, &fetch, 100);
	assert_true(trial.held);
	assert_true(run(&trial, &seldom, MANY) <= 2);
}

/* Threads that compute so much that faults count as seldom while they share one CPU. */
static void a_hold_that_makes_faults_seldom_is_not_repeated(void **state)
{
	const struct pace compute = {.free_ns = SLOW * 2 / 3, .held_ns = SLOW * 4 / 3};
	const struct pace fetch = {.free_ns = 2000 * US, .held_ns = 500 * US};
	struct fp_hold_trial trial = {0};

	assert_true(run(&trial, &compute, MANY) <= MANY / 100);
	run(&trial, &fetch, MANY); /* until the next trial at the latest */
	assert_true(run(&trial, &fetch, MANY) >= MANY - MANY / 100);
}

/* The time that the trials cost, beside the faster way alone. */
static void trials_of_a_far_slower_way_cost_little(void **state)
{
	const struct pace fetch = {.free_ns = 2500 * US, .held_ns = 250 * US};
	struct fp_hold_trial trial = {0};
	uint64_t all_ns = 0;

	run(&trial, &fetch, 16);
	assert_true(trial.held);
	for (unsigned i = 0; i < MANY; i++)
		all_ns += fp_hold_trial_window(&trial, window_ns(&fetch, trial.held), SLOW) ? fetch.held_ns
		                                                                            : fetch.free_ns;
	assert_true(all_ns < MANY * fetch.held_ns * 102 / 100);
}

/* One kind of work is faster free; then the program begins another, which is far faster held. */
static void other_work_is_noticed_soon(void **state)
{
	const struct pace one = {.free_ns = 900 * US, .held_ns = 1000 * US};
	const struct pace other = {.free_ns = 4500 * US, .held_ns = 1500 * US};
	struct fp_hold_trial trial = {0};

	for (unsigned i = 0; i < 10; i++) {
		run(&trial, &one, MANY + test_random(&rng) % 1000);
		run(&trial, &other, 40); /* a trial may be under way */
		assert_true(run(&trial, &other, 100) >= 99);
		run(&trial, &other, MANY);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_faster_way_is_kept),
	    cmocka_unit_test(it_follows_the_program),
	    cmocka_unit_test(disturbances_do_not_decide),
	    cmocka_unit_test(nothing_is_held_while_faults_are_seldom),
	    cmocka_unit_test(a_hold_that_makes_faults_seldom_is_not_repeated),
	    cmocka_unit_test(trials_of_a_far_slower_way_cost_little),
	    cmocka_unit_test(other_work_is_noticed_soon),
	};

	rng = test_seed("holdtrial");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
